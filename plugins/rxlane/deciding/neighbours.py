# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads that poll queues outside of a plan: they stay, and the plan has to live with them. Pure.

Such are the queues of devices that no [napi] section has, management queues, and those for which a
section with modes has none. Devices are laid out one after the other as well as together; what must
not be does not depend on that. Interrupts' threads are not among them: they sleep, and FIFO is how
the kernel makes them. Nor are rx threads, which are not read for every plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from rxlane import cpulist
from rxlane.deciding.draft import assigned
from rxlane.deciding.wanted import Chosen, Wanted
from rxlane.items import CPUS, OFF, SCHED, THREADED, Value
from rxlane.model import Lane, Link, Queue, Snapshot
from rxlane.plan import WHOLE, Target
from rxlane.sections import Policy, Section, mode_of
from rxlane.settings import View

SHOWN = 3  # devices named in a message


def managed(section: Section, link: Link) -> list[Queue]:
    """Return the receive queues that the section lays out: all but the management queues."""
    return link.queues_of("rx")[section.management_queues :]


def speaks(section: Section, queue: int) -> bool:
    """True where the section lays out this one of its queues; without modes it does so with all."""
    return not section.modes or mode_of(section.modes, queue) is not None


def of_plan(snapshot: Snapshot, policy: Policy) -> set[tuple[str, int]]:
    """Return the queues, with their devices' names, of whose threads the policy speaks."""
    return {
        (link.name, queue.index)
        for section, link in assigned(snapshot, policy.sections)
        for queue in managed(section, link)
        if speaks(section, queue.index)
    }


def find(
    view: View, inside: Collection[tuple[str, int]], returning: Mapping[Target, Value]
) -> tuple[Chosen, ...]:
    """Return the threads that poll, of all queues but those inside, with their online CPUs.

    returning: settings that go back to these values when the plan is written.
    """
    online, nobody = set(view.snapshot.topology.online), Section(name="")
    found = []
    for key, lane in view.lanes.items():
        if key in inside or lane.shared_with is not None:
            continue
        left = returned(lane, returning, nobody)
        if left.thread is None or left.mode in (None, OFF):
            continue
        one = Wanted(nobody, view.links[lane.device], left, str(left.mode))
        found.append((one, tuple(n for n in left.thread.cpus if n in online)))
    return tuple(found)


def returned(lane: Lane, returning: Mapping[Target, Value], section: Section) -> Lane:
    """Return the lane with the mode and thread that it has once these values are back.

    section: what it gives the thread does not go back, whatever the thread had.
    """

    def back(item: str, given: object = None) -> Value | None:
        target = Target(lane.device, lane.queue.index, item)
        return returning.get(target) if given is None else None

    whole = returning.get(Target(lane.device, WHOLE, THREADED))
    mode, thread = back(THREADED) or whole or lane.mode, lane.thread
    sched, cpus = back(SCHED, section.sched), back(CPUS, section.cpus)
    if thread is not None and sched is not None:
        thread = thread.classed(str(sched))
    if thread is not None and cpus is not None:
        thread = replace(thread, cpus=cpulist.parse(str(cpus)))
    return replace(lane, mode=None if mode is None else str(mode), thread=thread)


def named(rows: Iterable[Chosen]) -> str:
    """Say whose threads these are and where, for a message."""
    rows = list(rows)
    devices = sorted({one.link.name for one, _ in rows})
    rest = len(devices) - SHOWN
    names = ", ".join(devices[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    cpus = {n for _, own in rows for n in own}
    return f"{names} on {cpulist.named('CPU', cpus)}"
