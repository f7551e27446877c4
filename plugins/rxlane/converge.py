# SPDX-License-Identifier: GPL-2.0-or-later
"""Keep a layout standing: what the kernel announces leads to another look, and that to writes only
where something differs.

A burst of announcements is one look. A setting that somebody else changes back again and again is
put right once a minute; what a driver or the kernel lost by a reset is put right at once.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from rxlane.apply import Applied
from rxlane.errors import Kind, RxlaneError, counted, with_notes
from rxlane.host.places import Folder
from rxlane.items import RESET_ITEMS, UNRESET_ITEMS
from rxlane.keeping.events import LOST, Event, Sources
from rxlane.plan import Change, Plan, Target
from rxlane.sections import Named, Policy

_Section = TypeVar("_Section", bound=Named)

SETTLE = 0.15  # seconds of quiet before the look
SETTLE_MOST = 0.6  # seconds from the first announcement to the look, quiet or not
PEACE = 60.0  # seconds between two rewrites of what another program changes
RESETS = 6  # rewrites in that time of what resets cost; more are no accident
# Seconds after a failure; then only announcements count, but for what another is in the way of.
RETRIES = (0.3, 1.0, 3.0, 10.0, 60.0)
# Seconds after a look that reset a link in vain, until the next one may: what is written and undone
# is announced as well, and would be a reset a minute for ever.
IN_VAIN = (1.0, 10.0, 60.0, 600.0, 3600.0)
LATE = 5.0  # seconds from a tap's carrier to its guest's threads, whose start nothing announces
LEAVING = 2  # tries that may miss a device
SHOWN = 3  # settings named in a log line

Choose = Callable[[Plan], Plan]
Log = Callable[[str, str], None]  # level as in logging (info, warning, error), text


class Limiter:
    """Remembers what was put right when, to tell a fighting writer from a reset."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each setting was written, and whether for what a reset had cost.
        self._written: dict[Target, list[tuple[float, bool]]] = {}

    def due(self, change: Change, reset: bool) -> float:
        """Return in how many seconds a setting may be written again, 0 for now.

        reset: something was announced that may have cost the setting without another's doing.
        """
        now, lost = self._clock(), self._lost(change, reset)
        recent = [(t, own) for t, own in self._written.get(change.target, []) if now - t < PEACE]
        # What resets cost tells nothing of another program.
        times = [t for t, own in recent if lost or not own]
        if not times or (lost and len(times) < RESETS):
            return 0.0
        return times[0 if lost else -1] + PEACE - now

    def _lost(self, change: Change, reset: bool) -> bool:
        return reset and change.target.item not in UNRESET_ITEMS

    def forget(self) -> None:
        self._written.clear()

    def forget_of(self, devices: Container[str | None]) -> None:
        self._written = {t: rows for t, rows in self._written.items() if t.device not in devices}

    def note(self, changes: Iterable[Change], was_reset: Callable[[Target], bool]) -> None:
        """Remember what was written now. was_reset: as reset of due()."""
        now = self._clock()
        self._written = {
            target: recent
            for target, times in self._written.items()
            if (recent := [row for row in times if now - row[0] < PEACE])
        }
        for change in changes:
            row = now, self._lost(change, was_reset(change.target))
            self._written.setdefault(change.target, []).append(row)


class Converger:
    """Collects announcements and plans anew once they have settled.

    replan: plans and writes what its argument leaves of the plan; None when there is nothing to
    keep any more, for somebody rolled it back.
    """

    def __init__(
        self,
        replan: Callable[[Choose], Applied | None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replan = replan
        self._log = log
        self._clock = clock
        self._limiter = Limiter(clock)
        self._events: list[Event] = []
        self._first = 0.0
        self._due: float | None = None
        # When what the last look left is due: a retry, or the turn of what was held.
        self._waiting: float | None = None
        # Tries in vain; those that another was in the way of use up none of what fails after that.
        self._failures = 0
        self._hindered = 0
        # After a look that wrote in vain: not before this time, whatever is announced.
        self._earliest = 0.0
        # How many looks in a row wrote channels or rings in vain, and until when none does.
        self._vain = 0
        self._no_reset = 0.0
        # Until when looks were put off last, how often in a row, and why.
        self._blocked = 0.0
        self._put_offs = 0
        self._trouble = ""
        self._said = ""
        self._overlooked = False
        # When a guest whose tap has a carrier has its threads; whatever happens until then.
        self._late = 0.0
        # Of the look under way: what it writes, and what it leaves for how many seconds.
        self._changes: dict[Target, Change] = {}
        self._held: dict[Target, float] = {}
        # Where the settings stand that were as wanted after the last look.
        self.folders: Mapping[str, Folder] = {}
        # What the kernel refused for good: known only by trying, and tried once.
        self._unmovable: frozenset[Target] = frozenset()

    def notice(self, events: Iterable[Event]) -> None:
        new = list(events)
        if not new:
            return
        # Now, for one that is down is looked at only later, when other news tell of it.
        others = {event.device for event in new if event.anew}
        tried = () if LOST in new else self._unmovable
        self._unmovable = frozenset(t for t in tried if t.device not in others)
        self._limiter.forget_of(others)
        now = self._clock()
        if self._due is None or not self._events:
            self._first = now
        self._events += [event for event in dict.fromkeys(new) if event not in self._events]
        if not self._earliest:
            self._failures = self._hindered = 0
        # What such a look wrote, and what undid it, is announced as well.
        settled = min(now + SETTLE, self._first + SETTLE_MOST)
        self._due = max(settled, self._earliest, self._blocked)

    def put_off(self, what: str, error: Exception) -> None:
        """Look a while later, because something that a look needs failed; say so once."""
        now = self._clock()
        if now < self._blocked:  # more of the same burst
            self._due = max(self._blocked, self._earliest)
            return
        if now - self._blocked > PEACE:
            self._put_offs, self._trouble = 0, ""
        problem = f"{what}: {error}; it is tried again"
        if problem != self._trouble:
            self._log("error", problem)
            self._trouble = problem
        self._blocked = now + RETRIES[min(self._put_offs, len(RETRIES) - 1)]
        self._due = max(self._blocked, self._earliest)
        self._put_offs += 1

    def overlook(self, threads: int) -> None:
        """Say once that so many threads of the layout may end unnoticed."""
        if threads and not self._overlooked:
            self._log(
                "warning",
                f"{counted(threads, 'thread')} of queues cannot be followed, for want of file"
                " descriptors (RLIMIT_NOFILE): one that ends is put right at the next look",
            )
        self._overlooked = bool(threads)

    def anew(self) -> None:
        """Something else is wanted from this look on: nobody fought over that yet."""
        self._limiter.forget()

    def timeout(self) -> float | None:
        """Return the seconds until run() is due, None when nothing is."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    @property
    def ripe(self) -> bool:
        """True when run() would look."""
        return self._due is not None and self._due <= self._clock()

    def run(self, is_up: Callable[[int], bool] = lambda index: True) -> bool:
        """Look and put right, if that is due; False when there is nothing to keep any more.

        is_up: whether a link is up by now. One that is not has nothing to lay out, and to plan
        without it might move what others have.
        """
        if not self.ripe:
            return True
        self._due = None
        still = [e for e in self._events if e.ifindex is None or is_up(e.ifindex)]
        if self._events and not still:
            self._events = []
            self._due = self._waiting
            return True
        self._events, late = still, any(event.tun for event in still)
        kept, now = self._look(), self._clock()
        # Also where the look failed and its events stay: what comes now settles anew.
        self._first = now
        if late:
            self._late = now + LATE
        if kept and self._late > now:
            self._due = self._late if self._due is None else min(self._due, self._late)
        self._waiting = self._due
        return kept

    def _look(self) -> bool:
        """Put right what may be written now; False when there is nothing to keep any more."""
        self._changes, self._held = {}, {}
        try:
            done = self._replan(self._choose)
        except (RxlaneError, OSError) as error:
            self._failed(error)
            return True
        if done is None:
            self._log("info", "the layout was rolled back: it is kept no longer")
            return False
        self._succeeded(done)
        return True

    def _choose(self, plan: Plan) -> Plan:
        """Leave out what must wait; it stays in the plan as something that is wanted."""
        now: list[Change] = []
        later: list[Change] = []
        for change in plan.changes:
            seconds = self._limiter.due(change, self._was_reset(change.target))
            if change.target.item in RESET_ITEMS:
                seconds = max(seconds, self._no_reset - self._clock())
            if seconds > 0:
                self._held[change.target] = seconds
            if seconds > 0 or change.target in self._unmovable:
                later.append(change)
            else:
                now.append(change)
                self._changes.setdefault(change.target, change)
        return replace(plan, changes=tuple(now), holds=(*plan.holds, *later))

    def _was_reset(self, target: Target) -> bool:
        """True where an announced event, or what this look wrote before, may have cost it."""
        written = any(t.device == target.device for t in self._changes if t.item in RESET_ITEMS)
        return written or any(e.reset and e.device in (None, target.device) for e in self._events)

    def _failed(self, error: Exception) -> None:
        kind = error.kind if isinstance(error, RxlaneError) else Kind.KERNEL
        # A device that has just gone, whose announcement is on its way, is no error.
        leaving = kind is Kind.NO_DEVICE and self._failures < LEAVING
        # More causes are no news while the outcome is the same.
        said = "; ".join(with_notes(error))
        if said != self._said and not leaving:
            self._log("error", f"{self._causes()}: {said}")
            self._said = said
        self._count_reset(kind)
        last = len(RETRIES) - 1
        wait = RETRIES[min(self._hindered if kind.retry else self._failures, last)]
        if self._changes and not kind.refused:
            self._earliest = self._clock() + wait
        few = self._failures <= last and (not kind.refused or kind is Kind.NO_DEVICE)
        if kind.retry or few:
            self._due = self._clock() + wait
            self._hindered += kind.retry
            self._failures += not kind.retry
        elif self._held:  # what was in the way of a refusal may go with what is written then
            self._due = self._clock() + min(self._held.values())

    def _count_reset(self, kind: Kind) -> None:
        """Note a failed look that may have reset a link."""
        wrote = not kind.refused and not kind.retry
        if wrote and any(target.item in RESET_ITEMS for target in self._changes):
            self._no_reset = self._clock() + IN_VAIN[min(self._vain, len(IN_VAIN) - 1)]
            self._vain += 1

    def _why_left(self) -> str:
        vain = self._vain and all(target.item in RESET_ITEMS for target in self._held)
        return "set in vain" if vain else "changed again by another program"

    def _succeeded(self, done: Applied) -> None:
        self._unmovable |= done.unmovable
        self.folders = done.folders
        changes = [c for t, c in self._changes.items() if t in done.wrote]
        if not any(target.item in RESET_ITEMS for target in self._held):
            self._vain = 0
        self._limiter.note(changes, self._was_reset)
        lines = []
        if changes:
            lines.append(f"put right after {self._causes()}: {_shown(changes)}")
        if self._held:
            wait = min(self._held.values())
            self._due = self._clock() + wait
            names = _some([str(target) for target in sorted(self._held)])
            if changes or names != self._said:
                lines.append(f"{self._why_left()}, left for {wait:.0f} s: {names}")
            self._said = names
        else:
            self._said = ""
        if lines:
            self._log("warning" if self._held else "info", "; ".join(lines))
        self._failures = self._hindered = 0
        self._earliest = 0.0
        self._events = []

    def _causes(self) -> str:
        words = list(dict.fromkeys(str(event) for event in self._events))
        return _some(words) or "a wait"


def _shown(changes: Collection[Change]) -> str:
    rows = [f"{c.target} {'-' if c.before is None else c.before} -> {c.after}" for c in changes]
    return f"{counted(len(rows), 'setting')} ({_some(rows)})"


def _some(words: Sequence[str]) -> str:
    rest = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


class Follower:
    """Follows devices by index when they are renamed, by name when they are made anew."""

    def __init__(self, names: Iterable[str], present: Mapping[int, str]) -> None:
        """names: as the operator gave them. present: {index: name} of the links that are there."""
        indexes = {name: index for index, name in present.items()}
        self._index = {name: indexes.get(name) for name in names}
        self._last = {name: name for name in self._index}

    def update(self, present: Mapping[int, str]) -> None:
        # One that took the name of another, which went, is still itself.
        still = {index for index in self._index.values() if index in present}
        indexes = {name: index for index, name in present.items() if index not in still}
        for name, index in self._index.items():
            if index is None or index not in present:
                index = indexes.get(name, indexes.get(self._last[name]))
                self._index[name] = index
                indexes = {n: i for n, i in indexes.items() if i != index}
            if index is not None:
                self._last[name] = present[index]

    def now(self, name: str) -> str | None:
        """Return what the device is called now, None when it is not there."""
        return self._last[name] if self._index.get(name) is not None else None

    def indexes(self) -> dict[str, int]:
        """Return the indexes of the devices that are there, by their present names."""
        return {self._last[name]: i for name, i in self._index.items() if i is not None}

    def last(self, name: str) -> str:
        """Return what the device is, or was last, called."""
        return self._last[name]

    def has(self, name: str, present: Mapping[int, str]) -> bool:
        """True when what is called so, now or in the policy, is there with the index it had."""
        return any(
            name in (given, self._last[given], present[index])
            for given, index in self._index.items()
            if index is not None and index in present
        )

    def follows(self, index: int) -> bool:
        """True for the index of a device that is followed; of all where none is named."""
        return not self._index or index in self._index.values()

    def covers(self, event: Event) -> bool:
        """True for an event of a device that is followed, or of all."""
        if event.device is None:
            return True
        known = event.ifindex in self._index.values()
        return known or event.device in self._index or event.device in self._last.values()

    def policy(self, policy: Policy) -> Policy:
        """Return the policy with the devices' present names, without sections that lost theirs."""
        return replace(
            policy,
            sections=self._sections(policy.sections),
            irq=self._sections(policy.irq),
            steering=self._sections(policy.steering),
        )

    def _sections(self, sections: Iterable[_Section]) -> tuple[_Section, ...]:
        found = []
        for section in sections:
            names = tuple(now for name in section.devices if (now := self.now(name)))
            if names or not section.devices:
                found.append(replace(section, devices=names))
        return tuple(found)


def keep(
    sources: Sources,
    converger: Converger,
    stop: int,
    relevant: Callable[[Event], bool],
) -> None:
    """Keep a layout until the eventfd stop is written or there is nothing to keep any more.

    What fails between two looks, for want of memory for example, puts off the next one.
    """
    poller, registered = select.poll(), set[int]()
    _follow(sources, converger)
    while True:
        look = converger.ripe and _renewed(sources, converger)
        if look:
            if not converger.run(lambda index: sources.links.is_up(index)):
                return
            _follow(sources, converger)
        wanted = {*sources.descriptors, stop}
        for descriptor in registered - wanted:
            poller.unregister(descriptor)
        for descriptor in wanted - registered:
            poller.register(descriptor, select.POLLIN)
        registered = wanted
        seconds = converger.timeout()
        for descriptor, _ in poller.poll(None if seconds is None else int(1000 * seconds) + 1):
            if descriptor == stop:
                os.eventfd_read(stop)
                return
            # Of a burst most are the same.
            new = dict.fromkeys(_read(sources, converger, descriptor))
            converger.notice(event for event in new if relevant(event))


def _follow(sources: Sources, converger: Converger) -> None:
    """Follow what is there after a look."""
    try:
        sources.refresh(converger.folders)
        converger.overlook(sources.missed)
    except (RxlaneError, OSError) as error:
        converger.put_off("what is kept cannot be followed", error)


def _renewed(sources: Sources, converger: Converger) -> bool:
    """True once the links are known; without them no look would find the right devices."""
    try:
        sources.renew()
    except (RxlaneError, OSError) as error:
        converger.put_off("after events were lost the links cannot be read", error)
        return False
    return True


def _read(sources: Sources, converger: Converger, descriptor: int) -> Iterable[Event]:
    try:
        return sources.read(descriptor)
    except RxlaneError as error:  # an OSError would come back at once, and for ever
        converger.put_off("an event cannot be understood", error)
        return [LOST]
