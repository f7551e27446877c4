# SPDX-License-Identifier: GPL-2.0-or-later
"""Where everything of a host's picture lies, in pixels: devices left, CPUs right, lanes between.

Pure. A band for each NUMA node holds its devices and its cores, so that a lane which stays on its
node runs level and one that crosses nodes is seen to. Cores that no lane uses are folded where
there are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rxlane import cpulist
from rxlane.errors import counted
from rxlane.model import IRQ_THREAD, Cpu, Index, Link, Snapshot, others
from rxlane.showing import marks
from rxlane.showing.marks import Mark, Place

MARGIN = 32
CARD_X, CARD_WIDTH = MARGIN + 16, 450
PANEL_X, PANEL_WIDTH = 690, 400
WIDTH = PANEL_X + PANEL_WIDTH + 16 + MARGIN
TOP = 92  # title and subtitle
BAND_TITLE, BAND_PAD, BAND_GAP = 34, 14, 14
IDLE_BAND = 36
CARD_HEAD, CARD_GAP = 42, 12
FLAT_HEAD, FLAT_GAP = 24, 6  # where a node has many devices: title and text on one line
MANY_CARDS = 8
ROW, DENSE_ROW = 22, 15
MANY_ROWS = 24  # lanes of a device, or cores of a node, from which rows are dense
FOLD_FROM = 17  # cores of a node from which unused ones are folded
CELL, CELL_GAP = 38, 4

IDLE, ISOLATED, OFFLINE = "idle", "isolated", "offline"


@dataclass(slots=True)
class LaneRow:
    place: Place
    y: float
    height: int
    mark: str | None  # kind of the worst mark


@dataclass(slots=True)
class Card:
    """A device, or several that are down."""

    title: str
    text: str
    y: float
    up: bool = True
    head: int = CARD_HEAD
    rows: list[LaneRow] = field(default_factory=list)
    height: float = CARD_HEAD


@dataclass(slots=True)
class CoreRow:
    """A core with its threads, a run of unused cores, or CPUs that a thread may choose from."""

    y: float
    height: int
    cpus: tuple[Cpu, ...] = ()
    folded: str = ""
    state: str = IDLE
    note: str = ""


@dataclass(slots=True)
class Band:
    """node None: devices whose node nobody knows, without cores beside them.

    A node without devices and lanes is only named.
    """

    node: int | None
    title: str
    y: float
    cards: list[Card] = field(default_factory=list)
    rows: list[CoreRow] = field(default_factory=list)
    height: float = IDLE_BAND


@dataclass(frozen=True, slots=True)
class Strand:
    """A lane's way to the CPU that polls it, or that takes its interrupt first."""

    start: tuple[float, float]
    end: tuple[float, float]
    mode: str  # as Lane.polled, or UNKNOWN, or irq
    crosses: bool
    title: str


@dataclass(slots=True)
class Picture:
    snapshot: Snapshot
    bands: list[Band]
    strands: list[Strand]
    marks: list[tuple[str, str, str]]  # kind, lanes, text
    polled: dict[int, str]  # CPU: mode of the lane that it polls, the most demanding one
    marked: set[int]  # CPUs of lanes in conflict
    height: float


def layout(snapshot: Snapshot, links: Sequence[Link]) -> Picture:
    """Return the picture of these links; lanes of other links count for marks only."""
    return _Maker(snapshot, links).picture()


def state(snapshot: Snapshot, cpu: Cpu) -> str:
    if not cpu.online:
        return OFFLINE
    return IDLE if cpu.number in snapshot.topology.housekeeping else ISOLATED


UNKNOWN = "unknown"  # for a mode that the kernel does not report
DEMAND = (UNKNOWN, "off", IRQ_THREAD, "on", "busy-poll")


class _Maker:
    def __init__(self, snapshot: Snapshot, links: Sequence[Link]) -> None:
        self._snapshot, self._links = snapshot, links
        self._index = Index.of(snapshot)
        names = {link.name for link in links}
        self._places = [p for p in marks.places(snapshot) if p.link.name in names]
        self._found = [m for m in marks.find(snapshot) if m.device in names]
        self._node = {cpu.number: cpu.node for cpu in snapshot.topology.cpus}
        self._nodes = sorted({cpu.node for cpu in snapshot.topology.cpus})
        self._spots: dict[int, tuple[float, float]] = {}  # where strands to a CPU end
        self._pools: dict[tuple[int, ...], tuple[float, float]] = {}
        self._bands: list[Band] = []

    def picture(self) -> Picture:
        y: float = TOP
        for node, links in self._homes():
            band = self._band(node, links, y)
            self._bands.append(band)
            y += band.height + BAND_GAP
        return Picture(
            self._snapshot,
            self._bands,
            list(self._strands()),
            list(self._grouped()),
            self._polled(),
            self._conflicting(),
            y,
        )

    def _homes(self) -> Iterator[tuple[int | None, list[Link]]]:
        """Yield each node with its devices; a host of one node is home to all of them."""
        only = self._nodes[0] if len(self._nodes) == 1 else None
        homes: dict[int | None, list[Link]] = {node: [] for node in self._nodes}
        for link in self._links:
            home = link.node if link.node in self._nodes else only
            homes.setdefault(home, []).append(link)
        if None in homes:
            yield None, homes.pop(None)
        yield from homes.items()

    def _band(self, node: int | None, links: list[Link], top: float) -> Band:
        band = Band(node, self._title(node), top)
        if node is not None and not links and not self._used(node):
            return band
        y = top + BAND_TITLE
        band.cards = list(self._cards(links, y))
        left = max((card.y + card.height for card in band.cards), default=y)
        right = y
        if node is not None:
            # Level with the lanes of the first device, so that most strands run straight.
            level = band.cards[0].rows[0].y if band.cards and band.cards[0].rows else y
            band.rows = list(self._core_rows(node, links, level))
            right = max((row.y + row.height for row in band.rows), default=y)
        band.height = max(left, right) + BAND_PAD - top
        return band

    def _title(self, node: int | None) -> str:
        if node is None:
            return "Devices that name no NUMA node"
        cpus = cpulist.render(c.number for c in self._snapshot.topology.cpus if c.node == node)
        return f"NUMA node {node} \u00b7 CPUs {cpus}"

    def _used(self, node: int) -> bool:
        ends = {n for place in self._places for n in _ends(place)}
        homeless = any(p.threaded and len(p.poll_cpus) > 1 for p in self._places)
        return homeless or any(self._node.get(n) == node for n in ends)

    def _cards(self, links: list[Link], y: float) -> Iterator[Card]:
        up = [link for link in links if link.up]
        lanes = sum(1 for place in self._places if place.link in up and place.lane.napi)
        height = DENSE_ROW if lanes >= MANY_ROWS else ROW
        flat = len(up) > MANY_CARDS
        for link in up:
            card = self._card(link, y, FLAT_HEAD if flat else CARD_HEAD, height)
            yield card
            y += card.height + (FLAT_GAP if flat else CARD_GAP)
        down = [link.name for link in links if not link.up]
        if down:
            yield Card(", ".join(down), "down", y, False)

    def _card(self, link: Link, y: float, head: int, height: int) -> Card:
        text = f"{link.driver or 'no driver'} \u00b7 {link.count('rx')} RX, {link.count('tx')} TX"
        if not link.carrier:
            text += f" \u00b7 {link.state}"
        aside = sum(1 for _ in others(self._index, link))
        if not link.napis:
            text += " \u00b7 no NAPI reported"
        elif aside:
            text += f" \u00b7 {counted(aside, 'NAPI')} of no RX queue"
        if link.helpers:
            own_cpus = {n for h in link.helpers if h.thread is not None for n in h.thread.cpus}
            on = f" on CPU {cpulist.render(own_cpus)}" if own_cpus else ""
            text += f" \u00b7 {counted(len(link.helpers), 'rx thread')}{on}"
        card = Card(link.name, text, y, head=head)
        own = [place for place in self._places if place.link is link and place.lane.napi]
        worst = {m.queue: m.kind for m in reversed(self._found) if m.device == link.name}
        for number, place in enumerate(own):
            top = y + head + number * height
            card.rows.append(LaneRow(place, top, height, worst.get(place.lane.queue.index)))
        card.height = head + len(own) * height + (6 if own else 0)
        return card

    def _core_rows(self, node: int, links: list[Link], y: float) -> Iterator[CoreRow]:
        cores = self._cores(node)
        fold = len(cores) >= FOLD_FROM
        shown = sum(1 for core in cores if not fold or self._kind(core)[0])
        height = DENSE_ROW if shown >= MANY_ROWS else ROW
        for pool in self._unbound(node, links):
            self._pools[pool] = (PANEL_X, y + height / 2)
            note = self._users(p for p in self._places if p.threaded and p.poll_cpus == pool)
            folded = f"any of {cpulist.render(pool)}"
            yield CoreRow(y, height, folded=folded, note=f"polls {note}, not bound")
            y += height
        for (used, kind), run in groupby(cores, key=self._kind):
            group = list(run)
            if used or not fold or len(group) < 3:
                for core in group:
                    yield self._core(core, y, height)
                    y += height
                continue
            cpus = cpulist.render(cpu.number for core in group for cpu in core)
            yield CoreRow(y, height, folded=cpus, state=kind)
            y += height

    def _cores(self, node: int) -> list[tuple[Cpu, ...]]:
        """Return the cores of a node by their first CPU.

        Not by their numbers: those begin anew in each cluster of some machines, and the kernel
        tells none of an offline CPU, which is shown by itself.
        """
        cores: dict[int, list[Cpu]] = {}
        for cpu in self._snapshot.topology.cpus:
            if cpu.node == node:
                cores.setdefault(min((cpu.number, *cpu.siblings)), []).append(cpu)
        return sorted((tuple(own) for own in cores.values()), key=lambda core: core[0].number)

    def _kind(self, core: tuple[Cpu, ...]) -> tuple[bool, str]:
        numbers = {cpu.number for cpu in core}
        used = any(numbers & {*_ends(place)} for place in self._places)
        return used, state(self._snapshot, core[0])

    def _core(self, core: tuple[Cpu, ...], y: float, height: int) -> CoreRow:
        for position, cpu in enumerate(core):
            self._spots[cpu.number] = (PANEL_X + position * (CELL + CELL_GAP), y + height / 2)
        return CoreRow(y, height, core, note=self._note(core))

    def _note(self, core: tuple[Cpu, ...]) -> str:
        """Say what the core does for lanes; interrupts only where another CPU polls."""
        numbers = {cpu.number for cpu in core}
        polls = [p for p in self._places if len(p.poll_cpus) == 1 and p.poll_cpus[0] in numbers]
        takes = [
            p
            for p in self._places
            if p.threaded and p.irq_cpus[:1] != p.poll_cpus and numbers & {*p.irq_cpus[:1]}
        ]
        parts = [f"polls {self._users(polls)}" if polls else ""]
        parts.append(f"interrupts of {self._users(takes)}" if takes else "")
        steered = self._users(p for p in self._places if numbers & {*(p.lane.queue.rps_cpus or ())})
        parts.append(f"RPS of {steered}" if steered else "")
        return ", ".join(part for part in parts if part)

    @staticmethod
    def _users(places: Iterable[Place]) -> str:
        found: dict[str, list[int]] = {}
        for place in places:
            found.setdefault(place.link.name, []).append(place.lane.queue.index)
        return ", ".join(f"{name} rx{cpulist.render(own)}" for name, own in found.items())

    def _unbound(self, node: int, links: list[Link]) -> list[tuple[int, ...]]:
        """Return the CPU lists of threads that are not bound and are drawn at this node."""
        own = []
        for place in self._places:
            if place.threaded and len(place.poll_cpus) > 1:
                home = place.link.node if place.link.node in self._nodes else None
                if home is None or home not in {self._node.get(n) for n in place.poll_cpus}:
                    home = self._node.get(place.poll_cpus[0])
                if home == node:
                    own.append(place.poll_cpus)
        return list(dict.fromkeys(own))

    def _strands(self) -> Iterator[Strand]:
        for band in self._bands:
            for card in band.cards:
                for row in card.rows:
                    yield from self._lane(row, band.node)

    def _lane(self, row: LaneRow, home: int | None) -> Iterator[Strand]:
        place = row.place
        start = (CARD_X + CARD_WIDTH, row.y + row.height / 2)
        if place.threaded:
            end = self._pools.get(place.poll_cpus) or self._spot(place.poll_cpus)
            first = place.irq_cpus[:1]
            if first and first != place.poll_cpus:
                yield from self._strand(row, start, self._spot(first), "irq", first, home)
            yield from self._strand(
                row, start, end, place.lane.polled or "on", place.poll_cpus, home
            )
            return
        first, mode = place.irq_cpus[:1], "off" if place.lane.polled else UNKNOWN
        yield from self._strand(row, start, self._spot(first), mode, first, home)

    def _spot(self, cpus: tuple[int, ...]) -> tuple[float, float] | None:
        return self._spots.get(cpus[0]) if cpus else None

    def _strand(
        self,
        row: LaneRow,
        start: tuple[float, float],
        end: tuple[float, float] | None,
        mode: str,
        cpus: tuple[int, ...],
        home: int | None,
    ) -> Iterator[Strand]:
        if end is None:
            return
        does = "interrupts on" if mode == "irq" else "polled on"
        title = f"{row.place.name}: {does} CPU {cpulist.render(cpus)}"
        away = home is not None and home not in {self._node.get(n) for n in cpus}
        yield Strand(start, end, mode, away, title)

    def _grouped(self) -> Iterator[tuple[str, str, str]]:
        for link in self._links:
            own: list[Mark] = [mark for mark in self._found if mark.device == link.name]
            for kind, queues, text in marks.grouped(own):
                yield kind, f"{link.name} {queues}", text

    def _polled(self) -> dict[int, str]:
        polled: dict[int, str] = {}
        for place in self._places:
            if len(_ends(place)) and len(place.poll_cpus) == 1:
                mode = place.lane.polled or UNKNOWN
                cpu = place.poll_cpus[0]
                polled[cpu] = max(polled.get(cpu, UNKNOWN), mode, key=DEMAND.index)
        return polled

    def _conflicting(self) -> set[int]:
        bad = {(m.device, m.queue) for m in self._found if m.kind == marks.CONFLICT}
        return {
            place.bound
            for place in self._places
            if (place.link.name, place.lane.queue.index) in bad and place.bound is not None
        }


def _ends(place: Place) -> tuple[int, ...]:
    """The CPUs at which a lane's strands end."""
    polls = place.poll_cpus if place.threaded else place.poll_cpus[:1]
    return (*(polls if len(polls) == 1 else ()), *place.irq_cpus[:1])
