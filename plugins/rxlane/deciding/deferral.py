# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that warns of deferred interrupts without effect, or with much delay. Pure.

napi_complete_done() in net/core/dev.c leaves the interrupt off for as many empty polls as
defer_hard_irqs says, and only while there is a timer, of gro_flush_timeout, that polls meanwhile.
Without deferral the same timer says how long packets stay in GRO.
"""

from __future__ import annotations

from collections.abc import Iterable

from rxlane import cpulist
from rxlane.deciding.draft import Draft
from rxlane.items import DEFER, FLUSH, SUSPEND
from rxlane.model import Link
from rxlane.plan import WHOLE, Target
from rxlane.sections import Section

MILLISECOND = 1_000_000  # what a packet may wait for a poll before that is more than a tuning


def warn(draft: Draft, section: Section, link: Link, queues: Iterable[int]) -> None:
    """Warn of a plan's timers. queues: those whose NAPIs are not polled all the time."""
    if section.defer_hard_irqs is None and section.gro_flush_timeout is None:
        return
    groups: dict[str, list[int]] = {}
    for queue in queues:
        problem = _problem(*(_value(draft, link, queue, item) for item in (DEFER, FLUSH, SUSPEND)))
        if problem is not None:
            groups.setdefault(problem, []).append(queue)
    for problem, own in groups.items():
        draft.warnings.append(f"{link.name} {cpulist.named('queue', own)}: {problem}")


def _value(draft: Draft, link: Link, queue: int, item: str) -> int:
    """Return what the queue's timer will be, by itself or by its device's file."""
    targets = [Target(link.name, number, item) for number in (queue, WHOLE)]
    found = [*map(draft.coming, targets), *map(draft.view.read, targets)]
    return next((int(value) for value in found if value is not None), 0)


def _problem(defer: int, flush: int, suspend: int) -> str | None:
    if defer and not flush:
        return (
            f"defer_hard_irqs={defer} has no effect with gro_flush_timeout=0: set both, as 100 and"
            " 15000, or neither"
        )
    # Whoever suspends interrupts polls by himself, and the timer is for when he stops.
    if flush <= MILLISECOND or suspend:
        return None
    where = "in GRO for others to be merged with them"
    if defer:
        where = "for a poll while interrupts are deferred, unless an application busy-polls"
    return (
        f"with gro_flush_timeout={flush} packets wait up to {flush / MILLISECOND:g} ms {where}:"
        f" give {MILLISECOND} or less"
    )
