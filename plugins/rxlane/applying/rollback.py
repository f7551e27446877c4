# SPDX-License-Identifier: GPL-2.0-or-later
"""Bring the journal's originals back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace

from rxlane.applying import stages
from rxlane.applying.present import load_current, of_now
from rxlane.applying.writing import missing, nearest, put_back
from rxlane.errors import RxlaneError, counted
from rxlane.items import (
    CHANNEL_ITEMS,
    CHEAP_ITEMS,
    COSTLY_ITEMS,
    IRQ_ITEMS,
    RESET_ITEMS,
    THREAD_ITEMS,
    Value,
)
from rxlane.journal import GivenUp, Store, meaning
from rxlane.kernel import Kernel
from rxlane.model import Snapshot
from rxlane.plan import Entry, Journal, Target
from rxlane.revert import dormant, renamed, speaks_for
from rxlane.settings import View


@dataclass(frozen=True, slots=True)
class RolledBack:
    """written: settings put back. pending: settings that wait in the journal, with the reason.
    away: index and name of the devices that are not here and whose originals are kept.
    """

    written: int
    pending: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    away: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return f"{counted(self.written, 'setting')} put back"


def rollback(
    kernel: Kernel,
    store: Store,
    devices: Container[str] | None = None,
    items: Collection[str] | None = None,
    for_good: bool = False,
    forget: bool = False,
) -> RolledBack:
    """Bring the journal's originals back, for some devices and settings or all.

    What cannot be written now (device down or away, queue gone) stays in the journal for the next
    rollback. for_good: whoever keeps the layout is to give it up, though it may not be known to
    this process. forget: the operator says that devices which are away need their originals no
    more.
    """
    with store.lock():
        return bring_back(kernel, store, devices, items, for_good, forget)


def bring_back(
    kernel: Kernel,
    store: Store,
    devices: Container[str] | None = None,
    items: Collection[str] | None = None,
    for_good: bool = False,
    forget: bool = False,
) -> RolledBack:
    """rollback() for a caller who holds the lock."""
    journal, notes = load_current(store, kernel)
    if journal is None:
        if for_good:  # who found everything as wanted keeps that
            _give_up(store, devices, kernel.observe(None, ()))
        return RolledBack(0, (), notes)
    wanted = {e.item for e in journal.entries} | CHEAP_ITEMS
    before = kernel.observe(None, wanted)
    journal = of_now(kernel, journal, before.links)
    here = renamed(journal.entries, before.links)

    def returns(entry: Entry) -> bool:
        speaks = speaks_for(devices, entry.target, here)
        return speaks and (items is None or entry.item in items)

    mine = [e for e in here if returns(e)]
    written, failed, refused = put_back(
        kernel, {e.target: e.before for e in mine if e.before is not None}, before
    )
    if for_good:
        # After the originals, which are to need no disk: keepers wait for the lock.
        _give_up(store, devices, before)
    now, waiting, near = _look(kernel, before, mine, wanted)
    # What the kernel lets nobody move may be moved all the same, as a container's by its host.
    fixed = {e.target for e in mine if e.after is None and e.item in IRQ_ITEMS} & refused
    waiting = {target: why for target, why in waiting.items() if target not in fixed}
    channels = {e.target: e.before for e in mine if e.item in CHANNEL_ITEMS}
    # Nothing of queues that went with their channels waits for a rollback of its own.
    others = {e for e in set(here).difference(mine) if not stages.gone(now, channels, e.target)}
    # Whose channels or rings are still to come back loses by it what has come back already.
    foreign = {e.device for e in others if e.item in RESET_ITEMS}
    resetting = foreign | {t.device for t in waiting if t.item in RESET_ITEMS}
    away = () if forget else dormant(journal.entries, before.links)
    gone_by = () if forget else dormant(journal.stood, before.links)
    stood = (e for e in renamed(journal.stood, before.links) if not returns(e))
    kept = tuple(
        e if e in others else replace(e, after=None)
        for e in here
        if e in others or e.target in waiting or e.device in resetting
    )
    with meaning(f"{counted(written, 'setting')} put back"):
        _keep(store, journal, (*kept, *away), (*stood, *gone_by))
    gone = len(journal.entries) - len(here) - len(away)
    if gone:
        notes = (*notes, f"{counted(gone, 'setting')} of devices that are gone forgotten")
    reasons = tuple(f"{t}: {why}" for t, why in waiting.items() if t.device not in foreign)
    rounded = (f"{target}: {what}" for target, what in near.items())
    missed = tuple(sorted({(e.ifindex, e.device) for e in away}))
    return RolledBack(written, reasons, (*notes, *failed, *rounded), missed)


def _look(
    kernel: Kernel, before: Snapshot, mine: Collection[Entry], items: Collection[str]
) -> tuple[View, dict[Target, str], dict[Target, str]]:
    """Return the host as it is now, what is not at its original, with the reason, and what is as
    near as it gets.

    Whether queues and devices are gone is asked only where something is amiss.
    """
    own, originals = {e.item for e in mine}, {e.target: e.before for e in mine}
    if own.isdisjoint(RESET_ITEMS):
        asked = own | ({*THREAD_ITEMS} - COSTLY_ITEMS)
        now = View.of(kernel.refresh(before, {e.device for e in mine}, asked))
        if not missing(now, originals):
            return now, {}, {}
    now = View.of(kernel.observe(None, items))
    return now, *_parted(View.of(before), now, originals)


def _parted(
    before: View, now: View, originals: Mapping[Target, Value | None]
) -> tuple[dict[Target, str], dict[Target, str]]:
    away, near = missing(now, originals), nearest(before, now, originals)
    return {target: why for target, why in away.items() if target not in near}, near


def _keep(
    store: Store, journal: Journal, kept: tuple[Entry, ...], stood: tuple[Entry, ...]
) -> None:
    if not kept:
        store.remove()
    elif (kept, stood) != (journal.entries, journal.stood):
        devices = {entry.device for entry in kept}
        left = tuple(skip for skip in journal.left if skip.device in devices)
        store.save(replace(journal, entries=kept, left=left, stood=stood))


def _give_up(store: Store, devices: Container[str] | None, now: Snapshot) -> None:
    """Tell those who keep the layout of these devices.

    Without a word to them the originals come back all the same, on a full disk for example.
    """
    present = {link.ifindex: link.name for link in now.links}
    before = GivenUp()
    with contextlib.suppress(RxlaneError):  # one that is damaged tells nobody anything
        before = store.given_up.load() or before
    known = GivenUp(tuple(w for w in before.words if w.index is None or w.index in present))
    named: list[int | None] = [None]
    if devices is not None:
        named = [index for index, name in present.items() if name in devices]
    with contextlib.suppress(RxlaneError):
        store.given_up.save(known.with_words(named, time.time_ns()))
