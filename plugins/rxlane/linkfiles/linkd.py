# SPDX-License-Identifier: GPL-2.0-or-later
"""The service rxlane-link@IFINDEX: lays an interface out by its udev properties and keeps it so.

SIGTERM brings the originals back. An interface that is gone for LINGER seconds needs nothing: with
it went its settings, and udev starts the service for the one that comes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

from rxlane import streams
from rxlane.converge import Converger, keep
from rxlane.errors import RxlaneError, with_notes
from rxlane.host import udevdb
from rxlane.journal import DIRECTORY, Store
from rxlane.keeping.events import Event, wake_up
from rxlane.kernel import Kernel, Linux
from rxlane.linkfiles.linkkeep import KeptLink
from rxlane.linkfiles.linksources import LinkSources
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink

LINGER = 10  # seconds that a way to another network namespace and back may take
LEVELS = {"error": 3, "warning": 4, "info": 6}  # of syslog, for the journal; see sd-daemon(3)


def log(level: str, text: str) -> None:
    streams.say(f"<{LEVELS[level]}>{text}")


class Stop:
    """Ends the wait, because somebody asks for it or because the interface is not there."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.asked = False
        self.gone = False
        self._waits = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ask())
        signal.signal(signal.SIGALRM, lambda *_: self._leave())

    def here(self, there: bool) -> None:
        """Take note whether the interface is there."""
        if there == self._waits:
            signal.alarm(0 if there else LINGER)
        self._waits = not there
        if there and self.gone and not self.asked:
            self.go_on()

    def go_on(self) -> bool:
        """Forget that the interface was not there; False once somebody has asked for the end."""
        self.gone = self._waits = False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        return not self.asked

    def _ask(self) -> None:
        self.asked = True
        wake_up(self.descriptor)

    def _leave(self) -> None:
        self.gone = True
        wake_up(self.descriptor)


def serve(ifindex: int, store: Store, files: Sysfs) -> None:
    """Lay out and keep until it is to end.

    For an interface that came back in the last moment udev starts no other service.
    """
    stop, kernel = Stop(), Linux()
    _round(ifindex, store, files, kernel, stop)
    while stop.gone and _is_there(ifindex, files) and stop.go_on():
        _round(ifindex, store, files, kernel, stop)


def _is_there(ifindex: int, files: Sysfs) -> bool:
    """True for an interface that udev has finished with; its database may be behind."""
    known = udevdb.properties(files, ifindex)
    return known is not None and ifindex in rtnetlink.names()


def _round(ifindex: int, store: Store, files: Sysfs, kernel: Kernel, stop: Stop) -> None:
    converger = Converger(lambda choose: kept.replan(sources.links.names, choose), log)
    kept = KeptLink(kernel, store, files, ifindex, log, stop.here, converger.anew)
    kept.claim()
    sources = LinkSources(store, files, ifindex)
    try:
        converger.notice([Event("the service started", reset=False)])
        keep(sources, converger, stop.descriptor, kept.relevant)
        if stop.asked:
            # The name may have changed since the last look; else the last one known has to do.
            with contextlib.suppress(RxlaneError, OSError):
                sources.renew(anyway=True)
            done = kept.end(sources.links.names)
            for line in done.notes:
                log("info", line)
            for line in done.pending:
                log("warning", f"not put back: {line}")
            log("info", str(done))
        elif stop.gone:
            kept.end({})
            log("info", "the interface is gone")
    finally:
        sources.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="rxlane-link", allow_abbrev=False)
    parser.add_argument("ifindex", type=int)
    parser.add_argument("--state", default=DIRECTORY)
    args = parser.parse_args()
    try:
        serve(args.ifindex, Store(args.state), Sysfs())
    except (RxlaneError, OSError) as error:
        log("error", "; ".join(with_notes(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
