# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane import topology
from rxlane.deciding.placer import Placer, Request
from unit import simhost


@pytest.mark.parametrize(
    ("cpus", "isolated", "realtime", "cpu0", "pool"),
    [
        (8, (), False, False, (1, 2, 3, 4, 5, 6, 7)),
        (8, (), True, False, (2, 3, 4, 5, 6, 7)),
        (8, (6, 7), True, False, (6, 7, 2, 3, 4, 5)),
        (4, (), True, False, (2, 3)),
        (3, (), True, False, (2,)),
        (2, (), True, False, ()),
        (4, (2, 3), True, False, (2, 3)),
        (1, (), False, False, ()),
    ],
)
def test_pool_of_exclusive_threads(
    cpus: int, isolated: tuple[int, ...], realtime: bool, cpu0: bool, pool: tuple[int, ...]
) -> None:
    host = simhost.topology(cpus, isolated=isolated)
    assert topology.pool(host, (), True, realtime, cpu0) == pool


def test_ordinary_threads_stay_off_isolated_cpus_and_cpu_0() -> None:
    host = simhost.topology(4, isolated=(3,))
    assert topology.pool(host, (), False, False, False) == (1, 2, 0)
    assert topology.pool(simhost.topology(1), (), False, False, False) == (0,)


@pytest.mark.parametrize("exclusive", [False, True])
def test_cpus_of_vcpus_are_nobodys_choice_while_there_are_others(exclusive: bool) -> None:
    host = simhost.topology(8, isolated=(6, 7))
    found = topology.pool(host, (4, 5, 6, 7), exclusive, False, False)
    assert sorted(found) == ([1, 2, 3] if exclusive else [0, 1, 2, 3])
    every = tuple(range(8))
    assert topology.pool(host, every, exclusive, False, False)


def test_pollers_take_a_cpu_each_near_ones_first() -> None:
    host = simhost.topology(8, nodes=2)
    placer = Placer(host)
    taken = [placer.take(Request(2, tuple(range(8)), 1, True)) for _ in range(8)]
    assert taken[:4] == [4, 5, 6, 7] and sorted(taken) == list(range(8))


def test_fair_threads_share_near_cpus_alone_on_their_core_first() -> None:
    host = simhost.topology(8, nodes=2, smt=2)
    placer = Placer(host)
    assert [placer.take(Request(2, tuple(range(8)), 1)) for _ in range(8)] == [
        4,
        6,
        5,
        7,
        4,
        6,
        5,
        7,
    ]
    # Beside a poller a fair thread would starve: then it leaves the node.
    placer = Placer(host)
    for cpu in (4, 6):
        placer.note(cpu, weight=1)
    assert placer.take(Request(2, tuple(range(8)), 1)) == 1


def test_a_thread_goes_to_its_interrupt_that_cannot_move() -> None:
    placer = Placer(simhost.topology(4))
    assert [placer.take(Request(2, (1, 2, 3), prefer=3)) for _ in range(2)] == [3, 3]
    assert placer.take(Request(2, (1, 2), prefer=3)) == 1
    placer.note(2, weight=1)
    assert placer.take(Request(2, (1, 2, 3), prefer=2)) == 1


@pytest.mark.parametrize(
    ("kinds", "capacities", "slow"),
    [
        ("", [None] * 4, ()),
        ("", [1024, 1009, 1024, 1009], ()),  # favoured cores of one kind
        ("", [446, 446, 1024, 1024], (0, 1)),
        ("", [250, 760, 760, 1024], (0, 1, 2)),
        ("", [1024, 1024, None, 600], (3,)),
        ("core core atom atom", [None] * 4, (2, 3)),
        ("core core atom atom", [1024, 700, 1024, 1024], (2, 3)),
        ("atom atom atom atom", [None] * 4, (0, 1, 2, 3)),
    ],
)
def test_efficiency_cores(kinds: str, capacities: list[int | None], slow: tuple[int, ...]) -> None:
    host = simhost.topology(4)
    told = zip(host.cpus, kinds.split() or [""] * 4, capacities, strict=True)
    cpus = tuple(replace(cpu, kind=kind, capacity=capacity) for cpu, kind, capacity in told)
    assert topology.efficient(replace(host, cpus=cpus)) == frozenset(slow)


def test_siblings() -> None:
    host = simhost.topology(8, smt=2)
    assert topology.siblings_among(host, {1, 2, 4}) is None
    assert topology.siblings_among(host, {1, 4, 5}) == (4, 5)


def test_unusable() -> None:
    host = simhost.topology(4, offline=(2,))
    assert topology.unusable(host, (1, 3)) is None
    assert topology.unusable(host, (1, 2)) == (2, "is offline")
    assert topology.unusable(host, (4,)) == (4, "does not exist")
