# SPDX-License-Identifier: GPL-2.0-or-later
"""Workqueue masks, timer migration and aRFS: the kernel's other work beside the lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import observe
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.items import WORKQUEUE, Value
from rxlane.model import Snapshot
from rxlane.plan import HOST, WHOLE, Target
from rxlane.policy import Given, parse
from rxlane.sections import Policy
from rxlane.settings import View
from rxlane.verify import verify
from unit import simhost
from unit.asking import asked, host, refusal
from unit.filetree import tree
from unit.simhost import MemoryStore, SimHost

ALL = {"workqueue_cpus": "auto", "timer_migration": "0"}


def mask(
    start: Snapshot, returning: Mapping[Target, Value] | None = None, /, **options: object
) -> object:
    given = asked(**({"workqueue_cpus": "auto"} | options))
    plan = decide(start, given, returning=returning or {})
    found = {c.target.item: c.after for c in (*plan.changes, *plan.holds)}
    return found.get("workqueue-cpus", [s.reason for s in plan.skips if "workqueue" in s.item])


def test_workers_leave_pollers_and_isolated_cpus() -> None:
    assert mask(host()) == "0-7"
    assert mask(host(), threaded="on", thread_cpus="4-7") == "0-7", "threads that sleep share"
    poll = {"threaded": "busy-poll@2-,on@0-1", "thread_cpus": "4-7"}
    assert mask(host(), **poll) == "0-5"
    rt = {"threaded": "on", "thread_cpus": "4-7", "thread_policy": "fifo", "thread_priority": "5"}
    assert mask(host(), **rt) == "0-3"
    assert mask(host(cpus=simhost.topology(8, isolated=[6]))) == "0-5,7"
    assert mask(host(), workqueue_cpus="1-2") == "1-2"


def test_siblings_of_pollers_idle_on_request() -> None:
    """Workers and RPS leave whole cores; without the option only the pollers' own CPUs."""
    start = host(cpus=simhost.topology(8, smt=2))
    poll = {"threaded": "busy-poll@2-3,off@0-1", "thread_cpus": "4,6", "rps": "numa-local"}
    for options, left in (({}, "0-3,5,7"), ({"smt_siblings": "idle"}, "0-3")):
        assert mask(start, **poll, **options) == left
        plan = decide(start, asked(**poll, **options))
        steered = {c.after for c in plan.changes if c.target.item == "rps-cpus"}
        assert steered == {left}
    assert mask(start, threaded="on", thread_cpus="4-7", smt_siblings="idle") == "0-7"


def test_siblings_do_not_idle_where_nothing_else_is_left() -> None:
    start = host(simhost.link(queues=1), cpus=simhost.topology(2, smt=2))
    poll = {"threaded": "busy-poll", "thread_cpus": "1", "smt_siblings": "idle"}
    assert mask(start, **poll) == "0"


def test_cpus_that_may_yet_come_stay_in_the_mask() -> None:
    start = replace(host(cpus=simhost.topology(4)), workqueue_cpus=tuple(range(16)))
    assert mask(start, threaded="busy-poll@3", thread_cpus="3") == "0-2,4-15"
    later = replace(start, workqueue_cpus=(0, 1, 2, *range(4, 16)))
    back = {Target(HOST, WHOLE, WORKQUEUE): "0-15"}
    assert mask(later, back) == "0-15", "a CPU that no poller has any more comes back"


def test_auto_adds_nothing_to_the_mask_that_was_found() -> None:
    """Such as the one of cpu-partitioning before the host was booted with isolated CPUs."""
    own = replace(host(), workqueue_cpus=(0, 1))
    assert mask(own) == "0-1"
    poll = {"threaded": "busy-poll@3", "workqueue_cpus": "auto"}
    sim, store = SimHost(own), MemoryStore()
    for cpu, left in (("1", (0,)), ("0", (1,)), ("7", (0, 1))):
        # For one device or all: what was found is told by the journal, not by the host.
        for scope in (["eth0"], None):
            apply(sim, store, asked(**poll, thread_cpus=cpu), scope)
            assert sim.workqueue_cpus == left
            assert apply(sim, store, asked(**poll, thread_cpus=cpu), scope).written == 0
    rollback(sim, store)
    assert sim.workqueue_cpus == (0, 1) and store.text is None


def test_a_mask_whose_cpus_are_all_taken_is_left_alone() -> None:
    own = replace(host(), workqueue_cpus=(2, 3))
    found = mask(own, threaded="busy-poll@2-3", thread_cpus="2-3")
    assert found == ["pollers, real-time threads and isolation leave none of its CPUs 2-3"]


def test_nothing_left_for_workers() -> None:
    start = host(simhost.link(queues=1), cpus=simhost.topology(1))
    found = mask(start, threaded="busy-poll", thread_cpus="0")
    assert found == ["pollers, real-time threads and isolation leave none of its CPUs 0"]


def test_kernel_without_them() -> None:
    bare = simhost.snapshot()
    kinds = {s.item: s.kind for s in decide(bare, asked(**ALL)).skips}
    assert kinds == {"kernel.timer_migration": "unsupported", "workqueue-cpus": "unsupported"}


def test_one_value_for_the_host() -> None:
    rows = [{"workqueue_cpus": "1"}, {"workqueue_cpus": "2"}]
    with pytest.raises(RxlaneError) as caught:
        decide(
            host(), parse(Given("irq_layout", n, (), o) for n, o in zip("ab", rows, strict=True))
        )
    assert caught.value.kind is Kind.OPTION
    assert "already" in str(caught.value) or "one value" in str(caught.value)
    assert "does not exist" in str(refusal(host(), workqueue_cpus="99"))


def test_they_come_back() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    done = apply(sim, store, asked(threaded="busy-poll@3", thread_cpus="5", **ALL))
    assert sim.workqueue_cpus == (0, 1, 2, 3, 4, 6, 7)
    assert sim.sysctls["kernel.timer_migration"] == 0
    assert verify(done.plan, sim.observe()) == ()
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


# -- isolated partitions ------------------------------------------------------------------------


def split(*isolated: int) -> SimHost:
    """Kernel workers may go everywhere, as far as an isolated partition of these CPUs lets them."""
    sim = SimHost(replace(host(), workqueue_requested=tuple(range(8))))
    sim.isolate(*isolated)
    return sim


POLL = {"threaded": "busy-poll@3", "thread_cpus": "3", "workqueue_cpus": "auto"}


def test_the_mask_asked_for_comes_back_once_the_partition_is_gone() -> None:
    sim, store = split(4, 5, 6, 7), MemoryStore()
    apply(sim, store, asked(**POLL))
    assert sim.workqueue_cpus == sim.workqueue_requested == (0, 1, 2)
    sim.isolate()
    assert rollback(sim, store).pending == ()
    assert sim.workqueue_requested == tuple(range(8)) and store.text is None


@pytest.mark.parametrize("before", [True, False])
def test_workers_do_not_come_back_into_a_partition(before: bool) -> None:
    """Writing cpumask takes no notice of partitions, and the rollback must not push them in."""
    for leave in ("rollback", "other policy", "failed apply"):
        sim, store = split(*range(4, 8) if before else ()), MemoryStore()
        if leave == "failed apply":
            sim.isolate(4, 5, 6, 7)
            sim.lie_at = 2  # timer_migration, just before the mask
            with pytest.raises(RxlaneError):
                apply(sim, store, asked(**POLL, timer_migration="0"))
            assert [line.split()[-1] for line in sim.log if "workq" in line] == ["0-2", "0-3"]
        else:
            apply(sim, store, asked(**POLL))
            sim.isolate(4, 5, 6, 7)
        if leave == "rollback":
            assert rollback(sim, store).pending == ()
        elif leave == "other policy":
            apply(sim, store, asked(timer_migration="0"))
            assert apply(sim, store, asked(timer_migration="0")).written == 0
        assert sim.workqueue_cpus == (0, 1, 2, 3), leave
        rollback(sim, store)
        assert sim.workqueue_cpus == (0, 1, 2, 3) and store.text is None


def test_a_mask_that_a_partition_made_smaller_is_as_planned() -> None:
    sim, store = split(), MemoryStore()
    done = apply(sim, store, asked(workqueue_cpus="0-5"))
    sim.isolate(4, 5, 6, 7)
    assert sim.workqueue_cpus == (0, 1, 2, 3)
    assert verify(done.plan, sim.observe()) == ()
    assert apply(sim, store, asked(workqueue_cpus="0-5")).written == 0


def test_a_mask_without_pollers_cpus_is_not_written_again() -> None:
    """It would be the one asked for, and stay when the partition ends."""
    sim = split(4, 5, 6, 7)
    assert apply(sim, MemoryStore(), asked(workqueue_cpus="auto")).written == 0
    assert sim.workqueue_requested == tuple(range(8))
    assert apply(sim, MemoryStore(), asked(workqueue_cpus="0-3")).written == 1
    assert sim.workqueue_requested == (0, 1, 2, 3)


def test_the_masks_are_read(tmp_path: Path) -> None:
    base = "sys/devices/virtual/workqueue/cpumask"
    sysfs = tree(tmp_path, {base: "0f\n"})
    start = replace(host(), topology=simhost.topology(8, isolated=[1], partitioned=[4, 5, 6, 7]))
    old = observe._with_workqueues(sysfs, start)
    assert (old.workqueue_cpus, old.workqueue_requested) == ((0, 1, 2, 3), None)
    assert old.workqueue_isolated == ()
    tree(tmp_path, {f"{base}_requested": "ff\n", f"{base}_isolated": "f2\n"})
    new = observe._with_workqueues(sysfs, start)
    assert (new.workqueue_cpus, new.workqueue_requested) == ((0, 1, 2, 3), tuple(range(8)))
    assert new.workqueue_isolated == (4, 5, 6, 7), "isolcpus= is no partition"
    target = Target(HOST, WHOLE, WORKQUEUE)
    assert (View.of(old).read(target), View.of(new).read(target)) == ("0-3", "0-7")


def test_management_queues_keep_interrupt_and_steering() -> None:
    options = {"threaded": "on", "irq_cpus": "auto", "rps": "1-2", "rfs": "auto"}
    plan = decide(host(), asked(management_queues=1, **options))
    changed = (*plan.changes, *plan.holds)
    assert {c.target.queue for c in changed if c.target.device} == {1, 2, 3}


def test_a_management_queue_reaches_its_cpu_too() -> None:
    """Eight queues for eight CPUs need no RPS, whether one is kept or not."""
    for kept in (0, 1):
        plan = decide(host(simhost.link(queues=8)), asked(management_queues=kept, rps="auto"))
        assert {c.after for c in plan.holds} == {"off"} and plan.changes == ()


# -- aRFS ---------------------------------------------------------------------------------------


def test_arfs_where_the_nic_filters() -> None:
    one = simhost.tuned(simhost.link(), ntuple=True)
    two = simhost.tuned(simhost.link("eth1", 4, ifindex=3, base=9000))
    sim, store = SimHost(host(one, two)), MemoryStore()
    before = simhost.settings(sim)
    done = apply(sim, store, asked(rfs="auto", arfs="on"))
    assert [str(s) for s in done.plan.skips] == [
        "eth1: rx-ntuple-filter unsupported: driver virtio_net has no filters to steer flows by"
    ]
    found = sim.links["eth0"].tunable("rx-ntuple-filter")
    assert found is not None and found.value == 1
    kinds = [line.split()[0] for line in sim.log]
    assert kinds == sorted(kinds, key=["tunables", "queue", "sysctl"].index)
    assert verify(done.plan, sim.observe()) == ()
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_arfs_that_resets_the_link_of_a_login_is_left_alone() -> None:
    wanted = asked(rfs="auto", arfs="on", threaded="on")

    def start(driver: str, *sessions: str) -> Snapshot:
        link = simhost.tuned(simhost.link(), ntuple=True)
        return replace(host(replace(link, driver=driver)), sessions=sessions)

    def filters(where: Snapshot, how: Policy = wanted) -> list[str]:
        return [c.disruption for c in decide(where, how).changes if c.target.item.endswith("er")]

    plan = decide(start("igb", "eth0"), wanted)
    assert [str(s) for s in plan.skips] == [
        "eth0: rx-ntuple-filter left-alone: arfs=on in [flow_steering]: somebody is logged in over"
        " this device, and driver igb resets the link for it;"
        " use `rxlane apply --confirm` or set allow_session_reset=1 in [napi]"
    ]
    assert filters(start("igb", "eth0")) == []
    assert filters(start("igb", "eth0"), replace(wanted, confirmed=True)) == ["link-reset"]
    free = asked(rfs="auto", arfs="on", threaded="on", allow_session_reset=1)
    assert filters(start("igb", "eth0"), free) == ["link-reset"]
    assert filters(start("igb", "eth7")) == ["link-reset"]
    assert filters(start("ice", "eth0")) == ["none"]
    hidden = decide(replace(start("igb"), hidden_logins=True), wanted)
    assert "over which device cannot be told from here" in str(hidden.skips[0])
    before = decide(start("igb", "eth0"), asked(rfs="auto", arfs="off"))
    assert before.skips == (), "what holds cuts nobody off"


def test_arfs_needs_rfs() -> None:
    for options in ({"arfs": "on"}, {"arfs": "on", "rfs": "off"}):
        with pytest.raises(RxlaneError) as caught:
            asked(**options)
        assert caught.value.kind is Kind.OPTION and "needs rfs" in str(caught.value)
    assert decide(host(), asked(arfs="off")).skips == ()
