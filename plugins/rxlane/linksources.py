# SPDX-License-Identifier: GPL-2.0-or-later
"""What the service of a .link file waits for beside the kernel's announcements.

udev's database tells of new properties and of an interface that is gone; the journal's folder, of
TuneD taking an interface or leaving it, of a rollback by the operator and of a confirmation.
"""

from __future__ import annotations

from rxlane import udevdb
from rxlane.events import Event, Sources
from rxlane.journal import Store
from rxlane.notify import Folders
from rxlane.sysfs import Sysfs


class LinkSources(Sources):
    """ifindex: the interface whose properties count."""

    def __init__(self, store: Store, files: Sysfs, ifindex: int) -> None:
        self._folders = Folders()
        try:
            super().__init__()
            state = self._folders.watch(str(store.directory))
            udev = self._folders.watch(files.path(udevdb.DATABASE))
        except BaseException:
            self._folders.close()
            raise
        self._causes = {
            (udev, udevdb.entry(ifindex)): "udev has its properties anew",
            (state, store.claims.path.name): "another one lays out what was not its own",
            (state, store.pending.path.name): "an apply waits to be confirmed, or does no longer",
        }

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (*super().descriptors, self._folders.descriptor)

    def read(self, descriptor: int) -> list[Event]:
        if descriptor != self._folders.descriptor:
            return super().read(descriptor)
        seen = self._folders.read()
        causes = self._causes.values() if seen is None else self._told(seen)
        # Of all devices: it counts also while the interface is down.
        return [Event(cause) for cause in causes]

    def _told(self, seen: set[tuple[int, str]]) -> list[str]:
        return [cause for key, cause in self._causes.items() if key in seen]

    def close(self) -> None:
        super().close()
        self._folders.close()
