# SPDX-License-Identifier: GPL-2.0-or-later
"""Devices laid out one after the other: what the first ones have counts for the next."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from rxlane import cpulist
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.model import Index, IrqThread, Snapshot, lanes
from rxlane.plan import Target
from rxlane.sections import Policy
from unit import simhost
from unit.asking import asked, in_threads, planned, refusal, values
from unit.onebyone import FIFO, host, laid_out, polled
from unit.simhost import MemoryStore, SimHost

FOUR = simhost.topology(4)
TAKEN = laid_out(host(cpus=FOUR), "eth0", **FIFO, thread_cpus="2-3")


@pytest.mark.parametrize("queues", ["busy-poll@0", "on@0"])
def test_realtime_threads_of_other_devices_count(queues: str) -> None:
    given = FIFO | {"threaded": queues, "thread_cpus": 1}
    error = refusal(TAKEN, "eth1", **given)
    text = "would leave only CPU 0 for all else, with those of eth0 on CPUs 2-3"
    assert text in str(error) and error.option == "thread_policy"
    everything = FIFO | {"thread_cpus": "0-1", "allow_realtime_cpu0": 1}
    assert "last housekeeping CPU" in str(refusal(TAKEN, "eth1", **everything))
    fair = {"threaded": "busy-poll", "thread_cpus": "0-1"}
    assert planned(TAKEN, "thread-cpus", "eth1", **fair) == {"eth1/rx0": "0", "eth1/rx1": "1"}


def test_what_others_took_is_no_reason_to_refuse_the_rest() -> None:
    """Here eth0 has all CPUs, by another's hand; isolated CPUs are not what the host lacks."""
    start = host(cpus=simhost.topology(6, isolated=(4, 5)))
    everything = laid_out(start, "eth0", threaded="on", thread_cpus="0-3", thread_spread="all")
    fifo = (replace(t, policy="fifo", priority=10) for t in everything.threads)
    broken = replace(everything, threads=tuple(fifo))
    assert planned(broken, "irq-cpus", "eth1", irq_cpus="auto")
    assert planned(broken, "thread-cpus", "eth1", threaded="on", thread_cpus="auto")
    assert planned(broken, "thread-cpus", "eth1", **FIFO, thread_cpus="4-5")
    worse = replace(broken, threads=tuple(replace(t, cpus=(2,)) for t in broken.threads))
    assert "only CPU 0 for" in str(refusal(worse, "eth1", **FIFO, thread_cpus="1,3"))


def with_thread(start: Snapshot, *threads: tuple[int, int, str]) -> Snapshot:
    """The host with threads of interrupts: number, CPU and class of each."""
    return replace(start, irq_threads=tuple(IrqThread(n, (cpu,), own) for n, cpu, own in threads))


ORDINARY = with_thread(TAKEN, (140, 1, "other:0"))


def test_no_interrupt_goes_where_its_thread_would_get_no_time() -> None:
    """Here eth0 polls on CPUs 2 and 3, and IRQ 140 of eth1 has an ordinary thread."""
    plan = decide(ORDINARY, asked("eth1", irq_cpus="2", defer_hard_irqs="5"))
    assert values(plan, "irq-cpus") == {"eth1/rx1": "2"}, "the other one has no thread"
    (left,) = plan.skips
    assert (left.device, left.queue, left.kind) == ("eth1", 0, "left-alone")
    assert "irq_cpus=2 in [irq_layout]: real-time threads of other queues" in left.reason
    assert "no time there to the thread of IRQ 140" in left.reason
    assert len(values(plan, "defer-hard-irqs")) == 2, "the rest is laid out"
    for cpus in ("1-3", "0-3", "auto"):
        assert planned(ORDINARY, "irq-cpus", "eth1", irq_cpus=cpus)["eth1/rx0"] in ("0", "1")
    near = planned(ORDINARY, "irq-cpus", "eth1", irq_cpus="numa-local")
    assert near["eth1/rx0"] == "0-1", "the kernel chooses one of these"
    higher = with_thread(TAKEN, (140, 1, ""))
    assert planned(higher, "irq-cpus", "eth1", irq_cpus="2")["eth1/rx0"] == "2", (
        "FIFO 50 goes first"
    )
    weakest = with_thread(TAKEN, (140, 1, "other:0"), (140, 1, "fifo:50"))
    assert "eth1/rx0" not in planned(weakest, "irq-cpus", "eth1", irq_cpus="2")
    stays = tuple(replace(irq, threaded=1) for irq in ORDINARY.irqs)
    stay = planned(replace(ORDINARY, irqs=stays), "irq-cpus", "eth1", irq_cpus="2")
    assert stay["eth1/rx0"] == "2", "its thread does not go along"


def test_interrupts_of_queues_that_busy_poll_need_no_thread() -> None:
    own = with_thread(TAKEN, (40, 1, "other:0"), (41, 1, "other:0"))
    assert planned(own, "irq-cpus", "eth0", irq_cpus="2") == {"eth0/rx0": "2", "eth0/rx1": "2"}
    alone = with_thread(host(devices=1, cpus=FOUR), (40, 1, "other:0"), (41, 1, "other:0"))
    given = FIFO | {"thread_cpus": "2-3", "irq_cpus": "3"}
    assert set(planned(alone, "irq-cpus", **given).values()) == {"3"}
    half = FIFO | {"threaded": "busy-poll@0", "thread_cpus": "3", "irq_cpus": "3"}
    assert planned(alone, "irq-cpus", **half) == {"eth0/rx0": "3"}, "queue 1 needs its own"


def followed(start: Snapshot, own: str) -> Snapshot:
    """The host with a thread of this class for each RX interrupt, where that comes to."""
    lanes_of = (lane for link in start.links for lane in lanes(Index.of(start), link))
    rows = (lane.irq for lane in lanes_of if lane.irq is not None)
    return replace(start, irq_threads=tuple(IrqThread(i.number, i.cpus, own) for i in rows))


@pytest.mark.parametrize("own", ["other:0", "fifo:50"])
@pytest.mark.parametrize("mode", ["busy-poll@0-1", "on@0-1", "busy-poll"])
def test_a_layout_stands_with_the_threads_that_it_brought_along(mode: str, own: str) -> None:
    given = FIFO | {"threaded": mode, "thread_priority": 50, "thread_cpus": "auto"}
    given |= {"irq_cpus": "auto"}
    start = host(1, 4, cpus=simhost.topology(8))
    irqs = tuple(replace(irq, cpus=(n % 8,)) for n, irq in enumerate(start.irqs))
    first = laid_out(followed(replace(start, irqs=irqs), own), "eth0", **given)
    again = decide(followed(first, own), asked("eth0", **given))
    assert again.holds and not again.changes and not again.skips


def test_new_queues_are_kept_away_as_those_that_are_there() -> None:
    grown = replace(ORDINARY, links=tuple(simhost.tuned(link, top=4) for link in ORDINARY.links))
    plan = decide(grown, asked("eth1", channels=4, irq_cpus="2"))
    assert {skip.queue for skip in plan.skips} == {0, 2, 3}
    assert values(plan, "irq-cpus") == {"eth1/rx1": "2"}


def test_interrupts_go_elsewhere_where_their_own_thread_would_be_in_the_way() -> None:
    """eth1's NAPI thread is bound to the CPU of a thread of eth0 that goes before all of it."""
    high = FIFO | {"threaded": "on", "thread_priority": 60}
    start = laid_out(host(cpus=FOUR), "eth0", **high, thread_cpus="2-3")
    own = with_thread(start, (140, 1, "other:0"))
    found = planned(own, "irq-cpus", "eth1", threaded="on", thread_cpus="2", irq_cpus="auto")
    assert found["eth1/rx0"] in ("0", "1") and found["eth1/rx1"] == "2"


def test_an_interrupt_goes_beside_what_its_thread_comes_before() -> None:
    """A busy poller of lower priority is in its way less than a thread that sleeps of higher."""
    high = FIFO | {"threaded": "on", "thread_priority": 60}
    first = laid_out(host(3, cpus=FOUR), "eth0", **high, thread_cpus="2")
    start = laid_out(first, "eth1", **FIFO | {"threaded": "busy-poll@0"}, thread_cpus="3")
    own = with_thread(start, (240, 1, "fifo:50"))
    assert planned(own, "irq-cpus", "eth2", irq_cpus="2-3")["eth2/rx0"] == "3"


def test_many_interrupts_with_threads_are_planned_in_a_breath() -> None:
    start = followed(host(1, 512, cpus=simhost.topology(64)), "fifo:50")
    given = FIFO | {"threaded": "on", "thread_cpus": "auto", "thread_spread": "all"}
    before = time.process_time()
    assert planned(start, "irq-cpus", irq_cpus="auto", **given)
    assert time.process_time() - before < 5


def test_a_thread_that_was_brought_below_a_poller_ends_nobodys_layout() -> None:
    moved = with_thread(TAKEN, (140, 2, "other:0"))
    given = asked("eth0", **FIFO, thread_cpus="2-3")
    back = {Target("eth0", n, "threaded"): "off" for n in (0, 1)}
    for returning in ({}, back):  # what its originals are does not count
        again = decide(moved, given, returning=returning)
        assert again.holds and not again.changes
    there = {Target("eth1", 0, "irq-cpus"): "2"}
    with pytest.raises(RxlaneError, match="would hold up the thread of IRQ 140"):
        decide(ORDINARY, given, returning=there)
    assert planned(moved, "irq-cpus", "eth1", irq_cpus="auto")["eth1/rx0"] in ("0", "1")
    assert "eth1/rx0" not in planned(moved, "irq-cpus", "eth1", irq_cpus="3")


def test_a_layout_that_stands_is_kept_whatever_others_do_later() -> None:
    """As when eth0 is kept and somebody else gives eth1 what no plan would have given."""
    both = laid_out(TAKEN, "eth1", threaded="busy-poll", thread_cpus="0-1")
    worse = replace(
        both,
        threads=tuple(replace(t, policy="fifo", priority=40, cpus=(2,)) for t in both.threads),
    )
    mine = FIFO | {"threaded": "busy-poll@0", "thread_cpus": 2}
    assert decide(worse, asked("eth1", **mine)).holds
    assert "for 0 CPUs beside those of eth0" in str(refusal(both, "eth1", **mine))


def test_one_poller_a_cpu_and_core_over_all_devices() -> None:
    fair = {"threaded": "busy-poll@0", "thread_cpus": 3}
    error = refusal(TAKEN, "eth1", **fair)
    assert "1 busy-polling thread for 0 CPUs beside those of eth0 on CPU 3" in str(error)
    unbound = refusal(host_with_pollers(), "eth1", threaded="busy-poll")
    assert "4 busy-polling threads for 2 CPUs beside those of eth0 on CPUs 2-3" in str(unbound)
    cores = laid_out(host(cpus=simhost.topology(4, smt=2)), "eth0", **fair)
    named = decide(cores, asked("eth1", threaded="busy-poll@0", thread_cpus=2))
    assert "on CPUs 2 and 3, of eth0, share one core" in "".join(named.warnings)
    # CPU 1 shares its core with CPU 0, which pollers take last; both are better than CPU 2.
    auto = planned(cores, "thread-cpus", "eth1", threaded="busy-poll@0", thread_cpus="auto")
    assert auto == {"eth1/rx0": "1"}
    error = refusal(cores, "eth1", threaded="busy-poll", thread_cpus="auto")
    assert "share one core" in str(error)


def host_with_pollers() -> Snapshot:
    return laid_out(host(queues=4, cpus=FOUR), "eth0", threaded="busy-poll@2-3", thread_cpus="2-3")


def test_a_realtime_poller_and_another_devices_thread_on_one_cpu() -> None:
    start = host()
    sleeping = laid_out(start, "eth0", threaded="on", thread_cpus="2-3")
    error = refusal(sleeping, "eth1", **FIFO, thread_cpus="4,3")
    assert (
        "on CPU 3 a busy-polling thread of priority 40 leaves no time to a thread of eth0"
        in str(error)
    )
    polling = laid_out(start, "eth0", **FIFO, thread_cpus="2-3")
    error = refusal(polling, "eth1", threaded="on", thread_cpus="4,3")
    assert "on CPU 3 a busy-polling thread of eth0 queue 1 of priority 40 leaves no" in str(error)
    above = {"threaded": "on", "thread_policy": "fifo", "thread_priority": 41}
    assert planned(polling, "thread-cpus", "eth1", **above, thread_cpus="4,3")


def test_auto_makes_way_for_other_devices() -> None:
    alone = planned(host(), "thread-cpus", "eth1", **FIFO, thread_cpus="auto")
    assert alone == {"eth1/rx0": "5", "eth1/rx1": "6"}
    start = laid_out(host(), "eth0", **FIFO, thread_cpus="5-6")
    assert planned(start, "thread-cpus", "eth1", **FIFO, thread_cpus="auto") == {
        "eth1/rx0": "2",
        "eth1/rx1": "3",
    }
    low = laid_out(host(), "eth0", threaded="busy-poll", thread_cpus="1-2")
    fair = planned(low, "thread-cpus", "eth1", threaded="on", thread_cpus="auto")
    irqs = planned(low, "irq-cpus", "eth1", irq_cpus="auto")
    for found in (fair, irqs):
        assert {"1", "2"}.isdisjoint(map(str, found.values()))
    masks = planned(low, "rps-cpus", "eth1", rps="auto")
    assert all("1" not in str(mask) and "2" not in str(mask) for mask in masks.values())
    workers = decide(low, asked("eth1", workqueue_cpus="auto"))
    assert [c.after for c in workers.changes] == ["0,3-7"]


@pytest.mark.parametrize("irq_cpus", ["auto", "numa-local"])
def test_a_thread_counts_whatever_section_names_its_device(irq_cpus: str) -> None:
    """Interrupts, RPS and workers of all devices, and threads of other sections' devices."""
    start = laid_out(host(), "eth0", **FIFO, thread_cpus="1-2")
    options: dict[str, object] = {"irq_cpus": irq_cpus, "rps": "auto", "workqueue_cpus": "auto"}
    for item in ("irq-cpus", "rps-cpus"):
        of_all = planned(start, item, **options)
        for queue in ("eth1/rx0", "eth1/rx1"):
            assert {1, 2}.isdisjoint(cpulist.parse(str(of_all[queue]))), item
    assert planned(start, "workqueue-cpus", **options) == {"workqueue-cpus": "0,3-7"}
    left = Policy((*asked("eth0", defer_hard_irqs=9).sections,
                   *asked("eth1", threaded="on", thread_cpus="auto").sections))  # fmt: skip
    placed = values(decide(start, left), "thread-cpus")
    assert len(placed) == 2 and {"1", "2"}.isdisjoint(map(str, placed.values()))


def test_management_queues_are_outside() -> None:
    """Of the very device, and of others that the same section has."""
    start = laid_out(host(queues=4), "eth0", **(FIFO | {"threaded": "busy-poll@0"}), thread_cpus=2)
    aside: dict[str, object] = {"threaded": "on@1-", "management_queues": 1}
    placed = planned(start, "thread-cpus", **aside, thread_cpus="auto")
    assert len(placed) == 6 and "2" not in placed.values()
    for devices in ((), ("eth0",), ("eth1",)):
        error = refusal(start, *devices, **aside, thread_cpus=2)
        assert "on CPU 2 a busy-polling thread of eth0 queue 0 of priority 40 leaves" in str(error)


@pytest.mark.parametrize("left", [{}, {"management_queues": 1}])
def test_queues_without_a_rule_are_outside(left: dict[str, object]) -> None:
    """Their threads poll on, by another's hand, as those of management queues do."""
    first = laid_out(host(queues=4), "eth0", **(FIFO | {"threaded": "busy-poll@0"}), thread_cpus=2)
    error = refusal(first, "eth0", **FIFO | {"threaded": "busy-poll@1"}, thread_cpus=2, **left)
    assert "1 busy-polling thread for 0 CPUs beside those of eth0 on CPU 2" in str(error)
    rest = FIFO | {"threaded": "busy-poll@1-3", "thread_cpus": "auto"} | left
    placed = planned(first, "thread-cpus", "eth0", **rest)
    assert len(placed) == 3 and "2" not in placed.values()
    small = laid_out(
        host(queues=4, cpus=FOUR), "eth0", **(FIFO | {"threaded": "busy-poll@0"}), thread_cpus=3
    )
    more = FIFO | {"threaded": "busy-poll@1-2"} | left
    error = refusal(small, "eth0", **more, thread_cpus="1-2")
    assert "would leave only CPU 0 for all else, with those of eth0 on CPU 3" in str(error)
    error = refusal(first, "eth0", threaded="on@1", thread_cpus="4", busy_read=50, **left)
    assert "sockets would poll the NAPI that its thread polls" in str(error)


def test_threads_of_a_section_that_leaves_them_count() -> None:
    six = host(queues=3, cpus=simhost.topology(6))
    start = laid_out(six, "eth0", threaded="busy-poll", thread_cpus="0-2")
    policy = Policy((*asked("eth0", defer_hard_irqs=0).sections,
                     *asked("eth1", threaded="on", thread_cpus="auto").sections))  # fmt: skip
    placed = values(decide(start, policy), "thread-cpus")
    assert len(placed) == 3 and {"0", "1", "2"}.isdisjoint(map(str, placed.values()))


def whole(start: Snapshot, *places: int) -> Snapshot:
    """The host on a kernel that knows modes of devices only, eth0's threads FIFO and bound."""
    lanes_of = polled(start)
    cpus = {lane.thread.pid: n for lane, n in zip(lanes_of, places, strict=True) if lane.thread}
    threads = (replace(t, policy="fifo", priority=30, cpus=(cpus[t.pid],)) for t in start.threads)
    return replace(start, threads=tuple(threads), capabilities=simhost.STOCK)


def stock(cpus: int) -> Snapshot:
    """Two devices on such a kernel."""
    links = (simhost.link(f"eth{n}", 2, ifindex=n + 2, base=9000 + 500 * n, kernel=simhost.STOCK)
             for n in range(2))  # fmt: skip
    return simhost.whole(
        simhost.snapshot(*links, cpus=simhost.topology(cpus), capabilities=simhost.STOCK)
    )


def test_the_device_s_mode_is_that_of_its_management_queues() -> None:
    """Where a kernel sets modes of whole devices: what the plan ends is in nobody's way."""
    start = whole(laid_out(stock(4), "eth0", threaded="on"), 0, 1)
    ends = asked("eth0", threaded="off", management_queues=1)
    fifo = {"thread_policy": "fifo", "thread_priority": "10"}
    begins = asked("eth1", threaded="on", thread_cpus="2-3", **fifo)
    sim, store = SimHost(start), MemoryStore()
    both = Policy((*ends.sections, *begins.sections))
    assert apply(sim, store, both).written and apply(sim, store, both).written == 0
    # And what goes on polling is, though the journal has it as it was before.
    on = asked("eth0", threaded="on", management_queues=1, thread_cpus="auto")
    assert apply(sim := SimHost(stock(4)), store := MemoryStore(), on).written
    now = sim.observe()
    (first, second) = (lane.thread for lane in polled(now))
    assert first is not None and second is not None
    sim.threads[first.pid] = replace(first, policy="fifo", priority=40, cpus=second.cpus)
    assert [str(c.target) for c in apply(sim, store, on).plan.changes] == ["eth0/rx1/thread-cpus"]


def test_an_interrupts_thread_does_not_stay_with_a_poller() -> None:
    start = in_threads(laid_out(host(), "eth1", **FIFO, thread_cpus="1-2"))
    here = tuple(replace(irq, cpus=(1,), effective=(1,)) for irq in start.irqs)
    modes: dict[str, object] = {"irq_layout.threaded": "on", "irq_layout.thread_cpus": "auto"}
    found = planned(replace(start, irqs=here), "irq-thread-cpus", "eth0", **modes)
    assert set(found.values()) == {"0,3-7"}


@pytest.mark.parametrize("name", ["busy_read", "busy_poll"])
def test_sockets_are_not_made_to_poll_beside_a_thread(name: str) -> None:
    for devices in ((), ("eth0",), ("eth1",)):
        error = refusal(TAKEN, *devices, **{name: 50})
        assert f"net.core.{name} is 50: sockets would poll" in str(error)
        assert (error.section, error.option, error.value) == ("flow_steering", name, "50")
    rows = (replace(s, value=50) if s.name.endswith(name) else s for s in TAKEN.sysctls)
    assert decide(replace(TAKEN, sysctls=tuple(rows)), asked("eth1", **{name: 40})).changes


def test_one_after_the_other_devices_go_to_different_cpus() -> None:
    """Ordinary threads and interrupts, too, of which a plan for another device sees nothing."""
    options: dict[str, object] = {"threaded": "on", "thread_cpus": "auto", "irq_cpus": "auto"}
    start = host(4, cpus=simhost.topology(16))
    together = planned(start, "thread-cpus", **options)
    apart: dict[str, object] = {}
    for n in range(4):
        apart |= planned(start, "thread-cpus", f"eth{n}", **options)
        start = laid_out(start, f"eth{n}", **options)
    assert apart == together and len({*apart.values()}) == 8


def test_what_goes_back_with_the_plan_does_not_count() -> None:
    given = asked("eth1", **(FIFO | {"threaded": "busy-poll@0"}), thread_cpus=1)
    with pytest.raises(RxlaneError):
        decide(TAKEN, given)
    modes = {Target("eth0", queue, "threaded"): "off" for queue in (0, 1)}
    assert decide(TAKEN, given, returning=modes).changes
    assert decide(TAKEN, given, returning={Target("eth0", -1, "threaded"): "off"}).changes
    classes = {Target("eth0", queue, "thread-sched"): "other:0" for queue in (0, 1)}
    assert decide(TAKEN, given, returning=classes).changes
    places = {Target("eth0", queue, "thread-cpus"): "1" for queue in (0, 1)}
    with pytest.raises(RxlaneError, match="on CPU 1"):
        decide(TAKEN, given, returning=places)


def test_what_a_thread_had_at_first_is_not_where_it_is() -> None:
    """Another's poller came to its first CPU meanwhile, and the plan brings it back there."""
    first = laid_out(host(queues=1), "eth0", **FIFO, thread_cpus="3")
    sim, store = SimHost(first), MemoryStore()
    apply(sim, store, asked("eth0", **FIFO, thread_cpus="5"), ["eth0"])
    apply(sim, MemoryStore(), asked("eth1", **FIFO, thread_cpus="3"), ["eth1"])
    with pytest.raises(RxlaneError, match="for 0 CPUs beside those of eth1 on CPU 3"):
        apply(sim, store, asked("eth0", **FIFO, thread_cpus="3"), ["eth0"])


def test_devices_of_the_plan_count_once() -> None:
    """Also one that only another kind of section names: what it has of an earlier plan goes."""
    assert decide(TAKEN, asked("eth0", **FIFO, thread_cpus="2-3")).changes == ()
    assert decide(TAKEN, asked("eth0", irq_cpus="auto")).changes
    again = asked("eth0", **(FIFO | {"threaded": "busy-poll@0"}), thread_cpus=1)
    assert decide(TAKEN, again).changes
