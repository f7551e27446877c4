# SPDX-License-Identifier: GPL-2.0-or-later
"""The lanes as a table for the terminal. Pure; it fits 80 columns.

Colour and characters beyond ASCII are the caller's choice (Style): without them the same text
stands in the same place.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rxlane import cpulist
from rxlane.items import OFF, ON, SWITCHES, WORKQUEUE
from rxlane.model import (
    IRQ_THREAD,
    Index,
    Irq,
    Lane,
    Link,
    Queue,
    Snapshot,
    Tunable,
    lanes,
    others,
)
from rxlane.settings import requested
from rxlane.showing import helperrows, marks, sanitize
from rxlane.showing.cells import LISTED, cell, fit, policy_text, short_list
from rxlane.showing.marks import CONFLICT, HOP, Mark

WIDTH = 80
HEADINGS = ("queue", "NAPI", "IRQ", "IRQ CPUs", "mode", "PID", "CPU", "policy", "node", "")
MODE, MARK = 4, 9
SGR = {
    "softirq": "36",  # cyan
    "threaded": "32",  # green
    "irq-thread": "34",  # blue
    "busy-poll": "35",  # magenta
    CONFLICT: "1;31",  # bold red
    HOP: "33",  # yellow
    "heading": "1",
    "down": "2",
}
ASCII_SIGNS = {CONFLICT: "!", HOP: "~", "up": "", "down": ""}
SIGNS = {CONFLICT: "\u2716", HOP: "\u21c4", "up": "\u25cf ", "down": "\u25cb "}


@dataclass(frozen=True, slots=True)
class Style:
    """colour: ANSI sequences are understood. unicode: so are characters beyond ASCII."""

    colour: bool = False
    unicode: bool = False

    def paint(self, text: str, what: str) -> str:
        return f"\x1b[{SGR[what]}m{text}\x1b[0m" if self.colour and what in SGR else text

    def sign(self, what: str) -> str:
        return (SIGNS if self.unicode else ASCII_SIGNS)[what]


PLAIN = Style()
_Key = tuple[int | None, int | None]  # RX queue, or a NAPI without one
# Columns that give way, widest first, when a row is too long: CPU lists can be any length.
ELASTIC = (3, 6)
MOST_SENDERS = 8  # characters of the TX queues of a NAPI


MODE_WORDS = {
    "off": "softirq",
    IRQ_THREAD: "irq-thread",
    "on": "threaded",
    "busy-poll": "busy-poll",
    None: "-",
}


def _nodes(snapshot: Snapshot, cpus: Iterable[int], fallback: int | None) -> str:
    known = {c.number: c.node for c in snapshot.topology.cpus}
    found = sorted({known[n] for n in cpus if n in known})
    return cpulist.render(found) if found else cell(fallback)


def _row(
    snapshot: Snapshot, link: Link, lane: Lane, name: str, signs: Mapping[_Key, str]
) -> tuple[str, ...]:
    queue, place = lane.queue, marks.place(link, lane)
    # Kernels that keep a NAPI's thread when it is switched off show it all the same.
    thread = lane.poller or lane.thread
    pid = None if lane.napi is None else lane.napi.pid
    return (
        name,
        cell(queue.napi_id),
        cell(queue.irq),
        cell(cpulist.render(place.irq_cpus)),
        MODE_WORDS.get(lane.polled, "-"),
        cell(pid if thread is None else thread.pid),
        cell(None if thread is None else cpulist.render(thread.cpus)),
        policy_text(thread),
        _nodes(snapshot, place.poll_cpus, link.node),
        signs.get((place.queue, place.napi), ""),
    )


def _rows(
    snapshot: Snapshot, index: Index, link: Link, signs: Mapping[_Key, str]
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of lanes, then those of NAPIs that no RX queue is known to use."""
    for lane in lanes(index, link):
        yield _row(snapshot, link, lane, f"rx{lane.queue.index}", signs)
    senders = link.senders()
    for lane in others(index, link):
        sends = senders.get(lane.queue.napi_id)
        name = f"tx{short_list(sends, MOST_SENDERS)}" if sends else "?"
        yield _row(snapshot, link, lane, name, signs)


def _table(rows: Sequence[tuple[str, ...]], style: Style) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    gap = len(HEADINGS) - 1
    while sum(widths) + gap > WIDTH:
        widest = max(ELASTIC, key=lambda i: widths[i])
        if widths[widest] <= len(HEADINGS[widest]):
            break
        widths[widest] -= 1
    kinds = {style.sign(kind): kind for kind in (CONFLICT, HOP)}
    return [_line(row, widths, style, kinds) for row in rows]


def _line(row: tuple[str, ...], widths: Sequence[int], style: Style, kinds: dict[str, str]) -> str:
    cells = [fit(text, width) for text, width in zip(row, widths, strict=True)]
    line = " ".join(cells[:MARK]).rstrip() if not row[MARK] else " ".join(cells)
    if row is HEADINGS or not style.colour:
        return line.rstrip()
    cells[MODE] = style.paint(cells[MODE], row[MODE])
    cells[MARK] = style.paint(cells[MARK], kinds.get(row[MARK], ""))
    return " ".join(cells).rstrip()


def _heading(link: Link, style: Style) -> list[str]:
    state = "up" if link.up else "down"
    node = "" if link.node is None else f", node {link.node}"
    queues = f"{link.count('rx')} RX and {link.count('tx')} TX queues"
    name = style.paint(link.name, "heading" if link.up else "down")
    driver = link.driver or "no driver"
    lines = [f"{style.sign(state)}{name}: {driver}, {link.state}{node}, {queues}"]
    if not link.up:
        lines.append(f"  interface {link.name} is down, no NAPI instances")
    return lines


def _marked(own: Sequence[Mark], style: Style) -> list[str]:
    """A line or more for each thing to look at, queues of the same together."""
    lines = []
    for kind, queues, text in marks.grouped(own):
        first = f"  {style.sign(kind)} "
        words = f"{queues}: {text}"
        found = textwrap.wrap(words, WIDTH - 4, break_long_words=True, break_on_hyphens=False)
        lines.append(style.paint(first, kind) + found[0])
        lines += [f"    {line}" for line in found[1:]]
    return lines


def _listed(before: str, numbers: Iterable[int], after: str = "") -> str:
    """Return a line with a list, of which as much is shown as there is room for."""
    return f"  {before} {short_list(numbers, WIDTH - len(f'  {before} {after}'))}{after}"


def _sources(link: Link) -> list[str]:
    """One line that says where the links between queue, NAPI and IRQ are known from."""
    own = link.queues_of("rx")
    if not own or not link.up:
        return []
    napi = ", ".join(sorted({q.napi_source for q in own}))
    irq = ", ".join(sorted({q.irq_source for q in own}))
    return [f"  queue-NAPI links from: {napi}; IRQ links from: {irq}"]


def _tunables(link: Link) -> list[str]:
    """What the driver lets change of its queues, with the highest value where it says one."""
    parts = [f"{t.item} {_tunable(t)}" for t in link.tunables]
    text = ", ".join(part.replace(" ", "\u00a0") for part in parts)
    lines = textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False)
    return [f"  {line}".replace("\u00a0", " ") for line in lines]


def _tunable(tunable: Tunable) -> str:
    if tunable.item in SWITCHES:
        return (OFF, ON)[bool(tunable.value)]
    return str(tunable.value) if tunable.top is None else f"{tunable.value} of {tunable.top}"


def _timers(link: Link) -> list[str]:
    """A line for NAPIs whose timers are alike, or for those of the device."""
    seen: dict[tuple[int | None, int | None, int | None], list[int]] = {}
    for napi in link.napis:
        timers = (napi.defer_hard_irqs, napi.gro_flush_timeout, napi.irq_suspend_timeout)
        seen.setdefault(timers, []).append(napi.napi_id)
    if set(seen) <= {(None, None, None)}:
        if link.defer_hard_irqs is None:
            return []
        return [f"  device: {_timer_words(link.defer_hard_irqs, link.gro_flush_timeout, None)}"]
    if len(seen) == 1:
        return [f"  all NAPIs: {_timer_words(*next(iter(seen)))}"]
    return [_timers_of(own, _timer_words(*timers)) for timers, own in seen.items()]


def _timers_of(napis: Sequence[int], timers: str) -> str:
    return _listed("NAPI", napis, f": {timers}")


def _vhosts(link: Link) -> list[str]:
    """A line for vhost threads that are alike."""
    seen: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for thread in link.vhosts:
        seen.setdefault((thread.cpus, policy_text(thread)), []).append(thread.pid)
    return [
        _listed(f"vhost threads on CPUs {short_list(cpus, LISTED)}, {policy}:", pids)
        for (cpus, policy), pids in seen.items()
    ]


def _timer_words(defer: int | None, flush: int | None, suspend: int | None) -> str:
    parts = [f"defer {cell(defer)}", f"flush {cell(flush)} ns"]
    if suspend is not None:
        parts.append(f"suspend {suspend} ns")
    return ", ".join(parts)


def _steering(index: Index, link: Link) -> list[str]:
    """A line for queues that are steered alike; none for queues without RPS, RFS or XPS."""
    groups: dict[tuple[object, ...], list[Queue]] = {}
    for q in link.queues:
        alike = (q.kind, q.rps_cpus, q.rps_flow_cnt, q.xps_rxqs, q.xps_cpus)
        groups.setdefault(alike, []).append(q)
    lines = []
    for own in groups.values():
        if words := _steered(own[0]):
            queues = short_list((q.index for q in own), LISTED)
            text = f"  {own[0].kind}{queues}: {words}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    irqs = (_irq(index, queue) for queue in link.queues)
    fixed = {irq.number for irq in irqs if irq is not None and not irq.movable}
    if fixed:
        lines.append(_listed("IRQs that the kernel keeps in place:", fixed))
    return lines


def _irq(index: Index, queue: Queue) -> Irq | None:
    return None if queue.irq is None else index.irqs.get(queue.irq)


def _steered(queue: Queue) -> str:
    parts = [
        f"RPS to {short_list(queue.rps_cpus, LISTED)}" if queue.rps_cpus else "",
        f"RFS {queue.rps_flow_cnt} flows" if queue.rps_flow_cnt else "",
        f"XPS from RX queue {short_list(queue.xps_rxqs, LISTED)}" if queue.xps_rxqs else "",
        f"XPS from CPU {short_list(queue.xps_cpus, LISTED)}" if queue.xps_cpus else "",
    ]
    return ", ".join(part for part in parts if part)


def _host(snapshot: Snapshot) -> list[str]:
    """The settings of the host and who else writes, shown once."""
    lines = [f"  {s.name} {s.value}" for s in snapshot.sysctls]
    lines += _workers(snapshot)
    lines += [f"  {writer} runs and may change settings of lanes" for writer in snapshot.writers]
    lines += [f"  somebody is logged in over {device}" for device in snapshot.sessions]
    return ["", "host:", *lines] if lines else []


def _workers(snapshot: Snapshot) -> list[str]:
    """Say where unbound kernel workers run, and the mask that plans compare where it is another."""
    asked, left = requested(snapshot), snapshot.workqueue_cpus
    lines = [] if left is None else [_listed("unbound kernel workers on CPUs", left)]
    if asked is not None and asked != left:
        lines.append(_listed(WORKQUEUE, asked, ", of which isolated partitions took the rest"))
    return lines


def map_text(snapshot: Snapshot, links: Sequence[Link], style: Style = PLAIN) -> str:
    """Return the lanes of each link as a table, with notes about what the kernel lacks."""
    snapshot, links = sanitize.host(snapshot, links)
    lines = [f"note: {note}" for note in snapshot.notes]
    index, found = Index.of(snapshot), marks.find(snapshot)
    for link in links:
        if lines:
            lines.append("")
        own = [mark for mark in found if mark.device == link.name]
        lines += _heading(link, style)
        lines += _device(snapshot, index, link, own, style)
    if lines:
        lines += _host(snapshot)
    return "\n".join(lines) + "\n" if lines else ""


def _device(
    snapshot: Snapshot, index: Index, link: Link, own: Sequence[Mark], style: Style
) -> list[str]:
    # A conflict comes before a hop in the order of marks: the worse one is the row's.
    kinds = {(mark.queue, mark.napi): mark.kind for mark in reversed(own)}
    signs = {key: style.sign(kind) for key, kind in kinds.items()}
    rows = list(_rows(snapshot, index, link, signs))
    if not link.up or not rows:
        return [*helperrows.table(link), *_vhosts(link)]
    return [
        *_table([HEADINGS, *rows], style),
        *_marked(own, style),
        *_timers(link),
        *_tunables(link),
        *_steering(index, link),
        *helperrows.table(link),
        *_vhosts(link),
        *_sources(link),
    ]
