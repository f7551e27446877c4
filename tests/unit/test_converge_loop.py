# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop that keeps a layout, on real descriptors: it wakes, looks, stops, and fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping

import pytest

from rxlane import converge
from rxlane.apply import Applied
from rxlane.converge import Choose, Converger
from rxlane.errors import Kind, RxlaneError
from rxlane.host.places import Folder
from rxlane.keeping import events
from rxlane.keeping.events import LOST, Event, Links
from rxlane.plan import Plan
from rxlane.wire.rtnetlink import LinkState
from unit.keeping import UP


class Pipe:
    """Sources whose announcements are bytes in a pipe."""

    missed = 0

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.descriptors = (self.out,)
        self.links = Links([LinkState(2, "eth0", True)])

    def renew(self) -> None: ...

    def refresh(self, folders: Mapping[str, Folder]) -> None: ...

    def read(self, descriptor: int) -> Iterable[Event]:
        os.read(descriptor, 100)
        return [UP]


def test_loop_wakes_looks_and_stops() -> None:
    pipe, stop, looked = Pipe(), os.eventfd(0), threading.Event()

    def replan(choose: Choose) -> Applied | None:
        looked.set()
        return Applied(Plan())

    quiet = Converger(replan, lambda level, text: None)
    loop = threading.Thread(
        target=converge.keep,
        args=(pipe, quiet, stop, lambda event: True),
    )
    loop.start()
    assert not looked.wait(0.1)
    os.write(pipe.into, b"x")
    assert looked.wait(5)
    events.wake_up(stop)
    loop.join(5)
    assert not loop.is_alive()


def test_threads_that_may_end_unnoticed_are_told_once() -> None:
    said: list[tuple[str, str]] = []
    keeps = Converger(lambda choose: None, lambda level, text: said.append((level, text)))
    for missed in (0, 2, 3, 0, 1):
        keeps.overlook(missed)
    assert [(level, text.split(" of ")[0]) for level, text in said] == [
        ("warning", "2 threads"),
        ("warning", "1 thread"),
    ]


class Failing(Pipe):
    """One whose links, or what is to be followed, cannot be read some times."""

    def __init__(self, renewing: int = 0, following: int = 0) -> None:
        super().__init__()
        self.left = {"renew": renewing, "refresh": following}

    def renew(self) -> None:
        self._fail("renew", RxlaneError(Kind.KERNEL, "links: changed while they were read"))

    def refresh(self, folders: Mapping[str, Folder]) -> None:
        self._fail("refresh", OSError(12, "Cannot allocate memory"))

    def _fail(self, what: str, error: Exception) -> None:
        if self.left[what]:
            self.left[what] -= 1
            raise error


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (
            Failing(renewing=3),
            "after events were lost the links cannot be read: links: changed while they were read;"
            " it is tried again",
        ),
        (
            Failing(following=3),
            "what is kept cannot be followed: [Errno 12] Cannot allocate memory; it is tried again",
        ),
    ],
)
def test_what_fails_between_looks_ends_nothing(
    failing: Failing, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converge, "RETRIES", (0.01, 0.02))
    stop, looked, log = os.eventfd(0), threading.Event(), list[tuple[str, str]]()

    def replan(choose: Choose) -> Applied | None:
        if not any(failing.left.values()):
            looked.set()
        return Applied(Plan())

    keeping = Converger(replan, lambda *line: log.append(line))
    arguments = (failing, keeping, stop, lambda event: True)
    loop = threading.Thread(target=converge.keep, args=arguments)
    loop.start()
    os.write(failing.into, b"x")
    assert looked.wait(5) and loop.is_alive()
    events.wake_up(stop)
    loop.join(5)
    assert not loop.is_alive() and log == [("error", said)]


def test_an_event_that_cannot_be_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and what it was about is found by a look at everything."""
    pipe, stop, log, seen = Pipe(), os.eventfd(0), list[tuple[str, str]](), list[Event]()

    def read(descriptor: int) -> Iterable[Event]:
        os.read(descriptor, 100)
        raise RxlaneError(Kind.FORMAT, "malformed netlink data: link without a name")

    def relevant(event: Event) -> bool:
        seen.append(event)
        events.wake_up(stop)
        return True

    monkeypatch.setattr(pipe, "read", read)
    os.write(pipe.into, b"x")
    quiet = Converger(lambda choose: Applied.nothing(), lambda *line: log.append(line))
    converge.keep(pipe, quiet, stop, relevant)  # type: ignore[arg-type]
    assert seen == [LOST]
    assert [text.partition(":")[0] for _, text in log] == ["an event cannot be understood"]
