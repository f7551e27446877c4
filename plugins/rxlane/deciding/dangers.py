# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that refuses what would starve the host or the lane itself. Pure.

What real-time threads may take of the CPUs is topology's to say; here is what depends on the other
threads, on the kernel's reserve for them, and on sockets that poll.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from rxlane import cpulist
from rxlane.deciding.draft import Draft
from rxlane.deciding.pollers import Pollers
from rxlane.deciding.wanted import Chosen, Wanted, refuse
from rxlane.errors import RxlaneError
from rxlane.items import BUSY_POLL, BUSY_READ
from rxlane.model import IRQ_THREAD_PRIORITY, IrqThread, Snapshot, Topology
from rxlane.plan import HOST, WHOLE, Target
from rxlane.sections import FlowSteering, Named

# Beside a thread of this nice level one of level 0 has a tenth of the CPU, by
# sched_prio_to_weight[] in kernel/sched/core.c.
STARVING = -10


def check_threads(
    draft: Draft,
    chosen: Iterable[Chosen],
    present: Collection[IrqThread],
    others: Collection[Chosen] = (),
) -> None:
    """Refuse real-time threads over others' IRQ threads, or with no time kept for other tasks.

    A thread that stands holds up only what the plan brings there. present: the IRQ threads that
    there will be. others: threads outside of the plan.
    """
    snapshot = draft.view.snapshot
    chosen = list(chosen)
    _check_starved(chosen, others)
    _check_fair(snapshot.topology, chosen, others)
    held: dict[int, int] = {}
    for one, cpus in (*chosen, *others):
        level = holds_up(one)
        if level >= 0:  # ordinary threads may run on every CPU of a large host
            held |= {n: max(held.get(n, level), level) for n in cpus}
    # One that may run elsewhere is moved there when it wakes (select_task_rq_rt()).
    stuck = [t for t in present if all(held.get(n, -1) >= t.priority for n in t.cpus)]
    there = set(snapshot.irq_threads) if stuck else set()
    brought = [thread for thread in stuck if thread not in there]
    for one, cpus in chosen:
        if one.realtime and not one.untouched(cpus):
            _check_irq_threads(brought if _standing(draft, one, cpus) else stuck, one, set(cpus))
            _check_reserve(snapshot, one, set(cpus))


def _standing(draft: Draft, one: Wanted, cpus: tuple[int, ...]) -> bool:
    """True when the thread is so now, whatever it would go back to."""
    lane = draft.present.lanes.get((one.link.name, one.lane.queue.index))
    return (one if lane is None or one.helper is not None else replace(one, lane=lane)).stands(cpus)


def holds_up(one: Wanted) -> int:
    """Return up to which priority threads of interrupts get no time on the CPUs of this one; -1 if
    it leaves some to all.

    A busy poller never sleeps; other threads that poll do not under load, which counts from the
    priority on that the kernel gives to interrupts' threads.
    """
    if not one.realtime or not (one.polling or one.priority >= IRQ_THREAD_PRIORITY):
        return -1
    return one.priority


def spared(one: Wanted) -> int | None:
    """Return the interrupt whose thread this one does not hold up: its own, which wakes it.

    A busy poller's own interrupt is off, unless it serves other queues, which need its thread.
    """
    return None if one.polling or one.lane.irq is None else one.lane.irq.number


def _check_irq_threads(stuck: Iterable[IrqThread], one: Wanted, cpus: set[int]) -> None:
    """stuck: threads that have such real-time threads on all CPUs where they may run."""
    level = holds_up(one)
    for thread in stuck:
        shared = cpus.intersection(thread.cpus)
        if shared and thread.irq != spared(one) and level >= thread.priority:
            less = f"a priority below {thread.priority}, " if thread.priority > 1 else ""
            raise refuse(
                one,
                "thread_priority",
                f"priority {one.priority} on CPU {min(shared)} would hold up the thread of IRQ"
                f" {thread.irq}, which runs nowhere else",
                f"give {less}another CPU, or move the interrupt",
            )


def _check_starved(chosen: Collection[Chosen], others: Collection[Chosen]) -> None:
    """Refuse a thread to which real-time pollers, which never sleep, leave none of its CPUs."""
    rows = (*chosen, *others)
    polling = _realtime_pollers(rows)
    levels = sorted({one.priority for one, _ in polling})
    above = {n: Pollers(row for row in polling if row[0].priority >= n) for n in levels}
    mine = {id(one) for one, _ in chosen}
    for row in rows:
        level = next((n for n in levels if n >= row[0].priority), None)
        over = [] if level is None else above[level].over(row[1], but=row[0])
        own = [one for one in (*over, row) if id(one[0]) in mine]
        # Else it is so without the plan.
        if over and not _settled(own, alone=len(own) > len(over)):
            raise _starving(own[0][0], row, over)


def polled(rows: Iterable[Chosen]) -> frozenset[int]:
    """Return the CPUs that real-time pollers never leave to anybody."""
    return Pollers(_realtime_pollers(rows)).filled()


def _realtime_pollers(rows: Iterable[Chosen]) -> list[Chosen]:
    return [row for row in rows if row[0].polling and row[0].realtime]


def _settled(rows: Iterable[Chosen], alone: bool) -> bool:
    """True when the plan makes these no worse. alone: they are all that are in each other's way."""
    return all(one.untouched(cpus) if alone else one.stands(cpus) for one, cpus in rows)


def _starving(one: Wanted, starved: Chosen, over: Collection[Chosen]) -> RxlaneError:
    """Return the refusal of one, which is a poller, or else what is starved."""
    other, cpus = starved
    poller = one if one is not other else next(iter(over))[0]
    whose = "" if poller is one else f" of {poller.link.name} queue {poller.lane.queue.index}"
    many = len(cpus) > 1
    what = "busy-polling threads" if many else f"a busy-polling thread{whose}"
    thread = "a thread" if other.helper is None else f"rx thread {other.helper}"
    problem = (
        f"on {cpulist.named('CPU', cpus)} {what} of priority {poller.priority}"
        f" {'leave' if many else 'leaves'} no time to {thread} of {other.link.name} queue"
        f" {other.lane.queue.index}"
    )
    remedy = "thread fewer queues, or give more CPUs in thread_cpus"
    if poller is not one:
        remedy = "give another CPU in thread_cpus"
    return refuse(one, "thread_cpus", problem, remedy)


def _check_fair(host: Topology, chosen: Collection[Chosen], others: Collection[Chosen]) -> None:
    """Refuse pollers that have precedence over all else on every housekeeping CPU."""
    rows = [row for row in (*chosen, *others) if row[0].polling and _goes_first(row[0])]
    filled = Pollers(rows).filled()
    if not host.housekeeping or not filled.issuperset(host.housekeeping):
        return
    for one, cpus in chosen:
        if one.polling and one.nice <= STARVING and not one.stands(cpus):
            problem = (
                f"busy-polling threads of nice level {one.nice} would leave a tenth or less of"
                f" every housekeeping CPU ({cpulist.render(host.housekeeping)}) to all else"
            )
            remedy = f"give fewer CPUs, or a nice level above {STARVING}"
            raise refuse(one, "thread_nice", problem, remedy)


def _goes_first(one: Wanted) -> bool:
    return one.realtime or one.nice <= STARVING


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


def check_sockets(
    draft: Draft,
    threaded: Iterable[Wanted],
    others: Iterable[Chosen],
    sections: Iterable[FlowSteering],
) -> None:
    """Refuse busy-polling threads where every socket polls the same NAPIs by itself.

    others: threads outside of the plan, beside which the sections may not bring this about.
    """
    pollers = [one for one in threaded if one.polling]
    left = [one for one, _ in others if one.polling]
    for name in (BUSY_READ, BUSY_POLL):
        target = Target(HOST, WHOLE, name)
        wanted, present = draft.wanted(target), draft.present.read(target)
        coming = draft.coming(target)
        value = present if coming is None else coming
        is_so = "is" if value in (wanted, present) else "goes back to"
        problem = f"{name} {is_so} {value}: sockets would poll the NAPI that its thread polls"
        if pollers and value:
            raise _doubly_polled(pollers[0], name, pollers[0].section, "threaded", problem)
        if left and wanted and not present:
            option = name.rpartition(".")[2]
            section = next(s for s in sections if dict(s.sysctls).get(name))
            raise _doubly_polled(left[0], name, section, option, problem)


def _doubly_polled(
    one: Wanted, name: str, section: Named, option: str, problem: str
) -> RxlaneError:
    remedy = f"set {name.rpartition('.')[2]}=0"
    device, queue = one.link.name, one.lane.queue.index
    return section.error(option, problem, remedy, device=device, queue=queue)
