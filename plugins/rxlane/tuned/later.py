# SPDX-License-Identifier: GPL-2.0-or-later
"""Something that is done once, a while from now, in a thread of TuneD's daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Later:
    """Its methods are to be called with the lock held, which is held for what is done, too.

    failed: gets a line where no thread can be had, so that nothing will be done.
    """

    def __init__(self, lock: threading.RLock, failed: Callable[[str], None]) -> None:
        self._lock = lock
        self._failed = failed
        self._timer: threading.Timer | None = None
        self._what: Callable[[], None]

    @property
    def pending(self) -> bool:
        return self._timer is not None

    def do(self, seconds: float, what: Callable[[], None]) -> None:
        """Do it then, in place of what was to be done so far."""
        self.cancel()
        self._what = what
        timer = threading.Timer(seconds, self._now)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:
            self._failed(str(error))
            return
        self._timer = timer

    def put_off(self, seconds: float) -> None:
        """If something is to be done, do it in so many seconds."""
        if self._timer is not None:
            self.do(seconds, self._what)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> None:
        with self._lock:
            # It may have been cancelled while it waited for the lock.
            if self._timer is threading.current_thread():
                self._timer = None
                self._what()
