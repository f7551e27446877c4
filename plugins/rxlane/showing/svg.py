# SPDX-License-Identifier: GPL-2.0-or-later
"""A host's lanes as an SVG picture for reports. Pure.

Plain SVG 1.1 with nothing from outside: fonts by family name, no scripts. Colours are those of
Okabe and Ito, which people with any common colour blindness can tell apart.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from rxlane import cpulist
from rxlane.errors import counted
from rxlane.model import IRQ_THREAD, Cpu, Link, Snapshot
from rxlane.showing import picture, sanitize
from rxlane.showing.cells import cut, policy_text, short_list
from rxlane.showing.marks import CONFLICT
from rxlane.showing.picture import (
    CARD_HEAD,
    CARD_WIDTH,
    CARD_X,
    CELL,
    CELL_GAP,
    DENSE_ROW,
    IDLE,
    ISOLATED,
    MARGIN,
    OFFLINE,
    PANEL_WIDTH,
    PANEL_X,
    UNKNOWN,
    WIDTH,
    Band,
    Card,
    CoreRow,
    LaneRow,
    Picture,
    Strand,
)
from rxlane.showing.table import MODE_WORDS

SANS = "'DejaVu Sans', 'Noto Sans', Verdana, sans-serif"
INK, SOFT, FAINT, LINE = "#1f2933", "#5f6c7b", "#9aa5b1", "#d5dbe3"
PAPER, BAND, CARD, CORE = "#ffffff", "#f4f6f9", "#ffffff", "#e6eaf0"
MODE_FILL = {"off": "#8794a5", IRQ_THREAD: "#009e73", "on": "#0072b2", "busy-poll": "#e69f00"}
MODE_FILL[UNKNOWN] = "#5f6c7b"
WORDS = {**MODE_WORDS, UNKNOWN: UNKNOWN}
IRQ_LINE = "#9aa5b1"
HOP_LINE, CONFLICT_LINE = "#d55e00", "#c1121f"
ISOLATED_FILL, OFFLINE_FILL = "#f1e6f2", "#eceff3"
ISOLATED_LINE = "#a06aa6"
MARKS_SHOWN = 14
MOST_CPUS = 33  # characters of a list below the title
# Columns in a device's card: scheduling class, interrupt, RPS.
LANE_X, LANE_WIDTH = (226, 290, 368), (60, 76, 72)
CHAR = 0.6  # of the font size: the width of a character, a little more than the fonts need


def render(snapshot: Snapshot, links: Sequence[Link]) -> str:
    """Return the SVG document of these links' lanes."""
    return _Drawing(picture.layout(*sanitize.host(snapshot, links))).text()


def _fit(text: str, size: float, width: float) -> str:
    most = max(1, int(width / (size * CHAR)))
    return cut(text, most, "\u2026")


class _Drawing:
    def __init__(self, shown: Picture) -> None:
        self._shown = shown
        self._root = Element("svg", xmlns="http://www.w3.org/2000/svg")
        self._root.set("font-family", SANS)

    def text(self) -> str:
        shown = self._shown
        SubElement(self._root, "title").text = "Receive lanes"
        SubElement(self._root, "desc").text = "\n".join((self._summary(), self._apart())).rstrip()
        paper = self._rect(0, 0, WIDTH, 0, PAPER)
        self._head()
        for band in shown.bands:
            self._band(band)
        # Under the cells, so that a strand ends at its CPU and hides no number.
        for strand in sorted(shown.strands, key=lambda s: (s.crosses, s.mode != "irq")):
            self._strand(strand)
        for band in shown.bands:
            for card in band.cards:
                self._card(card)
            for row in band.rows:
                self._core(row)
        height = self._foot(shown.height)
        paper.set("height", f"{height:g}")
        self._root.set("viewBox", f"0 0 {WIDTH} {height:g}")
        self._root.set("width", str(WIDTH))
        self._root.set("height", f"{height:g}")
        indent(self._root, " ")
        return tostring(self._root, encoding="unicode") + "\n"

    # Shapes

    def _rect(
        self, x: float, y: float, width: float, height: float, fill: str, **more: str
    ) -> Element:
        found = SubElement(self._root, "rect", fill=fill)
        for name, value in (("x", x), ("y", y), ("width", width), ("height", height)):
            found.set(name, f"{value:g}")
        for name, text in more.items():
            found.set(name.replace("_", "-"), text)
        return found

    def _write(
        self, x: float, y: float, text: str, size: float, fill: str = INK, **more: str
    ) -> Element:
        found = SubElement(self._root, "text", x=f"{x:g}", y=f"{y:g}", fill=fill)
        found.set("font-size", f"{size:g}")
        for name, value in more.items():
            found.set(name.replace("_", "-"), value)
        found.text = text
        return found

    # Parts

    def _head(self) -> None:
        self._write(MARGIN, 44, "Receive lanes", 22, font_weight="bold")
        lines = [self._summary(), self._apart()]
        for y, line in zip((62, 80) if lines[1] else (68,), lines, strict=False):
            self._write(MARGIN, y, line, 12.5, SOFT)

    def _apart(self) -> str:
        """Return which CPUs the host keeps from ordinary tasks, in lists that fit on a line."""
        topology = self._shown.snapshot.topology
        kinds = {
            "isolated": topology.isolated,
            "nohz_full": topology.nohz_full,
            "partitioned": topology.partitioned,
        }
        parts = (f"{kind} {short_list(cpus, MOST_CPUS)}" for kind, cpus in kinds.items() if cpus)
        return " \u00b7 ".join(parts)

    def _summary(self) -> str:
        topology = self._shown.snapshot.topology
        nodes = len({cpu.node for cpu in topology.cpus})
        rows = [row for band in self._shown.bands for card in band.cards for row in card.rows]
        modes = Counter(WORDS[row.place.lane.polled or UNKNOWN] for row in rows)
        names = [WORDS[mode] for mode in MODE_FILL]
        lanes = ", ".join(f"{modes[name]} {name}" for name in names if modes[name])
        cpus = f"{counted(len(topology.online), 'CPU')} online on {counted(nodes, 'NUMA node')}"
        count = counted(len(rows), "lane") + (f": {lanes}" if lanes else "")
        return f"{cpus} \u00b7 {count}"

    def _band(self, band: Band) -> None:
        self._rect(MARGIN, band.y, WIDTH - 2 * MARGIN, band.height, BAND, rx="10", stroke=LINE)
        title = band.title
        if not band.rows and band.node is not None:
            title += " \u00b7 used by no lane"
        weight = "bold" if band.rows or band.cards else "normal"
        shown = _fit(title, 12, WIDTH - 2 * CARD_X)
        self._write(CARD_X, band.y + 22, shown, 12, SOFT, font_weight=weight)

    def _card(self, card: Card) -> None:
        dashes = {} if card.up else {"stroke_dasharray": "4 3"}
        self._rect(CARD_X, card.y, CARD_WIDTH, card.height, CARD, rx="6", stroke=LINE, **dashes)
        ink = INK if card.up else FAINT
        title = _fit(card.title, 14, CARD_WIDTH - 24)
        self._write(CARD_X + 12, card.y + 18, title, 14, ink, font_weight="bold")
        x, y = CARD_X + 12, card.y + 33
        if card.head != CARD_HEAD:
            x, y = CARD_X + 146, card.y + 17
        room = CARD_X + CARD_WIDTH - 12 - x
        self._write(x, y, _fit(card.text, 10.5, room), 10.5, SOFT)
        for row in card.rows:
            self._lane(row)

    def _lane(self, row: LaneRow) -> None:
        lane, middle = row.place.lane, row.y + row.height / 2
        size = 9.5 if row.height == DENSE_ROW else 11
        base = middle + size * 0.36
        mode = lane.polled or UNKNOWN
        self._write(CARD_X + 12, base, f"rx{lane.queue.index}", size, font_weight="bold")
        if lane.queue.napi_id is not None:
            self._write(CARD_X + 54, base, f"NAPI {lane.queue.napi_id}", size, SOFT)
        fill, pill = MODE_FILL[mode], row.height - 5
        self._rect(CARD_X + 146, middle - pill / 2, 70, pill, fill, rx=f"{pill / 2:g}")
        ink = INK if mode == "busy-poll" else "#ffffff"
        self._write(CARD_X + 181, base, WORDS[mode], size - 1, ink, text_anchor="middle")
        for x, width, text in zip(LANE_X, LANE_WIDTH, _way(row), strict=True):
            self._write(CARD_X + x, base, _fit(text, size, width), size, SOFT)
        port = SubElement(self._root, "circle", cx=f"{CARD_X + CARD_WIDTH:g}", cy=f"{middle:g}")
        port.set("r", "4" if row.height == DENSE_ROW else "5")
        port.set("fill", fill)
        port.set("stroke", CONFLICT_LINE if row.mark == CONFLICT else PAPER)
        port.set("stroke-width", "2")

    def _core(self, row: CoreRow) -> None:
        middle, size = row.y + row.height / 2, 9.5 if row.height < 22 else 11
        x = float(PANEL_X)
        if row.folded:
            self._folded(row, middle, size)
            return
        if len(row.cpus) > 1:
            width = len(row.cpus) * (CELL + CELL_GAP) + 2
            self._rect(x - 3, row.y + 0.5, width, row.height - 1, CORE, rx="5", stroke=LINE)
        for cpu in row.cpus:
            self._cell(cpu, x, row, size)
            x += CELL + CELL_GAP
        room = PANEL_X + PANEL_WIDTH - x - 8
        self._write(x + 8, middle + size * 0.36, _fit(row.note, size, room), size, SOFT)

    def _folded(self, row: CoreRow, middle: float, size: float) -> None:
        height = row.height - 5
        shown = _fit(row.folded, size, PANEL_WIDTH / 2)
        width = max(2 * CELL + CELL_GAP, len(shown) * size * CHAR + 16)
        pool = row.folded.startswith("any ")
        fill, line = (CARD, SOFT) if pool else _colours(row.state)
        self._rect(
            PANEL_X, middle - height / 2, width, height, fill, rx="4", stroke=line,
            stroke_dasharray="3 2",
        )  # fmt: skip
        ink = INK if pool else SOFT
        self._write(PANEL_X + 8, middle + size * 0.36, shown, size, ink)
        words = {IDLE: "used by no lane", ISOLATED: "isolated, used by no lane", OFFLINE: "offline"}
        note = row.note or words[row.state]
        room = PANEL_WIDTH - width - 12
        text = self._write(
            PANEL_X + width + 10, middle + size * 0.36, _fit(note, size, room), size, SOFT
        )
        if not row.note:
            text.set("font-style", "italic")

    def _cell(self, cpu: Cpu, x: float, row: CoreRow, size: float) -> None:
        mode = self._shown.polled.get(cpu.number)
        kind = picture.state(self._shown.snapshot, cpu)
        fill, line = _colours(kind)
        ink = FAINT if kind == OFFLINE else INK
        if mode is not None:
            fill = MODE_FILL[mode]
            ink = INK if mode == "busy-poll" else "#ffffff"
        height = row.height - 5
        cell = self._rect(x, row.y + 2.5, CELL, height, fill, rx="4", stroke=line)
        if cpu.number in self._shown.marked:
            cell.set("stroke", CONFLICT_LINE)
            cell.set("stroke-width", "2.5")
        if kind != IDLE:
            cell.set("stroke-dasharray", "3 2")
        text = self._write(
            x + CELL / 2, row.y + row.height / 2 + size * 0.36, str(cpu.number), size, ink,
            text_anchor="middle",
        )  # fmt: skip
        if kind == OFFLINE:
            text.set("text-decoration", "line-through")
        SubElement(cell, "title").text = _about(cpu, kind)

    def _strand(self, strand: Strand) -> None:
        (x1, y1), (x2, y2) = strand.start, strand.end
        bend = (PANEL_X - CARD_X - CARD_WIDTH) * 0.55
        turn = PANEL_X - 12
        path = f"M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} {turn - bend:g},{y2:g} {turn:g},{y2:g}"
        path += f" H{x2 + 2:g}"
        if strand.crosses:
            halo = SubElement(self._root, "path", d=path, fill="none", stroke=HOP_LINE)
            halo.set("stroke-width", "6")
            halo.set("stroke-opacity", "0.28")
        line = SubElement(self._root, "path", d=path, fill="none")
        line.set("stroke", IRQ_LINE if strand.mode == "irq" else MODE_FILL[strand.mode])
        line.set("stroke-width", "1.3" if strand.mode == "irq" else "2")
        if strand.mode == "irq":
            line.set("stroke-dasharray", "4 3")
        SubElement(line, "title").text = strand.title

    def _foot(self, y: float) -> float:
        """Draw the legend and what is worth a look; return the height of the picture."""
        self._legend(y)
        y += 34
        if self._shown.marks:
            self._write(MARGIN, y + 8, "Worth a look", 14, font_weight="bold")
            y += 30
            y = self._marks(y)
        for note in self._shown.snapshot.notes:
            self._write(MARGIN, y, f"note: {note}", 11, SOFT)
            y += 18
        return y + 12

    def _legend(self, y: float) -> None:
        """Explain what is to be seen, and nothing else."""
        shown, x = self._shown, float(MARGIN)
        modes = {strand.mode for strand in shown.strands}
        for mode in MODE_FILL:
            if mode in modes:
                x = self._key(x, y, f"polled: {WORDS[mode]}", MODE_FILL[mode], "2.5")
        if "irq" in modes:
            x = self._key(x, y, "interrupt, polled elsewhere", IRQ_LINE, "1.5", "4 3")
        if any(strand.crosses for strand in shown.strands):
            x = self._key(x, y, "crosses NUMA nodes", HOP_LINE, "6", opacity="0.4")
        states = {picture.state(shown.snapshot, cpu) for cpu in shown.snapshot.topology.cpus}
        for kind in (ISOLATED, OFFLINE):
            if kind in states:
                fill, line = _colours(kind)
                self._rect(x, y + 2, 16, 12, fill, rx="3", stroke=line, stroke_dasharray="3 2")
                self._write(x + 22, y + 12, kind, 11, SOFT)
                x += 38 + len(kind) * 11 * CHAR

    def _marks(self, y: float) -> float:
        shown = self._shown.marks
        for kind, lanes, text in shown[:MARKS_SHOWN]:
            colour = CONFLICT_LINE if kind == CONFLICT else HOP_LINE
            dot = SubElement(self._root, "circle", cx=f"{MARGIN + 5}", cy=f"{y - 4:g}", r="4")
            dot.set("fill", colour)
            for number, line in enumerate(textwrap.wrap(f"{lanes}: {text}", 150)):
                self._write(MARGIN + 18 + 12 * (number > 0), y, line, 11)
                y += 17
        if len(shown) > MARKS_SHOWN:
            rest = f"and {len(shown) - MARKS_SHOWN} more: rxlane map lists all"
            self._write(MARGIN + 18, y, rest, 11, SOFT, font_style="italic")
            y += 17
        return y + 6

    def _key(
        self, x: float, y: float, name: str, colour: str, width: str, dashes: str = "",
        opacity: str = "",
    ) -> float:  # fmt: skip
        line = SubElement(self._root, "path", d=f"M{x:g},{y + 8:g} h26", stroke=colour)
        line.set("stroke-width", width)
        for attribute, value in (("stroke-dasharray", dashes), ("stroke-opacity", opacity)):
            if value:
                line.set(attribute, value)
        self._write(x + 32, y + 12, name, 11, SOFT)
        return x + 48 + len(name) * 11 * CHAR


def _way(row: LaneRow) -> tuple[str, str, str]:
    """A lane's scheduling class, interrupt and RPS; empty for what it has not."""
    lane, sched = row.place.lane, ""
    if lane.poller is not None:
        sched = policy_text(lane.poller)
    irq = "" if lane.queue.irq is None else f"IRQ {lane.queue.irq}"
    rps = cpulist.render(lane.queue.rps_cpus or ())
    return sched, irq, f"RPS {rps}" if rps else ""


def _colours(kind: str) -> tuple[str, str]:
    """Fill and outline of a CPU by its state."""
    if kind == ISOLATED:
        return ISOLATED_FILL, ISOLATED_LINE
    return (OFFLINE_FILL, FAINT) if kind == OFFLINE else (CARD, LINE)


def _about(cpu: Cpu, kind: str) -> str:
    words = {IDLE: "", ISOLATED: ", isolated", OFFLINE: ", offline"}[kind]
    return f"CPU {cpu.number}: package {cpu.package}, core {cpu.core}, node {cpu.node}{words}"
