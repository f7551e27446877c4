# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads of interrupts that go where their interrupt goes, and where they would get no time. Pure.

The kernel gives such a thread the one CPU to which its interrupt comes (irq_thread_check_affinity()
in kernel/irq/manage.c), whichever of those allowed that is. One whose mode can be switched stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rxlane import cpulist
from rxlane.deciding.dangers import holds_up, spared
from rxlane.deciding.draft import Draft
from rxlane.deciding.wanted import Chosen
from rxlane.items import IRQ_CPUS
from rxlane.model import IrqThread, Lane, others
from rxlane.plan import Target


def present(draft: Draft) -> list[IrqThread]:
    """Return the threads that interrupts need, on the CPUs where the plan takes them."""
    threads = needed(draft)
    moved: dict[int, tuple[int, ...]] = {}
    for key, lane in draft.view.lanes.items() if threads else ():
        target = Target(*key, IRQ_CPUS)
        cpus = draft.coming(target)
        if cpus is None or lane.irq is None or lane.irq.threaded is not None:
            continue
        if lane.irq.number not in moved or draft.wanted(target) is not None:
            moved[lane.irq.number] = cpulist.parse(str(cpus))
    return [replace(t, cpus=moved.get(t.irq, t.cpus)) for t in threads]


def needed(draft: Draft) -> list[IrqThread]:
    """Return the threads of interrupts, but not where every NAPI busy-polls: those stay off."""
    threads = draft.view.snapshot.irq_threads
    if not threads:
        return []
    modes: defaultdict[int, set[str | None]] = defaultdict(set)
    for number, mode in _served(draft):
        modes[number].add(mode)
    return [thread for thread in threads if modes.get(thread.irq) != {"busy-poll"}]


def _served(draft: Draft) -> Iterator[tuple[int, str | None]]:
    """Yield interrupts with the mode that a NAPI of theirs will be in."""
    for lane in draft.view.lanes.values():
        if lane.irq is not None:
            yield lane.irq.number, draft.mode(lane)
    for link in draft.view.snapshot.links:
        for lane in others(draft.index, link):
            if lane.irq is not None:
                yield lane.irq.number, lane.mode


class Room:
    """Tells on which CPUs an interrupt's thread gets time beside the threads that poll."""

    def __init__(self, draft: Draft, rows: Iterable[Chosen]) -> None:
        # By interrupt, and by device for the interrupts of queues to come: the lowest priority.
        self._priority: dict[int, int] = {}
        for thread in needed(draft):
            known = self._priority.get(thread.irq, thread.priority)
            self._priority[thread.irq] = min(known, thread.priority)
        self._of_device: dict[str, int] = {}
        for lane in draft.view.lanes.values() if self._priority else ():
            own = None if lane.irq is None else self._priority.get(lane.irq.number)
            if own is not None:
                self._of_device[lane.device] = min(self._of_device.get(lane.device, own), own)
        # By CPU, up to which priority it is held, and which interrupt's thread is spared: the
        # highest two that spare different ones.
        self._held: defaultdict[int, list[tuple[int, int | None]]] = defaultdict(list)
        for one, cpus in rows if self._priority else ():
            level = holds_up(one)
            for number in cpus if level >= 0 else ():
                _note(self._held[number], level, spared(one))

    def left(self, lane: Lane, cpus: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the CPUs to which the lane's interrupt may go."""
        irq = lane.irq
        if irq is None or irq.threaded is not None:
            return cpus
        priority = self._priority.get(irq.number)
        if irq.number < 0:
            priority = self._of_device.get(lane.device)
        if priority is None:
            return cpus
        return tuple(
            n
            for n in cpus
            if not any(level >= priority and own != irq.number for level, own in self._held[n])
        )


def _note(held: list[tuple[int, int | None]], level: int, spares: int | None) -> None:
    """Add to the highest two that spare different interrupts."""
    best: dict[int | None, int] = {}
    for number, irq in (*held, (level, spares)):
        best[irq] = max(best.get(irq, number), number)
    held[:] = sorted(((n, irq) for irq, n in best.items()), key=lambda row: -row[0])[:2]
