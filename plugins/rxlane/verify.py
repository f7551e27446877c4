# SPDX-License-Identifier: GPL-2.0-or-later
"""Compare what was planned with what is there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

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
from rxlane.model import MOVERS, Snapshot
from rxlane.plan import HOST, WHOLE, Entry, Journal, Mismatch, Plan, Skip, Target
from rxlane.revert import left_now, renamed
from rxlane.settings import View

GONE = "device is gone"
NO_THREAD = "queue has no thread"
NO_HELPER = "device has no such rx thread"
CHANGED = "another program or a driver reset changed it"
LOST = "it is as it was before: a driver reset lost it, or somebody put it back"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is as a journal says, what is not, and what never was because it cannot be."""

    passed: tuple[Entry, ...]
    drifted: tuple[Mismatch, ...]
    left: tuple[Skip, ...] = ()


def verify(plan: Plan, snapshot: Snapshot) -> tuple[Mismatch, ...]:
    """Return every setting of the plan that is not as planned; unsupported ones do not count."""
    view, rows = View.of(snapshot), (*plan.changes, *plan.holds)
    found = (_compare(view, c.target, c.after, c.before) for c in rows)
    return tuple(mismatch for mismatch in found if mismatch is not None)


def verify_journal(journal: Journal, snapshot: Snapshot) -> Verdict:
    """The same for what a journal says was written."""
    view = View.of(snapshot)
    passed: list[Entry] = []
    drifted: list[Mismatch] = []
    entries = renamed(journal.entries, snapshot.links)
    here = {e.ifindex for e in entries}
    for entry in journal.entries:
        ended = entry.item == VHOST_CPUS  # with its guest, which needs no thread any more
        if entry.after is not None and entry.ifindex not in here and not ended:
            drifted.append(Mismatch(entry.target, entry.after, None, GONE))
    for entry in entries:
        if entry.after is None:
            continue
        found = _compare(view, entry.target, entry.after, entry.before)
        if found is None:
            passed.append(entry)
        else:
            drifted.append(found)
    return Verdict(tuple(passed), tuple(drifted), left_now(journal, entries))


def _compare(view: View, target: Target, expected: Value, before: Value | None) -> Mismatch | None:
    if view.holds(target, expected):
        return None
    return Mismatch(target, expected, view.read(target), cause(view, target, before))


def cause(view: View, target: Target, before: Value | None = None) -> str:
    """Say why a setting probably is not as planned. before: what it was before the plan."""
    found, writers = view.read(target), view.snapshot.writers
    if found is None:
        return absence(view, target)
    movers = [name for name in MOVERS if name in writers and target.item in IRQ_ITEMS]
    if movers:
        return f"{movers[0]} runs and moves interrupts: {MOVERS[movers[0]]}"
    return LOST if found == before else CHANGED


def absence(view: View, target: Target) -> str:
    """Say why a setting has no value."""
    if target.device == HOST:
        return "kernel does not report it"
    link = view.links.get(target.device)
    if link is None:
        return GONE
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
