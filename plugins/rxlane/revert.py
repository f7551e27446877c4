# SPDX-License-Identifier: GPL-2.0-or-later
"""How to come back: the inverse of a plan, and what the journal must hold. Pure.

Order of a revert: the phases of an apply, within each the last written first. Threads come after
modes because restoring a mode may create the thread whose settings are to be restored; those of
threads that end with their mode come before it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rxlane.items import (
    BACKLOG,
    FLOW_ENTRIES,
    IRQ_ITEMS,
    RESET_ITEMS,
    RFS,
    RX_THREADS,
    THREAD_ITEMS,
    THREADS_OF,
    TX_ITEMS,
    UNRESET_ITEMS,
    VHOST_CPUS,
    WORKQUEUE,
    Value,
    restorable,
)
from rxlane.model import Link, Snapshot
from rxlane.plan import (
    HOST,
    HOST_INDEX,
    WHOLE,
    Change,
    Entry,
    Journal,
    Plan,
    Skip,
    Target,
    begins,
    disruption,
    ends,
    excluded,
    phases,
)
from rxlane.settings import View

REASON = "original value"
# Settings of the host whose planned value goes by the one before.
STARTING = (WORKQUEUE, BACKLOG)


def revert(plan: Plan, before: Snapshot) -> Plan:
    """Return the plan that undoes plan on a host that was as in before.

    Settings of threads that did not exist before are left out: the thread goes with its mode, or
    (on kernels that keep it) the journal's birth values put it back.
    """
    view = View.of(before)
    undone = []
    for change in reversed(plan.changes):
        original = view.read(change.target)
        if original is not None and original != change.after:
            undone.append(Change(change.target, change.after, original, REASON, change.disruption))
    return Plan(tuple(ordered(undone)))


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Return the changes phase by phase, otherwise in the given order."""
    given = {c.target: c for c in changes}
    return [given[target] for phase in phases(_goals(given.values())) for target in phase]


def _goals(changes: Iterable[Change]) -> dict[Target, Value]:
    return {c.target: c.after for c in changes}


@dataclass(frozen=True, slots=True)
class Carried:
    """What an apply is to do about an earlier one in this boot.

    entries: the journal to write before the first change. changes: all that is to be written, the
    plan's own and those that bring back settings which the new plan no longer wants. optional:
    targets among the latter whose thread may be gone by then, which needs nothing. returns: some
    of the changes bring settings back. stood: as in the journal.
    """

    entries: tuple[Entry, ...]
    changes: tuple[Change, ...]
    optional: frozenset[Target] = frozenset()
    returns: bool = False
    stood: tuple[Entry, ...] = ()


def names_by_index(links: Iterable[Link]) -> dict[int, str]:
    """Return the names of these devices, and HOST, by the indexes that a journal has."""
    return {HOST_INDEX: HOST} | {link.ifindex: link.name for link in links}


def indexes_by_name(links: Iterable[Link]) -> dict[str, int]:
    """The inverse of names_by_index()."""
    return {HOST: HOST_INDEX} | {link.name: link.ifindex for link in links}


def renamed(entries: Iterable[Entry], links: Collection[Link]) -> tuple[Entry, ...]:
    """Return the entries under their devices' present names; those of lost devices are left out.

    A device's index is not used again within a boot.
    """
    names = names_by_index(links)
    return tuple(
        e if e.device == names[e.ifindex] else replace(e, device=names[e.ifindex])
        for e in entries
        if e.ifindex in names
    )


def left_now(journal: Journal, entries: Iterable[Entry]) -> tuple[Skip, ...]:
    """Return what is not done, under the devices' present names: renamed() entries tell them."""
    now = {e.ifindex: e.device for e in entries}
    names = {e.device: now[e.ifindex] for e in journal.entries if e.ifindex in now}
    return tuple(replace(s, device=names.get(s.device, s.device)) for s in journal.left)


def called_now(journal: Journal, links: Collection[Link]) -> Journal:
    """Return the journal under its devices' present names, also in what it says is not done; the
    same object where they have these already.

    What it says so of a device that is away is dropped once another device has its name.
    """
    names = names_by_index(links)

    def own(entries: Iterable[Entry]) -> tuple[Entry, ...]:
        now = ((e, names.get(e.ifindex, e.device)) for e in entries)
        return tuple(e if e.device == name else replace(e, device=name) for e, name in now)

    entries, stood = own(journal.entries), own(journal.stood)
    if (entries, stood) == (journal.entries, journal.stood):
        return journal
    away = {e.device for e in entries if e.ifindex not in names} & set(names.values())
    left = tuple(s for s in journal.left if s.device not in away)
    left = left_now(replace(journal, left=left), entries)
    return replace(journal, entries=entries, stood=stood, left=left)


def originals(
    journal: Journal | None, view: View, scope: Container[str] | None, asked: Container[Target]
) -> dict[Target, Value]:
    """Return what settings go back to where a new plan for these devices does not want them.

    view: the host as it is. asked: the channels and rings that the plan is to have. As in carry(),
    what a reset may have taken stays away while its device is altered. STARTING are among them for
    every plan, which may want another value that goes by the original. An interrupt that is back
    already is not: the next plan, of which the journal tells nothing, goes by where it comes to.
    """
    entries = renamed(() if journal is None else journal.entries, view.snapshot.links)
    still = _altered(entries, [e.target for e in entries if e.target not in asked], view)
    return {
        e.target: e.before
        for e in entries
        if e.before is not None
        and (scope is None or e.device in scope or e.item in STARTING)
        and not (e.kept and e.device in still)
        and not (e.item in IRQ_ITEMS and e.after is None and view.is_back(e.target, e.before))
    }


def speaks_for(scope: Container[str] | None, target: Target, entries: Iterable[Entry]) -> bool:
    """True where a plan or rollback for the devices in scope, None for all, may return a setting.

    The host's flow table stays while a device outside of it has RFS, which is nothing without.
    """
    if scope is None or target.device not in scope:
        return scope is None
    others = target.item == FLOW_ENTRIES and any(
        e.item == RFS and e.after and e.device not in scope for e in entries
    )
    return not others


def dormant(entries: Iterable[Entry], links: Collection[Link]) -> tuple[Entry, ...]:
    """Return the originals of devices that are not here now, with nothing wanted of them.

    A device that is moved to another network namespace comes back with its index, or is known by
    its folder, and, for all the kernel does, with our settings: without these entries they would
    pass for its own. Once another device has the name it is no longer waited for; nor are vhost
    threads, which end with their guest.
    """
    present = names_by_index(links)
    names = {link.name for link in links}
    return tuple(
        replace(e, after=None)
        for e in entries
        if e.ifindex not in present
        and e.device not in names
        and e.before is not None
        and e.item != VHOST_CPUS
    )


def carry(
    old: Journal | None,
    plan: Plan,
    view: View,
    scope: Container[str] | None = None,
    staying: Container[Target] = (),
) -> Carried:
    """Join a new plan with the journal of an earlier apply in this boot.

    The true originals are those of the earlier journal. view: the host as it is. scope: the
    devices that the new plan speaks for; None means all. Settings of other devices stay as they
    are. staying: what does not come back now, though nobody wants it.
    """
    links, earlier = view.snapshot.links, old.entries if old else ()
    known = {e.target: e for e in renamed(earlier, links)}
    before = old.stood if old else ()
    first = _still({e.target: e for e in renamed(before, links)}, plan, scope, view)
    mine = {t: e for t, e in known.items() if speaks_for(scope, t, known.values())}
    wanted = _goals((*plan.changes, *plan.holds))
    still = _altered(known.values(), mine.keys() - wanted.keys(), view)
    unwanted = _unwanted(mine, wanted, still, staying)
    back = _back(_returning(unwanted, still, staying), plan, view)
    changes = _beside(plan.changes, _goals(back))
    entries = _entries(known, first, unwanted, plan.holds, changes, view)
    stood = _stood(first, entries, plan.holds, scope, view)
    optional = frozenset(c.target for c in back if c.target.item in THREAD_ITEMS)
    kept = (*entries.values(), *dormant(earlier, links))
    stand = (*stood, *dormant(before, links))
    return Carried(kept, tuple(ordered([*back, *changes])), optional, bool(back), stand)


def _unwanted(
    mine: Mapping[Target, Entry],
    wanted: Mapping[Target, Value],
    still: Container[str],
    staying: Container[Target],
) -> dict[Target, Entry]:
    """Return the entries of what nobody wants, or nobody can have beside the modes that come back.

    What is wanted of a thread that ends meanwhile is not: it must leave its originals behind. Nor
    is RPS beside rx threads that come back: the next look at the host will say so.
    """
    dropped = {t: e for t, e in mine.items() if t not in wanted}
    modes = _modes(_returning(dropped, still, staying))
    return {
        t: e
        for t, e in mine.items()
        if t not in wanted or ends(t, modes) or excluded(t, wanted[t], modes)
    }


def _beside(changes: Iterable[Change], back: Mapping[Target, Value]) -> list[Change]:
    """Return those of a plan's changes that are possible with what comes back."""
    return [
        c for c in changes if not ends(c.target, back) and not excluded(c.target, c.after, back)
    ]


def _entries(
    known: Mapping[Target, Entry],
    first: Mapping[Target, Entry],
    unwanted: Mapping[Target, Entry],
    holds: Iterable[Change],
    changes: Collection[Change],
    view: View,
) -> dict[Target, Entry]:
    """Return what the journal is to hold of the devices that are here. first: what stood."""
    index = indexes_by_name(view.snapshot.links)
    given_up = {t: replace(e, after=None) for t, e in unwanted.items() if e.after is not None}
    entries = {**known, **given_up}
    entries |= _held(entries, holds) | _of_host(entries, holds)
    origins = {**first, **known}
    entries |= {c.target: _changed(c, origins.get(c.target), index) for c in changes}
    for target in _done_with(known.values(), unwanted, view):
        del entries[target]
    # Also of what has just gone: a reset takes it like all else.
    for entry in (*_remembered(changes, view, index), *_resettable(changes, view, index)):
        stood = first.get(entry.target)
        own = entry if stood is None else replace(entry, before=stood.before)
        entries.setdefault(entry.target, own)
    return entries


def _still(
    first: Mapping[Target, Entry], plan: Plan, scope: Container[str] | None, view: View
) -> dict[Target, Entry]:
    """Return what stood of what is wanted, of others' devices, and of what is away for a while."""
    wanted = {c.target for c in (*plan.changes, *plan.holds)}

    def stays(target: Target) -> bool:
        others = scope is not None and target.device not in scope
        return others or target in wanted or not _is_here(target, view)

    return {target: entry for target, entry in first.items() if stays(target)}


def _is_here(target: Target, view: View) -> bool:
    """False of a device that is down, and of a queue that went with other channels."""
    link = view.links.get(target.device)
    if link is None or not link.up:
        return False
    queues = view.senders if target.item in TX_ITEMS else view.lanes
    return target.queue == WHOLE or target[:2] in queues


def _stood(
    first: Mapping[Target, Entry],
    entries: Container[Target],
    holds: Iterable[Change],
    scope: Container[str] | None,
    view: View,
) -> Iterable[Entry]:
    """Return entries of what has the wanted value and was never written.

    A reset may take it, and what is put right then must not pass for the original. Of virtual
    devices, which come and go, no driver takes any. first: what stood before.
    """
    stood = {t: e for t, e in first.items() if t not in entries}
    for held in holds:
        device, queue, item = held.target
        link = view.links.get(device)
        if held.before != held.after or item in UNRESET_ITEMS or held.target in entries:
            continue
        if link is None or not link.physical or (scope is not None and device not in scope):
            continue
        old = stood.get(held.target)
        # What it was with CPUs that are offline now is the whole of it.
        if old is None or old.before is None or not view.is_back(held.target, old.before):
            stood[held.target] = Entry(device, link.ifindex, queue, item, held.before, None)
    return stood.values()


def _held(entries: Mapping[Target, Entry], holds: Iterable[Change]) -> dict[Target, Entry]:
    """Return the entries of what already has the wanted value, with that value.

    What has it by another's doing was perhaps to have another by an earlier plan; a device that is
    back from another namespace has it from there; what the kernel refused stays without one.
    """
    found = ((entries.get(held.target), held.after) for held in holds)
    return {
        e.target: replace(e, after=after)
        for e, after in found
        if e is not None and e.after != after and (e.after is not None or _came_back(e, after))
    }


def _of_host(entries: Container[Target], holds: Iterable[Change]) -> dict[Target, Entry]:
    """Return entries of the host's settings that have the wanted value already.

    TuneD's own plugins write sysctls, too, and after ours in one profile: what is put right then
    must not be taken for the original. Not of the flow table, which devices share.
    """
    found = (
        h
        for h in holds
        if h.target.device == HOST and h.target.item != FLOW_ENTRIES and h.target not in entries
    )
    return {h.target: Entry(HOST, HOST_INDEX, *h.target[1:], h.before, h.after) for h in found}


def _came_back(entry: Entry, after: Value) -> bool:
    """Tell an entry of dormant() from one of what is only remembered or was given up."""
    return not entry.kept and entry.before not in (None, after)


def _changed(change: Change, first: Entry | None, index: Mapping[str, int]) -> Entry:
    """Return the entry of what is written. first: that of an earlier plan, with the original.

    An entry without a value is of a thread that nobody has touched since its birth.
    """
    known_before = None if first is None else first.before
    before = change.before if known_before is None else known_before
    device, queue, item = change.target
    return Entry(device, index[device], queue, item, before, change.after)


def _returning(
    unwanted: Mapping[Target, Entry], still: Container[str], staying: Container[Target]
) -> dict[Target, Entry]:
    """Return what comes back; what a reset may have taken does not while its device is altered."""
    due = ((t, e) for t, e in unwanted.items() if t not in staying)
    return {t: e for t, e in due if not (e.kept and t.device in still)}


def _modes(returning: Mapping[Target, Entry]) -> dict[Target, Value]:
    """Return the modes, and counts of rx threads, that come back."""
    modes = ((t, e.before) for t, e in returning.items() if t.item in THREADS_OF)
    return {target: value for target, value in modes if value is not None}


def _back(unwanted: Mapping[Target, Entry], plan: Plan, view: View) -> list[Change]:
    """Return the changes that bring back what an earlier apply wrote and nobody wants now."""
    back: list[Change] = []
    # Modes that create threads, which are to get what the threads before them had.
    reviving = {c.target: c.after for c in plan.changes if c.target.item in THREADS_OF}
    for target, entry in sorted(unwanted.items(), key=lambda row: row[0].item in THREAD_ITEMS):
        found = view.read(target)
        if entry.before is None or view.is_back(target, entry.before):
            continue
        if found is None and not begins(target, reviving):
            continue  # a thread that is gone needs nothing; a device that is down keeps its entry
        if target.item in THREADS_OF:
            reviving[target] = entry.before
        link = view.links.get(target.device)
        price = disruption(target.item, "" if link is None else link.driver)
        after = view.returning(target, entry.before)
        back.append(Change(target, found, after, REASON, price))
    return back


def _done_with(
    entries: Iterable[Entry], unwanted: Mapping[Target, Entry], view: View
) -> Iterator[Target]:
    """Yield what came back earlier: from then on it is whose who sets it next.

    Not of threads, which leave theirs behind, nor where channels or rings were changed: what their
    driver resets must be known until all is undone.
    """
    reset = {e.device for e in entries if e.item in RESET_ITEMS}
    for target, entry in unwanted.items():
        if target.item in THREAD_ITEMS or target.device in reset:
            continue
        if entry.after is None and entry.before is not None and view.is_back(target, entry.before):
            yield target


def _altered(entries: Iterable[Entry], unwanted: Collection[Target], view: View) -> frozenset[str]:
    """Return the devices whose channels or rings are not, or are not yet, as they were.

    What their drivers reset meanwhile is left to them.
    """
    resets = [e for e in entries if e.target.item in RESET_ITEMS]
    return frozenset(
        e.device for e in resets if e.target not in unwanted or view.read(e.target) != e.before
    )


def _resettable(changes: Iterable[Change], view: View, index: Mapping[str, int]) -> Iterable[Entry]:
    """Yield entries for all that a driver may lose when it sets its queues up anew."""
    names = {c.target.device for c in changes if c.target.item in RESET_ITEMS}
    for name in sorted(names & set(view.links)):
        for target, value in view.of_device(view.links[name]).items():
            irq = view.irq(target) if target.item in IRQ_ITEMS else None
            if (irq is not None and not irq.movable) or not restorable(str(value)):
                continue
            yield Entry(name, index[name], target.queue, target.item, value, None, kept=True)


def _remembered(changes: Iterable[Change], view: View, index: Mapping[str, int]) -> Iterable[Entry]:
    """Yield entries for threads that the plan ends: their CPU and class end with them."""
    for change in changes:
        if change.target.item != RX_THREADS and change.after != "off":
            continue
        for target in threads_of(view, change.target):
            value = view.read(target)
            if value is None or not restorable(str(value)):
                continue
            if ends(target, {change.target: change.after}):
                yield Entry(target.device, index[target.device], *target[1:], value, None)


def threads_of(view: View, mode: Target) -> Iterable[Target]:
    """Yield the settings of the threads that a mode, or a device's count of rx threads, is about.

    None where the target is no such mode.
    """
    device, items = mode.device, THREADS_OF.get(mode.item, ())
    if not items:
        return
    if mode.item == RX_THREADS:
        link = view.links.get(device)
        numbers = [] if link is None else [helper.number for helper in link.helpers]
    elif mode.queue == WHOLE:
        numbers = [queue for name, queue in view.lanes if name == device]
    else:
        numbers = [mode.queue] if (device, mode.queue) in view.lanes else []
    yield from (Target(device, number, item) for number in numbers for item in items)
