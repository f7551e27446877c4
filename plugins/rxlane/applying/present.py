# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal as far as it is of here and now: of this boot and this network namespace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Link
from rxlane.plan import Entry, Journal
from rxlane.revert import called_now


def load_current(store: Store, kernel: Kernel) -> tuple[Journal | None, tuple[str, ...]]:
    """Return this boot's journal; one of another boot is removed: its settings are gone.

    REFUSED as by refuse_elsewhere().
    """
    journal = store.load()
    if journal is not None and journal.boot_id != kernel.boot_id():
        store.remove()
        return None, ("a journal of another boot was discarded",)
    refuse_elsewhere(store, journal, kernel)
    return journal, ()


def of_this_boot(store: Store, boot_id: str) -> Journal | None:
    """Return the journal to look at, where there is one whose settings are the running host's."""
    journal = store.load()
    return None if journal is None or journal.boot_id != boot_id else journal


def found_again(kernel: Kernel, journal: Journal, links: Iterable[Link]) -> Journal:
    """Return the journal with the indexes that its devices have now, by their folders.

    One that comes back from another namespace may have another index, for its own may have been
    taken there; and another device may have that of one that is away, which then has none here.
    """
    now = indexes_now(kernel, journal, links)
    if not now:
        return journal

    def moved(entries: Iterable[Entry]) -> tuple[Entry, ...]:
        return tuple(replace(e, ifindex=now.get(e.ifindex, e.ifindex)) for e in entries)

    folders = tuple(sorted((now[index], inode) for index, inode in journal.folders))
    entries, stood = moved(journal.entries), moved(journal.stood)
    return replace(journal, entries=entries, folders=folders, stood=stood)


def of_now(kernel: Kernel, journal: Journal, links: Collection[Link]) -> Journal:
    """Return the journal with the indexes and names that its devices have now; the same object
    where these are as they were.
    """
    return called_now(found_again(kernel, journal, links), links)


def indexes_now(kernel: Kernel, journal: Journal, links: Iterable[Link]) -> dict[int, int]:
    """Return by the index that a device has in the journal the one it has now, below zero where
    another device has its own; nothing where all are as they were.
    """
    links, known = list(links), dict(journal.folders)
    inodes = {li.ifindex: kernel.folder(li.name) for li in links if li.ifindex in known}
    if inodes == known:
        return {}
    now = {inodes.get(li.ifindex) or kernel.folder(li.name): li.ifindex for li in links}
    return {
        index: now.get(inode, -abs(index) if index in inodes else index)
        for index, inode in known.items()
    }


def refuse_renamed(links: Iterable[Link], called: Mapping[str, int]) -> None:
    """Raise BUSY where a name is not that of the device it was given for; called: its index.

    What kept it for long tells of the other name in a moment.
    """
    for link in links:
        if called.get(link.name, link.ifindex) != link.ifindex:
            problem = "the name is another interface's by now"
            raise RxlaneError(Kind.BUSY, problem, device=link.name, remedy="try again")


class Called:
    """The names of devices by index, which others may get while the lock is waited for.

    Looked up once, at the first question, which comes with the lock held.
    """

    def __init__(self, kernel: Kernel, indexes: Callable[[], Collection[int]]) -> None:
        self._kernel = kernel
        self._indexes = indexes
        self._names: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._names is None:
            indexes = self._indexes()
            # No look at the host for nothing.
            links = self._kernel.observe(None, ()).links if indexes else ()
            self._names = frozenset(link.name for link in links if link.ifindex in indexes)
        return name in self._names


def refuse_elsewhere(store: Store, journal: Journal | None, kernel: Kernel) -> None:
    """Raise REFUSED in another network namespace than the journal's: none of its devices is seen
    there, and the originals of all would be given up.
    """
    if journal is None or _is_here(journal, kernel) or journal.boot_id != kernel.boot_id():
        return
    problem = f"the settings in {store.path} are of another network namespace"
    remedy = (
        f"run this there (`lsns -t net` lists it as {journal.netns}), or give --state; "
        "if that namespace is gone, its settings are, too: remove the file"
    )
    raise RxlaneError(Kind.REFUSED, problem, remedy=remedy)


def _is_here(journal: Journal, kernel: Kernel) -> bool:
    """True unless another namespace is known to be the journal's: inodes are used again."""
    cookies = (journal.netns_cookie, kernel.netns_cookie())
    noted, here = (journal.netns, kernel.netns()) if 0 in cookies else cookies
    return 0 in (noted, here) or noted == here
