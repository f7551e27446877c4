# SPDX-License-Identifier: GPL-2.0-or-later
"""What no interrupt may cut short: an undo, and several parts of one job at a time, all of which
have ended when the caller goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

# What ends a command early, see cli._run().
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Have interrupts of a process without other threads wait for the end of what is within."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # One that came just before is raised here, with those after it blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def do_all(work: Callable[[int], None], parts: Iterable[int]) -> None:
    """Call work with each part, in a thread of its own where one can be had; it must not raise.

    An interrupt waits for the end: who then undoes what was done must not be overtaken by threads
    that still do.
    """
    with uninterrupted():
        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        for thread in [thread for thread in threads if _begun(thread)]:
            thread.join()


def _begun(thread: threading.Thread) -> bool:
    """True where the thread runs; without room for another one its work is done here."""
    try:
        thread.start()
    except RuntimeError:  # a limit of processes or memory
        thread.run()
        return False
    return True
