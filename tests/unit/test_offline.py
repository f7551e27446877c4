# SPDX-License-Identifier: GPL-2.0-or-later
"""A CPU that goes offline moves the lanes that were on it; one that comes back moves them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from rxlane import cpulist
from rxlane.decide import decide
from rxlane.deciding.whole import whole
from rxlane.errors import RxlaneError
from rxlane.model import Cpu, Snapshot, Topology
from rxlane.plan import Target
from rxlane.sections import Policy
from unit import simhost
from unit.asking import asked, caches, joined
from unit.goldens import asks, host


def without(start: Snapshot, *numbers: int) -> Snapshot:
    """The host as sysfs shows it then: an offline CPU has no core and no cache, only its node."""

    def seen(cpu: Cpu) -> Cpu:
        if cpu.number in numbers:
            return Cpu(cpu.number, False, node=cpu.node, siblings=(cpu.number,))
        return replace(cpu, siblings=tuple(n for n in cpu.siblings if n not in numbers))

    return replace(
        start, topology=replace(start.topology, cpus=tuple(map(seen, start.topology.cpus)))
    )


def wanted(start: Snapshot, policy: Policy) -> dict[Target, str]:
    plan = decide(start, policy)
    return {c.target: str(c.after) for c in (*plan.changes, *plan.holds)}


def cpus(value: str) -> set[int]:
    return set() if value == "off" else set(cpulist.parse(value))


def moved(before: dict[Target, str], after: dict[Target, str]) -> set[Target]:
    assert set(before) == set(after)
    return {target for target, value in before.items() if after[target] != value}


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "threaded": st.sampled_from(["on", "on@1-", "busy-poll@1", "busy-poll@0-1,on@2"]),
        "thread_cpus": st.sampled_from(["auto", "auto", "one-per-core", "spread-llc"]),
        "irq_cpus": st.sampled_from(["auto", "auto", "numa-local", "spread-llc"]),
        "rps": st.sampled_from(["auto", "numa-local", "off"]),
        "xps": st.sampled_from(["auto", "rxqs"]),
    },
)


@st.composite
def hosts(draw: st.DrawFn) -> Snapshot:
    """8 CPUs or some more, of which some may be isolated; up to three devices of 4 to 12 queues, of
    which TX queues may share the RX queues' interrupts.
    """
    count, smt = draw(st.sampled_from([8, 8, 8, 12, 16])), draw(st.sampled_from([1, 2]))
    isolated = range(draw(st.sampled_from([2, 4, count, count])), count)
    nodes = draw(st.sampled_from([1, 2]))
    topology = simhost.topology(count, nodes=nodes, smt=smt, isolated=isolated)
    links = [
        simhost.link(
            f"eth{n}",
            draw(st.integers(4, 12)),
            ifindex=n + 2,
            base=9000 + 500 * n,
            node=draw(st.sampled_from([None, 0, nodes - 1])),
        )
        for n in range(draw(st.integers(1, 3)))
    ]
    start = simhost.whole(simhost.snapshot(*links, cpus=caches(topology, 4)))
    if draw(st.booleans()):
        start = replace(start, links=tuple(map(joined, start.links)))
    return start


def rps_ended(target: Target, value: str) -> bool:
    """Where no more CPUs are left than queues, RPS is off on all of these."""
    return target.item == "rps-cpus" and value == "off"


def check_moves(
    start: Snapshot, before: dict[Target, str], after: dict[Target, str], gone: int
) -> None:
    """Only what was on the CPU moves, and what is in the way of a poller that was on it."""
    pollers = {
        (target.device, target.queue)
        for target, value in after.items()
        if target.item == "threaded" and value == "busy-poll"
    }
    entered: set[int] = set()
    for target in moved(before, after):
        if target.item == "thread-cpus" and (target.device, target.queue) in pollers:
            entered |= cpus(after[target])
    core = {n for c in start.topology.cpus if entered & {*c.siblings, c.number} for n in c.siblings}
    for target in moved(before, after):
        if rps_ended(target, after[target]) or rps_ended(target, before[target]):
            continue
        had, has = cpus(before[target]), cpus(after[target])
        assert had & {gone, *entered, *core}, f"{target}: {before[target]} -> {after[target]}"
        if len(had) > 1:
            left = had - {gone} - entered
            # Of those that stood in for others that were gone before, another may come.
            fits = not left or (left <= has and len(has) <= len(had))
            assert fits, f"{target}: {before[target]} -> {after[target]}"


@settings(max_examples=150, deadline=None)
@given(hosts(), OPTIONS, st.integers(0, 15))
def test_a_cpu_less_moves_what_was_on_it(
    start: Snapshot, options: dict[str, str], which: int
) -> None:
    gone = which % len(start.topology.cpus)
    policy = asked(**options)
    try:
        before, after = wanted(start, policy), wanted(without(start, gone), policy)
    except RxlaneError as error:
        assert error.kind.refused
        event(f"refused: {error.option}")
        assume(False)
        raise
    check_moves(start, before, after, gone)
    assert not any(gone in cpus(v) for t, v in after.items() if t.item.endswith("-cpus"))


@pytest.mark.parametrize("gone", range(8))
def test_the_recorded_host_where_13_others_moved(gone: int) -> None:
    """With CPU 1 away, 11 interrupts and 2 RPS masks that had other CPUs moved as well."""
    name = "recorded-8cpu-6.12-three-nics"
    start, policy = host(name), asks(name)
    check_moves(start, wanted(start, policy), wanted(without(start, gone), policy), gone)


@pytest.mark.parametrize("gone", range(20))
def test_a_core_less_of_a_hybrid_host(gone: int) -> None:
    name = "synthetic-20cpu-p-and-e-cores"
    start, policy = host(name), asks(name)
    check_moves(start, wanted(start, policy), wanted(without(start, gone), policy), gone)


@settings(max_examples=100, deadline=None)
@given(hosts(), OPTIONS, st.data())
def test_any_cpus_less(start: Snapshot, options: dict[str, str], data: st.DataObject) -> None:
    """Nothing goes to an offline CPU, and a queue that had CPUs for XPS still has some."""
    every = [cpu.number for cpu in start.topology.cpus]
    gone = data.draw(st.sets(st.sampled_from(every), min_size=1, max_size=len(every) - 1))
    policy = asked(**options)
    try:
        before, after = wanted(start, policy), wanted(without(start, *gone), policy)
    except RxlaneError as error:
        assert error.kind.refused
        assume(False)
        raise
    assert set(before) == set(after)
    for target, value in after.items():
        if target.item.endswith("-cpus"):
            assert not cpus(value) & gone
            same = bool(cpus(value)) == bool(cpus(before[target]))
            assert same or rps_ended(target, value), f"{target}: {value}"


def shape(cpu: Cpu) -> tuple[object, ...]:
    return cpu.siblings, cpu.llc


def is_fair(options: dict[str, str]) -> bool:
    polled = "busy-poll" in options.get("threaded", "")
    return not polled and options.get("thread_cpus") != "one-per-core"


FAIR = OPTIONS.filter(is_fair)


@settings(max_examples=150, deadline=None)
@given(hosts(), FAIR, st.data())
def test_one_cpu_more_that_goes_moves_what_was_on_it(
    start: Snapshot, options: dict[str, str], data: st.DataObject
) -> None:
    """Beside others that went before, in whatever order: lanes that found a place keep it.

    Pollers are not in it: two that lost their CPUs may both want the one that is free. Nor is one
    lane per core, where a core's second CPU is none to choose until the first goes, nor hosts of
    whose cores and caches too few are whole to guess the others.
    """
    every = [cpu.number for cpu in start.topology.cpus]
    gone = data.draw(st.lists(st.sampled_from(every), min_size=2, max_size=5, unique=True))
    for numbers in (gone[:-1], gone):
        told = whole(without(start, *numbers).topology).cpus
        assume([shape(cpu) for cpu in told] == [shape(cpu) for cpu in start.topology.cpus])
    policy = asked(**options)
    try:
        before = wanted(without(start, *gone[:-1]), policy)
        after = wanted(without(start, *gone), policy)
    except RxlaneError as error:
        assert error.kind.refused
        assume(False)
        raise
    check_moves(start, before, after, gone[-1])


def test_rps_ends_where_no_more_cpus_are_left_than_queues() -> None:
    """Such as on a host whose second threads are offline; one CPU less ends it nowhere."""
    start = simhost.whole(simhost.snapshot(simhost.link(queues=8), cpus=simhost.topology(16)))
    policy = asked(irq_cpus="auto", rps="auto")

    def on(*gone: int) -> list[bool]:
        after = wanted(without(start, *gone), policy)
        return [value != "off" for target, value in after.items() if target.item == "rps-cpus"]

    assert on() == on(5) == [True] * 8
    assert on(*range(8, 16)) == [False] * 8


@pytest.mark.parametrize("numbers", [range(8, 16), range(0, 16, 2), range(4, 12), (0, 1, 2, 14)])
def test_lanes_of_many_cpus_go_to_different_ones(numbers: Sequence[int]) -> None:
    start = simhost.whole(simhost.snapshot(simhost.link(queues=16), cpus=simhost.topology(16)))
    after = wanted(without(start, *numbers), asked(irq_cpus="auto"))
    most = max(Counter(after.values()).values())
    assert most == -(-16 // (16 - len(numbers)))


NODES = simhost.topology(64, nodes=8)
ISOLATED = simhost.topology(64, isolated=range(4, 64))


def loads(after: dict[Target, str]) -> Counter[int]:
    """How many lanes' interrupts each CPU has."""
    return Counter(int(cpus) for target, cpus in after.items() if target.item == "irq-cpus")


def test_two_cpus_less_spread_evenly() -> None:
    start = simhost.whole(simhost.snapshot(simhost.link(queues=16)))
    after = wanted(without(start, 3, 6), asked(irq_cpus="auto"))
    loads = [list(after.values()).count(str(n)) for n in (0, 1, 2, 4, 5, 7)]
    assert sorted(loads) == [2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("options", [{"threaded": "on"}, {"threaded": "on@1-2,5,9-"}, {}])
@pytest.mark.parametrize("queues", [7, 32, 45])
@pytest.mark.parametrize("topology", [NODES, ISOLATED], ids=["8-nodes", "isolated"])
def test_lanes_of_one_cpu_are_shared_out_evenly(
    topology: Topology, queues: int, options: dict[str, str]
) -> None:
    """The housekeeping CPUs of the node were a part of those along which they looked for others, so
    that one of them got all: 16 of 32, and two others 8.
    """
    start = simhost.whole(simhost.snapshot(simhost.link(queues=queues, node=0), cpus=topology))
    policy = asked(irq_cpus="auto", **options, **({"thread_cpus": "auto"} if options else {}))
    every = [n for n in topology.housekeeping if topology.cpus[n].node == 0]
    whole_loads = loads(wanted(start, policy))
    for gone in every:
        found = loads(wanted(without(start, gone), policy))
        more = [found[n] - whole_loads[n] for n in every if n != gone]
        assert sum(more) == whole_loads[gone] and max(more) - min(more) <= 1, f"{gone}: {more}"


def test_lanes_of_many_cpus_are_shared_out_evenly() -> None:
    """Where the second threads are offline, most of a host's others are so as well."""
    isolated = (*range(4, 16), *range(20, 32))
    cpus = simhost.topology(32, isolated=isolated)
    start = simhost.whole(simhost.snapshot(simhost.link(queues=64), cpus=cpus))
    after = wanted(without(start, *range(16, 32)), asked(irq_cpus="auto"))
    assert loads(after) == dict.fromkeys(range(4), 16)


# -- guessing what sysfs does not tell ------------------------------------------------------------


def guessed(topology: Topology, *numbers: int) -> Topology:
    start = replace(simhost.snapshot(), topology=topology)
    return whole(without(start, *numbers).topology)


@pytest.mark.parametrize("numbers", [(1,), (6,), (0, 5), (2, 3), (1, 2), (2, 5), (3, 5), (0, 2, 3)])
@pytest.mark.parametrize("smt", [1, 2])
@pytest.mark.parametrize("step", [1, 4])
def test_cores_are_guessed_from_the_others(numbers: tuple[int, ...], smt: int, step: int) -> None:
    topology = simhost.topology(8, smt=smt)
    if step == 4 and smt == 2:
        rows = (replace(c, siblings=(c.number % 4, c.number % 4 + 4)) for c in topology.cpus)
        topology = replace(topology, cpus=tuple(rows))
    found = guessed(topology, *numbers)
    assert [c.siblings for c in found.cpus] == [c.siblings for c in topology.cpus]
    assert found.online == tuple(range(8))


def test_caches_are_guessed_from_the_neighbours() -> None:
    topology = caches(simhost.topology(16), 4)
    assert [c.llc for c in guessed(topology, 4, 7, 13).cpus] == [c.llc for c in topology.cpus]


@pytest.mark.parametrize("gone", range(20))
def test_kinds_are_guessed_from_the_like(gone: int) -> None:
    start = host("synthetic-20cpu-p-and-e-cores")
    found = whole(without(start, gone).topology)
    assert [(c.kind, c.siblings) for c in found.cpus] == [
        (c.kind, c.siblings) for c in start.topology.cpus
    ]


def test_a_host_that_is_whole_stays_itself() -> None:
    topology = simhost.topology(8)
    assert whole(topology) is topology
