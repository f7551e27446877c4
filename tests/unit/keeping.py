# SPDX-License-Identifier: GPL-2.0-or-later
"""A layout that is kept standing on a simulated host, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rxlane.converge import SETTLE, Converger
from rxlane.host.places import Folder
from rxlane.journal import Store
from rxlane.keeping import watch
from rxlane.keeping.events import Event, Links
from rxlane.sections import Policy
from rxlane.wire.rtnetlink import LinkRow, LinkState
from unit import simhost
from unit.asking import FULL, policy
from unit.simhost import SimHost

UP = Event("went up", "eth0", 2)
CHANNELS = Event("channels changed", "eth0", 2)
FEATURES = Event("features changed", "eth0", 2, reset=False)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Waiting(Store):
    """Something happens while the lock is waited for, once."""

    then: Callable[[], None] | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        if self.then is not None:
            then, self.then = self.then, None
            then()
        with super().lock():
            yield


def link_rows(host: SimHost) -> list[LinkRow]:
    """What rtnetlink.links() says of the host."""
    return [LinkRow(li.ifindex, li.name, li.up) for li in host.links.values()]


@dataclass
class Sources:
    """Stands for the sockets: only the names of the links."""

    links: Links
    descriptors: tuple[int, ...] = ()
    missed: int = 0

    def renew(self) -> None: ...

    def refresh(self, folders: Mapping[str, Folder]) -> None: ...

    def close(self) -> None: ...

    @classmethod
    def of(cls, host: SimHost) -> Sources:
        return cls(Links(LinkState(li.ifindex, li.name, li.up) for li in host.links.values()))


@dataclass
class Bench:
    """A kept layout."""

    host: SimHost
    store: Store
    policy: Policy
    names: tuple[str, ...] = ("eth0",)
    clock: Clock = field(default_factory=Clock)
    log: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources = Sources.of(self.host)
        write = watch.writer(self.host, self.store, lambda: self.sources.links.names)
        names = self.sources.links.names
        indexes = {name: index for index, name in names.items()}
        write(self.policy, {n: indexes[n] for n in self.names if n in indexes} or None, None)
        self.kept = watch.Kept(write, self.store, self.policy, self.names, names, self.now)
        self.converger = Converger(
            lambda choose: self.kept.replan(self.sources.links.names, choose),
            lambda level, text: self.log.append((level, text)),
            self.clock,
        )

    def now(self) -> dict[int, str]:
        return Sources.of(self.host).links.names

    def relevant(self, event: Event) -> bool:
        return self.kept.relevant(self.sources.links.names, event)

    def happens(self, *seen: Event, after: float = SETTLE) -> bool:
        """The events come, time passes, and the converger gets its turn."""
        self.sources.links = Sources.of(self.host).links
        self.converger.notice(seen)
        self.clock.now += after
        return self.converger.run()


def full(folder: Path) -> Bench:
    """One NIC, of which everything that FULL has is kept."""
    return Bench(SimHost(simhost.snapshot()), Store(folder / "state"), policy("eth0", **FULL))
