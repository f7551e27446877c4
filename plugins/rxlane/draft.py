# SPDX-License-Identifier: GPL-2.0-or-later
"""A plan in the making, and what every part of decide() needs of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rxlane import cpulist, topology
from rxlane.errors import Kind, RxlaneError
from rxlane.model import (
    DISRUPTION,
    Change,
    Index,
    Link,
    Plan,
    Skip,
    Snapshot,
    Target,
    Topology,
    Value,
)
from rxlane.sections import Named
from rxlane.settings import View

_S = TypeVar("_S", bound=Named)


@dataclass(slots=True)
class Draft:
    """A plan in the making."""

    view: View
    index: Index
    changes: list[Change] = field(default_factory=list)
    holds: list[Change] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _wanted: dict[Target, Value] = field(default_factory=dict)

    def want(self, target: Target, value: Value, reason: str) -> None:
        """Note a wanted value: a change when it differs, else one that holds."""
        before = self.view.read(target)
        disruption = DISRUPTION.get(target.item, "none")
        change = Change(target, before, value, reason, disruption)
        (self.holds if before == value else self.changes).append(change)
        self._wanted[target] = value

    def wanted(self, target: Target) -> Value | None:
        """Return the value that this plan gives the setting, None when it leaves it alone."""
        return self._wanted.get(target)

    def skip(self, device: str, queue: int, item: str, kind: str, reason: str) -> None:
        self.skips.append(Skip(device, queue, item, kind, reason))

    def plan(self) -> Plan:
        return Plan(tuple(self.changes), tuple(self.holds), tuple(self.skips), tuple(self.warnings))


def assigned(snapshot: Snapshot, sections: Iterable[_S]) -> list[tuple[_S, Link]]:
    """Return each device with its section; one device in two sections is an OPTION error."""
    owner: dict[str, str] = {}
    found = []
    for section in sections:
        for link in _links(snapshot, section):
            if link.name in owner:
                raise RxlaneError(
                    Kind.OPTION,
                    f"is laid out by section [{owner[link.name]}] already",
                    section=section.name,
                    device=link.name,
                    remedy="name the device in one section only",
                )
            owner[link.name] = section.name
            found.append((section, link))
    return found


def _links(snapshot: Snapshot, section: Named) -> list[Link]:
    if not section.devices:
        return [link for link in snapshot.links if link.physical]
    found = []
    for name in dict.fromkeys(section.devices):
        link = snapshot.link(name)
        if link is None:
            raise RxlaneError(
                Kind.NO_DEVICE,
                "no such device",
                section=section.name,
                device=name,
                remedy="`rxlane map` lists the devices",
            )
        found.append(link)
    return found


def check_cpus(host: Topology, section: Named, option: str, cpus: Sequence[int]) -> None:
    """Refuse a list with a CPU that does not exist or is offline."""
    bad = topology.unusable(host, cpus)
    if bad is not None:
        raise RxlaneError(
            Kind.REFUSED,
            f"CPU {bad[0]} {bad[1]}",
            section=section.name,
            option=option,
            value=section.option(option),
            remedy=f"CPUs {cpulist.render(host.online)} are online",
        )
