# SPDX-License-Identifier: GPL-2.0-or-later
"""Write a plan. The journal is on disk before the first write.

In phases, because one makes what the next is about: modes create threads. After each phase
everything is read back; a value that is not there fails the phase, and a failed apply undoes what
it wrote. An interrupt that the kernel keeps to itself fails nothing: it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from rxlane.applying import leftover, stages, undoing
from rxlane.applying.present import load_current, of_now, refuse_renamed
from rxlane.applying.writing import read_back, write
from rxlane.decide import decide
from rxlane.deciding import classes, cutting
from rxlane.errors import Kind, RxlaneError, counted
from rxlane.host import places
from rxlane.host.places import Folder
from rxlane.items import CHANNEL_ITEMS, VHOST_CPUS, Value
from rxlane.journal import UNCHANGED, Store, meaning
from rxlane.kernel import Kernel
from rxlane.model import Link, Snapshot
from rxlane.plan import HOST, HOST_INDEX, Change, Entry, Journal, Plan, Skip, Target, phases
from rxlane.revert import Carried, carry, threads_of
from rxlane.sections import Policy
from rxlane.settings import View


@dataclass(frozen=True, slots=True)
class Applied:
    """plan: what was decided. wrote: what of it was written. back: what was put back because nobody
    asks for it any more. notes: for the log.

    refused: what the kernel would not do, such as to move an interrupt; a skip of the plan says it.
    folders: where what is as wanted now stands, of a layout that is kept.
    """

    plan: Plan
    wrote: frozenset[Target] = frozenset()
    back: frozenset[Target] = frozenset()
    notes: tuple[str, ...] = ()
    refused: frozenset[Target] = frozenset()
    folders: Mapping[str, Folder] = field(default_factory=dict)

    @property
    def written(self) -> int:
        return len(self.wrote)

    def __str__(self) -> str:
        kept = sum(held.target not in self.wrote for held in self.plan.holds)
        back = f", {len(self.back)} put back" if self.back else ""
        return f"{counted(self.written, 'setting')} written, {kept} as wanted already{back}"

    @property
    def unmovable(self) -> frozenset[Target]:
        """What was refused for good: a guest's control group may be another by the next look."""
        return frozenset(t for t in self.refused if t.item != VHOST_CPUS)

    @classmethod
    def nothing(cls) -> Applied:
        return cls(Plan())


def apply(
    kernel: Kernel,
    store: Store,
    policy: Policy,
    scope: Container[str] | None = None,
    owner: str = "",
    choose: Callable[[Plan], Plan] | None = None,
    undo: undoing.Undo | None = None,
    called: Mapping[str, int] | None = None,
) -> Applied:
    """Plan on the running host and write what differs.

    scope: the devices for which this policy replaces earlier ones; None means all. owner: who
    wants it, TUNED or nobody in particular. choose: what of the plan is written now; the rest must
    stay among its holds. undo: an empty one of the caller's, who finds in it whether anything may
    be left of an apply that raised. called: the indexes that names of the policy had when it was
    made. Raises what decide() raises with nothing written, BUSY where a name is another device's by
    now, and KERNEL or JOURNAL with everything undone.
    """
    undo = undoing.Undo() if undo is None else undo
    with store.lock():
        old, notes = load_current(store, kernel)
        refused: dict[Target, str] = {}
        written = set[Target]()
        journal = old
        try:
            for number in range(stages.ROUNDS):
                items = {e.item for e in journal.entries} if journal else set()
                before = kernel.observe(None, stages.reads(policy, items))
                refuse_renamed(before.links, called or {})
                journal = journal and of_now(kernel, journal, before.links)
                old = old if number else _saved(store, old, journal)
                refused |= stages.refused_before(journal, before, policy)
                before = stages.without_tunables(before, refused)
                # With a view of its own, which ends with it: thousands of lanes are megabytes.
                plan, whole, folders = _plan(
                    View.of(before), policy, choose, refused, journal, scope
                )
                carried = stages.first_part(whole, plan, before)
                stay = stages.not_tried(journal, carried, before)
                left = leftover.left(journal, plan, scope, refused, stay)
                now, journal = _write(kernel, store, journal, carried, left, before, undo, owner)
                refused |= now
                written.update(c.target for c in carried.changes if c.target not in now)
                if not carried.returns:
                    break
            asked = (c.target for c in chain(plan.changes, plan.holds))
            wrote = frozenset(t for t in asked if t in written)
            back = frozenset(written - wrote)
            done = _without(plan, refused)
            return Applied(done, wrote, back, notes, frozenset(refused), folders)
        except (RxlaneError, OSError, KeyboardInterrupt) as error:
            if undo:
                known = old and leftover.knowing(old, refused, written)
                undoing.undo_all(kernel, store, known, undo, error)
            raise


def foresee(
    kernel: Kernel,
    journal: Journal | None,
    before: Snapshot,
    policy: Policy,
    scope: Container[str] | None,
) -> Plan:
    """Return what apply() would write on this host now, with the originals that it would put back.

    journal: of an earlier apply in this boot. What a reset takes is known only after it, and left
    out. Raises what apply() would with nothing written.
    """
    journal = journal and of_now(kernel, journal, before.links)
    refused = stages.refused_before(journal, before, policy)
    before = stages.without_tunables(before, refused)
    plan, whole, _ = _plan(View.of(before), policy, None, refused, journal, scope)
    return replace(_without(plan, refused), changes=whole.changes)


def _plan(
    view: View,
    policy: Policy,
    choose: Callable[[Plan], Plan] | None,
    refused: Mapping[Target, str],
    journal: Journal | None,
    scope: Container[str] | None,
) -> tuple[Plan, Carried, Mapping[str, Folder]]:
    """Return the plan, all that is to be written of it and of the journal's originals, and where
    what then is as wanted stands, if somebody chooses: who does keeps it.
    """
    before = view.snapshot
    back = stages.coming_back(journal, view, scope, policy)
    plan = decide(before, policy, view, back)
    folders: Mapping[str, Folder] = {}
    if choose is not None:
        plan = choose(_without_late_channels(plan, before, policy, back, choose))
        folders = places.folders(view, _own(plan, scope))
    due = _without(plan, refused)
    whole = carry(journal, due, view, scope, refused)
    staying = cutting.staying(view, policy, _returns(plan, whole))
    if staying:
        whole = carry(journal, due, view, scope, {*refused, *staying})
        skips = (Skip(*target, "left-alone", why) for target, why in staying.items())
        plan = replace(plan, skips=(*plan.skips, *skips))
    classes.check(view, _returns(plan, whole))
    return plan, whole, folders


def _without_late_channels(
    plan: Plan,
    before: Snapshot,
    policy: Policy,
    back: Mapping[Target, Value],
    choose: Callable[[Plan], Plan],
) -> Plan:
    """Return the plan; where channels are not to be changed now, one for the queues that there are.

    Such channels stay among its holds.
    """
    asked = tuple(c for c in plan.changes if c.target.item in CHANNEL_ITEMS)
    chosen = choose(replace(plan, changes=asked)).changes if asked else ()
    late = {c.target.device for c in asked if c not in chosen}
    if not late:
        return plan
    own = [
        c
        for c in (*plan.changes, *plan.holds)
        if c.target.item in CHANNEL_ITEMS and c.target.device in late
    ]
    stay = {c.target for c in own}
    present = stages.without_tunables(before, stay)
    left = {target: value for target, value in back.items() if target not in stay}
    again = decide(present, policy, View.of(present), left)
    told = (s for s in again.skips if s.device not in late or s.item != "channels")
    return replace(again, holds=(*again.holds, *own), skips=tuple(told))


def _returns(plan: Plan, whole: Carried) -> list[Change]:
    """Return what brings originals back because nobody asks for a setting any more."""
    asked = {change.target for change in plan.changes}
    return [change for change in whole.changes if change.target not in asked]


def _own(plan: Plan, scope: Container[str] | None) -> Iterator[Target]:
    """Yield what the plan keeps as it is or writes, without what was left for later."""
    for change in (*plan.changes, *(held for held in plan.holds if held.before == held.after)):
        device = change.target.device
        if scope is None or device == HOST or device in scope:
            yield change.target


def _without(plan: Plan, refused: Mapping[Target, str]) -> Plan:
    changes = tuple(c for c in plan.changes if c.target not in refused)
    return replace(plan, changes=changes, skips=leftover.told(plan, refused))


def _saved(store: Store, stored: Journal | None, journal: Journal | None) -> Journal | None:
    """Have the store hold the journal under present names, and return it: a device that goes away
    is waited for by the name that is stored.
    """
    if journal is not None and journal is not stored:
        with meaning(UNCHANGED):
            store.save(journal)
    return journal


def _write(
    kernel: Kernel,
    store: Store,
    journal: Journal | None,
    carried: Carried,
    left: tuple[Skip, ...],
    before: Snapshot,
    undo: undoing.Undo,
    owner: str,
) -> tuple[dict[Target, str], Journal | None]:
    """Write one round; undo collects what must be put back.

    journal: what the store holds. Returns what cannot be had, with the reason, and what the store
    holds then.
    """
    # What only waits to come back makes nobody the owner of what is written now.
    wants = journal is not None and any(e.after is not None for e in journal.entries)
    owner = owner or (journal.owner if journal and wants else "")
    wanted = Journal(
        kernel.boot_id(),
        carried.entries,
        owner,
        netns=kernel.netns(),
        netns_cookie=kernel.netns_cookie(),
        left=left,
        folders=_folders(kernel, journal, (*carried.entries, *carried.stood), before.links),
        stood=carried.stood,
    )
    wanted = _save_first(store, journal, wanted, bool(carried.changes))
    changes = {c.target: c for c in carried.changes}
    devices = {target.device for target in changes}
    # The only one to hold the view, which ends with the first phase.
    writing = _Round(kernel, store, devices, wanted, View.of(before), undo)
    undo.collect(writing.view, _present_values(writing.view, carried.changes))
    undo.collect(writing.view, stages.of_reset(writing.view, carried.changes))
    for targets in phases({t: c.after for t, c in changes.items()}):
        due = writing.due(targets, carried.optional)
        writing.write([changes[target] for target in due])
    return writing.refused, writing.journal if wanted.entries else None


def _folders(
    kernel: Kernel, journal: Journal | None, entries: Iterable[Entry], links: Iterable[Link]
) -> tuple[tuple[int, int], ...]:
    """Return the folders of the devices that entries are of, also of those that are away."""
    known = dict(journal.folders) if journal else {}
    names = {link.ifindex: link.name for link in links}
    indexes = sorted({entry.ifindex for entry in entries} - {HOST_INDEX})
    found = ((n, known.get(n) or (kernel.folder(names[n]) if n in names else 0)) for n in indexes)
    return tuple(row for row in found if row[1])


def _save_first(store: Store, journal: Journal | None, wanted: Journal, writes: bool) -> Journal:
    """Have the store hold what is wanted, before anything is written. journal: what it holds.

    Returns what it holds then, which is the same. A full disk is no reason to fail where nothing is
    written and only what stands is other than it was.
    """
    if wanted.entries and journal != wanted:
        try:
            with meaning(UNCHANGED):
                store.save(wanted)
        except RxlaneError:
            if writes or journal is None or journal != _standing_as(journal, wanted):
                raise
            return journal
    elif journal is not None and not wanted.entries:
        store.remove()
    return wanted


def _standing_as(journal: Journal, wanted: Journal) -> Journal:
    return replace(wanted, stood=journal.stood, folders=journal.folders)


@dataclass(slots=True)
class _Round:
    """What changes while a round is written.

    devices: all that it writes to. journal: what is wanted, which the store holds if it has
    entries. view: the host after the last phase. undo: see _write(). refused: what cannot be had,
    with the reason.
    """

    kernel: Kernel
    store: Store
    devices: Collection[str]
    journal: Journal
    view: View
    undo: undoing.Undo
    refused: dict[Target, str] = field(default_factory=dict)

    def due(self, targets: Iterable[Target], optional: Container[Target]) -> list[Target]:
        """Return what of a phase is to be written: not what is refused, nor a thread that ended."""
        gone = (t for t in targets if t in optional and self.view.read(t) is None)
        left_out = {*self.refused, *gone}
        return [t for t in targets if t not in left_out]

    def write(self, phase: Collection[Change]) -> None:
        """Write a phase and read it back; the journal holds its originals before."""
        self._note_births(phase)
        now = write(self.kernel, self.view, ((c.target, c.after) for c in phase)).refused
        if now:
            self._note_refused(now)
        taken = [c for c in phase if c.target not in now]
        self.view = read_back(self.kernel, self.view, self.devices, taken)

    def _note_births(self, phase: Collection[Change]) -> None:
        """Keep what new threads were born with: it is their original, and known only now."""
        born = _births(phase, self.view)
        if not born:
            return
        # Kernels that keep a thread's class give it to the next one, whatever it is.
        classes.check(self.view, phase, kind=Kind.KERNEL)
        entries = tuple(_with_birth(e, born) for e in self.journal.entries)
        self._save(replace(self.journal, entries=entries))
        self.undo.collect(self.view, born)

    def _note_refused(self, now: Mapping[Target, str]) -> None:
        """Let the journal want no more of what the kernel has just refused, and say so."""
        self.refused.update(now)
        old = self.journal
        entries = tuple(replace(e, after=None) if e.target in now else e for e in old.entries)
        self._save(replace(old, entries=entries, left=(*old.left, *leftover.refusals(now))))

    def _save(self, journal: Journal) -> None:
        self.journal = journal
        self.store.save(journal)


def _present_values(view: View, changes: Iterable[Change]) -> dict[Target, Value]:
    """Return what an undo puts back: the changed settings, and the threads of changed modes.

    A mode that goes off and on again has a new thread, which must get what the old one had.
    """
    targets = {c.target for c in changes}
    targets |= {own for mode in tuple(targets) for own in threads_of(view, mode)}
    found = ((target, view.read(target)) for target in sorted(targets))
    return {target: value for target, value in found if value is not None}


def _births(phase: Iterable[Change], view: View) -> dict[Target, Value]:
    found = ((c.target, view.read(c.target)) for c in phase if c.before is None)
    return {target: value for target, value in found if value is not None}


def _with_birth(entry: Entry, born: dict[Target, Value]) -> Entry:
    value = born.get(entry.target)
    return replace(entry, before=value) if entry.before is None and value is not None else entry
