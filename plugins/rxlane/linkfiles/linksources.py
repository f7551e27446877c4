# SPDX-License-Identifier: GPL-2.0-or-later
"""What the service of a .link file waits for beside the kernel's announcements.

udev's database tells of new properties and of an interface that is gone; the journal's folder, of
TuneD taking an interface or leaving it, of a rollback by the operator and of a confirmation.
"""

from __future__ import annotations

from rxlane.host import udevdb
from rxlane.journal import Store
from rxlane.keeping.events import Event, Sources, napi_threads
from rxlane.sysfs import Sysfs


class LinkSources(Sources):
    """ifindex: the interface whose properties count."""

    def __init__(self, store: Store, files: Sysfs, ifindex: int) -> None:
        # Not those of others, which have services of their own, and might use up the descriptors.
        super().__init__(lambda: [one for one in napi_threads() if one[1] == ifindex])
        try:
            state = self.folders.watch(str(store.directory))
            udev = self.folders.watch(files.path(udevdb.DATABASE))
        except OSError:
            self.close()
            raise
        self._causes = {
            (udev, udevdb.entry(ifindex)): "udev has its properties anew",
            (state, store.claims.path.name): "another one lays out what was not its own",
            (state, store.pending.path.name): "an apply waits to be confirmed, or does no longer",
        }

    def noticed(self, seen: set[tuple[int, str]] | None) -> list[Event]:
        causes = self._causes.values() if seen is None else self._told(seen)
        # Of all devices: it counts also while the interface is down.
        return [*(Event(cause) for cause in causes), *super().noticed(seen)]

    def _told(self, seen: set[tuple[int, str]]) -> list[str]:
        return [cause for key, cause in self._causes.items() if key in seen]
