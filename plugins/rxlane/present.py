# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal as far as it is of here and now: of this boot and this network namespace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Link
from rxlane.plan import Journal


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


def found_again(kernel: Kernel, journal: Journal, links: Iterable[Link]) -> Journal:
    """Return the journal with the indexes of devices that came back with other ones.

    In another namespace, whence they came, their own may have been taken.
    """
    links, known = list(links), dict(journal.folders)
    here = {link.ifindex for link in links}
    lost = {inode: index for index, inode in known.items() if index not in here}
    if not lost:
        return journal
    new = {kernel.folder(li.name): li.ifindex for li in links if li.ifindex not in known}
    moved = {lost[inode]: index for inode, index in new.items() if inode in lost}
    entries = tuple(
        replace(e, ifindex=moved[e.ifindex]) if e.ifindex in moved else e for e in journal.entries
    )
    return replace(journal, entries=entries) if moved else journal


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
