# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that refuses what would starve the host or the lane itself. Pure.

What real-time threads may take of the CPUs is topology's to say; here is what depends on the other
threads, on the kernel's reserve for them, and on sockets that poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from rxlane import cpulist
from rxlane.draft import Draft
from rxlane.errors import Kind, RxlaneError
from rxlane.items import BUSY_POLL, BUSY_READ
from rxlane.model import IrqThread, Snapshot
from rxlane.plan import HOST, WHOLE, Target
from rxlane.wanted import Chosen, Wanted, refuse

# IRQ threads run as FIFO 50 unless somebody changes it (irq_thread() in kernel/irq/manage.c calls
# sched_set_fifo()): from there on a thread that does not sleep holds them up for good.
IRQ_THREAD_PRIORITY = 50


def check_threads(
    snapshot: Snapshot,
    chosen: Iterable[Chosen],
    present: Collection[IrqThread],
    others: Collection[Chosen] = (),
) -> None:
    """Refuse real-time threads over others' IRQ threads, or with no time kept for other tasks.

    present: the IRQ threads that there will be. others: threads of devices outside of the plan.
    """
    chosen, theirs = list(chosen), defaultdict[tuple[int, ...], list[Wanted]](list)
    for other, own in others:
        theirs[own].append(other)
    for one, cpus in chosen:
        if len(cpus) == 1 and not one.stands(cpus):  # else it is so without the plan
            _check_others(one, cpus[0], theirs.get(cpus, ()))
    held = {
        n for one, cpus in (*chosen, *others) if one.priority >= IRQ_THREAD_PRIORITY for n in cpus
    }
    # One that may run elsewhere is moved there when it wakes (select_task_rq_rt()).
    stuck = [thread for thread in present if held.issuperset(thread.cpus)]
    for one, cpus in chosen:
        if one.realtime and not one.untouched(cpus):
            _check_irq_threads(stuck, one, set(cpus))
            _check_reserve(snapshot, one, set(cpus))
        if one.realtime:
            _check_beside(one, cpus, chosen)


def _check_irq_threads(stuck: Iterable[IrqThread], one: Wanted, cpus: set[int]) -> None:
    """stuck: threads that have such real-time threads on all CPUs where they may run."""
    if one.priority < IRQ_THREAD_PRIORITY:
        return
    own = None if one.lane.irq is None else one.lane.irq.number
    for thread in stuck:
        shared = cpus.intersection(thread.cpus)
        if shared and thread.irq != own:
            raise refuse(
                one,
                "thread_priority",
                f"priority {one.priority} on CPU {min(shared)} would hold up the thread of IRQ"
                f" {thread.irq}, which runs nowhere else",
                f"give a priority below {IRQ_THREAD_PRIORITY}, another CPU, or move the interrupt",
            )


def _check_beside(one: Wanted, cpus: tuple[int, ...], chosen: Iterable[Chosen]) -> None:
    """Refuse a real-time poller, which never sleeps, where another lane's thread must run."""
    if not one.polling or len(cpus) > 1:
        return
    for other, own in chosen:
        if other is one or own != cpus or other.priority > one.priority:
            continue
        if not (one.untouched(cpus) and other.untouched(own)):
            raise _starving(one, cpus[0], one, other)


def _check_others(one: Wanted, number: int, others: Iterable[Wanted]) -> None:
    """Refuse the same between a thread of the plan and those of other devices on its CPU."""
    for other in others:
        for poller, sleeper in ((one, other), (other, one)):
            if poller.polling and poller.realtime and sleeper.priority <= poller.priority:
                raise _starving(one, number, poller, sleeper)


def _starving(one: Wanted, number: int, poller: Wanted, other: Wanted) -> RxlaneError:
    """Return the refusal of one, which either is the poller or the other."""
    whose = "" if poller is one else f" of {poller.link.name} queue {poller.lane.queue.index}"
    thread = "a thread" if other.helper is None else f"rx thread {other.helper}"
    problem = (
        f"on CPU {number} a busy-polling thread{whose} of priority {poller.priority} leaves no"
        f" time to {thread} of {other.link.name} queue {other.lane.queue.index}"
    )
    remedy = "thread fewer queues, or give more CPUs in thread_cpus"
    if poller is not one:
        remedy = "give another CPU in thread_cpus"
    return refuse(one, "thread_cpus", problem, remedy)


def _check_reserve(snapshot: Snapshot, one: Wanted, cpus: set[int]) -> None:
    bare = cpus.intersection(snapshot.unreserved)
    if bare and not snapshot.stalld:
        raise refuse(
            one,
            "thread_policy",
            f"nothing keeps time for other tasks on CPU {cpulist.render(bare)}: the fair server is"
            " off, or kernel.sched_rt_runtime_us is -1",
            "switch that on again or start stalld",
        )


def check_sockets(draft: Draft, threaded: Iterable[Wanted]) -> None:
    """Refuse busy-polling threads where every socket polls the same NAPIs by itself."""
    pollers = [one for one in threaded if one.polling]
    if not pollers:
        return
    for name in (BUSY_READ, BUSY_POLL):
        target = Target(HOST, WHOLE, name)
        value = draft.wanted(target)
        value = draft.present.read(target) if value is None else value
        if value:
            raise RxlaneError(
                Kind.REFUSED,
                f"{name} is {value}: sockets would poll the NAPI that its thread polls",
                section=pollers[0].section.name,
                option="threaded",
                value=pollers[0].section.option("threaded"),
                device=pollers[0].link.name,
                queue=pollers[0].lane.queue.index,
                remedy=f"set {name.rpartition('.')[2]}=0",
            )
