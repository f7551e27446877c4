# SPDX-License-Identifier: GPL-2.0-or-later
"""Bring the journal's originals back."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, replace

from rxlane import stages
from rxlane.items import CHEAP_ITEMS, COSTLY_ITEMS, RESET_ITEMS, THREAD_ITEMS
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Snapshot
from rxlane.plan import Entry, Journal, Target
from rxlane.present import load_current
from rxlane.revert import dormant, renamed
from rxlane.settings import View
from rxlane.verify import NO_HELPER, NO_THREAD, absence
from rxlane.writing import put_back


@dataclass(frozen=True, slots=True)
class RolledBack:
    """written: settings put back. pending: settings that wait in the journal, with the reason."""

    written: int
    pending: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def rollback(
    kernel: Kernel,
    store: Store,
    devices: Container[str] | None = None,
    items: Collection[str] | None = None,
) -> RolledBack:
    """Bring the journal's originals back, for some devices and settings or all.

    What cannot be written now (device down, queue gone) stays in the journal for the next
    rollback. What belongs to a device that is not there is forgotten when all devices are meant.
    """
    with store.lock():
        return bring_back(kernel, store, devices, items)


def bring_back(
    kernel: Kernel,
    store: Store,
    devices: Container[str] | None = None,
    items: Collection[str] | None = None,
) -> RolledBack:
    """rollback() for a caller who holds the lock."""
    journal, notes = load_current(store, kernel)
    if journal is None:
        return RolledBack(0, (), notes)
    wanted = {e.item for e in journal.entries} | CHEAP_ITEMS
    before = kernel.observe(None, wanted)
    here = renamed(journal.entries, before.links)
    mine = [
        e
        for e in here
        if (devices is None or e.device in devices) and (items is None or e.item in items)
    ]
    written, failed = put_back(
        kernel, {e.target: e.before for e in mine if e.before is not None}, before
    )
    waiting = _look(kernel, before, mine, wanted)
    others = set(here).difference(mine)
    away = dormant(journal.entries, before.links)
    if devices is None:
        away = tuple(e for e in away if items is not None and e.item not in items)
    kept = tuple(e for e in here if e in others or e.target in waiting)
    _keep(store, journal, (*kept, *away))
    gone = len(journal.entries) - len(here) - len(away)
    if gone:
        notes = (*notes, f"{gone} settings of devices that are gone were forgotten")
    reasons = tuple(f"{target}: {why}" for target, why in waiting.items())
    return RolledBack(written, reasons, (*notes, *failed))


def _look(
    kernel: Kernel, before: Snapshot, mine: Collection[Entry], items: Collection[str]
) -> dict[Target, str]:
    """Return what _waiting() does of the host as it is now.

    Whether queues and devices are gone is asked only where something is amiss.
    """
    own = {e.item for e in mine}
    if own.isdisjoint(RESET_ITEMS):
        asked = own | ({*THREAD_ITEMS} - COSTLY_ITEMS)
        now = kernel.refresh(before, {e.device for e in mine}, asked)
        if not _waiting(now, mine):
            return {}
    return _waiting(kernel.observe(None, items), mine)


def _keep(store: Store, journal: Journal, kept: tuple[Entry, ...]) -> None:
    if not kept:
        store.remove()
    elif kept != journal.entries:
        store.save(replace(journal, entries=kept))


def _waiting(now: Snapshot, entries: Iterable[Entry]) -> dict[Target, str]:
    """Return the entries that are not at their original, with the reason."""
    view = View.of(now)
    result = {}
    entries = list(entries)
    originals = {e.target: e.before for e in entries}
    for entry in entries:
        found = view.read(entry.target)
        if found == entry.before:
            continue
        if found is not None:
            if entry.before is not None:
                result[entry.target] = f"is {found}, was {entry.before}"
            continue
        why = absence(view, entry.target)
        needless = why in (NO_THREAD, NO_HELPER) or stages.gone(view, originals, entry.target)
        if not needless and entry.before is not None:
            result[entry.target] = why
    return result
