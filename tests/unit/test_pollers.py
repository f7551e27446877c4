# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs that threads which never sleep have for good, and who must not be left with these alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.deciding.pollers import Pollers
from rxlane.errors import Kind
from unit import simhost, synthetic
from unit.asking import SECOND, asked, host, planned, refusal
from unit.simhost import MemoryStore, SimHost
from unit.taps import tap

POLL = {"threaded": "busy-poll@2-,off@0-1", "thread_cpus": "4-5"}
FIFO = {"thread_policy": "fifo", "thread_priority": "40"}
ROWS = st.lists(st.sets(st.integers(0, 4), min_size=1).map(lambda s: tuple(sorted(s))), max_size=5)


def ways(rows: list[tuple[int, ...]]) -> set[frozenset[int]]:
    """All sets of CPUs that the threads can have, each one or, if there is none left, none."""
    found = {frozenset[int]()}
    for row in rows:
        found |= {taken | {cpu} for taken in found for cpu in row if cpu not in taken}
    most = max(len(taken) for taken in found)
    return {taken for taken in found if len(taken) == most}


@given(ROWS)
def test_what_is_filled_is_so_whoever_moves(cpus: list[tuple[int, ...]]) -> None:
    """Compared with all ways to put as many as possible on CPUs."""
    pollers = Pollers(enumerate(cpus))
    assert pollers.filled() == frozenset.intersection(*ways(cpus))
    for at, own in enumerate(cpus):
        others = frozenset.intersection(*ways([*cpus[:at], *cpus[at + 1 :]]))
        key = next(one for one, _ in pollers._rows if one == at)
        assert bool(pollers.over(own, but=key)) == others.issuperset(own)


def test_who_is_in_the_way() -> None:
    pollers = Pollers([("a", (4, 5)), ("b", (4, 5)), ("c", (7,)), ("d", (1, 2)), ("e", (6, 7))])
    assert pollers.filled() == {4, 5, 6, 7}
    assert [name for name, _ in pollers.over((4, 5, 7))] == ["a", "b", "c", "e"]
    assert pollers.over((5, 3)) == [] == pollers.over((1, 2)) == pollers.over((4,), but="a")


def test_one_that_is_bound_fills_its_cpu_beside_others_that_are_not() -> None:
    pollers = Pollers([("bound", (2,)), ("wide", (2, 3, 4, 5))])
    assert pollers.filled() == {2} and len(pollers.over((2,))) == 2


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", ["one", "all"])
def test_threads_that_pollers_leave_no_cpu(spread: str) -> None:
    options = {**FIFO, "threaded": "busy-poll@0-1,on@2-3", "thread_cpus": "4-5"}
    error = refusal(host(), **options, thread_spread=spread)
    assert error.kind is Kind.REFUSED and error.option == "thread_cpus"
    where = {"one": "on CPU 4 a busy-polling thread", "all": "on CPUs 4-5 busy-polling threads"}
    assert where[spread] in str(error) and "no time to a thread of eth0 queue 2" in str(error)
    decide(host(), asked(**{**options, "thread_cpus": "4-6"}, thread_spread="all"))


def test_threads_of_other_devices_that_pollers_leave_no_cpu() -> None:
    low = SimHost(host(simhost.link(), SECOND))
    wide = {"threaded": "on", "thread_cpus": "4-5", "thread_spread": "all"}
    apply(low, MemoryStore(), asked("eth1", **wide))
    polling = {**FIFO, "threaded": "busy-poll@0-1", "thread_cpus": "4-5", "thread_spread": "all"}
    error = refusal(low.observe(), "eth0", **polling)
    assert error.device == "eth0" and "of eth1 queue 0" in str(error)


@pytest.mark.parametrize(
    ("option", "more"), [("workqueue_cpus", {}), ("vhost_cpus", {"tap_rps": "off"})]
)
def test_other_work_only_where_pollers_are(option: str, more: Mapping[str, str]) -> None:
    start = host(simhost.link(), tap())
    error = refusal(start, **POLL, **FIFO, **{option: "4-5"}, **more)
    assert error.kind is Kind.REFUSED and error.option == option
    assert "real-time busy-polling threads never leave CPUs 4-5" in str(error)
    some = decide(start, asked(**POLL, **FIFO, **{option: "3-4"}, **more))
    assert [w for w in some.warnings if "never leave CPU 4" in w and w.startswith(option)]
    fair = decide(start, asked(**POLL, **{option: "4-5"}, **more))
    assert not [w for w in fair.warnings if "never leave" in w]


def test_vhost_threads_of_auto_keep_off_pollers() -> None:
    start = host(simhost.link(), tap(count=1))
    found = planned(start, "vhost-cpus", **POLL, **FIFO, vhost_cpus="auto")
    assert found == {"tap0/vhost0": "0-3,6-7"}


@pytest.mark.parametrize(("cpus", "queues"), [(1, 1), (4, 4)])
def test_fair_pollers_that_go_first_everywhere(cpus: int, queues: int) -> None:
    start = host(simhost.link(queues=queues), cpus=simhost.topology(cpus))
    every = {"threaded": "busy-poll", "thread_cpus": f"0-{cpus - 1}"}
    error = refusal(start, **every, thread_nice="-20")
    assert error.option == "thread_nice" and "nice level -20" in str(error)
    assert decide(start, asked(**every, thread_nice="-9")).changes, "they share with all else"


# -- and no refusals ------------------------------------------------------------------------------


def test_rps_keeps_off_vcpus_and_pollers() -> None:
    start = replace(host(), vcpus=(2, 3, 6, 7))
    assert set(planned(start, "rps-cpus", rps="numa-local").values()) == {"0-1,4-5"}
    polled = planned(start, "rps-cpus", **POLL, **FIFO, rps="numa-local")
    assert set(polled.values()) == {"0-1"}
    full = replace(host(), vcpus=tuple(range(8)))
    assert set(planned(full, "rps-cpus", rps="numa-local").values()) == {"0-7"}


def test_a_management_queue_keeps_an_interrupt_that_others_share() -> None:
    link = {"name": "eth0", "driver": "be2net", "rx": 4, "irq": 40, "queues_a_napi": 2}
    start = synthetic.snapshot(
        {"kernel": "busy-poll", "cpus": [{"count": 8}], "links": [{**link, "irq_threaded": 0}]}
    )
    options = {"management_queues": "1", "irq_cpus": "auto", "irq_layout.threaded": "on"}
    plan = decide(start, asked(threaded="on", thread_cpus="auto", **options))
    touched = {c.target.queue for c in plan.changes if c.target.item.startswith("irq-")}
    assert touched == {2}
    why = [s.reason for s in plan.skips if s.queue == 1 and s.item == "irq-cpus"]
    assert why == ["IRQ 40 also serves management queue 0 and goes with that"]
