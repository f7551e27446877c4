# SPDX-License-Identifier: GPL-2.0-or-later
"""Compare what was planned with what is there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rxlane.items import (
    IRQ_ITEMS,
    IRQ_THREAD_ITEMS,
    IRQ_THREADED,
    RX_THREAD_ITEMS,
    STEERING_ITEMS,
    THREAD_ITEMS,
    TX_ITEMS,
    VHOST_CPUS,
    Value,
)
from rxlane.model import Snapshot
from rxlane.plan import HOST, WHOLE, Entry, Mismatch, Plan, Target
from rxlane.revert import renamed
from rxlane.settings import View

CHANGED = "another program or a driver reset changed it"
NO_THREAD = "queue has no thread"
NO_HELPER = "device has no such rx thread"


def verify(plan: Plan, snapshot: Snapshot) -> tuple[Mismatch, ...]:
    """Return every setting of the plan that is not as planned; unsupported ones do not count."""
    return _compare(View.of(snapshot), ((c.target, c.after) for c in (*plan.changes, *plan.holds)))


def verify_entries(entries: Iterable[Entry], snapshot: Snapshot) -> tuple[Mismatch, ...]:
    """The same for what a journal says was written."""
    given = [e for e in entries if e.after is not None]
    here = renamed(given, snapshot.links)
    known = {e.ifindex for e in here}
    gone = [
        Mismatch(e.target, e.after, None, "device is gone")
        for e in given
        if e.ifindex not in known and e.after is not None
    ]
    wanted = [(e.target, e.after) for e in here if e.after is not None]
    return (*gone, *_compare(View.of(snapshot), wanted))


def _compare(view: View, wanted: Iterable[tuple[Target, Value]]) -> tuple[Mismatch, ...]:
    result = []
    for target, expected in wanted:
        if not view.holds(target, expected):
            found = view.read(target)
            cause = CHANGED if found is not None else absence(view, target)
            result.append(Mismatch(target, expected, found, cause))
    return tuple(result)


def absence(view: View, target: Target) -> str:
    """Say why a setting has no value."""
    if target.device == HOST:
        return "kernel does not report it"
    link = view.links.get(target.device)
    if link is None:
        return "device is gone"
    if target.item in RX_THREAD_ITEMS:
        return NO_HELPER
    if not link.up:
        return "interface is down"
    if target.queue == WHOLE:
        return "kernel does not report it"
    return NO_THREAD if target.item == VHOST_CPUS else _absence_of_queue(view, target)


def _absence_of_queue(view: View, target: Target) -> str:
    """Say why a setting of a queue has no value."""
    lane = view.lane(target)
    sender = view.senders.get((target.device, target.queue))
    if target.item in STEERING_ITEMS or (sender if target.item in TX_ITEMS else lane) is None:
        return "queue is gone"
    if target.item in IRQ_ITEMS or (target.item == IRQ_THREADED and view.irq(target) is None):
        return "queue has no interrupt"
    if target.item in IRQ_THREAD_ITEMS:
        return NO_THREAD
    if lane is None or lane.napi is None:
        return "queue is gone"
    return NO_THREAD if target.item in THREAD_ITEMS else "kernel does not report it"
