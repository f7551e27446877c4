# SPDX-License-Identifier: GPL-2.0-or-later
"""Who lays out which interface: TuneD's profile, or the interface's own .link file.

On disk beside the journal, for they are different processes. The profile wins: while it has an
interface, that one's service writes nothing there. What the profile does not have stays with the
service, and neither plans for, nor brings back, what is the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from rxlane.applying.present import Called
from rxlane.errors import RxlaneError
from rxlane.journal import Claims, Store
from rxlane.kernel import Kernel
from rxlane.plan import HOST_INDEX, TUNED

Change = Callable[[Claims], Claims]


def load(store: Store, boot_id: str) -> Claims:
    """Return the claims of this boot. A damaged file says nothing: all of them come anew."""
    try:
        found = store.claims.load()
    except RxlaneError:
        return Claims(boot_id, released=())
    return found if found is not None and found.boot_id == boot_id else Claims(boot_id)


def update(store: Store, boot_id: str, change: Change) -> Claims:
    """Write what change makes of the claims, where it differs; takes the lock."""
    with store.lock():
        old = load(store, boot_id)
        new = change(old)
        if new == old:
            return old
        if new.links or new.tuned or new.released is not None:
            store.claims.save(new)
        else:
            store.claims.remove()
        return new


def lost(found: Claims, ifindex: int) -> bool:
    """True where an interface may have been in a file that was damaged."""
    known = (*found.links, *(found.released or ()))
    return found.released is not None and ifindex not in known


def with_link(ifindex: int) -> Change:
    def change(old: Claims) -> Claims:
        released = old.released and tuple(i for i in old.released if i != ifindex)
        return replace(old, links=tuple(sorted({*old.links, ifindex})), released=released)

    return change


def without_link(ifindex: int) -> Change:
    return lambda old: replace(old, links=tuple(i for i in old.links if i != ifindex))


def without(gone: Collection[int] | None) -> Change:
    """Take interfaces from whoever has them; gone: indexes, None for all."""

    def left(indexes: tuple[int, ...]) -> tuple[int, ...]:
        return () if gone is None else tuple(i for i in indexes if i not in gone)

    def change(old: Claims) -> Claims:
        known = gone is not None and old.released is not None
        released = tuple(sorted({*(old.released or ()), *(gone or ())})) if known else None
        return replace(old, links=left(old.links), tuned=left(old.tuned), released=released)

    return change


def with_tuned(indexes: Iterable[int]) -> Change:
    return lambda old: replace(old, tuned=tuple(sorted(set(indexes))))


def without_tuned(gone: Collection[int | None]) -> Change:
    """Take interfaces from TuneD; None among them is for all."""

    def change(old: Claims) -> Claims:
        left = () if None in gone else tuple(i for i in old.tuned if i not in gone)
        return replace(old, tuned=left)

    return change


def alone(store: Store, boot_id: str) -> set[int]:
    """Return the interfaces that only their .link files lay out."""
    found = load(store, boot_id)
    return set(found.links) - set(found.tuned)


class Others:
    """The names that TuneD's profile speaks for: all but those that a .link file has alone."""

    def __init__(self, store: Store, kernel: Kernel) -> None:
        self._alone = Called(kernel, lambda: alone(store, kernel.boot_id()))

    def __contains__(self, name: object) -> bool:
        return name not in self._alone


def others(store: Store, kernel: Kernel) -> Others | None:
    """Return them, None when that is all there are."""
    return Others(store, kernel) if alone(store, kernel.boot_id()) else None


def of_tuned(store: Store) -> bool:
    """True where TuneD wrote last what the journal has."""
    journal = store.load()
    return journal is not None and journal.owner == TUNED


def release_tuned(store: Store, boot_id: str) -> None:
    """Once the originals are back, or an apply failed: services lay out what .link files have."""
    update(store, boot_id, with_tuned(()))
    with store.lock():
        journal = store.load()
        if journal is None or not journal.owner:
            return
        left = {e.ifindex for e in journal.entries if e.after is not None}
        own = alone(store, boot_id)
        # What is not TuneD's is not to go when it starts with another profile.
        if own and left <= own | {HOST_INDEX}:
            store.save(replace(journal, owner=""))
