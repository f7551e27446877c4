# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread in TuneD's daemon that keeps standing what the plugins applied.

TuneD itself hears of devices that come and go, but of no link that goes up, no `ethtool -L` and no
CPU; and it would apply to the one device only, where the layout is of all.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from rxlane.apply import Applied
from rxlane.converge import Choose, Converger, Log, keep
from rxlane.errors import LINE, Kind, RxlaneError, printable
from rxlane.keeping.events import APPLIED, Event, Sources, wake_up
from rxlane.keeping.watch import GivenUp, Kept
from rxlane.plan import Plan
from rxlane.tuned.tuned_compat import Adapter, Report, Row
from rxlane.wire import rtnetlink

# Seconds after an instance was taken down: TuneD takes down those of a profile one by one, and
# what is down must stay down; one that a caller on D-Bus destroys leaves the others standing.
SOON = 5.0
AGAIN, AGAIN_MOST = 1.0, 60.0  # seconds until what keeps no longer is started again


def _nobody(level: str, text: str) -> None:
    """Take a line for no log."""


def _told(error: BaseException) -> str:
    """Say what went wrong; of what nobody foresaw the type may be all that there is to say."""
    foreseen = isinstance(error, RxlaneError | OSError)
    return str(error) if foreseen else printable(f"{type(error).__name__}: {error}", LINE)


def without(rows: Iterable[Row], kind: str, device: str) -> tuple[Row, ...]:
    """Return the rows that are left when this kind of section lets a device go."""
    less = (
        replace(row, devices=row.devices - {device}) if row.kind == kind else row for row in rows
    )
    return tuple(row for row in less if row.devices)


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
        # What will be kept in a moment.
        self._coming_rows: tuple[Row, ...] = ()
        self._coming: Kept | None = None
        self._sources: Sources | None = None  # while a thread waits on them
        self._stop = -1  # that thread's eventfd
        self._begun = 0.0  # when it was started
        self._later: threading.Timer | None = None
        self._delay = AGAIN
        self._said = ""
        self.given_up = False  # somebody rolled back what was kept

    def hold(self, rows: Iterable[Row], kept: Kept | None = None) -> None:
        """Keep these rows from now on; the thread starts with the first. kept: what is known of
        them from before.
        """
        self.pause()
        self.given_up = False
        self._rows, self._delay, self._said = tuple(rows), AGAIN, ""
        self._kept = kept
        self._go_on()

    def hold_on(self, rows: Iterable[Row]) -> None:
        """Go on with what is kept, of which renames are known; with these rows where nothing is."""
        if self._kept is None:
            self.hold(rows)
            return
        self._wait_no_more()
        self._go_on()

    @property
    def _followed(self) -> Kept | None:
        return self._kept or self._coming

    def still(self, plan: Plan) -> Plan:
        """Return the plan; raise GivenUp where a rollback took what is kept, or will be soon."""
        if self._followed is not None:
            self._followed.check(rtnetlink.names())
        return plan

    def lost(self) -> bool:
        """True where a rollback took what was kept, be it just now: then it is given up."""
        try:
            self.still(Plan())
        except GivenUp:
            self.give_up()
        except (RxlaneError, OSError):
            pass  # the next look will tell
        return self.given_up

    def give_up(self) -> None:
        """Keep nothing, for it was rolled back, nor claim it: a look may have while that ran."""
        taken = frozenset() if self._followed is None else self._followed.taken
        self.pause()
        self.given_up = True
        if taken:
            try:
                self._adapter.give_up(taken)
            except (RxlaneError, OSError) as error:
                self.log("warning", f"services of .link files still yield: {_told(error)}")

    def _go_on(self) -> None:
        """Keep the rows there are, with the thread and with what is known of them, if there is."""
        try:
            # First: from here on a rollback is heard of, also while nothing can be opened.
            self._kept = self._kept or self._new(self._rows)
            sources = self._sources or self._start()
            sources.announce(APPLIED)
        except (RxlaneError, OSError) as error:
            self._failed("the layout is applied, but cannot be kept", error)

    def _failed(self, what: str, error: BaseException) -> None:
        """Say it, unless that was said last, and go on a while later if there are rows."""
        problem = f"{what}: {_told(error)}"
        if problem != self._said:
            self.log("error", problem)
            self._said = problem
        if self._rows:
            self._wait(self._delay, self._go_on)
            self._delay = min(2 * self._delay, AGAIN_MOST)

    def retry(self, attempt: Callable[[], Report]) -> None:
        """Do later what something is in the way of, unless TuneD wants something else then."""
        self.log("info", "it is tried again until it can be done")
        self._delay = AGAIN
        self._wait(self._delay, lambda: self._tried(attempt))

    def soon(self, seconds: float, attempt: Callable[[], Report]) -> None:
        """Do again, beside what is kept, what failed in passing; keeping it comes before that."""
        if self._later is None:
            self._wait(seconds, lambda: self._tell(attempt()))

    def _tell(self, report: Report) -> None:
        for line in report.lines:
            self.log(*line)

    def _tried(self, attempt: Callable[[], Report]) -> None:
        report = attempt()
        if report.again or report.waiting:
            self._delay = min(2 * self._delay, AGAIN_MOST)
            self._wait(self._delay, lambda: self._tried(attempt))
            return
        self._tell(report)

    def pause(self) -> None:
        """Keep nothing until the next hold()."""
        self._rows, self._kept = self._coming_rows, self._coming = (), None
        self._wait_no_more()

    def hold_later(self, rows: tuple[Row, ...]) -> None:
        """Keep nothing now, and these rows from SOON on, unless something else is said by then."""
        self.pause()
        if not rows:
            return
        # Now, to hear of a rollback until then; where that fails hold() says it.
        with suppress(RxlaneError, OSError):
            self._coming = self._new(rows)
        self._coming_rows = rows
        self._wait(SOON, lambda: self.hold(rows, self._coming))

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something later, in place of what was to be done so far."""
        self._wait_no_more()
        timer = threading.Timer(seconds, self._do_now, (then,))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:
            self.log("error", f"the layout is kept no longer: {error}")
            return
        self._later = timer

    def _wait_no_more(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _do_now(self, what: Callable[[], None]) -> None:
        with self._lock:
            # It may have been cancelled while it waited for the lock.
            if self._later is threading.current_thread():
                self._later = None
                what()

    def drop(self, kind: str, device: str) -> None:
        """Keep no longer what a kind of section laid out on a device.

        One that is gone is followed on: TuneD hears of it again, but later than the kernel.
        """
        rows = self._rows or self._coming_rows
        if not rows or self._is_gone(device):
            return
        left = without(self.called_now(rows), kind, device)
        if self._coming_rows:
            self.hold_later(left)
        elif left:
            self._rows, self._kept = left, None
            self._go_on()
        else:
            self.pause()

    def called_now(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Return the rows with the names that devices which are kept have by now."""
        now: dict[str, str] = {}
        if self._followed is not None:
            with suppress(RxlaneError, OSError):  # then they are called as they were
                now = self._followed.called(rtnetlink.names())

        def called(names: Iterable[str]) -> frozenset[str]:
            return frozenset(now.get(name, name) for name in names)

        return tuple(replace(row, devices=called(row.devices)) for row in rows)

    def _is_gone(self, device: str) -> bool:
        """True when what was laid out under this name is not there; one that cannot be asked for
        is let go, for TuneD says when it comes back.
        """
        try:
            return self._followed is not None and not self._followed.has(device, rtnetlink.names())
        except (RxlaneError, OSError):
            return False

    def end(self) -> None:
        self.pause()
        self.given_up = False
        if self._sources is not None:
            self._sources = None
            wake_up(self._stop)

    def _new(self, rows: tuple[Row, ...]) -> Kept:
        names = sorted({name for row in rows for name in row.devices})
        policy = self._adapter.policy(rows)
        keep, store = self._adapter.keep, self._adapter.store
        return Kept(keep, store, policy, names, rtnetlink.names(), rtnetlink.names)

    def _start(self) -> Sources:
        sources = self._open()
        try:
            stop = os.eventfd(0, os.EFD_CLOEXEC)
        except OSError:
            sources.close()
            raise
        # A daemon thread: TuneD may end without a word to its plugins.
        arguments = (sources, stop)
        thread = threading.Thread(target=self._run, args=arguments, name="rxlane", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of processes or memory
            sources.close()
            os.close(stop)
            raise RxlaneError(Kind.KERNEL, f"no thread for it: {error}") from error
        self._sources, self._stop, self._begun = sources, stop, time.monotonic()
        return sources

    def _run(self, sources: Sources, stop: int) -> None:
        def replan(choose: Choose) -> Applied | None:
            with self._lock:
                if self._kept is None:
                    return Applied.nothing()
                return self._kept.replan(sources.links.names, choose)

        def relevant(event: Event) -> bool:
            with self._lock:
                return self._kept is not None and self._kept.relevant(sources.links.names, event)

        failure: BaseException | None = None
        try:
            keep(sources, Converger(replan, self.log), stop, relevant)
        except (RxlaneError, OSError) as error:
            failure = error
        finally:
            # What nobody foresaw goes on from here, and leaves its traceback on standard error.
            self._ended(sources, stop, failure or sys.exception())

    def _ended(self, sources: Sources, stop: int, failure: BaseException | None) -> None:
        """After the thread: another one takes over where it failed."""
        with self._lock:
            sources.close()
            os.close(stop)
            if self._sources is not sources:
                return
            self._sources = None
            if failure is None:
                self.give_up()
                return
            if time.monotonic() - self._begun > AGAIN_MOST:
                self._delay, self._said = AGAIN, ""
            self._failed("the layout is not kept for now", failure)
