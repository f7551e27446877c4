# SPDX-License-Identifier: GPL-2.0-or-later
"""`rxlane watch`: apply, then keep the layout standing until told to stop."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rxlane.apply import Applied, apply
from rxlane.converge import Choose, Converger, Follower, Log, keep
from rxlane.events import Event, Sources
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Plan
from rxlane.sections import Policy
from rxlane.sysfs import Sysfs


class Kept:
    """A policy that is applied again whenever the host has changed.

    names: the devices it is for, none for all physical ones.
    """

    def __init__(
        self, kernel: Kernel, store: Store, policy: Policy, names: Collection[str], sources: Sources
    ) -> None:
        self._kernel = kernel
        self._store = store
        self._policy = policy
        self._names = tuple(names)
        self._sources = sources
        self._follower = Follower(names, sources.links.names)
        self._sysfs = Sysfs()
        self._journaled = False

    def replan(self, choose: Choose | None = None) -> Applied | None:
        """Plan for the devices that are there; None once somebody rolled it all back."""
        self._follower.update(self._sources.links.names)
        if self._journaled and self._store.load() is None:
            return None
        scope = [now for name in self._names if (now := self._follower.now(name))]
        if self._names and not scope:
            return Applied(Plan(), 0)
        policy = self._follower.policy(self._policy)
        done = apply(self._kernel, self._store, policy, scope or None, choose=choose)
        self._journaled = self._journaled or self._store.load() is not None
        return done

    def relevant(self, event: Event) -> bool:
        """True for what may concern the layout: on a host of containers most links do not."""
        if self._names or event.device is None:
            self._follower.update(self._sources.links.names)
            return self._follower.covers(event)
        return self._sysfs.target(f"sys/class/net/{event.device}/device") is not None


def watch(
    kernel: Kernel,
    store: Store,
    policy: Policy,
    names: Collection[str],
    stop: int,
    log: Log,
    begun: Callable[[Applied], None],
) -> None:
    """Apply and keep; returns when the eventfd stop is written or the layout was rolled back.

    begun gets what the first apply did, whose errors are raised.
    """
    sources = Sources()
    try:
        kept = Kept(kernel, store, policy, names, sources)
        done = kept.replan()
        assert done is not None  # nothing was journaled before the first
        begun(done)
        keep(sources, Converger(kept.replan, log), stop, kept.relevant)
    finally:
        sources.close()
