# SPDX-License-Identifier: GPL-2.0-or-later
"""rx threads: options, planned, refused, and RPS and RFS beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane import policy
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.deciding import separation
from rxlane.deciding.steering import SEPARATED
from rxlane.errors import Kind, RxlaneError
from rxlane.items import RFS, RPS, RX_THREADS
from rxlane.linkfiles import linkfile, linkkeys
from rxlane.model import IrqThread, Snapshot, Thread
from rxlane.plan import WHOLE, Target, phases
from rxlane.policy import Given, parse
from rxlane.revert import revert
from rxlane.sections import THREADS_AUTO, FlowSteering
from unit import simhost
from unit.separated import asked, cpus_of, host, planned, steered
from unit.simhost import MemoryStore, SimHost

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
        ({"rx_thread_nice": "20"}, "rx_thread_nice", "give auto or -20..19"),
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


def test_auto_says_why_it_takes_fewer_than_are_free() -> None:
    wide = decide(host(cpus=20), asked(rx_threads="auto"))
    (change,) = [c for c in wide.changes if c.target.item == RX_THREADS]
    assert (
        change.after == separation.MOST
        and f"pollers, auto takes {separation.MOST} at most; " in change.reason
    )
    three = [simhost.link(f"eth{n}", 1, ifindex=2 + n, base=8193 + n) for n in range(3)]
    start = simhost.snapshot(*(replace(link, rx_threads=0) for link in three))
    crowd = decide(start, asked(rx_threads="auto"))
    reasons = [c.reason for c in crowd.changes if c.target.item == RX_THREADS]
    assert len(reasons) == 3 and all("pollers, 3 devices share them; " in r for r in reasons)


def test_auto_says_where_no_cpu_is_free() -> None:
    start = host(cpus=2)
    options = {"irq_cpus": "0-1", "rx_threads": "auto", "rx_thread_cpus": "auto"}
    plan = decide(start, policy.parse_mixed((), options))
    assert len(cpus_of(plan)) == 2
    (change,) = [c for c in plan.changes if c.target.item == RX_THREADS]
    assert "of CPUs 0-1 none is free of interrupts and pollers, so they are shared" in change.reason


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
        "[flows] rx_threads=9 eth0: 9 threads for 8 CPUs, and the kernel takes no more;"
        " give 1..8 or auto"
    )


def test_a_cpu_that_goes_offline_ends_no_layout() -> None:
    sim, store, policy = SimHost(host()), MemoryStore(), asked(rx_threads="8")
    apply(sim, store, policy)
    sim.topology = simhost.topology(8, offline=[7])
    kept = decide(sim.observe(), policy)
    assert planned(kept)["eth0/all/rx-threads"] == 8 and not kept.changes and not kept.warnings
    fewer = decide(replace(host(), topology=sim.topology), policy)
    assert planned(fewer)["eth0/all/rx-threads"] == 7
    assert fewer.warnings == (
        "eth0: rx_threads=8 in [flows]: 7 of 8 CPUs are online, and the kernel starts no more"
        " threads than that; 7 threads until others are",
    )
    with pytest.raises(RxlaneError, match="9 threads for 8 CPUs"):
        decide(sim.observe(), asked(rx_threads="9"))


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
