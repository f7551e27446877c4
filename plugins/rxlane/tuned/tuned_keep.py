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
from rxlane.keeping.watch import GivenUp, Kept, Names
from rxlane.plan import Plan
from rxlane.tuned.later import Later
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
        later: Callable[[threading.RLock, Callable[[str], None]], Later] = Later,
    ) -> None:
        self.log: Log = _nobody
        self._adapter = adapter
        self._lock = lock
        self._open = open_sources
        self._rows: tuple[Row, ...] = ()
        self._kept: Kept | None = None
        self._not_yet = False  # nothing is written for a moment
        # Indexes of what was let go while its originals could not come back.
        self._waiting: set[int] = set()
        self._sources: Sources | None = None  # while a thread waits on them
        self._stop = -1  # that thread's eventfd
        self._begun = 0.0  # when it was started
        self._then = later(
            lock, lambda why: self.log("error", f"the layout is kept no longer: {why}")
        )
        self._again = later(lock, lambda why: self.log("error", f"it is not tried again: {why}"))
        self._delay = AGAIN
        self._said = ""
        self.given_up = False  # somebody rolled back what was kept

    def hold(self, rows: Iterable[Row]) -> None:
        """Keep these rows from now on; the thread starts with the first."""
        self.pause()
        self.given_up = False
        self._rows = tuple(rows)
        self._begin()

    def hold_on(self, rows: Iterable[Row]) -> None:
        """Go on with what is kept, of which renames are known; with these rows where nothing is.

        What is tried again is so later on, too.
        """
        if self._kept is None:
            self._rows = tuple(rows)
        self._then.cancel()
        self._begin()

    def _begin(self) -> None:
        self._not_yet, self._delay, self._said = False, AGAIN, ""
        self._go_on()

    def still(self, plan: Plan) -> Plan:
        """Return the plan; raise GivenUp where a rollback took what is kept, or will be soon."""
        if self._kept is not None:
            self._kept.check()
        return plan

    def lost(self, ended: bool = True) -> bool:
        """True where a rollback took what was kept, be it just now: then it is given up.

        ended: False after a rollback of TuneD's own, which may have ended the journal.
        """
        try:
            if self._kept is not None:
                self._kept.check(ended)
        except GivenUp:
            self.give_up()
        except (RxlaneError, OSError):
            pass  # the next look will tell
        return self.given_up

    def give_up(self) -> None:
        """Keep nothing, for it was rolled back, nor claim it: a look may have while that ran."""
        taken = frozenset() if self._kept is None else self._kept.taken
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
        if self._rows and not self._not_yet:
            self._then.do(self._delay, self._go_on)
            self._delay = min(2 * self._delay, AGAIN_MOST)

    def retry(self, attempt: Callable[[], Report]) -> None:
        """Do later what something is in the way of, unless TuneD wants something else then."""
        self.log("info", "it is tried again until it can be done")
        self._again.do(AGAIN, lambda: self._tried(attempt, AGAIN))

    def soon(self, seconds: float, attempt: Callable[[], Report]) -> None:
        """Do again, beside what is kept, what failed in passing, unless something is already."""
        if not self._again.pending:
            self._again.do(seconds, lambda: self._tell(attempt()))

    def _tell(self, report: Report) -> None:
        for line in report.lines:
            self.log(*line)

    def _tried(self, attempt: Callable[[], Report], delay: float) -> None:
        report = attempt()
        if report.again or report.waiting:
            delay = min(2 * delay, AGAIN_MOST)
            self._again.do(delay, lambda: self._tried(attempt, delay))
            return
        self._tell(report)

    def pause(self) -> None:
        """Keep nothing until the next hold(), nor try anything again."""
        self._again.cancel()
        self._keep_nothing()

    def _keep_nothing(self) -> None:
        self._rows, self._kept, self._not_yet = (), None, False
        self._then.cancel()

    def hold_later(self, rows: tuple[Row, ...]) -> None:
        """Write nothing now, and keep these rows from SOON on, unless something else is said by
        then. What is tried again comes after that.
        """
        self._again.put_off(2 * SOON)
        self._keep_nothing()
        if not rows:
            return
        self._rows, self._not_yet = rows, True
        # Now, to hear of a rollback until then; where that fails _go_on() says it.
        with suppress(RxlaneError, OSError):
            self._kept = self._new(rows)
        self._then.do(SOON, self._begin)

    def drop(self, kind: str, device: str) -> None:
        """Keep no longer what a kind of section laid out on a device.

        One that is gone is followed on: TuneD hears of it again, but later than the kernel.
        """
        if not self._rows or self._is_gone(device):
            return
        left = without(self.called_now(self._rows), kind, device)
        if self._not_yet:
            self.hold_later(left)
        elif left:
            self._rows, self._kept = left, None
            self._go_on()
        else:
            self._keep_nothing()

    def left(self, devices: Iterable[str], rest: Callable[[], Report]) -> None:
        """Devices were let go, and something is in the way of the originals of these: a look brings
        them back when there is news of them, and where nothing is kept rest() does.
        """
        devices = set(devices)
        if devices:
            with suppress(RxlaneError, OSError):  # then the next look does, whatever leads to it
                self._waiting |= {i for i, name in rtnetlink.names().items() if name in devices}
        if not self._rows and (devices or self._waiting):
            self._waiting.clear()
            self.retry(rest)

    def called_now(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """Return the rows with the names that devices which are kept have by now."""
        now: dict[str, str] = {}
        if self._kept is not None:
            with suppress(RxlaneError, OSError):  # then they are called as they were
                now = self._kept.called(rtnetlink.names())

        def called(names: Iterable[str]) -> frozenset[str]:
            return frozenset(now.get(name, name) for name in names)

        return tuple(replace(row, devices=called(row.devices)) for row in rows)

    def _is_gone(self, device: str) -> bool:
        """True when what was laid out under this name is not there; one that cannot be asked for
        is let go, for TuneD says when it comes back.
        """
        try:
            return self._kept is not None and not self._kept.has(device, rtnetlink.names())
        except (RxlaneError, OSError):
            return False

    def end(self) -> None:
        self.pause()
        self.given_up = False
        self._waiting.clear()
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
                return self._look(sources.links.names, choose)

        def relevant(event: Event) -> bool:
            with self._lock:
                return self._concerns(sources.links.names, event)

        failure: BaseException | None = None
        try:
            keep(sources, Converger(replan, self.log), stop, relevant)
        except (RxlaneError, OSError) as error:
            failure = error
        finally:
            # What nobody foresaw goes on from here, and leaves its traceback on standard error.
            self._ended(sources, stop, failure or sys.exception())

    def _look(self, present: Names, choose: Choose) -> Applied | None:
        if self._kept is None or self._not_yet:
            return Applied.nothing()
        done = self._kept.replan(present, choose)
        if done is None:
            self.give_up()
        return done

    def _concerns(self, present: Names, event: Event) -> bool:
        if self._kept is None:
            return False
        return self._kept.relevant(present, event) or event.ifindex in self._waiting

    def _ended(self, sources: Sources, stop: int, failure: BaseException | None) -> None:
        """After the thread: another one takes over where it failed."""
        with self._lock:
            sources.close()
            os.close(stop)
            if self._sources is not sources:
                return
            self._sources = None
            if failure is None:
                if self._rows:  # TuneD applied since that look
                    self._go_on()
                return
            if time.monotonic() - self._begun > AGAIN_MOST:
                self._delay, self._said = AGAIN, ""
            self._failed("the layout is not kept for now", failure)
