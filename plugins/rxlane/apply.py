# SPDX-License-Identifier: GPL-2.0-or-later
"""Write a plan, or bring the originals back. The journal is on disk before the first write.

In phases, because one makes what the next is about: modes create threads. After each phase
everything is read back; a value that is not there fails the phase, and a failed apply undoes what
it wrote. An interrupt that the kernel keeps to itself fails nothing: it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from rxlane import stages
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.items import (
    CHANNEL_ITEMS,
    ETHTOOL_ITEMS,
    IRQ_ITEMS,
    PHASES,
    STEERING_ITEMS,
    THREAD_ITEMS,
    THREADED,
    Value,
)
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Link, Snapshot
from rxlane.plan import HOST, WHOLE, Change, Entry, Journal, Plan, Skip, Target
from rxlane.revert import Carried, carry, dormant, renamed
from rxlane.sections import Policy
from rxlane.settings import View
from rxlane.verify import absence


@dataclass(frozen=True, slots=True)
class Applied:
    """plan: what was decided. written: how many settings were written. notes: for the log.

    unmovable: interrupts that the kernel refused to move; the plan has them among its skips.
    """

    plan: Plan
    written: int
    notes: tuple[str, ...] = ()
    unmovable: frozenset[Target] = frozenset()

    @classmethod
    def nothing(cls) -> Applied:
        return cls(Plan(), 0)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """written: settings put back. pending: settings that wait in the journal, with the reason."""

    written: int
    pending: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_current(kernel: Kernel, store: Store) -> tuple[Journal | None, tuple[str, ...]]:
    """Return this boot's journal; one of another boot is removed: its settings are gone."""
    journal = store.load()
    if journal is None or journal.boot_id == kernel.boot_id():
        return journal, ()
    store.remove()
    return None, ("a journal of another boot was discarded",)


def apply(
    kernel: Kernel,
    store: Store,
    policy: Policy,
    scope: Collection[str] | None = None,
    owner: str = "",
    choose: Callable[[Plan], Plan] | None = None,
) -> Applied:
    """Plan on the running host and write what differs.

    scope: the devices for which this policy replaces earlier ones; None means all. owner: who
    wants it, TUNED or nobody in particular. choose: what of the plan is written now; the rest must
    stay among its holds. Raises what decide() raises with nothing written, and KERNEL or JOURNAL
    with everything undone.
    """
    with store.lock():
        old, notes = load_current(kernel, store)
        undo: dict[Target, Value] = {}
        refused: dict[Target, str] = {}
        written = 0
        try:
            for _ in range(stages.ROUNDS):
                journal = store.load()
                items = {e.item for e in journal.entries} if journal else set()
                before = kernel.observe(None, *stages.reads(policy, items))
                before = stages.without_tunables(before, refused)
                plan = decide(before, policy)
                plan = plan if choose is None else choose(plan)
                whole = carry(journal, _without(plan, refused), before, scope)
                carried = stages.first_part(whole, View.of(before))
                now = _write(kernel, store, carried, before, undo, owner)
                refused |= now
                written += len(carried.changes) - len(now)
                if not carried.returns:
                    break
        except (RxlaneError, OSError) as error:
            if undo:
                _undo(kernel, store, old, undo, error)
            raise
        return Applied(_without(plan, refused), written, notes, frozenset(refused))


def _reads(items: Iterable[str]) -> tuple[bool, bool]:
    """Return whether any of these settings is about steering or ethtool: both cost most to read."""
    known = set(items)
    return not known.isdisjoint(STEERING_ITEMS), not known.isdisjoint(ETHTOOL_ITEMS)


def _without(plan: Plan, refused: Mapping[Target, str]) -> Plan:
    changes = tuple(c for c in plan.changes if c.target not in refused)
    skips = (
        Skip(t.device, t.queue, t.item, "unmovable" if t.item in IRQ_ITEMS else "unsupported", why)
        for t, why in refused.items()
    )
    return replace(plan, changes=changes, skips=(*plan.skips, *skips))


def _write(
    kernel: Kernel,
    store: Store,
    carried: Carried,
    before: Snapshot,
    undo: dict[Target, Value],
    owner: str,
) -> dict[Target, str]:
    """Write one round; undo collects what must be put back, the first value of each counts.

    Returns the interrupts that cannot be moved, with the reason.
    """
    refused: dict[Target, str] = {}
    boot, entries = kernel.boot_id(), carried.entries
    journal = store.load()
    owner = owner or (journal.owner if journal else "")
    if entries and journal != Journal(boot, entries, owner):
        store.save(Journal(boot, entries, owner))
    devices = {c.target.device for c in carried.changes}
    view = View.of(before)
    _collect(undo, _present_values(view, carried.changes))
    _collect(undo, stages.of_reset(view, carried.changes))
    for items in PHASES:
        phase = [c for c in carried.changes if c.target.item in items]
        if not phase:
            continue
        view = View.of(kernel.observe(devices, *_reads(items)))
        optional = {t for t in carried.optional if view.read(t) is None}
        phase = [c for c in phase if c.target not in optional]
        born = _births(phase, view)
        if born:
            # What a new thread was born with is its original; known only now.
            entries = tuple(_with_birth(e, born) for e in entries)
            store.save(Journal(boot, entries, owner))
            _collect(undo, born)
        now = _write_groups(kernel, view, [(c.target, c.after) for c in phase])
        if now:
            refused.update(now)
            entries = tuple(replace(e, after=None) if e.target in now else e for e in entries)
            store.save(Journal(boot, entries, owner))
        _read_back(kernel, devices, [c for c in phase if c.target not in now])
    return refused


def _collect(undo: dict[Target, Value], values: dict[Target, Value]) -> None:
    for target, value in values.items():
        undo.setdefault(target, value)


def _present_values(view: View, changes: Iterable[Change]) -> dict[Target, Value]:
    """Return what an undo puts back: the changed settings, and the threads of changed modes.

    A mode that goes off and on again has a new thread, which must get what the old one had.
    """
    targets = {c.target for c in changes}
    modes = {(t.device, t.queue) for t in targets if t.item == THREADED}
    for device, queue in view.lanes:
        if (device, queue) in modes or (device, WHOLE) in modes:
            targets.update(Target(device, queue, item) for item in THREAD_ITEMS)
    found = ((target, view.read(target)) for target in sorted(targets))
    return {target: value for target, value in found if value is not None}


def _births(phase: Iterable[Change], view: View) -> dict[Target, Value]:
    found = ((c.target, view.read(c.target)) for c in phase if c.before is None)
    return {target: value for target, value in found if value is not None}


def _with_birth(entry: Entry, born: dict[Target, Value]) -> Entry:
    value = born.get(entry.target)
    return replace(entry, before=value) if entry.before is None and value is not None else entry


def _group(wanted: tuple[Target, Value]) -> tuple[str, int, str]:
    """Say what is written together. A queue's two interrupts are two: one may be unmovable."""
    target = wanted[0]
    return target.device, target.queue, target.item if target.item in IRQ_ITEMS else ""


def _write_groups(
    kernel: Kernel, view: View, wanted: list[tuple[Target, Value]]
) -> dict[Target, str]:
    """Write what differs, one call for all settings of a queue or device that go together.

    Returns the interrupts that cannot be moved, with the reason.
    """
    refused = {}
    differing = sorted(((t, v) for t, v in wanted if view.read(t) != v), key=_group)
    for (device, queue, _), group in groupby(differing, key=_group):
        values = {target.item: value for target, value in group}
        try:
            _write_one(kernel, view, device, queue, values)
        except RxlaneError as error:
            lacking = error.kind is Kind.UNSUPPORTED and values.keys() <= set(ETHTOOL_ITEMS)
            if error.kind is Kind.UNMOVABLE or lacking:
                refused.update({Target(device, queue, item): error.problem for item in values})
                continue
            if error.device is None:
                error.device, error.queue = device, None if queue == WHOLE else queue
            raise
    return refused


def _write_one(
    kernel: Kernel, view: View, device: str, queue: int, values: dict[str, Value]
) -> None:
    first = next(iter(values))
    if first in ETHTOOL_ITEMS:
        kernel.write_tunables(_link(view, device), values)
        return
    if device == HOST:
        for name, value in values.items():
            kernel.write_sysctl(name, value)
        return
    if first in STEERING_ITEMS:
        kernel.write_queue(_link(view, device), queue, values)
        return
    if queue == WHOLE:
        # decide() plans device-wide values only where the kernel has no per-NAPI ones. On such a
        # kernel the threaded file is safe to write while the device is down; on others it is not.
        kernel.write_device(_link(view, device), values)
        return
    target = Target(device, queue, first)
    lane = view.lane(target)
    if first in IRQ_ITEMS:
        irq = view.irq(target)
        if irq is None:
            raise RxlaneError(Kind.KERNEL, absence(view, target))
        kernel.write_irq(irq.number, str(values[first]))
        return
    if lane is None or lane.napi is None or (first in THREAD_ITEMS and lane.thread is None):
        raise RxlaneError(Kind.KERNEL, absence(view, target))
    if first in THREAD_ITEMS:
        assert lane.thread is not None
        kernel.write_thread(lane.thread.pid, values)
    else:
        kernel.write_napi(lane.napi.napi_id, values)


def _link(view: View, device: str) -> Link:
    link = view.links.get(device)
    if link is None:
        raise RxlaneError(Kind.NO_DEVICE, "device is gone")
    return link


def _read_back(kernel: Kernel, devices: Collection[str], phase: Iterable[Change]) -> None:
    phase = list(phase)
    view = View.of(kernel.observe(devices, *_reads(c.target.item for c in phase)))
    for change in phase:
        found = view.read(change.target)
        if found != change.after:
            target = change.target
            raise RxlaneError(
                Kind.KERNEL,
                f"{target.item} was set to {change.after} and reads"
                f" {absence(view, target) if found is None else found}",
                device=target.device,
                queue=None if target.queue == WHOLE else target.queue,
            )


def _undo(
    kernel: Kernel,
    store: Store,
    old: Journal | None,
    undo: dict[Target, Value],
    error: Exception,
) -> None:
    """Put back what was there before this apply; the journal stays when that fails."""
    _, failed = put_back(kernel, undo)
    if failed:
        error.add_note(f"undo failed, `rxlane rollback` tries again: {'; '.join(failed)}")
    elif old is None:
        store.remove()
    else:
        store.save(old)


def put_back(kernel: Kernel, values: dict[Target, Value]) -> tuple[int, list[str]]:
    """Write values wherever they differ, going on after a failure; first those of queues that go.

    Returns how many were written and one line for each that could not be. A setting without a
    present value (its thread ended with the mode) needs nothing.
    """
    devices = {t.device for t in values}
    written, failed = 0, list[str]()
    leaving = {}
    if any(t.item in CHANNEL_ITEMS for t in values):
        leaving = stages.leaving(values, View.of(kernel.observe(devices, False, True)))
    for part in (leaving, values) if leaving else (values,):
        count, problems = _put_back(kernel, part, devices)
        written, failed = written + count, failed + problems
    return written, failed


def _put_back(
    kernel: Kernel, values: Mapping[Target, Value], devices: Collection[str]
) -> tuple[int, list[str]]:
    written, failed = 0, []
    for items in PHASES:
        due = [(t, v) for t, v in values.items() if t.item in items]
        if not due:
            continue
        view = View.of(kernel.observe(devices, *_reads(items)))
        due = [(t, v) for t, v in due if view.read(t) not in (None, v)]
        for _, group in groupby(sorted(due, key=_group), key=_group):
            wanted = list(group)
            try:
                refused = _write_groups(kernel, view, wanted)
                written += len(wanted) - len(refused)
                failed += [f"{target}: {why}" for target, why in refused.items()]
            except (RxlaneError, OSError) as error:
                failed.append(str(error))
    return written, failed


def rollback(
    kernel: Kernel,
    store: Store,
    devices: Collection[str] | None = None,
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
    devices: Collection[str] | None = None,
    items: Collection[str] | None = None,
) -> RolledBack:
    """rollback() for a caller who holds the lock."""
    journal, notes = load_current(kernel, store)
    if journal is None:
        return RolledBack(0, (), notes)
    before = kernel.observe(steered=False, tuned=False)
    here = renamed(journal.entries, before.links)
    mine = [
        e
        for e in here
        if (devices is None or e.device in devices) and (items is None or e.item in items)
    ]
    goal = {e.target: e.before for e in mine if e.before is not None}
    written, failed = put_back(kernel, goal)
    waiting = _waiting(kernel.observe(None, *_reads(e.item for e in mine)), mine)
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
        needless = why == "queue has no thread" or stages.gone(view, originals, entry.target)
        if not needless and entry.before is not None:
            result[entry.target] = why
    return result
