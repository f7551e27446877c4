# SPDX-License-Identifier: GPL-2.0-or-later
"""Each refusal of what would starve host or lane, and the priorities that go with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.items import SCHED
from rxlane.model import IrqThread, Snapshot, Thread
from rxlane.plan import HOST, WHOLE, Target
from rxlane.policy import parse_section
from rxlane.sections import Policy
from unit import simhost
from unit.asking import FIFO, asked, host, planned, refusal, threads


def test_realtime_on_the_sibling_of_the_last_housekeeping_cpus() -> None:
    """CPUs 0, 2, 4 and 6 are the host's; with 1, 3, 5 and 7 real-time none of them has a core."""
    start = host(cpus=simhost.topology(8, smt=2, isolated=(1, 3, 5, 7)))
    error = refusal(start, threaded="on", thread_cpus="1,3,5,7", **FIFO)
    assert "SMT siblings of every housekeeping CPU" in str(error)
    assert threads(start, threaded="on@1-", thread_cpus="3,5,7", **FIFO)
    auto = threads(start, threaded="on@1-3", thread_cpus="auto", **FIFO)
    assert "1" not in auto.values(), "auto leaves CPU 0 its core"


def with_irq_thread(irq: int, *cpus: int) -> Snapshot:
    return replace(host(), irq_threads=(IrqThread(irq, cpus),))


def test_priority_50_over_another_interrupts_thread() -> None:
    options = {"threaded": "on@1", "thread_cpus": "4", **FIFO}
    error = refusal(with_irq_thread(17, 4), **options)
    assert "priority 50 on CPU 4 would hold up the thread of IRQ 17" in str(error)
    assert error.option == "thread_priority" and error.queue == 1
    assert threads(with_irq_thread(17, 3), **options), "it runs elsewhere"
    assert threads(with_irq_thread(17, 3, 4), **options), "it may run elsewhere"
    both = options | {"threaded": "on@1-2", "thread_cpus": "3,4"}
    assert "thread of IRQ 17" in str(refusal(with_irq_thread(17, 3, 4), **both))
    assert threads(with_irq_thread(41, 4), **options), "the lane's own"
    assert threads(with_irq_thread(17, 4), **(options | {"thread_priority": 49}))
    fair = options | {"thread_policy": "other", "thread_priority": ""}
    assert threads(with_irq_thread(17, 4), **fair)


def test_what_never_sleeps_holds_up_all_threads_up_to_its_priority() -> None:
    """Interrupts' threads of an ordinary class are what net-vm-host makes of them."""
    poller = {"threaded": "busy-poll@1", "thread_cpus": "4", **FIFO}
    for sched, stuck in (("other:0", 1), ("fifo:20", 20), ("rr:20", 20), ("", 50), ("fifo:90", 90)):
        start = replace(host(), irq_threads=(IrqThread(17, (4,), sched),))
        if stuck > 1:
            assert threads(start, **(poller | {"thread_priority": stuck - 1}))
        if stuck <= 60:
            error = refusal(start, **(poller | {"thread_priority": stuck}))
            assert f"priority {stuck} on CPU 4 would hold up the thread of IRQ 17" in str(error)
            assert (f"a priority below {stuck}" in str(error)) == (stuck > 1)
        auto = threads(start, **(poller | {"thread_cpus": "auto", "thread_priority": stuck}))
        assert "4" not in auto.values() or stuck == 90
        sleeps = {"threaded": "on@1", "thread_priority": min(stuck, 49)}
        assert threads(start, **(poller | sleeps)), "it sleeps where nothing is to be polled"


def test_priority_50_where_an_interrupts_thread_would_come() -> None:
    """It goes with its interrupt; one whose mode can be switched has CPUs of its own."""
    options = {"threaded": "on@1", "thread_cpus": "4", **FIFO}
    to_4 = options | {"irq_cpus": 4}
    assert "eth0/rx0" not in planned(with_irq_thread(40, 3), "irq-cpus", **to_4)
    assert "on CPU 4 would hold up the thread of IRQ 40" in str(
        refusal(with_irq_thread(40, 4), **to_4)
    ), "it is there, and is left where it is"
    assert threads(with_irq_thread(40, 4), **(options | {"irq_cpus": "3"}))
    start = with_irq_thread(40, 3)
    own = replace(start, irqs=tuple(replace(irq, threaded=1) for irq in start.irqs))
    assert planned(own, "irq-cpus", **to_4)["eth0/rx0"] == "4"
    poller = to_4 | {"threaded": "busy-poll@1", "thread_priority": 20}
    assert planned(start, "irq-cpus", **poller)["eth0/rx0"] == "4", "FIFO 50 goes first"
    ordinary = replace(host(), irq_threads=(IrqThread(40, (3,), "other:0"),))
    assert "eth0/rx0" not in planned(ordinary, "irq-cpus", **poller)


def test_auto_keeps_priority_50_off_other_interrupts_threads() -> None:
    options = {"threaded": "on@1-2", "thread_cpus": "auto", **FIFO}
    free = threads(host(), **options)
    assert free == {"eth0/rx1": "2", "eth0/rx2": "3"}
    start = replace(host(), irq_threads=(IrqThread(17, (3,)), IrqThread(40, (2,))))
    assert threads(start, **options) == {"eth0/rx1": "4", "eth0/rx2": "5"}
    lower = options | {"thread_priority": 49}
    assert threads(start, **lower) == free
    roaming = replace(host(), irq_threads=(IrqThread(17, tuple(range(8))),))
    assert threads(roaming, **options) == free
    each = replace(host(), irq_threads=tuple(IrqThread(170 + n, (n,)) for n in range(8)))
    assert "thread of IRQ 172" in str(refusal(each, **options))


def realtime(start: Snapshot, cpus: tuple[int, ...], mode: int = 1) -> Snapshot:
    """The host with every NAPI's thread FIFO 60, by another's hand."""
    fifo = (Thread(500 + n, f"napi/eth0-{n}", "fifo", 60, 0, cpus) for n in range(4))
    (link,) = start.links
    napis = (replace(n, threaded=mode, pid=500 + at) for at, n in enumerate(link.napis))
    return replace(start, links=(replace(link, napis=tuple(napis)),), threads=tuple(fifo))


def test_the_class_that_threads_have_already_counts() -> None:
    everywhere = tuple(range(8))
    start = realtime(host(), everywhere)
    error = refusal(start, threaded="busy-poll", thread_cpus="0-3")
    assert "could run on CPU 0" in str(error)
    assert "CPU 0" in str(refusal(start, threaded="busy-poll")), "they may be anywhere"
    beside = replace(start, irq_threads=(IrqThread(17, (5,)),))
    error = refusal(beside, threaded="on", thread_cpus="4-7")
    assert "priority 60 on CPU 5 would hold up the thread of IRQ 17" in str(error)
    auto = threads(start, threaded="busy-poll", thread_cpus="auto")
    assert len(set(auto.values())) == 4 and "0" not in auto.values()
    fair = threads(start, threaded="busy-poll", thread_cpus="0-3", thread_policy="other")
    assert list(fair.values()) == ["0", "1", "2", "3"]


def test_what_others_made_of_threads_is_no_reason_to_refuse_the_rest() -> None:
    start = realtime(host(), (0,))
    assert threads(start, threaded="on", thread_cpus="0", thread_spread="all")
    assert decide(start, asked(threaded="on", defer_hard_irqs=5)).changes
    assert not decide(realtime(host(), (0,), mode=2), asked(threaded="busy-poll")).changes


def test_a_class_that_goes_back_does_not_count() -> None:
    """As when a profile without it follows one that had set it."""
    start = realtime(host(), tuple(range(8)))
    back = {Target("eth0", queue, SCHED): "other:0" for queue in range(4)}
    plan = decide(start, asked(threaded="busy-poll", thread_cpus="0-3"), returning=back)
    assert plan.changes


def test_cpu_0_is_for_whom_it_was_allowed() -> None:
    """In whatever order the sections come."""
    both = host(simhost.link(queues=1), simhost.link("eth1", 1, ifindex=3, base=9000))
    forbidden = {"threaded": "on", "thread_cpus": "0"}
    forbidden |= {name: str(value) for name, value in FIFO.items()}
    allowed = forbidden | {"allow_realtime_cpu0": "1"}
    elsewhere = forbidden | {"thread_cpus": "3"}

    def of(first: dict[str, str], second: dict[str, str]) -> Policy:
        given = zip(("a", "b"), ("eth0", "eth1"), (first, second), strict=True)
        return Policy(tuple(parse_section(name, [device], own) for name, device, own in given))

    for order in ((allowed, elsewhere), (elsewhere, allowed)):
        assert decide(both, of(*order)).changes
    for order in ((allowed, forbidden), (forbidden, allowed)):
        with pytest.raises(RxlaneError, match="could run on CPU 0") as caught:
            decide(both, of(*order))
        assert caught.value.device == ("eth1" if order[0] is allowed else "eth0")


def test_a_realtime_poller_leaves_nobody_behind_on_its_cpu() -> None:
    """It never sleeps: what has its priority or less would not run again."""
    options = {"threaded": "busy-poll@1,on@2", "thread_cpus": "4", **FIFO}
    error = refusal(host(), **options)
    assert "on CPU 4 a busy-polling thread of priority 50 leaves no time" in str(error)
    assert error.option == "thread_cpus" and error.queue == 1 and "queue 2" in str(error)
    assert threads(host(), **(options | {"thread_cpus": "4,5"}))
    assert threads(host(), **(options | {"thread_policy": "other", "thread_priority": ""}))


def test_realtime_threads_share_with_each_other_before_they_come_to_a_poller() -> None:
    start = host(cpus=simhost.topology(4))
    found = threads(start, threaded="on@1-2,busy-poll@3", thread_cpus="auto", **FIFO)
    assert list(found.values()) == ["3", "3", "2"]


def test_priority_99_is_no_value() -> None:
    with pytest.raises(RxlaneError, match=r"give 1\.\.98"):
        asked(thread_policy="fifo", thread_priority=99)


def test_realtime_where_no_time_is_kept_for_others() -> None:
    options = {"threaded": "on@1", "thread_cpus": "4", **FIFO}
    bare = replace(host(), unreserved=(4, 5))
    error = refusal(bare, **options)
    assert "nothing keeps time for other tasks on CPU 4" in str(error)
    assert threads(replace(bare, stalld=True), **options)
    assert threads(bare, **(options | {"thread_cpus": "6"}))
    assert threads(bare, threaded="busy-poll@1", thread_cpus="4"), "fair threads share"


@pytest.mark.parametrize("name", ["busy_read", "busy_poll"])
def test_busy_polling_threads_beside_polling_sockets(name: str) -> None:
    options = {"threaded": "busy-poll@1", "thread_cpus": "4"}
    assert f"net.core.{name} is 50" in str(refusal(host(), **(options | {name: 50})))
    start = host()
    rows = tuple(replace(s, value=50) if s.name.endswith(name) else s for s in start.sysctls)
    polled = replace(start, sysctls=rows)
    assert f"set {name}=0" in str(refusal(polled, **options))
    assert threads(polled, **(options | {name: 0}))
    assert threads(polled, threaded="on", thread_cpus="4")
    target, mine = Target(HOST, WHOLE, f"net.core.{name}"), asked(**options)
    with pytest.raises(RxlaneError, match=f"net.core.{name} goes back to 50: sockets"):
        decide(start, mine, returning={target: 50})
    assert decide(polled, mine, returning={target: 0}).changes
