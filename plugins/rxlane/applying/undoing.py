# SPDX-License-Identifier: GPL-2.0-or-later
"""Put back what stood before an apply that failed."""

from __future__ import annotations

from collections.abc import Mapping

from rxlane.applying.writing import missing, put_back
from rxlane.errors import RxlaneError
from rxlane.items import CHEAP_ITEMS, Value
from rxlane.journal import Store
from rxlane.kernel import Kernel
from rxlane.model import Snapshot
from rxlane.parallel import uninterrupted
from rxlane.plan import Journal, Target
from rxlane.revert import indexes_by_name, names_by_index
from rxlane.settings import View
from rxlane.verify import GONE


class Undo:
    """What is to be put back; the first value of each setting counts.

    By its device's index, queue and item: names may change meanwhile. An object for each would be
    megabytes, with thousands of queues.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[int, int, str], Value] = {}
        self._names: dict[int, str] = {}  # as the devices were called

    def __bool__(self) -> bool:
        return bool(self._values)

    def clear(self) -> None:
        self._values.clear()

    def collect(self, view: View, values: Mapping[Target, Value]) -> None:
        index = indexes_by_name(view.snapshot.links)
        for (device, queue, item), value in values.items():
            self._names[index[device]] = device
            self._values.setdefault((index[device], queue, item), value)

    def items(self) -> set[str]:
        return {item for _, _, item in self._values}

    def here(self, now: Snapshot) -> dict[Target, Value]:
        """Return the values of devices that are here, by their present names."""
        names = names_by_index(now.links)
        return {
            Target(names[index], queue, item): value
            for (index, queue, item), value in self._values.items()
            if index in names
        }

    def gone(self, now: Snapshot) -> list[Target]:
        """Return the settings of devices that are not here, by their last known names."""
        names = names_by_index(now.links)
        rows = (row for row in self._values if row[0] not in names)
        return [Target(self._names[index], queue, item) for index, queue, item in rows]


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
            left = _left_after(kernel, undo)
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


def _left_after(kernel: Kernel, undo: Undo) -> list[str]:
    """Put all back that can be; return one line for each setting that is not, or why."""
    try:
        return _put_all_back(kernel, undo)
    except (RxlaneError, OSError) as error:
        return [str(error)]


def _put_all_back(kernel: Kernel, undo: Undo) -> list[str]:
    """Return one line for each setting that is not back, such as one whose device is down."""
    items = undo.items() | CHEAP_ITEMS
    before = kernel.observe(None, items)
    _, failed, _ = put_back(kernel, undo.here(before), before)
    if failed:
        return failed
    now = kernel.observe(None, items)
    gone = [f"{target}: {GONE}" for target in undo.gone(now)]
    back = missing(View.of(now), undo.here(now))
    return [*gone, *(f"{target}: {why}" for target, why in back.items())]
