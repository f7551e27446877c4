# SPDX-License-Identifier: GPL-2.0-or-later
"""TuneD's side of rxlane without its thread: the test turns the clock and brings the news.

NICs are renamed, swap names, go down, and have their driver bound again, of which the kernel's news
come at once, if somebody reads, and udev's when TuneD gets to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from rxlane import journal
from rxlane.apply import Applied, apply
from rxlane.applying.present import Called
from rxlane.applying.rollback import rollback
from rxlane.converge import Choose, Converger
from rxlane.journal import Store
from rxlane.keeping import claims
from rxlane.keeping.events import Event, Links, Sources
from rxlane.model import Link
from rxlane.tuned.later import Later
from rxlane.tuned.tuned_compat import Adapter, Row
from rxlane.tuned.tuned_facet import Joint
from rxlane.tuned.tuned_keep import Keeper
from rxlane.wire import rtnetlink
from unit import keeping, simhost
from unit.asking import policy
from unit.keeping import Clock
from unit.simhost import SimHost

QUEUES = 2
OURS, OTHERS = ("eth0", "eth1", "eth2"), "oth0"  # of the profile, which matches eth*, and not
WANTED = {"threaded": "on", "defer_hard_irqs": "100"}


class News:
    """Stands for the sockets: what happened and was not read."""

    missed = 0

    def __init__(self) -> None:
        self.waiting: list[Event] = []
        self.links = Links(())

    def announce(self, event: Event) -> None:
        self.waiting.append(event)

    def close(self) -> None: ...


class Due(Later):
    """Done when it gets its turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: tuple[float, Callable[[], None]] | None = None

    @property
    def pending(self) -> bool:
        return self._due is not None

    def do(self, seconds: float, what: Callable[[], None]) -> None:
        self._due = self._clock() + seconds, what

    def put_off(self, seconds: float) -> None:
        if self._due is not None:
            self.do(seconds, self._due[1])

    def cancel(self) -> None:
        self._due = None

    def turn(self) -> None:
        if self._due is not None and self._due[0] <= self._clock():
            what, self._due = self._due[1], None
            what()


class Turned(Keeper):
    """A keeper that does something when it gets its turn, its timers' first."""

    def __init__(self, adapter: Adapter, lock: threading.RLock, clock: Clock) -> None:
        self._dues = list[Due]()

        def later(*_: object) -> Later:
            self._dues.append(Due(clock))
            return self._dues[-1]

        super().__init__(adapter, lock, later=later)
        self._clock = clock
        self._news = News()

    def _start(self) -> Sources:
        self._news = news = News()

        def replan(choose: Choose) -> Applied | None:
            return self._look(news.links.names, choose)

        self._converger = Converger(replan, self.log, self._clock)
        self._sources, self._stop = cast(Sources, news), os.eventfd(0, os.EFD_CLOEXEC)
        return self._sources

    def end(self) -> None:
        stop = self._stop if self._sources is not None else -1
        super().end()
        if stop >= 0:  # the thread would
            os.close(stop)

    def read(self, links: Links, events: Iterable[Event]) -> None:
        news = self._news
        came, news.waiting, news.links = [*news.waiting, *events], [], links
        if self._sources is not None:
            self._converger.notice(e for e in came if self._concerns(links.names, e))

    def turn(self) -> None:
        for due in self._dues:
            due.turn()
        sources = self._sources
        if sources is not None and not self._converger.run(self._news.links.is_up):
            self._ended(sources, self._stop, None)


State = tuple[object, ...]


@dataclass
class Nic:
    """Whatever it is called. index: None while it has no driver. up: what it has when it is."""

    name: str
    index: int | None
    start: State = ()
    rolled_back: bool = False
    let_go: bool = False
    up: Link | None = None


@dataclass
class World:
    """A host of NICs, TuneD's part of rxlane, an operator and another rxlane."""

    folder: Path
    host: SimHost = field(init=False)
    clock: Clock = field(default_factory=Clock)
    news: list[Event] = field(default_factory=list)
    udev: list[tuple[str, str]] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    refused: tuple[Row, ...] = ()
    given_up: bool = False
    count: int = 10

    def __post_init__(self) -> None:
        self.nics = [Nic(name, number) for number, name in enumerate((*OURS, OTHERS), start=2)]
        links = [self._made(nic.name, nic.index or 0) for nic in self.nics]
        self.host, self.store = SimHost(simhost.snapshot(*links)), Store(self.folder / "state")
        for nic in self.nics:
            nic.start = self.state(nic)
        adapter = Adapter(self.store.directory, lambda: self.host, self._index)
        self.joint = Joint(lambda: adapter, lambda one, lock: Turned(one, lock, self.clock))
        self.keeper = cast(Turned, self.joint._keeper)
        self.known = set(OURS)  # to TuneD, of the profile's
        self.joint.register("napi", self._rows, lambda level, text: self.log.append((level, text)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """The profile is on; who waits for a lock gets none."""
        links = mock.patch.object(rtnetlink, "links", lambda: keeping.link_rows(self.host))
        with links, mock.patch.object(journal, "LOCK_WAIT", 0.0):
            self.joint.apply("napi", "napi")
            yield
            self.keeper.end()

    def _rows(self) -> tuple[Row, ...]:
        own = Row("napi", frozenset(self.known), tuple(WANTED.items()))
        return (*((own,) if self.known else ()), *self.refused)

    def _made(self, name: str, index: int) -> Link:
        """One with settings that no other has."""
        link = simhost.link(name, QUEUES, ifindex=index, base=1000 * index)
        return replace(link, defer_hard_irqs=index)

    def _index(self, name: str) -> int | None:
        return self.host.links[name].ifindex if name in self.host.links else None

    def state(self, nic: Nic) -> State:
        link = self.host.links[nic.name]
        napis = [(napi.threaded, napi.defer_hard_irqs) for napi in link.napis]
        return *napis, link.threaded, link.defer_hard_irqs

    def is_up(self, nic: Nic) -> bool:
        return nic.index is not None and self.host.links[nic.name].up

    def _one(self, number: int, *also: Callable[[Nic], bool]) -> Nic | None:
        """One of those that have a driver and are so."""
        found = [n for n in self.nics if n.index is not None and all(one(n) for one in also)]
        return found[number % len(found)] if found else None

    def _ours(self, nic: Nic) -> bool:
        return nic in self.nics[: len(OURS)]

    # What happens to NICs

    def rename(self, number: int) -> None:
        """To a name that the profile matches, too."""
        nic = self._one(number)
        if nic is not None:
            self.count += 1
            self._call(nic, f"{'eth' if self._ours(nic) else 'oth'}{self.count}")

    def rename_away(self, number: int) -> None:
        """To one that it does not. TuneD, which is told new names only, must know the old one."""
        nic = self._one(number, self._ours)
        if nic is not None and not self.udev:
            self.count += 1
            self._call(nic, f"lan{self.count}")

    def _call(self, nic: Nic, name: str) -> None:
        old, nic.name = nic.name, name
        self.host.rename(old, name)
        self.news.append(Event(f"renamed from {old}", name, nic.index, reset=False))
        self.udev.append(("move", name))

    def swap(self, number: int) -> None:
        """While no removal is to be told: under its name another NIC would be let go."""
        one, other = self._one(number, self._ours), self._one(number + 1, self._ours)
        if one is None or other is None or one is other or "lan" in one.name + other.name:
            return
        if any(what == "remove" for what, _ in self.udev):
            return
        first, second = one.name, other.name
        self._call(one, "away")
        self._call(other, first)
        self._call(one, second)

    def unbind(self, number: int) -> None:
        nic = self._one(number, lambda n: "lan" not in n.name)
        if nic is not None:
            del self.host.links[nic.name]
            nic.index, nic.up, nic.rolled_back = None, None, False
            self.udev.append(("remove", nic.name))

    def bind(self, number: int) -> None:
        away = [n for n in self.nics if n.index is None and n.name not in self.host.links]
        if away:
            nic, self.count = away[number % len(away)], self.count + 1
            nic.index = self.count
            self.host.links[nic.name] = self._made(nic.name, nic.index)
            nic.start = self.state(nic)
            self.news += [Event("appeared", nic.name, nic.index)]
            self.news += [Event("went up", nic.name, nic.index)]
            self.udev.append(("add", nic.name))

    def down(self, number: int) -> None:
        nic = self._one(number, self.is_up)
        if nic is not None:
            link = nic.up = self.host.links[nic.name]
            queues = (replace(q, napi_id=None, napi_source="unknown") for q in link.queues)
            link = replace(link, up=False, napis=(), queues=tuple(queues))
            self.host.links[nic.name] = link

    def go_up(self, number: int) -> None:
        nic = self._one(number, lambda n: not self.is_up(n))
        if nic is not None and nic.up is not None:
            link = self.host.links[nic.name]
            self.host.links[nic.name] = replace(
                link, up=True, napis=nic.up.napis, queues=nic.up.queues
            )
            self.news.append(Event("went up", nic.name, nic.index))

    # What others do

    def another(self, number: int) -> None:
        """Another rxlane lays out what the profile does not."""
        nic = self._one(number, self.is_up, lambda n: not self._ours(n))
        if nic is not None:
            apply(self.host, self.store, policy(nic.name, threaded="on"), {nic.name})

    def roll_back(self, number: int) -> None:
        """`rxlane rollback` of a NIC, or of everything, once TuneD knows all names.

        One of which it hears later is one more to lay out.
        """
        self.hear()
        nic = self._one(number) if number % 4 else None
        index = None if nic is None else nic.index
        own = None if index is None else {index}
        claims.update(self.store, self.host.boot_id(), claims.without(own))
        devices = None if own is None else Called(self.host, lambda: own)
        rollback(self.host, self.store, devices, for_good=True, forget=own is None)
        kept = [n for n in self.nics if self._ours(n) and not n.let_go]
        self.given_up |= bool(kept) if nic is None else nic in kept
        for one in self.nics if nic is None else [nic]:
            one.rolled_back |= self.is_up(one)
            if self.given_up:  # what is down waits for another rollback
                one.let_go &= self.is_up(one)
        self.news.append(Event("thread of a queue ended", reset=False))
        if self.given_up:  # heard before a driver is bound again, which is as if it were anew
            self.look(0)
            self.look(0)

    # What TuneD does

    def told(self, _number: int = 0) -> None:
        """It hears the next of what udev told."""
        if not self.udev:
            return
        what, name = self.udev.pop(0)
        if what == "remove" and name in self.known:
            self.joint.remove("napi", name)
            self.known.discard(name)
            return
        if what == "move":
            gone = self.known - set(self.host.links)
            self.known -= gone
            if not name.startswith("eth") and not (gone and name.startswith("lan")):
                return
        if what != "remove" and name in self.host.links and not name.startswith("oth"):
            self.known.add(name)
            for nic in self.nics:
                if nic.name == name and nic.let_go:  # as one that is new
                    nic.let_go = nic.rolled_back = False
            self.joint.add("napi", "napi")

    def hear(self) -> None:
        while self.udev:
            self.told()

    def refuse(self, number: int) -> None:
        """Another instance is applied, which is refused, and is destroyed or forgotten."""
        nic = self._one(number, lambda n: not self._ours(n))
        if nic is None:
            return
        words = (*WANTED.items(), ("thread_cpus", "99"))
        self.refused = (Row("other", frozenset({nic.name}), words),)
        self.joint.apply("napi", "other")
        self.refused = ()
        if number % 2:
            self.joint.forget("napi", "other")
        else:
            self.joint.unapply("napi", "other", {nic.name})

    def let_go(self, number: int) -> None:
        """An instance lets a NIC go that stays, and of which it heard all."""
        nic = self._one(number, self._ours, lambda n: n.name in self.known)
        if nic is not None and not self.udev:
            self.joint.remove("napi", nic.name)
            self.known.discard(nic.name)
            nic.let_go = True

    def hinder(self, _number: int) -> None:
        """It asks while another rxlane has the lock."""
        self.joint._applied = None
        with self.store.lock():
            self.joint.add("napi", "napi")

    def look(self, number: int) -> None:
        """Some time passes, and the keeper gets its turn."""
        self.keeper.read(keeping.Sources.of(self.host).links, self.news)
        self.news.clear()
        self.clock.now += (0.7, 0.05, 2.0, 6.0)[number % 4]
        self.keeper.turn()

    def settle(self) -> None:
        """Everything is there and up, everybody has heard, and what waits has its time."""
        for number in range(len(self.nics)):
            self.bind(number)
            self.go_up(0)
        self.hear()
        for _ in range(70):
            self.look(2)


def as_wanted(state: State) -> bool:
    return set(cast(Any, state[:QUEUES])) == {(1, 100)}
