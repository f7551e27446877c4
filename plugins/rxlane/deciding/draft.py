# SPDX-License-Identifier: GPL-2.0-or-later
"""A plan in the making, and what every part of decide() needs of it. Pure."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rxlane import cpulist, topology
from rxlane.errors import Kind, RxlaneError
from rxlane.items import OFF, RX_THREADS, THREADED, Value
from rxlane.model import MOVERS, Index, Lane, Link, Snapshot, Topology
from rxlane.plan import WHOLE, Change, Plan, Skip, Target, disruption
from rxlane.sections import Named
from rxlane.settings import View

MOST_NAMES = 6  # of devices in an error

_S = TypeVar("_S", bound=Named)
_V = TypeVar("_V")


@dataclass(slots=True)
class Draft:
    """A plan in the making.

    view, index: the host as it will be with the channels wanted. present: the host as it is.
    returning: settings that go back to these values unless this plan wants another.
    """

    view: View
    index: Index
    present: View
    returning: Mapping[Target, Value] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    holds: list[Change] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    # How many of each device's lowest RX queues a [napi] section keeps as they are.
    aside: dict[str, int] = field(default_factory=dict)
    # Interrupts that an [irq_layout] section places, wherever they are now.
    placed: frozenset[int] = frozenset()
    # What the layout of the whole host says, where some of its CPUs are offline.
    standing: Mapping[Target, Value] = field(default_factory=dict)
    _wanted: dict[Target, Value] = field(default_factory=dict)

    def want(self, target: Target, value: Value, reason: str) -> None:
        """Note a wanted value: a change when it differs, else one that holds."""
        before = self.present.read(target)
        link = self.view.links.get(target.device)
        price = disruption(target.item, "" if link is None else link.driver)
        # Thousands of queues have the same reason.
        change = Change(target, before, value, sys.intern(reason), price)
        (self.holds if before == value else self.changes).append(change)
        self._wanted[target] = value

    def wanted(self, target: Target) -> Value | None:
        """Return the value that this plan gives the setting, None when it leaves it alone."""
        return self._wanted.get(target)

    def coming(self, target: Target) -> Value | None:
        """Return the value that it is given or goes back to, None when it stays as it is."""
        return self._wanted.get(target, self.returning.get(target))

    def mode(self, lane: Lane) -> str | None:
        """Return the mode that the lane's NAPI will be in, which is set at its first queue."""
        first = lane.queue.index if lane.shared_with is None else lane.shared_with
        own = (self.coming(Target(lane.device, queue, THREADED)) for queue in (first, WHOLE))
        mode = next((mode for mode in own if mode is not None), lane.mode)
        return None if mode is None else str(mode)

    @property
    def moving(self) -> bool:
        """True where something runs that moves the interrupts which a plan leaves alone."""
        return any(writer in MOVERS for writer in self.view.snapshot.writers)

    def separated(self, link: Link) -> int:
        """Return how many rx threads the device will have: with any, it has no RPS and no RFS."""
        count = self.wanted(Target(link.name, WHOLE, RX_THREADS))
        return int((link.rx_threads if count is None else count) or 0)

    def stands(self, target: Target) -> tuple[int, ...] | None:
        """Return the CPUs that the setting has in the layout of the whole host."""
        value = self.standing.get(target)
        if value is None:
            return None
        return () if value == OFF else cpulist.parse(str(value))

    def stands_on(self, target: Target) -> int | None:
        """Return the one CPU that it has there, None where it has none or many."""
        cpus = self.stands(target) or ()
        return cpus[0] if len(cpus) == 1 else None

    def decided(self) -> dict[Target, Value]:
        return dict(self._wanted)

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
            raise no_device(snapshot, name, section.name)
        found.append(link)
    return found


def no_device(snapshot: Snapshot, name: str, section: str | None = None) -> RxlaneError:
    """Return the error about a name that no device of the host has, and which names there are."""
    known = [link.name for link in sorted(snapshot.links, key=lambda link: not link.physical)]
    shown = ", ".join(known[:MOST_NAMES]) + (", ..." if len(known) > MOST_NAMES else "")
    remedy = f"there are {shown}" if known else "there is none"
    shown_name = name or "''"
    return RxlaneError(
        Kind.NO_DEVICE, "no such device", section=section, device=shown_name, remedy=remedy
    )


def without(link: Link, what: str, veth: str = "") -> str:
    """Say why a device has nothing to lay out, and which devices to name in its place.

    veth: what gives a veth some.
    """
    if link.physical:
        return f"driver {link.driver or 'unknown'} reports no {what}"
    remedy = veth if veth and link.driver == "veth" else "of a bond or bridge, name the ports"
    if link.below:
        remedy = f"name {', '.join(link.below)} in its place"
    return f"{link.name} is a virtual device without {what}; {remedy}"


def check_existing(host: Topology, section: Named, option: str, cpus: Iterable[int]) -> None:
    """Refuse a list with a CPU that does not exist."""
    known = {cpu.number for cpu in host.cpus}
    check_cpus(host, section, option, [n for n in cpus if n not in known])


def check_cpus(host: Topology, section: Named, option: str, cpus: Sequence[int]) -> None:
    """Refuse a list with a CPU that does not exist or is offline."""
    bad = topology.unusable(host, cpus)
    if bad is not None:
        remedy = f"CPUs {cpulist.render(host.online)} are online"
        raise section.error(option, f"CPU {bad[0]} {bad[1]}", remedy)


def check_thread_cpus(host: Topology, section: Named, option: str, cpus: Sequence[int]) -> None:
    """Refuse, of a list for kernel threads, the CPUs of cpuset partitions too."""
    check_cpus(host, section, option, cpus)
    away = [n for n in cpus if n not in host.open]
    if away:
        # __sched_setaffinity() answers EINVAL, or drops them from a list that has others.
        problem = "is in a cpuset partition, where the kernel puts none of its threads"
        remedy = f"choose from {cpulist.render(host.open)}, or isolate it by isolcpus= instead"
        raise section.error(option, f"CPU {away[0]} {problem}", remedy)


def check_rps(host: Topology, section: Named, option: str, cpus: Sequence[int]) -> None:
    """Refuse, of a list for RPS, isolated CPUs too."""
    check_cpus(host, section, option, cpus)
    away = [n for n in cpus if n not in host.housekeeping]
    if away:
        # rps_cpumask_housekeeping() in net/core/net-sysfs.c drops them without a word.
        problem = f"CPU {away[0]} is isolated, and the kernel takes no isolated CPU for RPS"
        remedy = f"choose from {cpulist.render(host.housekeeping)}"
        raise section.error(option, problem, remedy)


def check_work(
    draft: Draft, section: Named, option: str, cpus: Sequence[int], polled: Collection[int]
) -> None:
    """Refuse, of a list for other work, only CPUs that real-time pollers have; warn of some.

    polled: these CPUs.
    """
    taken = sorted({*cpus}.intersection(polled))
    if not taken:
        return
    problem = f"real-time busy-polling threads never leave {cpulist.named('CPU', taken)}"
    if len(taken) == len({*cpus}):
        raise section.error(option, problem, "give CPUs that no such thread has")
    draft.warnings.append(f"{section.reason(option)}: {problem}")


def one_value(
    asked: Iterable[tuple[_S, str, _V | None]], option: str
) -> Iterator[tuple[_S, str, _V]]:
    """Yield (section, item, value) of what is said once; an OPTION error when it is said apart."""
    first: dict[str, tuple[_S, _V]] = {}
    for section, item, value in asked:
        if value is None:
            continue
        earlier = first.setdefault(item, (section, value))
        if earlier[1] != value:
            already = f"section [{earlier[0].name}] sets it to {earlier[0].option(option)}"
            problem, remedy = f"{already}, and the host has one value", "set it in one section only"
            raise section.error(option, problem, remedy, kind=Kind.OPTION)
        if earlier[0] is section:
            yield section, item, value
