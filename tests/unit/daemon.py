# SPDX-License-Identifier: GPL-2.0-or-later
"""TuneD's process as far as it is ours, and sources that the test speaks through."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rxlane.host.places import Folder
from rxlane.journal import Store
from rxlane.keeping.events import Event, Links, Sources
from rxlane.tuned.tuned_compat import Adapter, Row
from rxlane.tuned.tuned_facet import Joint
from rxlane.tuned.tuned_keep import Keeper
from rxlane.wire import rtnetlink
from rxlane.wire.rtnetlink import LinkState
from unit.keeping import UP, link_rows
from unit.simhost import SimHost

WAIT = 10.0  # seconds; the thread takes a fifth of one


class Fake(Sources):
    """Sources that the test speaks through."""

    missed = 0

    def __init__(self, host: SimHost) -> None:
        self._out, self._into = os.pipe()
        self.links = Links(LinkState(li.ifindex, li.name, li.up) for li in host.links.values())
        self.events = list[Event]()
        self.announced = list[Event]()
        self.followed = list[dict[str, Folder]]()
        self.closed = threading.Event()

    def close(self) -> None:
        os.close(self._out)
        self.closed.set()

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._out,)

    def renew(self, anyway: bool = False) -> None: ...

    def refresh(self, folders: Mapping[str, Folder]) -> None:
        self.followed.append(dict(folders))

    def announce(self, event: Event) -> None:
        self.announced.append(event)

    def read(self, descriptor: int) -> list[Event]:
        os.read(descriptor, 1)
        return [self.events.pop(0)]

    def tell(self, event: Event) -> None:
        self.events.append(event)
        os.write(self._into, b"x")


class Daemon:
    """The part of TuneD's process that is ours."""

    def __init__(self, host: SimHost, state: Path) -> None:
        self.host = host
        self.store = Store(state)
        self.sources = list[Fake]()
        self.log = list[tuple[str, str]]()
        self.rows: tuple[Row, ...] = (Row("napi", frozenset({"eth0"}), (("threaded", "on"),)),)
        self.joint = Joint(lambda: Adapter(state, lambda: host), self._keeper)
        self.joint.register("napi", lambda: self.rows, self._say)

    def _keeper(self, adapter: Adapter, lock: threading.RLock) -> Keeper:
        return Keeper(adapter, lock, self._open)

    def _open(self) -> Fake:
        self.sources.append(Fake(self.host))
        return self.sources[-1]

    def _say(self, level: str, text: str) -> None:
        self.log.append((level, text))

    def off(self) -> set[int | None]:
        return {n.threaded for n in self.host.links["eth0"].napis}


def until(what: Callable[[], bool], seconds: float = WAIT) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()


def break_down(daemon: Daemon, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that keeps what is applied ends by a failure."""

    def fail(descriptor: int) -> list[Event]:
        raise failure

    if not daemon.sources:
        daemon.joint.apply("napi", "napi")
    source, said = daemon.sources[-1], len(daemon.log)
    monkeypatch.setattr(source, "read", fail)
    source.tell(UP)
    assert source.closed.wait(WAIT) and until(lambda: len(daemon.log) > said)


def put_right(daemon: Daemon) -> bool:
    with daemon.joint._lock:  # an apply in a thread may have written, and keep nothing yet
        daemon.host.write_napi(8194, {"threaded": "off"})
        daemon.sources[-1].tell(UP)
    return until(lambda: daemon.off() == {1})


def running(host: SimHost, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Yield a daemon to a fixture, and see that all of its threads end."""
    monkeypatch.setattr(rtnetlink, "links", lambda: link_rows(host))
    made = Daemon(host, state)
    yield made
    made.joint.unapply("napi", "napi", {"eth0"})
    assert all(source.closed.wait(WAIT) for source in made.sources)
