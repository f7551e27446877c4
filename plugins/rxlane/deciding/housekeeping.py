# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that keeps the kernel's other work off the lanes' CPUs. Pure.

Kernel workers that are bound to no CPU have one mask for all of them, and timers of idle CPUs
move or stay: settings of the host, said in one section.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rxlane import cpulist
from rxlane.deciding.draft import Draft, check_cpus, check_work, one_value
from rxlane.items import TIMER_MIGRATION, WORKQUEUE
from rxlane.plan import HOST, WHOLE, Target
from rxlane.sections import IrqLayout
from rxlane.settings import requested

ABSENT = "this kernel does not have it"


def keep(
    draft: Draft,
    sections: Iterable[IrqLayout],
    busy: Collection[int],
    polled: Collection[int],
) -> None:
    """Plan the masks. busy: CPUs that this plan gives to busy pollers and real-time threads.

    polled: those that real-time pollers never leave.
    """
    given = list(sections)
    asked = ((s, TIMER_MIGRATION, s.timer_migration) for s in given)
    for section, item, value in one_value(asked, "timer_migration"):
        _want(draft, section, "timer_migration", item, value)
    workers = ((s, WORKQUEUE, s.workqueue_cpus) for s in given)
    for section, item, cpus in one_value(workers, "workqueue_cpus"):
        check_cpus(draft.view.snapshot.topology, section, "workqueue_cpus", cpus)
        check_work(draft, section, "workqueue_cpus", cpus, polled)
        found = _found(draft)
        left = cpus or _free(draft, found, busy)
        if found and not left:
            whose = "pollers, real-time threads and isolation leave none of its CPUs"
            draft.skip(HOST, WHOLE, item, "left-alone", f"{whose} {cpulist.render(found)}")
            continue
        _want(draft, section, "workqueue_cpus", item, cpulist.render(left))


def _want(draft: Draft, section: IrqLayout, option: str, item: str, value: int | str) -> None:
    target = Target(HOST, WHOLE, item)
    if draft.present.read(target) is None:
        draft.skip(HOST, WHOLE, item, "unsupported", ABSENT)
        return
    draft.want(target, value, section.reason(option))


def _found(draft: Draft) -> tuple[int, ...]:
    """Return the mask as it was before anything here was laid out, which auto never goes beyond.

    Whoever left CPUs out of it had a reason, such as to isolate them at the next boot.
    """
    first = draft.returning.get(Target(HOST, WHOLE, WORKQUEUE))
    if first is not None:
        return cpulist.parse(str(first))
    return requested(draft.view.snapshot) or ()


def _free(draft: Draft, found: Collection[int], busy: Collection[int]) -> tuple[int, ...]:
    """Return those found, online or not, but the busy and those set apart; none if none is online.

    Where the kernel has left just these of a mask, that stays: written anew, it would not tell any
    more what to give back when an isolated partition ends.
    """
    snapshot = draft.view.snapshot
    host, asked = snapshot.topology, requested(snapshot) or ()
    away = {*busy, *host.isolated, *host.nohz_full, *host.partitioned}
    free = tuple(n for n in found if n not in away)
    if not set(host.online).intersection(free):
        return ()
    return asked if free == snapshot.workqueue_cpus else free
