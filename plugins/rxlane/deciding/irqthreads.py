# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that moves interrupt handlers into threads, and says how those run. Pure.

In threaded mode an interrupt's thread polls the NAPI. Where the NAPI has a thread of its own, that
one polls, and a packet would wake one thread to wake another; where it busy-polls, its interrupts
are off and the mode says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rxlane import cpulist, topology
from rxlane.deciding.draft import Draft, check_thread_cpus
from rxlane.deciding.handlers import present
from rxlane.deciding.layout import interrupts
from rxlane.deciding.placer import Placer
from rxlane.deciding.wanted import Chosen, Wanted
from rxlane.items import (
    IRQ_CPUS,
    IRQ_THREAD_CPUS,
    IRQ_THREAD_SCHED,
    IRQ_THREADED,
    OFF,
    ON,
)
from rxlane.model import Irq, IrqThread, Lane, Link
from rxlane.plan import WHOLE, Target
from rxlane.sections import SCHED_OPTIONS, IrqLayout, Section, mode_of
from rxlane.topology import AUTO

NO_FILE = "kernel or driver does not let the interrupt be switched to a thread"
BUSY = "its NAPI busy-polls, which needs no interrupt"
TWICE = "its NAPI has a thread of its own, which the interrupt's thread would only wake"
WARNING = "warning"
ORDINARY = "other:0"  # IRQF_THREAD_NORMAL of our series
HOPS = "threaded=on costs two hops: the interrupt's thread only wakes the NAPI's, which polls"


@dataclass(frozen=True, slots=True)
class _Handler:
    section: IrqLayout
    link: Link
    lane: Lane
    irq: Irq

    @property
    def queue(self) -> int:
        return self.lane.queue.index

    def target(self, item: str) -> Target:
        return Target(self.link.name, self.queue, item)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """mode: off or on where that is to be; kind and reason: why nothing is written, or a warning.

    kind is that of a Skip, or WARNING.
    """

    mode: str | None = None
    kind: str = ""
    reason: str = ""


def plan(
    draft: Draft, placer: Placer, devices: Iterable[tuple[IrqLayout, Link]]
) -> tuple[list[Chosen], list[IrqThread]]:
    """Plan modes and threads of every device's RX interrupts.

    Returns the CPUs of each thread that is placed, and all IRQ threads that there will be.
    """
    asked = [(section, link) for section, link in devices if section.threads]
    for section, _ in asked:
        given = section.thread_cpus or ()
        check_thread_cpus(draft.view.snapshot.topology, section, "thread_cpus", given)
    handlers = [_Handler(*row) for row in interrupts(draft, asked, IRQ_THREADED)]
    verdicts = [_verdict(draft, one) for one in handlers]
    _report(draft, handlers, verdicts)
    chosen: list[Chosen] = []
    own: dict[int, IrqThread | None] = {}
    turns: Counter[str] = Counter()
    for one, verdict in zip(handlers, verdicts, strict=True):
        if verdict.mode is not None:
            reason = one.section.reason("threaded")
            draft.want(one.target(IRQ_THREADED), verdict.mode, f"{reason}, IRQ {one.irq.number}")
        if (verdict.mode or (OFF, ON)[one.irq.threaded or 0]) == OFF:
            if one.irq.threaded is not None:  # else a thread that is there is not ours to end
                own[one.irq.number] = None
            continue
        if one.section.modes and verdict.mode is None:
            continue  # a thread that the section does not ask for stays as it is
        cpus = _cpus(draft, placer, one, turns[one.section.name])
        turns[one.section.name] += 1
        _thread(draft, one, cpus)
        own[one.irq.number] = IrqThread(one.irq.number, cpus, _sched(one))
        chosen.append((_wanted(one), cpus))
    left = (thread for thread in present(draft) if thread.irq not in own)
    return chosen, [*left, *(thread for thread in own.values() if thread is not None)]


def warn(draft: Draft, threaded: Iterable[Wanted]) -> None:
    """Warn of NAPIs that get a thread while their interrupt is in one, and stays there unasked."""
    found: dict[str, list[int]] = {}
    for one in threaded:
        irq = one.lane.irq
        if irq is None or not irq.threaded or one.mode != ON or one.lane.mode == ON:
            continue
        target = Target(one.link.name, one.lane.queue.index, IRQ_THREADED)
        if draft.wanted(target) is None and draft.coming(target) != OFF:
            found.setdefault(one.link.name, []).append(one.lane.queue.index)
    for device, queues in found.items():
        draft.warnings.append(f"{device} queues {cpulist.render(queues)}: {HOPS}")


def _sched(one: _Handler) -> str:
    """Return the class of a thread: asked for, its own, or as drivers of NICs ask for it."""
    thread = one.irq.thread
    return one.section.thread_sched or (ORDINARY if thread is None else thread.sched)


def _verdict(draft: Draft, one: _Handler) -> _Verdict:
    mode = mode_of(one.section.modes, one.queue)
    if mode is None or (mode == OFF and one.irq.threaded is None):
        return _Verdict()
    napi = draft.mode(one.lane)
    if mode == OFF:
        return _Verdict(OFF)
    if napi == "busy-poll":
        return _Verdict(None, "left-alone", BUSY)
    if mode == AUTO and napi == ON:
        return _Verdict(None, "left-alone", TWICE)
    if one.irq.threaded is None:
        return _Verdict(None, "unsupported", NO_FILE)
    return _Verdict(ON, WARNING, HOPS) if napi == ON else _Verdict(ON)


def _report(draft: Draft, handlers: list[_Handler], verdicts: list[_Verdict]) -> None:
    """Report what is not done; what is the same for all of a device's queues is one line."""
    lanes = Counter(one.link.name for one in handlers)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for one, verdict in zip(handlers, verdicts, strict=True):
        if verdict.kind:
            groups.setdefault((one.link.name, verdict.kind, verdict.reason), []).append(one.queue)
    for (device, kind, reason), queues in groups.items():
        if kind == WARNING:
            draft.warnings.append(f"{device} queues {cpulist.render(queues)}: {reason}")
            continue
        for queue in [WHOLE] if len(queues) == lanes[device] else queues:
            draft.skip(device, queue, IRQ_THREADED, kind, reason)


def _cpus(draft: Draft, placer: Placer, one: _Handler, turn: int) -> tuple[int, ...]:
    """Return the CPUs that the thread may run on: given, its interrupt's, or as they are."""
    given = one.section.thread_cpus
    if given:
        return given if one.section.shared_cpus else (given[turn % len(given)],)
    if given is not None and one.section.shared_cpus:
        return _near(draft, placer, one)
    if given is not None:
        placed = draft.wanted(one.target(IRQ_CPUS))
        own = one.irq.cpus if placed is None else cpulist.parse(str(placed))
        every = _usable(draft, placer, own)
        host = draft.view.snapshot.topology
        return topology.restrict(host, every, one.section.thread_placement, one.link.node)
    if one.irq.thread is not None:
        return one.irq.thread.cpus
    return draft.view.snapshot.topology.online


def _near(draft: Draft, placer: Placer, one: _Handler) -> tuple[int, ...]:
    """Return the CPUs near the device that a thread like this one may have, for all of them: as
    those of NAPIs' threads, what the placement takes, and pollers' last.
    """
    snapshot, like = draft.view.snapshot, _wanted(one)
    host, cpu0 = snapshot.topology, one.section.allow_realtime_cpu0
    found = topology.pool(host, snapshot.vcpus, like.exclusive, like.realtime, cpu0)
    placement, node = one.section.thread_placement, one.link.node
    every = topology.restrict(host, found or host.open, placement, node)
    return tuple(sorted(placer.shared(every, node)))


def _usable(draft: Draft, placer: Placer, own: tuple[int, ...]) -> tuple[int, ...]:
    """Return an interrupt's own CPUs, but those of vCPUs and busy pollers, for its thread.

    It runs in its own time, and so may be on others than the interrupt if these have all of them.
    """
    snapshot = draft.view.snapshot
    usable, vcpus = snapshot.topology.open, snapshot.vcpus
    here = tuple(n for n in own if n in usable) or usable
    host = tuple(n for n in snapshot.topology.housekeeping if n not in vcpus)
    beside = tuple(n for n in here if n not in vcpus) or host or here
    rows = (tuple(n for n in cpus if not placer.polls(n)) for cpus in (beside, host))
    return next(filter(None, rows), beside)


def _thread(draft: Draft, one: _Handler, cpus: tuple[int, ...]) -> None:
    section = one.section
    if section.thread_cpus is not None:
        reason = section.reason("thread_cpus")
        draft.want(one.target(IRQ_THREAD_CPUS), cpulist.render(cpus), reason)
    if section.thread_sched is not None:
        reason = section.reason(*SCHED_OPTIONS)
        draft.want(one.target(IRQ_THREAD_SCHED), section.thread_sched, reason)


def _wanted(one: _Handler) -> Wanted:
    """Return the thread as those of NAPIs are, for the checks of what it may take."""
    section = one.section
    like = Section(
        name=section.name,
        cpus=section.thread_cpus,
        sched=section.thread_sched,
        allow_realtime_cpu0=section.allow_realtime_cpu0,
        text=section.text,
    )
    lane = replace(one.lane, thread=one.irq.thread, mode=(OFF, ON)[one.irq.threaded or 0])
    return Wanted(like, one.link, lane, ON, handler=True)
