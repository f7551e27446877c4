# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread in TuneD's daemon that keeps standing what the plugins applied.

TuneD itself hears of devices that come and go, but of no link that goes up, no `ethtool -L` and no
CPU; and it would apply to the one device only, where the layout is of all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from rxlane import rtnetlink
from rxlane.apply import Applied
from rxlane.converge import Choose, Converger, Log, keep
from rxlane.errors import RxlaneError
from rxlane.events import APPLIED, Event, Sources, wake_up
from rxlane.tuned_compat import Adapter, Row
from rxlane.watch import Kept

# Seconds after an instance was taken down: TuneD takes down those of a profile one by one, and
# what is down must stay down; one that a caller on D-Bus destroys leaves the others standing.
SOON = 5.0


def _nobody(level: str, text: str) -> None:
    """Take a line for no log."""


def _present() -> dict[int, str]:
    return {row.ifindex: row.name for row in rtnetlink.links()}


class Keeper:
    """Every method is to be called with the lock held, which the thread takes for each look."""

    def __init__(
        self,
        adapter: Adapter,
        lock: threading.RLock,
        open_sources: Callable[[], Sources] = Sources,
    ) -> None:
        self.log: Log = _nobody
        self._adapter = adapter
        self._lock = lock
        self._open = open_sources
        self._rows: tuple[Row, ...] = ()
        self._kept: Kept | None = None
        self._sources: Sources | None = None  # while a thread waits on them
        self._stop = -1  # that thread's eventfd
        self._later: threading.Timer | None = None

    def hold(self, rows: Iterable[Row]) -> None:
        """Keep these rows from now on; the thread starts with the first."""
        self.pause()
        self._rows = tuple(rows)
        try:
            if self._sources is None:
                self._start()
            self._kept = self._new()
            if self._sources is not None:
                self._sources.announce(APPLIED)
        except (RxlaneError, OSError) as error:
            self.log("error", f"the layout is applied, but cannot be kept: {error}")

    def pause(self) -> None:
        """Keep nothing until the next hold()."""
        self._rows, self._kept = (), None
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def hold_later(self, rows: tuple[Row, ...]) -> None:
        """Keep nothing now, and these rows from SOON on, unless something else is said by then."""
        self.pause()
        if rows:
            self._later = threading.Timer(SOON, self._hold_now, (rows,))
            self._later.daemon = True
            self._later.start()

    def _hold_now(self, rows: tuple[Row, ...]) -> None:
        with self._lock:
            # It may have been cancelled while it waited for the lock.
            if self._later is threading.current_thread():
                self.hold(rows)

    def drop(self, kind: str, device: str) -> None:
        """Keep no longer what a kind of section laid out on a device.

        One that is gone is followed on: TuneD hears of it again, but later than the kernel.
        """
        if self._kept is None or not self._kept.has(device, _present()):
            return
        less = (
            replace(row, devices=row.devices - {device}) if row.kind == kind else row
            for row in self._rows
        )
        self._rows = tuple(row for row in less if row.devices)
        self._kept = self._new() if self._rows else None

    def end(self) -> None:
        self.pause()
        if self._sources is not None:
            self._sources = None
            wake_up(self._stop)

    def _new(self) -> Kept:
        names = sorted({name for row in self._rows for name in row.devices})
        policy = self._adapter.policy(self._rows)
        return Kept(self._adapter.keep, self._adapter.store, policy, names, _present())

    def _start(self) -> None:
        self._sources, self._stop = self._open(), os.eventfd(0, os.EFD_CLOEXEC)
        # A daemon thread: TuneD may end without a word to its plugins.
        arguments = (self._sources, self._stop)
        threading.Thread(target=self._run, args=arguments, name="rxlane", daemon=True).start()

    def _run(self, sources: Sources, stop: int) -> None:
        def replan(choose: Choose) -> Applied | None:
            with self._lock:
                if self._kept is None:
                    return Applied.nothing()
                return self._kept.replan(sources.links.names, choose)

        def relevant(event: Event) -> bool:
            with self._lock:
                return self._kept is not None and self._kept.relevant(sources.links.names, event)

        try:
            keep(sources, Converger(replan, self.log), stop, relevant)
        except (RxlaneError, OSError) as error:
            self.log("error", f"the layout is kept no longer: {error}")
        with self._lock:
            if self._sources is sources:
                self._sources = None
                self.pause()
            sources.close()
            os.close(stop)
