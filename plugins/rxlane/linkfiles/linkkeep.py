# SPDX-License-Identifier: GPL-2.0-or-later
"""One interface laid out as its udev properties say, together with the others that have some.

All of them are planned together, for their threads share the host's CPUs; written is the own one
alone. An interface whose properties are refused is left out by the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rxlane import policy
from rxlane.apply import Applied, apply
from rxlane.applying.present import Called, of_this_boot
from rxlane.applying.rollback import RolledBack, rollback
from rxlane.converge import Choose, Log
from rxlane.errors import Kind, RxlaneError
from rxlane.host import udevdb
from rxlane.items import FLOW_ENTRIES, RFS
from rxlane.journal import Claims, Store
from rxlane.keeping import claims, confirm
from rxlane.keeping.events import Event
from rxlane.kernel import Kernel
from rxlane.linkfiles import linkkeys
from rxlane.plan import HOST, Plan
from rxlane.policy import FLOW_STEERING, Given
from rxlane.sysfs import Sysfs

Names = Mapping[int, str]
TRIES = 3  # of one that is stopped, each of which waits for the lock: many are stopped at once


class NotOurs(RxlaneError):
    """Between the look and the lock somebody else got the interface."""

    def __init__(self) -> None:
        super().__init__(Kind.BUSY, "the interface is laid out by another")


class KeptLink:
    """here: told at each look whether the interface is there. anew: told before the first write of
    other properties, or after somebody else had the interface.
    """

    def __init__(
        self,
        kernel: Kernel,
        store: Store,
        files: Sysfs,
        ifindex: int,
        log: Log,
        here: Callable[[bool], None],
        anew: Callable[[], None],
    ) -> None:
        self._kernel = kernel
        self._store = store
        self._files = files
        self._ifindex = ifindex
        self._log = log
        self._here = here
        self._anew = anew
        self._yielded = False
        self._boot_id = kernel.boot_id()
        self._told: dict[str, Sequence[str]] = {}  # by level, what the last look had to say
        self._given: tuple[Given, ...] = ()
        self._links: tuple[int, ...] = (ifindex,)

    def claim(self) -> Claims:
        return claims.update(self._store, self._boot_id, claims.with_link(self._ifindex))

    def release(self) -> None:
        """Claim the interface no longer; on a full disk the claim goes with this boot."""
        try:
            claims.update(self._store, self._boot_id, claims.without_link(self._ifindex))
        except RxlaneError as error:
            self._log("warning", f"the claim on the interface stays: {error}")

    def relevant(self, event: Event) -> bool:
        """True for what may move the interface's lanes: its own news and its neighbours'."""
        return event.ifindex is None or event.ifindex in self._links

    def replan(self, present: Names, choose: Choose | None = None) -> Applied | None:
        """Plan and write; None once somebody rolled it back or the properties are gone."""
        found = claims.load(self._store, self._boot_id)
        if claims.lost(found, self._ifindex):
            self._log("warning", f"{self._store.claims.path} was damaged: claimed anew")
            found = self.claim()
        self._links = found.links
        if self._ifindex not in found.links:
            self._leave_flows(present)
            return None
        known = udevdb.properties(self._files, self._ifindex)
        name = present.get(self._ifindex)
        self._here(known is not None and name is not None)
        if known is None or name is None or self._is_anothers(name):
            return Applied.nothing()
        if not linkkeys.given(known):
            return self._leave(name, present)
        before, self._given = self._given, self._own(name, known)
        yielded, self._yielded = self._yielded, self._yields()
        if self._yielded:
            return Applied.nothing()
        if yielded or before != self._given:
            self._anew()
        try:
            done = self._write(name, present, choose)
            self._tell(done.plan)
            if not self._steers(self._given):
                self._leave_flows(present)
            return done
        except NotOurs:
            return Applied.nothing()
        except RxlaneError as error:
            raise self._located(error, known) from error

    def _own(self, name: str, known: Mapping[str, str]) -> tuple[Given, ...]:
        def where(key: str) -> str:
            return udevdb.origin(self._files, known, key)

        sections, errors = linkkeys.sections(name, known, where)
        self._say("error", [str(error) for error in errors])
        return sections

    def _tell(self, plan: Plan) -> None:
        self._say("info", [str(skip) for skip in plan.skips])
        self._say("warning", plan.warnings)

    def _say(self, level: str, texts: Sequence[str]) -> None:
        """Log what was not in the log after the last look."""
        for text in texts:
            if text not in self._told.get(level, ()):
                self._log(level, text)
        self._told[level] = texts

    def _located(self, error: RxlaneError, known: Mapping[str, str]) -> RxlaneError:
        """Return a refusal with the file that asked for it, where one property did."""
        asked = linkkeys.named(error, self._given)
        if asked is None:
            return error
        return linkkeys.located(error, *asked, lambda key: udevdb.origin(self._files, known, key))

    def _yields(self) -> bool:
        """True while TuneD has the interface, or an apply on it waits to be confirmed."""
        if self._ifindex in claims.load(self._store, self._boot_id).tuned:
            return True
        pending = confirm.waiting(self._kernel, self._store)
        return pending is not None and pending.covers(self._ifindex)

    def _others(self, present: Names) -> list[Given]:
        found: list[Given] = []
        for index in claims.alone(self._store, self._boot_id) - {self._ifindex}:
            name = present.get(index)
            known = None if name is None else udevdb.properties(self._files, index)
            if name is not None and known is not None:
                found += linkkeys.sections(name, known, str)[0]
        return found

    def _write(self, name: str, present: Names, choose: Choose | None) -> Applied:
        others = self._others(present)
        while True:
            wanted = policy.parse(sorted((*self._given, *others), key=lambda g: g.name))
            try:
                return apply(
                    *(self._kernel, self._store, wanted, {name}),
                    choose=lambda plan: self._mine(plan, name, choose),
                )
            except RxlaneError as error:
                # What other interfaces ask for and do not get is told by their own services.
                less = [g for g in others if g.name not in (error.section, error.device)]
                if not error.kind.refused or len(less) == len(others):
                    raise
                others = less

    def _mine(self, plan: Plan, name: str, choose: Choose | None) -> Plan:
        """Leave in the plan what is to be written for the own interface, as long as it is own."""
        found = claims.load(self._store, self._boot_id)
        if self._ifindex not in found.links or self._yields() or self._is_anothers(name):
            raise NotOurs
        # The flow table is for those who steer by it: nobody else would bring it back.
        here = (name, HOST) if self._steers(self._given) and not self._table_of(found) else (name,)
        own = tuple(c for c in plan.changes if c.target.device in here)
        theirs = (c for c in plan.changes if c.target.device not in here)
        mine = replace(
            plan,
            changes=own,
            holds=(*plan.holds, *theirs),
            skips=tuple(s for s in plan.skips if s.device in here),
        )
        return mine if choose is None else choose(mine)

    def _is_anothers(self, name: str) -> bool:
        """True once another interface is called so; the event that tells brings the next look."""
        number = self._files.number(f"sys/class/net/{name}/ifindex")
        return number not in (None, self._ifindex)

    def _table_of(self, found: Claims) -> bool:
        """True while TuneD's profile has the flow table sized for its own devices."""
        journal = of_this_boot(self._store, self._boot_id)
        entries = () if journal is None else journal.entries
        return any(e.item == RFS and e.after and e.ifindex in found.tuned for e in entries)

    def _leave(self, name: str, present: Names) -> Applied | None:
        """Give up the interface, which asks for nothing; None once nothing of it waits any more."""
        self._given = ()
        gone = f"{name} has no {linkkeys.PREFIX}... properties any more"
        self._say("info", [gone])
        done = self._bring_back(present)
        self._say("info", [gone, *done.notes])
        self._say("warning", [f"not put back: {line}" for line in done.pending])
        again = udevdb.properties(self._files, self._ifindex)
        if done.pending or linkkeys.given(again or {}):
            return Applied.nothing()  # what udev wrote meanwhile is announced
        self.release()
        return None

    def end(self, present: Names) -> RolledBack:
        """Give the interface up: its originals come back, unless another one has it."""
        try:
            for _ in range(TRIES - 1):
                try:
                    return self._bring_back(present)
                except RxlaneError as error:
                    if not error.kind.retry:
                        raise
            return self._bring_back(present)
        finally:
            # Last, for it needs room on the disk, which the originals do not wait for.
            self.release()

    def _bring_back(self, present: Names) -> RolledBack:
        # With it went its settings, but not the host's.
        if self._yields() or self._ifindex not in present:
            return self._leave_flows(present)
        # TuneD may have had the lock until now.
        own = Called(self._kernel, lambda: () if self._yields() else (self._ifindex,))
        done = rollback(self._kernel, self._store, own)
        flows = self._leave_flows(present)
        return RolledBack(
            done.written + flows.written,
            (*done.pending, *flows.pending),
            (*done.notes, *flows.notes),
        )

    def _leave_flows(self, present: Names) -> RolledBack:
        """Bring the host's flow table back where it is rxlane's and no interface steers by it."""
        journal = of_this_boot(self._store, self._boot_id)
        entries = () if journal is None else journal.entries
        used = any(e.item == RFS and e.after and e.ifindex in present for e in entries)
        if used or all(e.item != FLOW_ENTRIES for e in entries):
            return RolledBack(0)
        return rollback(self._kernel, self._store, {HOST}, {FLOW_ENTRIES})

    @staticmethod
    def _steers(sections: Sequence[Given]) -> bool:
        return any(g.kind == FLOW_STEERING and g.options.get("rfs") for g in sections)
