# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading one setting out of a Snapshot: the one translation from an address to a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rxlane import cpulist
from rxlane.model import (
    CPUS,
    DEFER,
    FLUSH,
    MODES,
    SCHED,
    SUSPEND,
    THREADED,
    WHOLE,
    Index,
    Lane,
    Link,
    Snapshot,
    Target,
    Value,
    lanes,
)


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot indexed for many look-ups."""

    snapshot: Snapshot
    links: Mapping[str, Link]
    lanes: Mapping[tuple[str, int], Lane]

    @classmethod
    def of(cls, snapshot: Snapshot) -> View:
        index = Index.of(snapshot)
        found = {
            (link.name, lane.queue.index): lane
            for link in snapshot.links
            for lane in lanes(index, link)
        }
        return cls(snapshot, {link.name: link for link in snapshot.links}, found)

    def lane(self, target: Target) -> Lane | None:
        return self.lanes.get((target.device, target.queue))

    def read(self, target: Target) -> Value | None:
        """Return the setting's value, None when the device, NAPI or thread is not there."""
        if target.queue == WHOLE:
            link = self.links.get(target.device)
            return None if link is None else read_device(link, target.item)
        lane = self.lane(target)
        return None if lane is None else read_lane(lane, target.item)


def read_device(link: Link, item: str) -> Value | None:
    if item == THREADED:
        number = link.threaded
        return None if number is None or not 0 <= number < len(MODES) else MODES[number]
    return {DEFER: link.defer_hard_irqs, FLUSH: link.gro_flush_timeout}.get(item)


def read_lane(lane: Lane, item: str) -> Value | None:
    napi, thread = lane.napi, lane.thread
    if item in (CPUS, SCHED):
        if thread is None:
            return None
        return cpulist.render(thread.cpus) if item == CPUS else thread.sched
    if napi is None:
        return None
    if item == THREADED:
        return lane.mode
    return {
        DEFER: napi.defer_hard_irqs,
        FLUSH: napi.gro_flush_timeout,
        SUSPEND: napi.irq_suspend_timeout,
    }.get(item)
