# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that keeps the kernel's other work off the lanes' CPUs. Pure.

Kernel workers that are bound to no CPU have one mask for all of them, and timers of idle CPUs
move or stay: settings of the host, said in one section.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rxlane import cpulist
from rxlane.draft import Draft, check_cpus, check_work, one_value
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
        left = cpus or _free(draft, busy)
        if not left:
            reason = "pollers and real-time threads have every CPU"
            draft.skip(HOST, WHOLE, item, "left-alone", reason)
            continue
        _want(draft, section, "workqueue_cpus", item, cpulist.render(left))


def _want(draft: Draft, section: IrqLayout, option: str, item: str, value: int | str) -> None:
    target = Target(HOST, WHOLE, item)
    if draft.present.read(target) is None:
        draft.skip(HOST, WHOLE, item, "unsupported", ABSENT)
        return
    draft.want(target, value, section.reason(option))


def _free(draft: Draft, busy: Collection[int]) -> tuple[int, ...]:
    """Return every CPU, also one that is or may yet come, but the busy and those set apart.

    Where the kernel has left just these of a mask, that stays: written anew, it would not tell any
    more what to give back when an isolated partition ends.
    """
    snapshot = draft.view.snapshot
    host, asked = snapshot.topology, requested(snapshot) or ()
    known = {cpu.number for cpu in host.cpus}.union(asked)
    away = {*busy, *host.isolated, *host.nohz_full, *host.partitioned}
    if not set(host.online) - away:
        return ()
    free = tuple(sorted(known - away))
    return asked if free == snapshot.workqueue_cpus else free
