# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces that have udev properties, their services, and TuneD beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rxlane.host import udevdb
from rxlane.journal import Store
from rxlane.linkfiles.linkkeep import KeptLink
from rxlane.model import Snapshot
from rxlane.plan import Plan
from rxlane.sysfs import Sysfs
from rxlane.tuned.tuned_compat import Adapter, Row
from unit import simhost
from unit.asking import SECOND
from unit.simhost import SimHost

INDEXES = {"eth0": 2, "eth1": 3}
FILE = "/etc/systemd/network/10-nic.link"
POLL = {
    "NAPI_THREADED": "busy-poll@1-",
    "NAPI_THREAD_CPUS": "auto",
    "NAPI_DEFER_HARD_IRQS": "7",
    "NAPI_GRO_FLUSH_TIMEOUT": "15000",
}


class Bench:
    """A host, udev's database, and the services of its interfaces as the test runs them."""

    def __init__(self, root: Path) -> None:
        self.host = SimHost(simhost.whole(simhost.snapshot(simhost.link(), SECOND)))
        self.start = self.host.observe()
        self.root = root
        self.store = Store(root / "state")
        self.log: list[tuple[str, str]] = []
        self.there: list[bool] = []
        self.anew = 0
        self.services: dict[str, KeptLink] = {}
        self.names = {2: "eth0", 3: "eth1"}
        (root / udevdb.DATABASE).mkdir(parents=True)
        (root / FILE[1:]).parent.mkdir(parents=True)

    def properties(self, device: str, **found: str) -> None:
        rows = [f"E:{name}={value}\n" for name, value in {**found, udevdb.FILE: FILE}.items()]
        path = self.root / udevdb.DATABASE / udevdb.entry(INDEXES[device])
        path.write_text("".join(rows))
        given = "".join(f'Property="{name}={value}"\n' for name, value in found.items())
        (self.root / FILE[1:]).write_text(f"[Link]\n{given}")

    def start_service(self, device: str, **found: str) -> None:
        self.claim(device, **found)
        self.look(device)

    def claim(self, device: str, **found: str) -> None:
        """Start a service that has not looked yet."""
        self.properties(device, **found)
        service = KeptLink(
            *(self.host, self.store, Sysfs(self.root), INDEXES[device]),
            lambda level, text: self.log.append((level, text)),
            self.there.append,
            self._other,
        )
        service.claim()
        self.services[device] = service

    def _other(self) -> None:
        self.anew += 1

    def look(self, device: str, choose: Callable[[Plan], Plan] | None = None) -> bool:
        """False once the service ends."""
        return self.services[device].replan(self.names, choose) is not None

    def modes(self, device: str) -> list[int | None]:
        return [napi.threaded for napi in self.host.links[device].napis]

    def of(self, device: str) -> Snapshot:
        """What the host has, without everything of other devices."""
        found = self.host.observe()
        return replace(found, links=tuple(li for li in found.links if li.name == device))

    def adapter(self) -> Adapter:
        return Adapter(self.store.directory, lambda: self.host, INDEXES.get)


ROW = Row("napi", frozenset({"eth0"}), (("threaded", "on"),))


def same(found: Snapshot, wanted: Snapshot) -> bool:
    """Threads that began and ended again have had other pids."""
    return (found.links, found.irqs, found.sysctls) == (wanted.links, wanted.irqs, wanted.sysctls)
