# SPDX-License-Identifier: GPL-2.0-or-later
"""What is planned, what is skipped, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rxlane import topology
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Capabilities, Queue, Snapshot, Topology
from rxlane.plan import Plan
from rxlane.policy import parse_section
from rxlane.sections import Policy
from unit import simhost


def plan(host: Snapshot, *devices: str, **options: object) -> Plan:
    texts = {name: str(value) for name, value in options.items()}
    return decide(host, Policy((parse_section("napi", devices, texts),)))


def wanted(plan: Plan) -> dict[str, object]:
    return {str(c.target): c.after for c in (*plan.changes, *plan.holds)}


def refusal(host: Snapshot, *devices: str, **options: object) -> RxlaneError:
    with pytest.raises(RxlaneError) as caught:
        plan(host, *devices, **options)
    assert "\n" not in str(caught.value)
    return caught.value


FIFO = {"thread_policy": "fifo", "thread_priority": 50}


def test_modes_of_single_queues() -> None:
    found = plan(simhost.snapshot(), threaded="busy-poll@1,on@2-")
    assert wanted(found) == {
        "eth0/rx1/threaded": "busy-poll",
        "eth0/rx2/threaded": "on",
        "eth0/rx3/threaded": "on",
    }
    assert all(c.disruption == "thread-restart" and c.reason for c in found.changes)


def test_a_value_that_holds_is_not_written() -> None:
    found = plan(simhost.snapshot(), threaded="off", defer_hard_irqs=0)
    assert found.changes == () and len(found.holds) == 8


def test_management_queues_keep_everything() -> None:
    found = plan(simhost.snapshot(), threaded="on", management_queues=2, defer_hard_irqs=5)
    assert {c.target.queue for c in found.changes} == {2, 3}
    assert [s.kind for s in found.skips] == ["left-alone"]


def test_one_queue_device_keeps_nothing_to_thread() -> None:
    host = simhost.snapshot(simhost.link(queues=1))
    found = plan(host, threaded="on", management_queues=1)
    assert found.changes == () and "none to lay out" in str(found.skips[0])


def test_auto_spreads_and_leaves_cpu_0() -> None:
    found = plan(simhost.snapshot(), threaded="on", thread_cpus="auto")
    cpus = [c.after for c in found.changes if c.target.item == "thread-cpus"]
    assert cpus == ["1", "2", "3", "4"]


def test_auto_prefers_the_devices_node_and_separate_cores() -> None:
    cpus = simhost.topology(8, nodes=2, smt=2)
    host = simhost.snapshot(simhost.link(queues=2, node=1), cpus=cpus)
    found = plan(host, threaded="busy-poll", thread_cpus="auto")
    assert [c.after for c in found.changes if c.target.item == "thread-cpus"] == ["4", "6"]


def test_auto_gives_pollers_isolated_cpus_and_threads_the_others() -> None:
    host = simhost.snapshot(cpus=simhost.topology(8, isolated=(6, 7)))
    polling = plan(host, threaded="busy-poll@2-", thread_cpus="auto")
    assert [c.after for c in polling.changes if c.target.item == "thread-cpus"] == ["6", "7"]
    ordinary = wanted(plan(host, threaded="on", thread_cpus="auto"))
    assert {v for k, v in ordinary.items() if k.endswith("cpus")} == {"1", "2", "3", "4"}


def test_two_devices_get_different_cpus() -> None:
    two = simhost.link("eth1", 3, ifindex=3, base=9000)
    host = simhost.snapshot(simhost.link(queues=3), two)
    cpus = [
        v for k, v in wanted(plan(host, threaded="on", thread_cpus="auto")).items() if "cpu" in k
    ]
    assert len(set(cpus)) == 6 and "0" not in cpus


def test_round_robin_over_a_list() -> None:
    found = wanted(plan(simhost.snapshot(), threaded="on", thread_cpus="2,5"))
    assert [found[f"eth0/rx{n}/thread-cpus"] for n in range(4)] == ["2", "5", "2", "5"]


def test_only_physical_devices_without_names() -> None:
    veth = simhost.link("veth0", ifindex=9, base=500, physical=False)
    host = simhost.snapshot(simhost.link(), veth)
    assert {c.target.device for c in plan(host, threaded="on").changes} == {"eth0"}
    assert {c.target.device for c in plan(host, "veth0", threaded="on").changes} == {"veth0"}


# Kernels that lack something


def stock() -> Snapshot:
    return simhost.snapshot(capabilities=simhost.STOCK)


def test_stock_kernel_falls_back_to_the_whole_device() -> None:
    found = plan(stock(), threaded="on", management_queues=1, defer_hard_irqs=100, thread_cpus="3")
    got = wanted(found)
    assert got["eth0/all/threaded"] == "on" and got["eth0/all/defer-hard-irqs"] == 100
    assert "eth0/rx0/thread-cpus" not in got and got["eth0/rx1/thread-cpus"] == "3"
    assert any("management queue 0 is threaded too" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("modes", "instead"),
    [("on@1-", "threaded=on"), ("on@1,off@2-", "threaded=on or threaded=off")],
)
def test_stock_kernel_says_what_it_can(modes: str, instead: str) -> None:
    found = plan(stock(), threaded=modes)
    assert found.changes == () and found.skips
    assert all(s.reason.endswith(f"sets all queues alike: give {instead}") for s in found.skips)


@pytest.mark.parametrize("modes", ["busy-poll", "on@1,off@2-", "on@2-", "on@1,busy-poll@2-"])
def test_stock_kernel_reports_what_it_cannot(modes: str) -> None:
    found = plan(stock(), threaded=modes, management_queues=1, thread_cpus="auto")
    assert not [c for c in found.changes if c.target.item == "threaded"]
    assert "NAPI_SET" in [str(s) for s in found.skips if s.kind == "unsupported"][0]
    assert not [c for c in found.changes if c.target.item == "thread-cpus"]


def test_stock_kernel_has_no_suspend_timeout() -> None:
    found = plan(stock(), irq_suspend_timeout=5)
    assert found.changes == () and found.skips[0].kind == "unsupported"


def test_kernel_with_timers_but_no_threaded_attribute() -> None:
    host = simhost.snapshot(capabilities=simhost.TIMERS_ONLY)
    found = plan(host, threaded="busy-poll", defer_hard_irqs=7)
    assert {str(c.target) for c in found.changes} == {
        f"eth0/rx{n}/defer-hard-irqs" for n in range(4)
    }
    assert all("per-NAPI threaded mode" in s.reason for s in found.skips)


def test_kernel_without_busy_poll() -> None:
    host = simhost.snapshot(capabilities=simhost.THREADED)
    found = plan(host, threaded="busy-poll@1,on@2", thread_cpus="auto")
    assert "eth0/rx1/threaded" not in wanted(found) and "eth0/rx1/thread-cpus" not in wanted(found)
    assert [s.reason for s in found.skips] == ["kernel does not support busy-poll threaded NAPI"]


def test_device_that_is_down() -> None:
    found = plan(simhost.snapshot(simhost.link(up=False)), threaded="on")
    assert found.changes == () and [s.kind for s in found.skips] == ["down"]
    assert "interface eth0 is down, no NAPI instances" in str(found.skips[0])


def test_queues_that_share_a_napi() -> None:
    one = simhost.link(queues=2)
    shared = tuple(replace(q, napi_id=8193) if q.kind == "rx" else q for q in one.queues)
    host = simhost.snapshot(replace(one, queues=shared))
    found = plan(host, threaded="on")
    assert [str(c.target) for c in found.changes] == ["eth0/rx0/threaded"]
    assert "serves queue 0" in str(found.skips[0])


def test_driver_without_links_or_napis() -> None:
    bare = replace(simhost.link(), napis=(), queues=(Queue("rx", 0), Queue("rx", 1)))
    assert "no NAPI" in str(plan(simhost.snapshot(bare), threaded="on").skips[0])
    unlinked = replace(simhost.link(), queues=(Queue("rx", 0), Queue("rx", 1)))
    assert "4 NAPIs for 2 RX queues" in str(
        plan(simhost.snapshot(unlinked), threaded="on").skips[0]
    )


# Refusals, each with its own test


def test_unknown_device() -> None:
    error = refusal(simhost.snapshot(), "eth9", threaded="on")
    assert error.kind is Kind.NO_DEVICE and error.device == "eth9"


def test_queue_that_does_not_exist() -> None:
    error = refusal(simhost.snapshot(), threaded="on@2-4")
    assert (error.device, error.queue, error.option) == ("eth0", 4, "threaded")
    assert plan(simhost.snapshot(), threaded="on@4-").changes == ()


def test_device_in_two_sections() -> None:
    policy = Policy(tuple(parse_section(n, ["eth0"], {"threaded": "on"}) for n in ("a", "b")))
    with pytest.raises(RxlaneError, match="laid out by section .a. already"):
        decide(simhost.snapshot(), policy)


def test_cpu_that_does_not_exist() -> None:
    error = refusal(simhost.snapshot(), threaded="on", thread_cpus="2,64")
    assert "CPU 64 does not exist" in str(error) and "0-7" in str(error)
    down = simhost.snapshot(replace(simhost.link(), up=False, napis=()))
    for start in (simhost.snapshot(), down):
        error = refusal(start, thread_cpus="64")  # though there is no thread
        assert "CPU 64 does not exist" in str(error)


def test_cpu_that_is_offline() -> None:
    host = simhost.snapshot(cpus=simhost.topology(8, offline=(3,)))
    assert "CPU 3 is offline" in str(refusal(host, threaded="on", thread_cpus="3"))


def test_realtime_on_cpu_0() -> None:
    error = refusal(simhost.snapshot(), threaded="on@1", thread_cpus="0", **FIFO)
    assert error.kind is Kind.REFUSED and "CPU 0" in str(error)
    plan(simhost.snapshot(), threaded="on@1", thread_cpus="0", allow_realtime_cpu0=1, **FIFO)


def test_realtime_without_cpus_could_run_anywhere() -> None:
    assert "CPU 0" in str(refusal(simhost.snapshot(), threaded="on", **FIFO))


def test_realtime_on_the_last_housekeeping_cpu() -> None:
    host = simhost.snapshot(cpus=simhost.topology(4, isolated=(1, 2, 3)))
    options = {"thread_cpus": "0", "allow_realtime_cpu0": 1, **FIFO}
    assert "last housekeeping CPU" in str(refusal(host, threaded="on@1", **options))


def test_realtime_leaves_two_housekeeping_cpus() -> None:
    host = simhost.snapshot(cpus=simhost.topology(4))
    error = refusal(host, threaded="on@1-3", thread_cpus="1-3", **FIFO)
    assert "leave only CPU 0" in str(error)
    plan(host, threaded="on@1-2", thread_cpus="2-3", **FIFO)


def test_realtime_over_several_devices_counts_together() -> None:
    links = [simhost.link(f"eth{n}", 2, ifindex=n + 2, base=100 * (n + 1)) for n in range(2)]
    host = simhost.snapshot(*links, cpus=simhost.topology(4))
    assert "for all else" in str(refusal(host, threaded="on", thread_cpus="1-3", **FIFO))


@pytest.mark.parametrize("cpus", [1, 2])
def test_realtime_on_a_small_host(cpus: int) -> None:
    host = simhost.snapshot(cpus=simhost.topology(cpus))
    error = refusal(host, threaded="on", thread_cpus="auto", **FIFO)
    assert "at least 3 CPUs" in str(error)


def test_more_pollers_than_cpus_given() -> None:
    error = refusal(simhost.snapshot(), threaded="busy-poll", thread_cpus="2-3")
    assert "4 busy-polling threads for 2 CPUs" in str(error)


def test_more_pollers_than_auto_can_place() -> None:
    host = simhost.snapshot(cpus=simhost.topology(4))
    text = str(refusal(host, threaded="busy-poll", thread_cpus="auto"))
    assert "4 busy-polling threads for CPUs 1-3 (auto leaves the others to the host)" in text
    assert text.endswith("thread fewer queues, such as busy-poll@1-3, or name CPUs")
    found = plan(host, threaded="busy-poll@1-3", thread_cpus="auto")
    assert {c.after for c in found.changes if c.target.item == "thread-cpus"} == {"1", "2", "3"}
    local = str(refusal(host, threaded="busy-poll", thread_cpus="numa-local"))
    assert "for CPUs 1-3 (numa-local takes no others)" in local
    second = simhost.link("eth1", 4, ifindex=3, base=9000)
    two = simhost.snapshot(simhost.link(), second, cpus=simhost.topology(4))
    text = str(refusal(two, threaded="busy-poll@0-1", thread_cpus="auto"))
    assert text.endswith("thread fewer queues or name CPUs"), "queues are a device's"


def test_pollers_of_two_sections_on_one_cpu() -> None:
    two = simhost.link("eth1", 1, ifindex=3, base=9000)
    options = {"threaded": "busy-poll@0", "thread_cpus": "2"}
    policy = Policy(tuple(parse_section(d, [d], options) for d in ("eth0", "eth1")))
    with pytest.raises(RxlaneError, match="2 busy-polling threads for 1 CPU;"):
        decide(simhost.snapshot(simhost.link(), two), policy)


def test_a_crowded_section_is_refused_beside_a_roomy_one() -> None:
    """CPUs that another section's pollers could use do not help those bound to two CPUs."""
    two = simhost.link("eth1", 1, ifindex=3, base=9000)
    crowded = parse_section("a", ["eth0"], {"threaded": "busy-poll@0-2", "thread_cpus": "2-3"})
    roomy = parse_section("b", ["eth1"], {"threaded": "busy-poll"})
    with pytest.raises(RxlaneError, match="3 busy-polling threads for 2 CPUs"):
        decide(simhost.snapshot(simhost.link(), two), Policy((crowded, roomy)))


def test_more_unbound_pollers_than_cpus() -> None:
    host = simhost.snapshot(cpus=simhost.topology(3))
    assert "4 busy-polling threads for 3 CPUs" in str(refusal(host, threaded="busy-poll"))


def test_pollers_on_siblings_are_warned_of() -> None:
    host = simhost.snapshot(cpus=simhost.topology(8, smt=2))
    found = plan(host, threaded="busy-poll@1-2", thread_cpus="2-3")
    assert any("share one core" in w for w in found.warnings)


# Properties


KERNELS = (simhost.STOCK, simhost.TIMERS_ONLY, simhost.THREADED, simhost.BUSY_POLL)


@st.composite
def hosts(draw: st.DrawFn, kernels: Sequence[Capabilities] = KERNELS) -> Snapshot:
    count = draw(st.integers(1, 24))
    smt = draw(st.sampled_from([1, 2]))
    numbers = st.sets(st.integers(0, count - 1), max_size=count - 1)
    away = draw(numbers) - {0}
    cpus = simhost.topology(
        count, nodes=draw(st.integers(1, 3)), smt=smt, offline=away, isolated=draw(numbers) - away
    )
    kernel = draw(st.sampled_from(kernels))
    links = [
        simhost.link(
            f"eth{n}", draw(st.integers(1, 9)), ifindex=n + 2, base=1000 * (n + 1), kernel=kernel
        )
        for n in range(draw(st.integers(1, 3)))
    ]
    return simhost.snapshot(*links, cpus=cpus, capabilities=kernel)


OPTIONS = st.fixed_dictionaries(
    {
        "threaded": st.sampled_from(["", "off", "on", "busy-poll", "on@1-", "busy-poll@0,on@1-"]),
        "management_queues": st.sampled_from(["0", "1", "3"]),
        "thread_cpus": st.sampled_from(["", "auto", "1", "0-1", "2-5"]),
        "defer_hard_irqs": st.sampled_from(["", "0", "100"]),
        "irq_suspend_timeout": st.sampled_from(["", "9"]),
        "allow_realtime_cpu0": st.sampled_from(["0", "1"]),
    }
)
SCHED = st.sampled_from(
    [
        {},
        {"thread_policy": "batch", "thread_nice": "5"},
        {"thread_policy": "fifo", "thread_priority": "50"},
        {"thread_policy": "rr", "thread_priority": "1"},
    ]
)


# What can be refused for where threads go: modes and CPUs that there are on most of the hosts.
PLACED = st.fixed_dictionaries(
    {
        "threaded": st.sampled_from(["on", "busy-poll", "busy-poll@0,on@1-"]),
        "management_queues": st.sampled_from(["0", "1", "3"]),
        "thread_cpus": st.sampled_from(["", *3 * ["auto"], "1", "0-1", "2-5"]),
        "allow_realtime_cpu0": st.sampled_from(["0", "1"]),
    }
)


def decided(host: Snapshot, options: dict[str, str]) -> Plan:
    """Return the plan; a refusal is a legal answer that says nothing about a plan."""
    try:
        return plan(host, **options)
    except RxlaneError as error:
        assert error.kind.refused
        assume(False)
        raise


@settings(max_examples=300)
@given(hosts((*KERNELS, *4 * (simhost.BUSY_POLL,))), PLACED, SCHED)
def test_no_plan_breaks_a_refusal_rule(
    host: Snapshot, options: dict[str, str], sched: dict[str, str]
) -> None:
    found = wanted(decided(host, options | sched))
    cpus = {k.rpartition("/")[0]: _numbers(v) for k, v in found.items() if k.endswith("cpus")}
    realtime = [k.rpartition("/")[0] for k, v in found.items() if str(v)[:3] in ("fif", "rr:")]
    assert all(set(c) <= set(host.topology.online) for c in cpus.values())
    if realtime:
        taken = {n for lane in realtime for n in cpus[lane]}
        assert 0 not in taken or options["allow_realtime_cpu0"] == "1"
        assert len(set(_housekeeping(host.topology)) - taken) >= 2
    polled = (k.rpartition("/")[0] for k, v in found.items() if v == "busy-poll")
    pollers = [cpus[lane] for lane in polled if lane in cpus]
    assert len({n for c in pollers for n in c}) >= len(pollers)
    bound = [c[0] for c in pollers if len(c) == 1]
    assert len(set(bound)) == len(bound)
    if options["thread_cpus"] == "auto":
        assert topology.siblings_among(host.topology, bound) is None
    if realtime:
        left = set(_housekeeping(host.topology)) - taken
        assert any(not taken.intersection(_siblings(host.topology, n)) for n in left)


def _housekeeping(cpus: Topology) -> list[int]:
    return [c.number for c in cpus.cpus if c.online and c.number not in cpus.isolated]


def _siblings(cpus: Topology, number: int) -> set[int]:
    cpu = cpus.cpu(number)
    return set() if cpu is None else set(cpu.siblings)


def _numbers(text: object) -> list[int]:
    return [int(n) for n in str(text).split(",")]


@given(hosts(), OPTIONS)
def test_management_queues_are_never_changed(host: Snapshot, options: dict[str, str]) -> None:
    aside = int(options["management_queues"])
    found = decided(host, options)
    assert all(c.target.queue < 0 or c.target.queue >= aside for c in found.changes)


def test_capabilities_are_data_not_versions() -> None:
    """The same device on a kernel that carries busy-poll back is planned as on the newest."""
    carried = Capabilities(True, True, (5, 6, 8), 2)
    host = simhost.snapshot(capabilities=carried)
    found = plan(host, threaded="busy-poll@1", irq_suspend_timeout=5)
    assert wanted(found) == {"eth0/rx1/threaded": "busy-poll"}
    assert [s.item for s in found.skips] == ["irq-suspend-timeout"]
    assert "NAPI_SET does not take irq-suspend-timeout" in found.skips[0].reason
