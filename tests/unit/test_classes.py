# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads of SCHED_DEADLINE and SCHED_EXT: what would touch one is refused, all else is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.items import UNKNOWN_SCHED, restorable
from rxlane.journal import Store
from rxlane.model import Capabilities, IrqThread, Link, Snapshot, Thread
from rxlane.plan import Plan
from rxlane.policy import parse_mixed
from rxlane.sections import Policy
from rxlane.tuned.tuned_compat import Adapter, Row
from unit import simhost
from unit.asking import in_threads
from unit.keeping import CHANNELS, FEATURES, UP, Bench
from unit.simhost import SimHost

PER_QUEUE = simhost.BUSY_POLL


def asked(*devices: str, **options: str) -> Policy:
    """A policy of options; irq__NAME stands for irq_layout.NAME."""
    spelled = {name.replace("irq__", "irq_layout."): value for name, value in options.items()}
    return parse_mixed(devices, spelled)


def refusal(start: Snapshot, **options: str) -> str:
    """The one line of a policy's refusal, which leaves nothing to be written."""
    with pytest.raises(RxlaneError) as caught:
        decide(start, asked(**options))
    assert caught.value.kind is Kind.REFUSED
    return str(caught.value)


def changed(start: Snapshot, **options: str) -> dict[str, object]:
    return {str(c.target): c.after for c in decide(start, asked(**options)).changes}


def give(sim: SimHost, queue: int, policy: str = "deadline") -> int:
    """Somebody gives the thread of a queue of eth0 the class; return its pid."""
    pid = sim.links["eth0"].napis[queue].pid
    assert pid is not None
    sim.threads[pid] = replace(sim.threads[pid], policy=policy, priority=0, nice=0)
    return pid


def threaded(queue: int = 1, kernel: Capabilities = PER_QUEUE, policy: str = "deadline") -> SimHost:
    """A host whose NAPIs have threads, of which one has the class."""
    sim = SimHost(simhost.whole(simhost.snapshot(capabilities=kernel)))
    sim.write_device(sim.links["eth0"], {"threaded": "on"})
    if kernel is PER_QUEUE:
        for napi in sim.links["eth0"].napis:
            sim.write_napi(napi.napi_id, {"threaded": "on"})
    give(sim, queue, policy)
    sim.writes = 0
    return sim


# -- NAPIs' threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", UNKNOWN_SCHED)
@pytest.mark.parametrize(
    ("options", "where", "setting", "how"),
    [
        ({"thread_cpus": "4"}, "thread_cpus=4", "thread-cpus to 4", "move"),
        ({"thread_nice": "1"}, "thread_nice=1", "thread-sched to other:1", "change the class of"),
        (
            {"thread_policy": "batch"},
            "thread_policy=batch",
            "thread-sched to batch:0",
            "change the class of",
        ),
        ({"threaded": "off@1"}, "threaded=off@1", "threaded to off", "end"),
    ],
)
def test_thread_of_a_napi(
    policy: str, options: dict[str, str], where: str, setting: str, how: str
) -> None:
    assert refusal(threaded(policy=policy).observe(), **options) == (
        f"[napi] {where} eth0 queue 1: setting {setting} would {how} thread 1001"
        f" (napi/eth0-8194), whose class SCHED_{policy.upper()} could not be restored;"
        " `chrt --other --pid 0 1001` makes way"
    )


def test_realtime_is_refused_likewise() -> None:
    options = {"thread_policy": "fifo", "thread_priority": "9", "thread_cpus": "4-7"}
    assert "thread 1001 (napi/eth0-8194), whose class" in refusal(threaded().observe(), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"threaded": "on"},
        {"threaded": "busy-poll@1"},
        {"threaded": "off@0,off@2-"},
        {"thread_cpus": "0-7", "thread_spread": "all"},
        {"defer_hard_irqs": "9", "irq_cpus": "auto", "rps": "auto"},
        {"management_queues": "2", "thread_nice": "3"},
    ],
)
def test_a_thread_that_is_left_alone_refuses_nothing(options: dict[str, str]) -> None:
    found = changed(threaded().observe(), **options)
    assert not [name for name in found if name.startswith("eth0/rx1/thread-")]
    assert found.get("eth0/rx1/threaded") in (None, "busy-poll")


def test_cpus_that_differ_where_nobody_is_refuse_nothing() -> None:
    """Of CPUs that are offline the thread keeps what it has: nothing is written."""
    sim = threaded()
    sim.topology = simhost.topology(8, offline=[7])
    plan = decide(sim.observe(), asked(thread_cpus="0-6", thread_spread="all"))
    assert "eth0/rx1/thread-cpus" in [str(change.target) for change in plan.changes]


def test_a_thread_of_another_device() -> None:
    sim = threaded()
    other = simhost.link("eth1", 2, ifindex=3, base=9000)
    sim.links["eth1"] = other
    policy = parse_mixed(["eth1"], {"threaded": "on", "thread_cpus": "auto"})
    assert decide(sim.observe(), policy).changes


# -- whole devices ------------------------------------------------------------------------------


def test_threads_of_a_whole_device() -> None:
    sim = threaded(queue=0, kernel=simhost.STOCK)
    text = refusal(sim.observe(), threaded="off")
    assert text.startswith(
        "[napi] threaded=off eth0 queue 0: setting threaded to off would end thread 1000"
    )
    # What is not laid out itself is switched off with the others.
    assert "queue 0" in refusal(sim.observe(), threaded="off", management_queues="1")
    assert changed(sim.observe(), threaded="on", defer_hard_irqs="3")


def test_a_whole_devices_thread_of_a_napi_that_only_sends() -> None:
    sim = threaded(queue=3, kernel=simhost.STOCK)
    link = sim.links["eth0"]
    sim.links["eth0"] = replace(
        link, queues=tuple(q for q in link.queues if (q.kind, q.index) != ("rx", 3))
    )
    text = refusal(sim.observe(), threaded="off")
    assert " eth0: setting" in text and "end thread 1003 (napi/eth0-8196)" in text


# -- interrupts' threads ------------------------------------------------------------------------


def handlers(policy: str = "deadline") -> Snapshot:
    """A host whose RX interrupts are in threads, that of queue 0 with the class."""
    start = in_threads(simhost.whole(simhost.snapshot()))
    first = start.irqs[0]
    assert first.thread is not None
    odd = replace(first, thread=replace(first.thread, policy=policy))
    row = IrqThread(40, odd.cpus, f"{policy}:0", 500, "irq/40-nic-40")
    return replace(start, irqs=(odd, *start.irqs[1:]), irq_threads=(row, *start.irq_threads[1:]))


@pytest.mark.parametrize("policy", UNKNOWN_SCHED)
@pytest.mark.parametrize(
    ("options", "where", "how"),
    [
        ({"irq__thread_cpus": "4"}, "thread_cpus=4", "move"),
        ({"irq__thread_nice": "1"}, "thread_nice=1", "change the class of"),
        ({"irq__threaded": "off"}, "threaded=off", "end"),
    ],
)
def test_thread_of_an_interrupt(policy: str, options: dict[str, str], where: str, how: str) -> None:
    text = refusal(handlers(policy), **options)
    assert text.startswith(f"[irq_layout] {where} eth0 queue 0: setting irq-thread")
    assert f"would {how} thread 500 (irq/40-nic-40), whose class SCHED_{policy.upper()}" in text
    assert text.endswith("; `chrt --other --pid 0 500` makes way")


def test_an_interrupts_thread_that_is_left_alone() -> None:
    start = handlers()
    assert changed(start, irq__threaded="on", irq_cpus="4") == {
        f"eth0/rx{n}/irq-cpus": "4" for n in range(4)
    }
    assert changed(start, irq__threaded="off@1")
    others = changed(start, irq__threaded="on@1-", irq__thread_cpus="5")
    assert others == {f"eth0/rx{n}/irq-thread-cpus": "5" for n in (1, 2, 3)}


def forced(policy: str = "deadline") -> Snapshot:
    """A kernel that has all handlers in threads and does not let them be switched."""
    rows = (IrqThread(41, (0, 1, 2, 3), f"{policy}:0", 77, "irq/41-nic-41"), IrqThread(9, (3,)))
    return replace(simhost.whole(simhost.snapshot()), irq_threads=rows)


@pytest.mark.parametrize("policy", UNKNOWN_SCHED)
def test_a_thread_that_follows_its_interrupt(policy: str) -> None:
    assert refusal(forced(policy), irq_cpus="4") == (
        "[irq_layout] irq_cpus=4 eth0 queue 1: setting irq-cpus to 4 would move thread 77"
        f" (irq/41-nic-41), whose class SCHED_{policy.upper()} could not be restored;"
        " `chrt --other --pid 0 77` makes way"
    )


def test_a_thread_that_is_where_its_interrupt_goes() -> None:
    start = forced()
    there = replace(start.irq_threads[0], cpus=(4,))
    assert changed(replace(start, irq_threads=(there,)), irq_cpus="4")
    assert changed(start, threaded="on", thread_cpus="auto")


# -- rx threads ---------------------------------------------------------------------------------


def separated(number: int = 1, policy: str = "deadline", count: int = 3) -> Snapshot:
    """A device with rx threads, one of which has the class."""
    start = simhost.whole(simhost.snapshot(simhost.separable(simhost.link(), count)))
    link = start.links[0]
    own = tuple(
        replace(helper, thread=replace(helper.thread, policy=policy))
        if helper.number == number and helper.thread is not None
        else helper
        for helper in link.helpers
    )
    return replace(start, links=(replace(link, helpers=own),))


@pytest.mark.parametrize("policy", UNKNOWN_SCHED)
@pytest.mark.parametrize(
    ("options", "where", "how"),
    [
        ({"rx_thread_cpus": "5-7"}, "rx_thread_cpus=5-7", "move"),
        ({"rx_thread_nice": "1"}, "rx_thread_nice=1", "change the class of"),
        ({"rx_threads": "1"}, "rx_threads=1", "end"),
        ({"rx_threads": "off"}, "rx_threads=off", "end"),
    ],
)
def test_an_rx_thread(policy: str, options: dict[str, str], where: str, how: str) -> None:
    text = refusal(separated(policy=policy), **options)
    assert text.startswith(f"[flow_steering] {where} eth0: setting rx-thread")
    assert f"would {how} thread 201 (rx1/eth0), whose class SCHED_{policy.upper()}" in text
    assert text.endswith("; `chrt --other --pid 0 201` makes way")


def test_an_rx_thread_that_is_left_alone() -> None:
    assert changed(separated(), rx_threads="5") == {"eth0/all/rx-threads": 5}
    assert changed(separated(), rx_threads="2") == {"eth0/all/rx-threads": 2}
    assert not changed(separated(), rx_thread_cpus="kernel")
    assert changed(separated(), threaded="on", thread_cpus="auto")


# -- what makes threads anew, and vhost threads -------------------------------------------------


def resettable(driver: str, policy: str = "deadline") -> Snapshot:
    sim = threaded(queue=2, policy=policy)
    link = replace(simhost.tuned(sim.links["eth0"]), driver=driver)
    return replace(sim.observe(), links=(link,))


@pytest.mark.parametrize(("option", "value"), [("channels", "2"), ("ring_rx", "512")])
def test_a_driver_that_makes_threads_anew(option: str, value: str) -> None:
    start = resettable("ixgbe")
    text = refusal(start, **{option: value})
    assert text.startswith(f"[napi] {option}={value} eth0 queue 2: setting ")
    assert "would end thread 1002 (napi/eth0-8195)" in text
    assert changed(resettable("virtio_net"), **{option: value})
    assert changed(start, rx_usecs="9")


def test_a_driver_that_asks_for_its_interrupts_anew() -> None:
    rows = (IrqThread(41, (0,), "ext:0", 77, "irq/41-nic-41"),)
    start = resettable("ixgbe", "other")
    assert changed(start, channels="2")
    text = refusal(replace(start, irq_threads=rows), channels="2")
    assert "would end thread 77 (irq/41-nic-41), whose class SCHED_EXT" in text


def test_a_vhost_thread() -> None:
    worker = Thread(5000, "vhost-4321", "deadline", 0, 0, (0, 1))
    tap = Link("tap0", 9, True, False, tap=True, vhosts=(worker,))
    start = simhost.snapshot(simhost.link(), tap)
    text = refusal(start, vhost_cpus="4")
    assert text.startswith(
        "[flow_steering] vhost_cpus=4 tap0: setting vhost-cpus to 4 would move thread"
    )
    assert not changed(start, vhost_cpus="0-1")


# -- apply, and what goes back ------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def test_nothing_is_applied(store: Store) -> None:
    sim = threaded()
    before = simhost.settings(sim)
    with pytest.raises(RxlaneError, match="could not be restored"):
        apply(sim, store, asked(thread_nice="3", defer_hard_irqs="7", irq_cpus="auto"))
    assert sim.writes == 0 and simhost.settings(sim) == before and store.load() is None


def test_the_remedy_makes_way(store: Store) -> None:
    sim = threaded()
    give(sim, 1, "other")
    assert apply(sim, store, asked(thread_nice="3")).written == 4


@pytest.mark.parametrize("less", [{"defer_hard_irqs": "7"}, {"thread_cpus": "0-7"}])
def test_what_is_asked_for_no_more_is_not_taken_from_a_thread(
    store: Store, less: dict[str, str]
) -> None:
    sim = SimHost(simhost.snapshot())
    apply(sim, store, asked(threaded="on", thread_nice="3"))
    pid = give(sim, 2)
    sim.writes, before = 0, simhost.settings(sim)
    with pytest.raises(RxlaneError) as caught:
        apply(sim, store, asked(**less))
    assert caught.value.kind is Kind.REFUSED
    assert f"`chrt --other --pid 0 {pid}`" in str(caught.value) and "queue 2" in str(caught.value)
    assert sim.writes == 0 and simhost.settings(sim) == before


def test_a_class_that_a_thread_is_born_with(store: Store) -> None:
    """Kernels that keep what threads were given; nobody knows before the thread is there."""
    sim = SimHost(simhost.snapshot())
    before = simhost.settings(sim)

    def born() -> None:
        for pid, thread in sim.threads.items():
            sim.threads[pid] = replace(thread, policy="deadline")

    sim.on_write = born
    assert apply(sim, store, asked(threaded="on")).written == 4
    rollback(sim, store)
    with pytest.raises(RxlaneError) as caught:
        apply(sim, store, asked(threaded="on", thread_nice="3"))
    assert caught.value.kind is Kind.KERNEL and "SCHED_DEADLINE" in str(caught.value)
    assert not [line for line in sim.log if "thread-sched" in line]
    assert simhost.settings(sim) == before and store.load() is None


def test_a_rollback_is_not_refused(store: Store) -> None:
    sim = SimHost(simhost.whole(simhost.snapshot(simhost.separable(simhost.link()))))
    before = simhost.settings(sim)
    options = {"threaded": "on", "thread_nice": "3", "rx_threads": "2"}
    apply(sim, store, asked(**options))
    give(sim, 0)
    give(sim, 3, "ext")
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.load() is None


def test_no_original_is_a_class_that_cannot_be_set(store: Store) -> None:
    """What a driver may reset is noted before; by the rollback the operator has made way."""
    sim = threaded()
    sim.links["eth0"] = simhost.tuned(sim.links["eth0"])
    apply(sim, store, asked(ring_rx="512"))
    journal = store.load()
    assert journal is not None
    assert all(restorable(str(entry.before)) for entry in journal.entries)
    assert rollback(sim, store).pending == ()


# -- keeping and verifying ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", UNKNOWN_SCHED)
def test_a_layout_that_is_kept_stands_as_it_is(store: Store, policy: str) -> None:
    """One line whatever is announced, nothing is written, and all is put right afterwards."""
    wanted = asked("eth0", threaded="on@1-", thread_nice="5", defer_hard_irqs="100")
    bench = Bench(SimHost(simhost.snapshot()), store, wanted)
    during = simhost.settings(bench.host)
    pid = give(bench.host, 2, policy)
    bench.host.write_napi(8194, {"defer-hard-irqs": 7})
    writes, journal = bench.host.writes, store.path.read_bytes()
    for seen in (UP, CHANNELS, FEATURES, UP):
        assert bench.happens(seen, after=30)
        assert bench.converger.timeout() is None
    assert bench.host.writes == writes and store.path.read_bytes() == journal
    ((level, text),) = bench.log
    assert level == "error" and f"`chrt --other --pid 0 {pid}` makes way" in text
    assert text.startswith("eth0 went up: [napi] thread_nice=5 eth0 queue 2: ")
    give(bench.host, 2, "other")
    assert bench.happens(FEATURES)
    assert simhost.settings(bench.host) == during and "put right" in bench.log[-1][1]


def test_a_layout_that_leaves_the_thread_alone_is_kept(store: Store) -> None:
    bench = Bench(SimHost(simhost.snapshot()), store, asked("eth0", threaded="on"))
    pid = give(bench.host, 2)
    bench.host.write_napi(8194, {"threaded": "off"})
    assert bench.happens(UP)
    assert bench.host.links["eth0"].napis[1].threaded == 1
    assert bench.host.threads[pid].policy == "deadline"


def test_what_was_given_back_is_not_verified_as_a_refusal(tmp_path: Path) -> None:
    """The thread's class has drifted; what else there is to verify is not lost by it."""
    two = simhost.link("eth1", 2, ifindex=3, base=9000)
    sim = SimHost(simhost.snapshot(simhost.link(), two))
    work = Adapter(tmp_path / "state", lambda: sim)
    rows = [
        Row("one", frozenset({"eth0"}), (("threaded", "on"), ("thread_nice", "3"))),
        Row("two", frozenset({"eth1"}), (("threaded", "on"),)),
    ]
    assert work.apply(rows).ok
    give(sim, 2)
    assert work.verify(rows, {"eth1"}).ok
    report = work.verify(rows, {"eth0"})
    failed = [text for level, text in report.lines if level == "error"]
    assert not report.ok and failed == [
        "verify: failed: eth0/rx2/thread-sched is deadline:0, expected other:3 (another program or"
        " a driver reset changed it)"
    ]
    assert len([text for _, text in report.lines if "verify: passed: eth0/" in text]) == 7


def test_a_class_that_no_section_speaks_of_fails_no_verification(tmp_path: Path) -> None:
    sim = SimHost(simhost.snapshot())
    work = Adapter(tmp_path / "state", lambda: sim)
    rows = [Row("one", frozenset({"eth0"}), (("threaded", "on"),))]
    assert work.apply(rows).ok
    give(sim, 2)
    assert work.verify(rows, {"eth0"}).ok and work.apply(rows).ok


def test_a_plan_that_is_only_compared() -> None:
    plan: Plan = decide(threaded().observe(), asked(thread_nice="3"), compared=True)
    assert len(plan.changes) == 4
