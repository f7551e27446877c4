# SPDX-License-Identifier: GPL-2.0-or-later
"""rx threads: options, planned, refused, applied, kept, brought back, read and shown."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import (
    codec,
    helpers,
    linkfile,
    linkkeys,
    mapjson,
    policy,
    processors,
    rates,
    separation,
    stages,
    table,
    threads,
    uapi,
)
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.events import Event
from rxlane.items import RFS, RPS, RX_THREADS, SEPARATION_ITEMS
from rxlane.journal import Store
from rxlane.kernel import Linux
from rxlane.model import Handled, Helper, IrqThread, Link, Snapshot, Thread
from rxlane.plan import WHOLE, Plan, Target, phases
from rxlane.policy import Given, parse
from rxlane.revert import revert
from rxlane.rollback import rollback
from rxlane.sections import THREADS_AUTO, FlowSteering, Policy
from rxlane.settings import View
from rxlane.steering import SEPARATED
from rxlane.svg import render
from rxlane.sysfs import Sysfs
from rxlane.verify import NO_HELPER, verify
from unit import simhost
from unit.simhost import MemoryStore, SimHost
from unit.simwrites import Killed
from unit.test_converge import UP, Bench
from unit.test_observe import tree
from unit.test_threads import stat_line


def host(
    threads: int = 0, cpus: int = 8, nodes: int = 1, isolated: tuple[int, ...] = ()
) -> Snapshot:
    """A NIC of two queues, whose interrupts are taken on CPU 0, on a kernel with rx threads."""
    topology = simhost.topology(cpus, nodes=nodes, isolated=isolated)
    found = simhost.whole(simhost.snapshot(simhost.link(queues=2), cpus=topology))
    return replace(found, links=(simhost.separable(found.links[0], threads),))


def steered(start: Snapshot, rps: tuple[int, ...] = (1, 2), flows: int = 0) -> Snapshot:
    """The host with RPS, or RFS, on every queue."""

    def on(link: Link) -> Link:
        queues = (
            replace(q, rps_cpus=rps, rps_flow_cnt=flows) if q.kind == "rx" else q
            for q in link.queues
        )
        return replace(link, queues=tuple(queues))

    return replace(start, links=tuple(on(link) for link in start.links))


def asked(**options: str) -> Policy:
    return parse([Given("flow_steering", "flows", (), options)])


def planned(plan: Plan) -> dict[str, object]:
    return {str(c.target): c.after for c in (*plan.changes, *plan.holds)}


def cpus_of(plan: Plan, device: str = "eth0") -> list[object]:
    own = planned(plan)
    names = (f"{device}/rx-thread{n}/rx-thread-cpus" for n in range(64))
    return [own[name] for name in names if name in own]


# -- options ----------------------------------------------------------------------------------


def section(**options: str) -> FlowSteering:
    return policy.parse_steering("flows", [], options)


def test_the_grammar() -> None:
    assert section(rx_threads="auto").rx_threads == THREADS_AUTO
    assert section(rx_threads="off").rx_threads == 0 and section(rx_threads="4").rx_threads == 4
    assert section(rx_threads="").rx_threads is None and not section(rx_threads="").separates
    assert section(rx_thread_cpus="2,4-5").rx_cpus == (2, 4, 5)
    assert section(rx_thread_cpus="one-per-core").rx_placement == "one-per-core"
    kernel = section(rx_thread_cpus="kernel")
    assert (kernel.rx_cpus, kernel.rx_kernel, kernel.separates) == (None, True, True)
    assert section(rx_thread_policy="fifo", rx_thread_priority="20").rx_sched == "fifo:20"
    assert section(rx_thread_nice="-5").rx_sched == "other:-5"
    assert section(rx_threads="off", rps="auto", rfs="auto").rx_threads == 0


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({"rx_threads": "0"}, "rx_threads", "out of range"),
        ({"rx_threads": "many"}, "rx_threads", "no whole number"),
        ({"rx_thread_cpus": "x"}, "rx_thread_cpus", "kernel or a CPU list"),
        ({"rx_thread_policy": "best"}, "rx_thread_policy", "other, batch, idle, fifo, rr"),
        ({"rx_thread_policy": "fifo"}, "rx_thread_policy", "set rx_thread_priority to 1..98"),
        ({"rx_thread_priority": "9"}, "rx_thread_priority", "set rx_thread_policy to fifo or rr"),
        ({"rx_thread_priority": "99"}, "rx_thread_priority", "give 1..98"),
        ({"rx_thread_nice": "20"}, "rx_thread_nice", "give -20..19"),
        ({"rx_thread_policy": "idle", "rx_thread_nice": "1"}, "rx_thread_nice", "no meaning"),
        ({"rx_threads": "2", "rps": "1-3"}, "rx_threads", "excludes rps=1-3"),
        ({"rx_threads": "auto", "rps": "auto"}, "rx_threads", "set rps=off, or rx_threads=off"),
        ({"rx_threads": "2", "rfs": "512"}, "rx_threads", "excludes rfs=512"),
    ],
)
def test_what_cannot_be_understood(options: dict[str, str], option: str, words: str) -> None:
    with pytest.raises(RxlaneError) as raised:
        section(**options)
    assert (raised.value.kind, raised.value.option) == (Kind.OPTION, option)
    assert words in str(raised.value) and str(raised.value).startswith(f"[flows] {option}=")


def test_properties_of_link_files() -> None:
    given = {"NAPI_RX_THREADS": "4", "NAPI_RX_THREAD_CPUS": "auto", "NAPI_RX_THREAD_NICE": "5"}
    found, errors = linkkeys.sections("eth0", given, lambda name: "file")
    assert errors == () and found[0].options == {
        "rx_threads": "4",
        "rx_thread_cpus": "auto",
        "rx_thread_nice": "5",
    }
    _, errors = linkkeys.sections("eth0", given | {"NAPI_RPS": "1"}, lambda name: "file")
    assert "NAPI_RX_THREADS=4" in str(errors[0])


# -- planning ---------------------------------------------------------------------------------


def test_auto_takes_the_cpus_beside_the_interrupts() -> None:
    plan = decide(host(), asked(rx_threads="auto", rx_thread_cpus="auto"))
    found = planned(plan)
    assert found["eth0/all/rx-threads"] == 7, "CPU 0 has the interrupts"
    assert sorted(map(int, map(str, cpus_of(plan)))) == [1, 2, 3, 4, 5, 6, 7]
    (change,) = [c for c in plan.changes if c.target.item == RX_THREADS]
    assert (change.before, change.disruption) == (0, "none")
    assert change.reason.startswith("rx_threads=auto in [flows]: CPUs 1-7 are free of its")
    assert "RPS has one for each CPU that all devices fill" in change.reason


def test_planned_interrupts_and_pollers_count() -> None:
    rows = [
        Given("napi", "napi", (), {"threaded": "on", "thread_cpus": "2,3"}),
        Given("irq_layout", "irqs", (), {"irq_cpus": "auto"}),
        Given("flow_steering", "flows", (), {"rx_threads": "auto", "rx_thread_cpus": "auto"}),
    ]
    plan = decide(host(), parse(rows))
    assert planned(plan)["eth0/all/rx-threads"] == 6
    assert not {"2", "3"} & set(cpus_of(plan))


def test_the_poller_of_queues_that_share_a_napi_counts_where_it_goes() -> None:
    """On the first apply as on the second: it has been there only once it was moved."""
    start = host()
    link = start.links[0]
    queues = tuple(replace(q, napi_id=8193) if q.kind == "rx" else q for q in link.queues)
    apart = replace(link, queues=queues, napis=link.napis[:1])
    sim, store = SimHost(replace(start, links=(apart,))), MemoryStore()
    rows = [
        Given("napi", "napi", (), {"threaded": "on", "thread_cpus": "3"}),
        Given("napi", "before", (), {"threaded": "on", "thread_cpus": "5"}),
        Given("flow_steering", "flows", (), {"rx_threads": "auto"}),
    ]
    apply(sim, store, parse(rows[:1]))
    plan = apply(sim, store, parse(rows[1:])).plan
    reasons = [c.reason for c in plan.changes if c.target.item == RX_THREADS]
    assert "CPUs 1-4,6-7 are free" in reasons[0]
    assert apply(sim, store, parse(rows[1:])).written == 0


def test_devices_share_the_cpus() -> None:
    start = host()
    more = (replace(start.links[0], name=f"eth{n}", ifindex=2 + n, napis=()) for n in range(4))
    start = replace(start, links=tuple(more), irqs=())
    plan = decide(start, asked(rx_threads="auto", rx_thread_cpus="auto"))
    found = planned(plan)
    assert [found[f"eth{n}/all/rx-threads"] for n in range(4)] == [4, 4, 4, 4]
    every = [cpu for n in range(4) for cpu in cpus_of(plan, f"eth{n}")]
    assert {every.count(str(n)) for n in range(8)} == {2}


def test_a_large_host_has_sixteen_near_the_device() -> None:
    start = host(cpus=128, nodes=2)
    start = replace(start, links=(replace(start.links[0], node=1),))
    plan = decide(start, asked(rx_threads="auto", rx_thread_cpus="auto"))
    own = [int(str(cpu)) for cpu in cpus_of(plan)]
    assert len(own) == separation.MOST and all(64 <= cpu < 128 for cpu in own)


def test_a_list_says_how_many_and_is_gone_round() -> None:
    plan = decide(host(), asked(rx_threads="auto", rx_thread_cpus="2,5"))
    assert planned(plan)["eth0/all/rx-threads"] == 2 and cpus_of(plan) == ["2", "5"]
    plan = decide(host(), asked(rx_threads="3", rx_thread_cpus="2,5", rx_thread_nice="-5"))
    assert cpus_of(plan) == ["2", "5", "2"]
    assert planned(plan)["eth0/rx-thread2/rx-thread-sched"] == "other:-5"


def test_real_time_threads_that_the_kernel_places_could_be_anywhere() -> None:
    """Also those that are there: at CPU hotplug it chooses again."""
    with pytest.raises(RxlaneError, match="CPU 0, which carries the kernel's own work"):
        decide(host(1), asked(rx_thread_policy="fifo", rx_thread_priority="20"))
    start = host(1)
    mine = replace(start.links[0].helpers[0], reserved=None, thread=Thread(7, "", "rr", 1, 0, (5,)))
    start = replace(start, links=(replace(start.links[0], helpers=(mine,)),))
    assert decide(start, asked(rx_thread_policy="fifo", rx_thread_priority="20")).changes


def test_without_cpus_the_kernel_chooses() -> None:
    assert planned(decide(host(), asked(rx_threads="2"))) == {
        "eth0/all/rx-threads": 2,
        **{f"eth0/rx{n}/{item}": off for n in (0, 1) for item, off in ((RPS, "off"), (RFS, 0))},
    }
    own = asked(rx_threads="2", rx_thread_cpus="kernel")
    assert cpus_of(decide(host(2), own)) == ["kernel", "kernel"]
    assert decide(host(2), own).changes == ()


def test_one_cpu_is_the_kernels_choice() -> None:
    """A thread that may run on every CPU is one whose CPU the kernel chooses."""
    plan = decide(host(cpus=1), asked(rx_threads="auto", rx_thread_cpus="auto"))
    assert planned(plan)["eth0/all/rx-threads"] == 1 and cpus_of(plan) == ["kernel"]


def test_an_old_kernel_is_one_line_and_off_is_none() -> None:
    start = simhost.whole(simhost.snapshot())
    plan = decide(start, asked(rx_threads="4", rx_thread_nice="3"))
    assert plan.changes == ()
    assert [str(s) for s in plan.skips] == [
        "eth0: rx-threads unsupported: kernel has no rx_threads"
    ]
    assert decide(start, asked(rx_threads="off")).skips == ()


def test_threads_that_are_there_are_placed() -> None:
    plan = decide(host(2), asked(rx_thread_cpus="4-5", rx_thread_policy="batch"))
    assert planned(plan) == {
        "eth0/rx-thread0/rx-thread-cpus": "4",
        "eth0/rx-thread0/rx-thread-sched": "batch:0",
        "eth0/rx-thread1/rx-thread-cpus": "5",
        "eth0/rx-thread1/rx-thread-sched": "batch:0",
    }
    (skip,) = decide(host(0), asked(rx_thread_nice="3")).skips
    assert skip.kind == "left-alone" and "no rx threads" in skip.reason


def test_more_threads_than_cpus() -> None:
    with pytest.raises(RxlaneError) as raised:
        decide(host(), asked(rx_threads="9"))
    assert raised.value.kind is Kind.REFUSED and raised.value.option == "rx_threads"
    assert str(raised.value) == (
        "[flows] rx_threads=9 eth0: 9 threads for 8 online CPUs, and the kernel takes no more;"
        " give 1..8 or auto"
    )


def test_cpus_that_are_not_there() -> None:
    with pytest.raises(RxlaneError, match="CPU 64 does not exist") as raised:
        decide(host(), asked(rx_threads="2", rx_thread_cpus="64"))
    assert raised.value.option == "rx_thread_cpus"


FIFO = {"rx_threads": "2", "rx_thread_policy": "fifo", "rx_thread_priority": "20"}


@pytest.mark.parametrize(
    ("start", "options", "option", "words"),
    [
        (host(cpus=2), {}, "rx_thread_policy", "rx_thread_policy=other with rx_thread_nice"),
        (host(), {"rx_thread_cpus": "0-1"}, "rx_thread_policy", "set rx_allow_realtime_cpu0=1"),
        (host(cpus=3), {"rx_thread_cpus": "1-2"}, "rx_thread_policy", "would leave only CPU 0"),
        (host(), {}, "rx_thread_policy", "set rx_thread_cpus to auto or to the CPUs that"),
        (
            host(cpus=4, isolated=(1, 2, 3)),
            {"rx_thread_cpus": "0", "rx_allow_realtime_cpu0": "1"},
            "rx_thread_policy",
            "the last housekeeping CPU",
        ),
        (
            replace(host(), irq_threads=(IrqThread(99, (4,)),)),
            {"rx_thread_cpus": "3-4", "rx_thread_priority": "50"},
            "rx_thread_priority",
            "eth0: rx thread 1: priority 50 on CPU 4 would hold up the thread of IRQ 99",
        ),
        (
            replace(host(), unreserved=(3,)),
            {"rx_thread_cpus": "3-4"},
            "rx_thread_policy",
            "nothing keeps time for other tasks on CPU 3",
        ),
    ],
)
def test_real_time_threads_are_refused_as_others_are(
    start: Snapshot, options: dict[str, str], option: str, words: str
) -> None:
    with pytest.raises(RxlaneError) as raised:
        decide(start, asked(**(FIFO | options)))
    assert (raised.value.kind, raised.value.option) == (Kind.REFUSED, option)
    assert words in str(raised.value) and "eth0: rx thread " in str(raised.value)


def test_real_time_threads_of_all_kinds_count_together() -> None:
    rows = [
        Given("napi", "napi", (), {"threaded": "on", "thread_cpus": "1-2", **realtime()}),
        Given("flow_steering", "flows", (), {**FIFO, "rx_thread_cpus": "3-4"}),
    ]
    assert decide(host(cpus=8), parse(rows)).changes
    with pytest.raises(RxlaneError, match="would leave only CPU 0"):
        decide(host(cpus=5), parse(rows))


def realtime() -> dict[str, str]:
    return {"thread_policy": "fifo", "thread_priority": "20"}


# -- RPS and RFS beside it --------------------------------------------------------------------


def test_rps_and_rfs_go_first_and_come_back_last() -> None:
    start = steered(host(), flows=256)
    plan = decide(start, asked(rx_threads="2", rx_thread_nice="1"))
    sim, store = SimHost(start), MemoryStore()
    before = simhost.settings(sim)
    done = apply(sim, store, asked(rx_threads="2", rx_thread_nice="1"))
    assert {str(c.target): c.after for c in plan.changes} == {
        str(c.target): c.after for c in done.plan.changes
    }
    assert [line.split()[0] for line in sim.log] == ["queue", "queue", "device", "thread", "thread"]
    (reason,) = {c.reason for c in plan.changes if c.target.item == RFS}
    assert reason == f"rx_threads=2 in [flows]: {separation.ONE_OF_BOTH}"
    sim.log.clear()
    assert rollback(sim, store).pending == ()
    assert [line.split()[0] for line in sim.log] == ["thread", "thread", "device", "queue", "queue"]
    assert simhost.settings(sim) == before


def test_the_revert_has_that_order_too() -> None:
    start = steered(host())
    back = revert(decide(start, asked(rx_threads="2")), start)
    assert [c.target.item for c in back.changes] == [RX_THREADS, RPS, RPS]
    threads, rps = Target("eth0", WHOLE, RX_THREADS), Target("eth0", 0, RPS)
    assert phases({rps: "off", threads: 2}) == [[rps], [threads]]
    assert phases({rps: "1-2", threads: 0}) == [[threads], [rps]]


def test_management_queues_are_the_devices_too() -> None:
    rows = [
        Given("napi", "napi", (), {"management_queues": "1"}),
        Given("flow_steering", "flows", (), {"rx_threads": "2", "rps": "off"}),
    ]
    plan = decide(steered(host()), parse(rows))
    assert [str(c.target) for c in plan.changes if c.target.item == RPS] == [
        "eth0/rx1/rps-cpus",
        "eth0/rx0/rps-cpus",
    ]
    assert "management queue 0 receives goes to them too" in plan.warnings[0]


@pytest.mark.parametrize("options", [{"rps": "1-3"}, {"rfs": "512"}, {"rps": "auto"}])
def test_rps_and_rfs_leave_a_device_with_rx_threads_alone(options: dict[str, str]) -> None:
    plan = decide(host(2), asked(**options))
    assert not [c for c in plan.changes if c.target.device == "eth0"]
    assert [(s.kind, s.reason) for s in plan.skips] == [("left-alone", SEPARATED)]
    assert decide(host(2), asked(rps="off")).skips == ()


def test_rps_in_their_place() -> None:
    sim, store = SimHost(host(2)), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, asked(rx_threads="off", rps="1-3"))
    assert sim.links["eth0"].rx_threads == 0 and sim.links["eth0"].queues[0].rps_cpus == (1, 2, 3)
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_from_one_to_the_other_and_back() -> None:
    """Each apply takes back what the one before it wanted, in the order that the kernel takes."""
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    for options in ({"rps": "1-3"}, {"rx_threads": "2"}, {"rps": "2", "rfs": "512"}):
        apply(sim, store, asked(**options))
        link = sim.links["eth0"]
        assert bool(link.rx_threads) == ("rx_threads" in options)
        assert bool(link.queues[0].rps_cpus) == ("rps" in options)
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


@pytest.mark.parametrize("rps", [{}, {"rps": "1-3"}])
def test_threads_that_come_back_have_the_device(rps: dict[str, str]) -> None:
    """They were there before rxlane, and nobody asks for their end any more."""
    sim, store = SimHost(host(1)), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, asked(rx_threads="off", **rps))
    done = apply(sim, store, asked(rps="1-3"))
    assert simhost.settings(sim) == before
    assert [s.reason for s in done.plan.skips] == [SEPARATED]
    assert rollback(sim, store).pending == () and simhost.settings(sim) == before


def test_a_tap_with_rx_threads_has_no_rps() -> None:
    start = host(1)
    start = replace(start, links=(replace(start.links[0], tap=True, physical=False),))
    plan = decide(start, asked(tap_rps="1-2"))
    assert plan.changes == () and "rx threads exclude it" in str(plan.skips[0])


# -- applying ---------------------------------------------------------------------------------

ALL = {"rx_threads": "3", "rx_thread_cpus": "auto", "rx_thread_nice": "-5"}


def test_apply_verify_and_back() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    done = apply(sim, store, asked(**ALL))
    assert verify(done.plan, sim.observe()) == ()
    assert {h.thread.sched for h in sim.links["eth0"].helpers if h.thread} == {"other:-5"}
    count = sim.writes
    assert apply(sim, store, asked(**ALL)).written == 0 and sim.writes == count
    assert rollback(sim, store).pending == () and simhost.settings(sim) == before


def test_threads_that_were_there_get_theirs_back() -> None:
    start = host(2)
    first = start.links[0].helpers[0]
    own = Thread(77, "rx0/eth0", "rr", 7, 0, (6,))
    start = replace(
        start,
        links=(
            replace(
                start.links[0],
                helpers=(replace(first, thread=own, reserved=None), start.links[0].helpers[1]),
            ),
        ),
    )
    for count in ("1", "2", "4", "off"):
        sim, store = SimHost(start), MemoryStore()
        before = simhost.settings(sim)
        apply(sim, store, asked(**(ALL | {"rx_threads": count})))
        rollback(sim, store)
        assert simhost.settings(sim) == before, count


def test_fewer_threads_leave_nothing_to_the_next() -> None:
    """What a thread was given it gets back before it ends: the kernel gives it to the next one."""
    sim, store = SimHost(host()), MemoryStore()
    apply(sim, store, asked(**(ALL | {"rx_threads": "4"})))
    apply(sim, store, asked(**(ALL | {"rx_threads": "2"})))
    assert simhost.settings(sim)["eth0/rx-thread3"] == ("kernel", "other:0")
    rollback(sim, store)
    assert simhost.settings(sim)["eth0/rx-thread0"] == ("kernel", "other:0")


@pytest.mark.parametrize("at", range(8))
def test_a_failure_undoes_it_all(at: int) -> None:
    sim, store = SimHost(steered(host())), MemoryStore()
    before = simhost.settings(sim)
    sim.fail_at = at
    with pytest.raises(RxlaneError):
        apply(sim, store, asked(**ALL))
        sim.fail_at = None
        raise RxlaneError(Kind.KERNEL, "there were fewer writes")
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


@pytest.mark.parametrize("at", range(6))
def test_killed_at_any_write(at: int) -> None:
    sim, store = SimHost(steered(host())), MemoryStore()
    before = simhost.settings(sim)
    sim.kill_at = at
    with pytest.raises(Killed):
        apply(sim, store, asked(**ALL))
    sim.kill_at = None
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_what_the_kernel_ignores_fails_and_names_the_thread() -> None:
    sim = SimHost(host())
    sim.lie_at = 1
    with pytest.raises(RxlaneError, match="eth0: rx thread 0: rx-thread-cpus was set to . and"):
        apply(sim, MemoryStore(), asked(rx_threads="2", rx_thread_cpus="auto"))
    assert sim.links["eth0"].rx_threads == 0


def test_drift_is_seen() -> None:
    sim = SimHost(host())
    done = apply(sim, MemoryStore(), asked(**ALL))
    sim.write_device(sim.links["eth0"], {"rx-threads": 2})
    found = {str(m.target): (m.found, m.cause) for m in verify(done.plan, sim.observe())}
    assert found["eth0/all/rx-threads"][0] == 2
    assert found["eth0/rx-thread2/rx-thread-cpus"] == (None, NO_HELPER)


def test_channels_lose_none_of_it() -> None:
    """Fewer queues than threads: these are of the device, and stay."""
    start = host()
    start = replace(start, links=(simhost.tuned(start.links[0]),))
    sim, store = SimHost(start), MemoryStore()
    before = simhost.settings(sim)
    rows = [
        Given("napi", "napi", (), {"channels": "1"}),
        Given("flow_steering", "flows", (), {"rx_threads": "4", "rx_thread_cpus": "1-4"}),
    ]
    apply(sim, store, parse(rows))
    assert sim.links["eth0"].count("rx") == 1 and len(sim.links["eth0"].helpers) == 4
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_they_are_kept_standing(tmp_path: Path) -> None:
    bench = Bench(SimHost(host()), Store(tmp_path / "state"), asked(**ALL))
    during = simhost.settings(bench.host)
    bench.happens(UP)
    assert simhost.settings(bench.host) == during and bench.log == []
    bench.host.write_device(bench.host.links["eth0"], {"rx-threads": 0})
    bench.happens(UP)
    assert simhost.settings(bench.host) == during
    assert "eth0/all/rx-threads 0 -> 3" in bench.log[0][1]
    gone = cpus_of(decide(bench.host.observe(), asked(**ALL)))[0]
    cpus = (replace(c, online=str(c.number) != gone) for c in bench.host.topology.cpus)
    bench.host.topology = replace(bench.host.topology, cpus=tuple(cpus))
    bench.happens(Event(f"CPU {gone} went offline"))
    left = cpus_of(decide(bench.host.observe(), asked(**ALL)))
    before = [name for name in during if name.startswith("eth0/rx-thread")]
    assert len(before) == 8 and gone not in left and len(left) == 3
    assert len(bench.log) == 2 and "rx-thread0/rx-thread-cpus" in bench.log[1][1]
    assert bench.log[1][1].startswith(f"put right after CPU {gone} went offline: 1 settings")


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "rx_threads": st.sampled_from(["off", "auto", "1", "3", "8"]),
        "rx_thread_cpus": st.sampled_from(["auto", "kernel", "2,5", "0-7", "one-per-core"]),
        "rx_thread_nice": st.sampled_from(["-5", "0", "7"]),
        "rps": st.sampled_from(["off", "1-3"]),
        "rfs": st.sampled_from(["off", "512"]),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.booleans(), st.lists(OPTIONS, min_size=1, max_size=3))
def test_any_row_of_policies_comes_back(
    threads: int, rps: bool, rows: list[dict[str, str]]
) -> None:
    start = steered(host()) if rps else host(threads)
    sim, store = SimHost(start), MemoryStore()
    before = simhost.settings(sim)
    for options in rows:
        if options.get("rx_threads", "off") != "off":
            options = {n: v for n, v in options.items() if n not in ("rps", "rfs")}
        done = apply(sim, store, asked(**options))
        assert verify(done.plan, sim.observe()) == ()
        assert apply(sim, store, asked(**options)).written == 0
        view = View.of(sim.observe())
        assert not (view.links["eth0"].rx_threads and view.links["eth0"].queues[0].rps_cpus)
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_they_are_read_where_they_matter() -> None:
    everything = {*SEPARATION_ITEMS, RPS, RFS}
    assert everything <= stages.reads(asked(rx_thread_nice="1"), ())
    assert RX_THREADS in stages.reads(asked(rps="auto"), ())
    assert RX_THREADS in stages.reads(asked(tap_rps="off"), ())
    assert RX_THREADS not in stages.reads(asked(xps="auto"), ())
    assert RX_THREADS in stages.reads(asked(xps="auto"), (RX_THREADS,))


# -- reading and writing ----------------------------------------------------------------------

NIC = "sys/class/net/eth0"


def files(pid: int, cpu: str = "3") -> dict[str, str]:
    """A device of one rx thread, for which this process stands, so that its class can be asked."""
    counters = ("packets", "batches", "wakeups", "dropped", "backlog", "backlog_bytes", "flows")
    return {
        f"{NIC}/rx_threads": "1\n",
        f"{NIC}/ifindex": "2\n",
        f"{NIC}/rx_thread/0/pid": f"{pid}\n",
        f"{NIC}/rx_thread/0/cpu": f"{cpu}\n",
        **{f"{NIC}/rx_thread/0/{name}": f"{n}\n" for n, name in enumerate(counters)},
        f"proc/{pid}/stat": stat_line("rx0/eth0", uapi.PF_KTHREAD, 0, 0, 0),
        "sys/devices/system/cpu/possible": "0-7\n",
    }


BARE = Link("eth0", 2, True, True)


def test_they_are_read(tmp_path: Path) -> None:
    pid = os.getpid()
    sysfs = tree(tmp_path, files(pid))
    (helper,) = helpers.with_helpers(sysfs, BARE, counted=True).helpers
    assert helper.reserved == 3 and helper.thread is not None and helper.thread.pid == pid
    assert helper.handled == Handled(*range(7))
    assert helpers.with_helpers(sysfs, BARE).helpers[0].handled is None
    assert processors.possible(sysfs) == tuple(range(8))


def test_a_user_has_its_cpus_and_another_namespace_its_pid(tmp_path: Path) -> None:
    found = helpers.with_helpers(tree(tmp_path / "a", files(os.getpid(), "-1")), BARE)
    assert found.helpers[0].reserved is None
    away = files(1) | {f"{NIC}/rx_thread/0/pid": "0\n"}
    found = helpers.with_helpers(tree(tmp_path / "b", away), BARE)
    assert found.helpers[0].thread is None and found.rx_threads == 1
    old = helpers.with_helpers(tree(tmp_path / "c", {f"{NIC}/ifindex": "2\n"}), BARE)
    assert (old.rx_threads, old.helpers) == (None, ())


def test_a_process_that_took_the_pid_is_none(tmp_path: Path) -> None:
    pid = os.getpid()
    tree(tmp_path, files(pid) | {f"proc/{pid}/stat": stat_line("rx0/eth0", 0, 0, 0, 0)})
    with pytest.raises(RxlaneError, match="no NAPI's, IRQ's or rx thread any more"):
        Linux(tmp_path).write_thread(pid, {"rx-thread-cpus": "0"})


def test_all_cpus_leave_the_choice_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, written = os.getpid(), list[tuple[int, ...]]()
    tree(tmp_path, files(pid))
    monkeypatch.setattr(threads, "set_cpus", lambda pid, cpus: written.append(tuple(cpus)))
    linux = Linux(tmp_path)
    linux.write_thread(pid, {"rx-thread-cpus": "kernel"})
    linux.write_thread(pid, {"rx-thread-cpus": "2"})
    assert written == [tuple(range(8)), (2,)]


def test_the_count_is_written(tmp_path: Path) -> None:
    tree(tmp_path, files(os.getpid()))
    Linux(tmp_path).write_device(BARE, {RX_THREADS: 4})
    assert (tmp_path / NIC / "rx_threads").read_text().startswith("4")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EBUSY, "switch RPS and RFS of each of the device's receive queues off first"),
        (errno.ERANGE, "as CPUs are online"),
        (errno.EPERM, "CAP_NET_ADMIN"),
        (errno.ENOMEM, "give fewer"),
        (errno.EINVAL, "Invalid argument"),
    ],
)
def test_what_the_kernel_refuses(number: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = refusing(number, monkeypatch)
    with pytest.raises(RxlaneError) as raised:
        helpers.write_count(sysfs, "eth0", 4)
    assert raised.value.kind is Kind.KERNEL and words in str(raised.value)
    assert "writing 4 to /sys/class/net/eth0/rx_threads" in str(raised.value)


def refusing(number: int, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    def fail(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    return Sysfs("/nowhere")


def test_a_kernel_that_lost_the_file(tmp_path: Path) -> None:
    with pytest.raises(RxlaneError) as raised:
        helpers.write_count(Sysfs(tmp_path), "eth0", 4)
    assert raised.value.kind is Kind.UNSUPPORTED


def test_rps_beside_rx_threads_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, files(os.getpid()))
    linux = Linux(tmp_path)
    linux._check(BARE)
    refusing(errno.EBUSY, monkeypatch)
    with pytest.raises(RxlaneError, match="write 0 to /sys/class/net/eth0/rx_threads first"):
        linux.write_queue(BARE, 0, {RPS: "1"})


# -- recordings, map, link files --------------------------------------------------------------


def test_a_recording_holds_them_and_an_old_one_reads() -> None:
    start = host(2)
    text = codec.dumps(start)
    assert codec.loads(Snapshot, text, "s") == start
    plain = json.loads(text)
    for name in ("rx_threads", "helpers"):
        del plain["links"][0][name]
    old = codec.loads(Snapshot, json.dumps(plain), "s").links[0]
    assert (old.rx_threads, old.helpers) == (None, ())
    assert "rx_threads" not in codec.dumps(simhost.snapshot())


def test_the_map() -> None:
    start = host(2)
    own = replace(start.links[0].helpers[1], reserved=None)
    link = replace(start.links[0], helpers=(start.links[0].helpers[0], own))
    text = table.map_text(replace(start, links=(link,)), [link])
    at = text.index("  thread PID")
    assert text[at:].splitlines()[:3] == [
        "  thread PID CPU policy flows backlog dropped packets",
        "  rx0    200 0*  other     25       3       0       0",
        "  rx1    201 1   other     25       3       7   1,000",
    ]
    down = replace(link, up=False)
    assert "rx1    201" in table.map_text(replace(start, links=(down,)), [down])
    assert "thread PID" not in table.map_text(host(), host().links)
    assert "2 rx threads on CPU 0-1" in render(replace(start, links=(link,)), [link])


def test_the_map_for_programs() -> None:
    start = host(2)
    (device,) = json.loads(mapjson.map_json(start, start.links))["devices"]
    assert device["rx-threads"]["count"] == 2
    assert device["rx-threads"]["threads"][1] == {
        "number": 1,
        "reserved-cpu": 1,
        "pid": 201,
        "packets": 1000,
        "batches": 100,
        "wakeups": 90,
        "dropped": 7,
        "backlog": 3,
        "backlog-bytes": 4608,
        "flows": 25,
        "thread": {"name": "rx1/eth0", "policy": "other", "priority": 0, "nice": 0, "cpus": [1]},
    }
    old = simhost.snapshot()
    assert "rx-threads" not in json.loads(mapjson.map_json(old, old.links))["devices"][0]


def test_the_map_of_a_second() -> None:
    start = host(2)
    link = start.links[0]
    first, last = (
        rates.Sample(at, {}, {}, {201: at / 2}, {("eth0", 1): Handled(packets, 0, 0, drops, 5)})
        for at, packets, drops in ((1.0, 100, 1), (3.0, 4100, 21))
    )
    text = rates.screen(start, [link], first, last).splitlines()
    assert text[-3:] == [
        "  thread PID CPU policy flows backlog dropped/s packets/s",
        "  rx0    200 0*  other      -       -         -         -",
        "  rx1    201 1*  other      -       5        10     2,000",
    ]
    plain = rates.plain(start, [link], first, last)["rx-threads"][1]
    assert plain == {
        "device": "eth0", "thread": 1, "packets": 2000.0, "dropped": 10.0, "backlog": 5, "cpu": 0.5,
    }  # fmt: skip
    assert "rx-threads" not in rates.plain(host(), host().links, first, last)


def test_the_layout_as_properties() -> None:
    sim = SimHost(host())
    apply(sim, MemoryStore(), asked(rx_threads="2", rx_thread_cpus="4-5", rx_thread_nice="-5"))
    found = linkfile.layout(sim.observe(), sim.links["eth0"])
    own = {name: value for name, value in found.properties.items() if "_RX_" in name}
    assert own == {
        "NAPI_RX_THREADS": "2",
        "NAPI_RX_THREAD_CPUS": "4-5",
        "NAPI_RX_THREAD_POLICY": "other",
        "NAPI_RX_THREAD_NICE": "-5",
    }
    assert not [line for line in found.missing if "rx-thread" in line]
    kernel = linkfile.layout(host(2), host(2).links[0])
    assert kernel.properties["NAPI_RX_THREAD_CPUS"] == "kernel"
    assert Helper(0) == Helper(0, None, None, None)
