# SPDX-License-Identifier: GPL-2.0-or-later
"""What is worth a look in a host's lanes: hops on their way, and lanes in each other's way.

Pure. A mark describes what is, whoever set it up; refusals of a plan are decide()'s.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from rxlane import cpulist, topology
from rxlane.items import BUSY_POLL, BUSY_READ, REALTIME
from rxlane.model import Index, Lane, Link, Queue, Snapshot, lanes, others
from rxlane.showing.cells import LISTED, short_list

HOP = "hop"  # works, and pays for the way between nodes or threads
CONFLICT = "conflict"  # lanes that take CPU time from each other or from the host


@dataclass(frozen=True, slots=True)
class Mark:
    """queue is None, and napi the id, for a NAPI that no RX queue is known to use."""

    device: str
    queue: int | None
    kind: str
    text: str
    napi: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane runs. bound is the CPU of a thread that has only one."""

    link: Link
    lane: Lane
    irq_cpus: tuple[int, ...]
    poll_cpus: tuple[int, ...]

    @property
    def threaded(self) -> bool:
        return self.lane.poller is not None

    @property
    def busy(self) -> bool:
        return self.threaded and self.lane.mode == "busy-poll"

    @property
    def realtime(self) -> bool:
        thread = self.lane.poller
        return thread is not None and thread.policy in REALTIME

    @property
    def bound(self) -> int | None:
        return self.poll_cpus[0] if self.threaded and len(self.poll_cpus) == 1 else None

    @property
    def queue(self) -> int | None:
        """The RX queue's number, None for a NAPI without one."""
        return self.lane.queue.index if self.lane.queue.kind == "rx" else None

    @property
    def napi(self) -> int | None:
        """The NAPI's id where it has no RX queue."""
        return self.lane.queue.napi_id if self.queue is None else None

    @property
    def name(self) -> str:
        return f"{self.link.name} rx{self.lane.queue.index}"


def places(snapshot: Snapshot) -> list[Place]:
    """Return every lane of the host that has a CPU, one for each NAPI with an RX queue."""
    index = Index.of(snapshot)
    found = []
    for link in snapshot.links:
        for lane in lanes(index, link):
            if lane.shared_with is None:
                found.append(place(link, lane))
    return found


def place(link: Link, lane: Lane) -> Place:
    irq, thread = lane.irq, lane.poller
    irq_cpus = () if irq is None else irq.arrives
    # The thread polls when there is one in use, else the CPU that took the interrupt does.
    return Place(link, lane, irq_cpus, irq_cpus if thread is None else thread.cpus)


def find(snapshot: Snapshot) -> tuple[Mark, ...]:
    """Return all marks, by device and queue, conflicts first; then those of NAPIs without one."""
    found = places(snapshot)
    found += _others(snapshot, {p.lane.poller.pid for p in found if p.lane.poller is not None})
    finder = _Finder(snapshot, found)
    marks = [
        Mark(place.link.name, place.queue, kind, text, place.napi)
        for place in found
        for kind, texts in ((CONFLICT, finder.conflicts(place)), (HOP, finder.hops(place)))
        for text in texts
    ]
    return tuple(marks)


def _others(snapshot: Snapshot, known: Container[int]) -> Iterator[Place]:
    """Yield where threads of NAPIs run that no RX queue is known to use: they poll all the same.

    known: threads of lanes, as that of an interrupt may be whose NAPI is not known to be a lane's.
    """
    index = Index.of(snapshot)
    for link in snapshot.links:
        for lane in others(index, link):
            if lane.poller is not None and lane.poller.pid not in known:
                yield place(link, lane)


def grouped(marks: Iterable[Mark]) -> list[tuple[str, str, str]]:
    """Return (kind, queues, text) of one device's marks; queues of the same text together."""
    groups: dict[tuple[str, str], list[Mark]] = {}
    for mark in marks:
        groups.setdefault((mark.kind, mark.text), []).append(mark)
    return [(kind, _together(own), text) for (kind, text), own in groups.items()]


def _together(own: Iterable[Mark | Place]) -> str:
    """Return the names of lanes of one device, and of its NAPIs without an RX queue."""
    numbers = [(one.queue, one.napi) for one in own]
    queues = [queue for queue, _ in numbers if queue is not None]
    napis = [napi for _, napi in numbers if napi is not None]
    parts = ([_rx(queues)] if queues else []) + ([_napi(napis)] if napis else [])
    return ", ".join(parts)


def _napi(ids: Iterable[int]) -> str:
    return f"NAPI {short_list(ids, LISTED)}"


def _rx(queues: Iterable[int]) -> str:
    return f"rx{short_list(queues, LISTED)}"


class _Users:
    """Lanes by the CPU that they use, those of a device by one name.

    Each of them is told all in the same words: a line for each pair would be thousands.
    """

    def __init__(self, users: Iterable[tuple[int, Place]]) -> None:
        by_cpu: dict[int, dict[str, list[Place]]] = {}
        for cpu, place in users:
            by_cpu.setdefault(cpu, {}).setdefault(place.link.name, []).append(place)
        self._rows = {
            cpu: [(device, f"{device} {_together(own)}", own) for device, own in devices.items()]
            for cpu, devices in by_cpu.items()
        }

    def beside(self, place: Place, cpu: int) -> Iterator[tuple[str, str]]:
        """Yield each device with others than this one on the CPU, and how its lanes are named."""
        for device, name, own in self._rows.get(cpu, ()):
            if len(own) > 1 or own[0] is not place:
                yield device, name


@dataclass(slots=True)
class _Finder:
    """The host's lanes by CPU, made once for all questions."""

    snapshot: Snapshot
    places: list[Place]
    _node: dict[int, int] = field(init=False)
    _siblings: dict[int, tuple[int, ...]] = field(init=False)
    _polled: _Users = field(init=False)
    _busy: _Users = field(init=False)
    _interrupted: _Users = field(init=False)
    _steered: dict[int, list[str]] = field(init=False, default_factory=dict)
    _realtime: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        cpus = self.snapshot.topology.cpus
        self._node = {cpu.number: cpu.node for cpu in cpus}
        self._siblings = {cpu.number: cpu.siblings for cpu in cpus}
        bound = [(p.bound, p) for p in self.places if p.bound is not None]
        self._polled = _Users(bound)
        self._busy = _Users((cpu, p) for cpu, p in bound if p.busy)
        alone = (p for p in self.places if len(p.irq_cpus) == 1)
        self._interrupted = _Users((p.irq_cpus[0], p) for p in alone)
        for link in self.snapshot.links:
            for cpu, names in _steered(link.name, link.queues).items():
                self._steered.setdefault(cpu, []).extend(names)
        taken = {n for place in self.places if place.realtime for n in place.poll_cpus}
        self._realtime = frozenset(taken)

    def _nodes(self, cpus: Iterable[int]) -> set[int]:
        return {self._node[n] for n in cpus if n in self._node}

    def hops(self, place: Place) -> Iterator[str]:
        """Yield where packets cross from node to node or wait for a needless thread."""
        lane = place.lane
        if lane.mode == "on" and lane.irq is not None and lane.irq.threaded:
            yield f"the thread of IRQ {lane.irq.number} only wakes the NAPI's thread"
        home, took = place.link.node, self._nodes(place.irq_cpus)
        polled = self._nodes(place.poll_cpus)
        if home is not None and took and home not in took:
            yield f"interrupts on node {cpulist.render(took)}, the device is on node {home}"
        if not place.threaded or not polled:
            return
        if home is not None and home not in polled:
            yield f"polled on node {cpulist.render(polled)}, the device is on node {home}"
        elif took and not took & polled:
            yield (
                f"interrupts on node {cpulist.render(took)},"
                f" polled on node {cpulist.render(polled)}"
            )

    def conflicts(self, place: Place) -> Iterator[str]:
        """Yield what takes CPU time from this lane's poller, or what that takes from the host."""
        if place.realtime:
            yield from self._host(place)
        if place.busy:
            yield from self._sockets()
            if place.bound is None:
                few = short_list(place.poll_cpus, LISTED)
                yield f"a busy-polling thread takes a whole CPU, and any of {few} may be it"
        if place.bound is not None and (place.busy or place.realtime):
            yield from self._beside(place, place.bound)

    def _host(self, place: Place) -> Iterator[str]:
        if 0 in place.poll_cpus:
            yield "a real-time thread may run on CPU 0, which carries the kernel's own work"
        left = [n for n in self.snapshot.topology.housekeeping if n not in self._realtime]
        if len(left) < topology.HOUSEKEEPING_LEFT:
            cpus = f"CPU {cpulist.render(left)}" if left else "no CPU"
            yield f"real-time threads leave {cpus} for all else"

    def _sockets(self) -> Iterator[str]:
        for sysctl in self.snapshot.sysctls:
            if sysctl.name in (BUSY_READ, BUSY_POLL) and sysctl.value:
                yield f"sockets poll as well: {sysctl.name} is {sysctl.value}"

    def _beside(self, place: Place, cpu: int) -> Iterator[str]:
        for device, name in self._polled.beside(place, cpu):
            yield f"CPU {cpu} {'polls' if device == place.link.name else 'also polls'} {name}"
        for _, name in self._interrupted.beside(place, cpu):
            yield f"CPU {cpu} also takes the interrupts of {name}"
        for name in self._steered.get(cpu, ()):
            yield f"RPS of {name} brings packets to CPU {cpu}"
        for sibling in self._siblings.get(cpu, ()):
            for _, name in self._busy.beside(place, sibling) if sibling != cpu else ():
                yield f"CPU {cpu} shares a core with CPU {sibling}, which polls {name}"


def _steered(device: str, queues: Iterable[Queue]) -> dict[int, list[str]]:
    """Return the RX queues whose RPS names a CPU, together for each CPU."""
    of: dict[int, list[int]] = {}
    for queue in queues:
        for cpu in queue.rps_cpus or ():
            of.setdefault(cpu, []).append(queue.index)
    return {cpu: [f"{device} {_rx(own)}"] for cpu, own in of.items()}
