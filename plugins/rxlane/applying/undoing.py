# SPDX-License-Identifier: GPL-2.0-or-later
"""Put back what stood before an apply that failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rxlane.applying.writing import missing, put_back
from rxlane.errors import RxlaneError
from rxlane.items import CHEAP_ITEMS, Value
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Snapshot
from rxlane.parallel import uninterrupted
from rxlane.plan import Entry, Journal, Target
from rxlane.revert import indexes_by_name, names_by_index, renamed
from rxlane.settings import View
from rxlane.verify import GONE

# What is to be put back, by its device's index, queue and item: names may change meanwhile.
Undo = dict[tuple[int, int, str], Entry]


def collect(undo: Undo, view: View, values: Mapping[Target, Value]) -> None:
    index = indexes_by_name(view.snapshot.links)
    for (device, queue, item), value in values.items():
        entry = Entry(device, index[device], queue, item, value, None)
        undo.setdefault((entry.ifindex, queue, item), entry)


def undo_all(
    kernel: Kernel,
    store: Store,
    old: Journal | None,
    undo: Undo,
    error: BaseException,
) -> None:
    """Put back what was there before this apply; undo and the journal stay unless all of it is.

    A terminal that goes sends more than one interrupt: the next waits, and is raised in place of
    the error.
    """
    left = ["interrupted"]
    try:
        with uninterrupted():
            left = _left_after(kernel, undo.values())
            if not left:
                if old is None:
                    store.remove()
                else:
                    store.save(old)
                undo.clear()
    except (RxlaneError, OSError, KeyboardInterrupt) as again:
        error = again
        raise
    finally:
        if left:
            error.add_note(f"undo failed, `rxlane rollback` tries again: {'; '.join(left)}")


def _left_after(kernel: Kernel, undo: Collection[Entry]) -> list[str]:
    """Put all back that can be; return one line for each setting that is not, or why."""
    try:
        return _put_all_back(kernel, undo)
    except (RxlaneError, OSError) as error:
        return [str(error)]


def _put_all_back(kernel: Kernel, undo: Collection[Entry]) -> list[str]:
    """Return one line for each setting that is not back, such as one whose device is down."""
    items = {entry.item for entry in undo} | CHEAP_ITEMS
    before = kernel.observe(None, items)
    _, failed, _ = put_back(kernel, _values(undo, before), before)
    if failed:
        return failed
    now = kernel.observe(None, items)
    here = names_by_index(now.links)
    gone = [f"{entry.target}: {GONE}" for entry in undo if entry.ifindex not in here]
    back = missing(View.of(now), _values(undo, now))
    return [*gone, *(f"{target}: {why}" for target, why in back.items())]


def _values(undo: Iterable[Entry], now: Snapshot) -> dict[Target, Value]:
    """Return what is to be put back of the devices that are here, by their present names."""
    return {e.target: e.before for e in renamed(undo, now.links) if e.before is not None}
