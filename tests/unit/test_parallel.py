# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of a job in threads: none is at work any more when the caller goes on."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from rxlane import parallel

PARTS = range(8)


def test_each_part_once_and_in_threads_of_their_own() -> None:
    done = list[tuple[int, int]]()
    parallel.do_all(lambda part: done.append((part, threading.get_ident())), PARTS)
    assert sorted(part for part, _ in done) == [*PARTS]
    assert threading.get_ident() not in {ident for _, ident in done}


@pytest.mark.parametrize("number", parallel.INTERRUPTS)
def test_an_interrupt_waits_for_all(number: signal.Signals) -> None:
    done = list[int]()

    def work(part: int) -> None:
        if part == 0:
            os.kill(os.getpid(), number)
        time.sleep(0.05)
        done.append(part)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            parallel.do_all(work, PARTS)
    finally:
        signal.signal(number, before)
    assert sorted(done) == [*PARTS]
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


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
