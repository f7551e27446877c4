# SPDX-License-Identifier: GPL-2.0-or-later
"""`rxlane watch`: apply, then keep the layout standing until told to stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from rxlane.apply import Applied, apply
from rxlane.converge import Choose, Converger, Follower, Log, keep
from rxlane.journal import Pending, Store, Word
from rxlane.keeping import confirm
from rxlane.keeping.events import APPLIED, Event, Sources
from rxlane.kernel import Kernel
from rxlane.plan import HOST_INDEX, Plan
from rxlane.sections import Policy
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink

Names = Mapping[int, str]  # of the links that are there, by index
# Applies a policy to devices, indexes by name, None for all it names, as far as the third argument
# lets it.
Write = Callable[[Policy, Mapping[str, int] | None, Choose | None], Applied]


class GivenUp(Exception):
    """Somebody rolled the layout back."""


class Kept:
    """A policy that is applied again whenever the host has changed.

    names: the devices it is for, none for all physical ones. present: those there were when the
    names were given. now: asks the kernel which there are. taken: indexes that the last look found
    rolled back, None for all.
    """

    def __init__(
        self,
        write: Write,
        store: Store,
        policy: Policy,
        names: Collection[str],
        present: Names,
        now: Callable[[], Names],
    ) -> None:
        self._write = write
        self._now = now
        self._store = store
        self._policy = policy
        self._names = tuple(names)
        self._follower = Follower(names, present)
        self._sysfs = Sysfs()
        self._hardware = {name for name in names if self._is_hardware(name)}
        # Which journal was read last, and of which devices that are kept it holds originals: of
        # none where everything was as wanted, or nothing has been applied yet.
        self._read: tuple[int, int] | None = None
        self._mine: frozenset[int] = frozenset()
        self._journaled = self._with_originals()
        self._heard = self._words()
        self.taken: frozenset[int | None] = frozenset()

    def replan(self, present: Names, choose: Choose | None = None) -> Applied | None:
        """Plan for the devices that are there; None once somebody rolled it all back."""
        self._update(present)

        def still(plan: Plan) -> Plan:
            # A rollback may have had the lock until now.
            self.check()
            return plan if choose is None else choose(plan)

        scope = self._follower.indexes()
        try:
            self.check()
            if self._names and not scope:
                return Applied.nothing()
            done = self._write(self._follower.policy(self._policy), scope or None, still)
        except GivenUp:
            return None
        self._journaled = self._with_originals()
        return done

    def check(self, ended: bool = True) -> None:
        """Raise GivenUp once somebody rolled back what is kept.

        ended: the journal's end tells of it, too.
        """
        words = self._words()
        new, self._heard = words - self._heard, words
        own = (w.index for w in new if w.index is None or self._follower.follows(w.index))
        self.taken = frozenset(own)
        if self.taken or (ended and self._ended()):
            raise GivenUp

    def _ended(self) -> bool:
        """True when the journal is gone, and not for all that it was of is.

        What is made anew has nothing of ours, and to hear of that may take a moment.
        """
        if not self._journaled or self._store.path.exists():
            return False
        return not self._journaled.isdisjoint({HOST_INDEX, *self._now()})

    def _words(self) -> frozenset[Word]:
        found = self._store.given_up.load()
        return frozenset(() if found is None else found.words)

    def _with_originals(self) -> frozenset[int]:
        """Return what of that which is kept has entries in the journal; read when it is another."""
        try:
            now = self._store.path.stat()
        except FileNotFoundError:
            return frozenset()
        if (now.st_ino, now.st_mtime_ns) != self._read:
            journal = self._store.load()
            entries = () if journal is None else journal.entries
            own = (e.ifindex for e in entries if self._follower.follows(e.ifindex))
            self._mine = frozenset(own)
            self._read = now.st_ino, now.st_mtime_ns
        return self._mine

    def relevant(self, present: Names, event: Event) -> bool:
        """True for what may concern the layout: on a host of containers most links do not."""
        if event.tun and self._policy.guests:
            return True
        if self._names or event.device is None:
            self._update(present)
            return self._follower.covers(event)
        return self._is_hardware(event.device)

    def has(self, name: str, present: Names) -> bool:
        """True when the device of this name is the one that was laid out, and not gone."""
        return self._follower.has(name, present)

    def called(self, present: Names) -> dict[str, str]:
        """Return the present name, or the last, of each device by what the policy calls it."""
        self._update(present)
        return {name: self._follower.last(name) for name in self._names}

    def _update(self, present: Names) -> None:
        # A virtual device that took the name of a NIC is not what the policy is for. One that is
        # followed is: sysfs may know its next name already.
        self._follower.update(
            {
                index: name
                for index, name in present.items()
                if self._follower.follows(index)
                or name not in self._hardware
                or self._is_hardware(name)
            }
        )

    def _is_hardware(self, name: str) -> bool:
        return self._sysfs.target(f"sys/class/net/{name}/device") is not None


def writer(kernel: Kernel, store: Store, present: Callable[[], Names]) -> Write:
    """Return what a Kept writes with: apply(), which raises BUSY while another one on any of the
    same devices waits to be confirmed. present: tells the links that are there.
    """

    def write(policy: Policy, scope: Mapping[str, int] | None, choose: Choose | None) -> Applied:
        def concerned(plan: Plan, pending: Pending) -> bool:
            return confirm.concerns(pending, plan, scope, present())

        still = confirm.patiently(kernel, store, "of the layout", choose, concerned)
        return apply(kernel, store, policy, scope, choose=still, called=scope or {})

    return write


def watch(
    kernel: Kernel,
    store: Store,
    policy: Policy,
    called: Mapping[str, int],
    stop: int,
    log: Log,
    begun: Callable[[Applied], None],
) -> None:
    """Apply and keep; returns when the eventfd stop is written or the layout was rolled back.

    called: the indexes of the devices it is for, by the names of the policy; none for all physical
    ones. begun gets what the first apply did, whose errors are raised.
    """
    sources = Sources()
    try:
        # Before there is something to keep: an earlier journal may be of another boot.
        alone = partial(confirm.unguarded, kernel, store)
        done = apply(kernel, store, policy, called or None, choose=alone, called=called)
        write = writer(kernel, store, lambda: sources.links.names)
        present = {index: name for name, index in called.items()}
        kept = Kept(write, store, policy, called, present, rtnetlink.names)
        begun(done)
        converger = Converger(lambda choose: kept.replan(sources.links.names, choose), log)
        converger.notice([APPLIED])
        keep(
            sources,
            converger,
            stop,
            lambda event: kept.relevant(sources.links.names, event),
        )
    finally:
        sources.close()
