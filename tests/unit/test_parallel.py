# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of a job in threads: none is at work any more when the caller goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from rxlane import parallel

PARTS = range(8)


def test_each_part_once_and_in_threads_of_their_own() -> None:
    done = list[tuple[int, int]]()
    parallel.do_all(lambda part: done.append((part, threading.get_ident())), PARTS)
    assert sorted(part for part, _ in done) == [*PARTS]
    assert threading.get_ident() not in {ident for _, ident in done}


WAITING = """
import os, signal, sys, time
from rxlane import parallel

def work(part):
    if part == 0:
        os.kill(os.getpid(), number)
    time.sleep(0.1)
    done.append(part)

number, done = int(sys.argv[1]), []
signal.signal(number, signal.default_int_handler)
try:
    parallel.do_all(work, range(8))
except KeyboardInterrupt:
    print(sorted(done), number in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.parametrize("number", parallel.INTERRUPTS)
def test_an_interrupt_waits_for_all(number: signal.Signals) -> None:
    """In a process of its own, as the command is: any other thread here might take the signal."""
    argv = [sys.executable, "-c", WAITING, str(int(number))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[*PARTS]} False\n", done.stderr


def test_without_room_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, asked = threading.Thread.start, list[threading.Thread]()

    def few(thread: threading.Thread) -> None:
        asked.append(thread)
        if len(asked) > 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    done = list[int]()
    parallel.do_all(done.append, PARTS)
    assert sorted(done) == [*PARTS] and len(asked) == len(PARTS)
