# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads of interrupts that go where their interrupt goes, and where they would get no time. Pure.

The kernel gives such a thread the one CPU to which its interrupt comes (irq_thread_check_affinity()
in kernel/irq/manage.c), whichever of those allowed that is. One whose mode can be switched stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from rxlane import cpulist
from rxlane.deciding.dangers import holds
from rxlane.deciding.draft import Draft
from rxlane.deciding.wanted import Chosen, Wanted
from rxlane.items import IRQ_CPUS
from rxlane.model import Irq, IrqThread
from rxlane.plan import Target


def present(draft: Draft) -> list[IrqThread]:
    """Return the threads that interrupts need, on the CPUs where the plan takes them.

    Those whose every queue busy-polls stay off, and need none.
    """
    moved: dict[int, tuple[int, ...]] = {}
    for key, lane in draft.view.lanes.items():
        target = Target(*key, IRQ_CPUS)
        cpus = draft.coming(target)
        if cpus is None or lane.irq is None or lane.irq.threaded is not None:
            continue
        if lane.irq.number not in moved or draft.wanted(target) is not None:
            moved[lane.irq.number] = cpulist.parse(str(cpus))
    return [replace(t, cpus=moved.get(t.irq, t.cpus)) for t in _needed(draft)]


def _needed(draft: Draft) -> list[IrqThread]:
    threads = draft.view.snapshot.irq_threads
    if not threads:
        return []
    modes: defaultdict[int, set[str | None]] = defaultdict(set)
    for lane in draft.view.lanes.values():
        if lane.irq is not None:
            modes[lane.irq.number].add(draft.mode(lane))
    return [thread for thread in threads if modes.get(thread.irq) != {"busy-poll"}]


class Room:
    """Tells on which CPUs an interrupt's thread gets time beside the threads that poll."""

    def __init__(self, draft: Draft, rows: Iterable[Chosen]) -> None:
        self._weakest: dict[int, IrqThread] = {}
        for thread in _needed(draft):
            known = self._weakest.setdefault(thread.irq, thread)
            self._weakest[thread.irq] = min(known, thread, key=lambda one: one.priority)
        self._rows: defaultdict[int, list[Wanted]] = defaultdict(list)
        for one, cpus in rows if self._weakest else ():
            for number in cpus if one.realtime else ():
                self._rows[number].append(one)

    def left(self, irq: Irq, cpus: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the CPUs to which the interrupt may go."""
        thread = None if irq.threaded is not None else self._weakest.get(irq.number)
        if thread is None:
            return cpus
        return tuple(n for n in cpus if not any(holds(one, thread) for one in self._rows[n]))
