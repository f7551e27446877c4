# SPDX-License-Identifier: GPL-2.0-or-later
"""Two samples to what each lane carried between them, as text and as plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rxlane.errors import legible
from rxlane.model import Link, Snapshot
from rxlane.samples import DEVICE, DRIVER, NETDEV, Counts, Sample
from rxlane.showing import helperrows
from rxlane.showing.cells import number, policy_text, short_list
from rxlane.showing.mapjson import present
from rxlane.showing.marks import Place, places
from rxlane.showing.table import MODE_WORDS, PLAIN, Style

HEADINGS = ("queue", "mode", "CPU", "policy", "packets/s", "interrupts/s", "thread CPU")
GONE = "gone"  # the state of a device beside those of Link.state
BAR = 10  # characters of a whole CPU
SOURCE = {
    NETDEV: "counted by queue (netdev)",
    DRIVER: "counted by queue (driver)",
    DEVICE: "counted by device",
    None: "not counted by queue",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """What a lane did in a second; None where nobody counts. cpu: share of a CPU, 0..1."""

    place: Place
    packets: float | None
    interrupts: float | None
    cpu: float | None


def _gain(
    before: Mapping[Any, float], after: Mapping[Any, float], key: Any, span: float
) -> float | None:
    """The growth in a second; none when a counter is new or began anew (a driver's reset)."""
    if key not in before or key not in after or after[key] < before[key] or span <= 0:
        return None
    return (after[key] - before[key]) / span


def _counts(link: Link, at: Sample) -> Counts:
    return at.counts.get(link.ifindex, Counts({}, None, None))


def by_link(snapshot: Snapshot) -> Mapping[int, Sequence[Place]]:
    """Return the lanes of each link by its index: looked for once, however many links there are."""
    found: dict[int, list[Place]] = {link.ifindex: [] for link in snapshot.links}
    for place in places(snapshot):
        found[place.link.ifindex].append(place)
    return found


def rates(link: Link, own: Iterable[Place], before: Sample, after: Sample) -> Iterator[Rate]:
    """Yield the rates of a link's own lanes; queues that share a NAPI are counted together."""
    span = after.at - before.at
    first, last = _counts(link, before), _counts(link, after)
    sharing: dict[int | None, list[int]] = {}
    for queue in link.queues_of("rx"):
        sharing.setdefault(queue.napi_id, []).append(queue.index)
    for place in own:
        lane = place.lane.queue
        queues = [lane.index] if lane.napi_id is None else sharing[lane.napi_id]
        gains = [_gain(first.queues, last.queues, queue, span) for queue in queues]
        known = [gain for gain in gains if gain is not None]
        thread = place.lane.poller or place.lane.thread
        pid = None if thread is None else thread.pid
        cpu = _gain(before.seconds, after.seconds, pid, span)
        yield Rate(
            place,
            sum(known) if known else None,
            _gain(before.interrupts, after.interrupts, lane.irq, span),
            None if cpu is None else min(cpu, 1.0),
        )


def screen(
    snapshot: Snapshot,
    links: Sequence[Link],
    before: Sample,
    after: Sample,
    style: Style = PLAIN,
    gone: Sequence[str] = (),
) -> str:
    """Return what a person watches: lines of devices that are gone or down, tables of others.

    gone: names of devices that were there.
    """
    away = [*((name, GONE) for name in gone), *((li.name, li.state) for li in links if not li.up)]
    lines = [f"{_name(name, style)}: {state}" for name, state in away]
    if not links and not gone:
        lines.append("no device is left to show")
    own = by_link(snapshot)
    for link in (link for link in links if link.up):
        if lines:
            lines.append("")
        lines.append(_head(link, before, after, style))
        found = rates(link, own[link.ifindex], before, after)
        rows = [HEADINGS, *(_row(rate) for rate in found)]
        lines += _table(rows, style)
        span = after.at - before.at
        lines += helperrows.rate_table(link, before.handled, after.handled, span)
    return "\n".join(lines) + "\n"


def _head(link: Link, before: Sample, after: Sample, style: Style) -> str:
    rate, source = _of_device(link, before, after)
    state = "" if link.carrier else f"{link.state}, "
    return f"{_name(link.name, style)}: {state}{number(rate)} packets/s, {SOURCE[source]}"


def _of_device(link: Link, before: Sample, after: Sample) -> tuple[float | None, str | None]:
    """Return what a device received in a second, and where that is counted by queue (SOURCE)."""
    first, last = _counts(link, before), _counts(link, after)
    if first.total is None or last.total is None:
        return None, last.source
    return _gain({0: first.total}, {0: last.total}, 0, after.at - before.at), last.source


def _name(device: str, style: Style) -> str:
    return style.paint(legible(device), "heading")


def _row(rate: Rate) -> tuple[str, ...]:
    lane = rate.place.lane
    share = "-" if rate.cpu is None else f"{rate.cpu:4.0%} {'#' * round(rate.cpu * BAR)}"
    return (
        f"rx{lane.queue.index}",
        MODE_WORDS.get(lane.polled, "-"),
        short_list(rate.place.poll_cpus, 11),
        policy_text(lane.poller or lane.thread),
        number(rate.packets),
        number(rate.interrupts),
        share.rstrip(),
    )


RIGHT = (4, 5)


def _table(rows: Sequence[tuple[str, ...]], style: Style) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    lines = []
    for at, row in enumerate(rows):
        cells = [
            cell.rjust(width) if i in RIGHT else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        if at:
            cells[1] = style.paint(cells[1], row[1])
            if style.unicode:
                cells[-1] = cells[-1].replace("#", "\u2588")
        lines.append(" ".join(cells).rstrip())
    return lines


def plain(
    snapshot: Snapshot,
    links: Sequence[Link],
    before: Sample,
    after: Sample,
    gone: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one interval for programs; what nobody counts is absent. gone: as of screen()."""
    own = by_link(snapshot)
    lanes = [
        present(
            {
                "device": link.name,
                "queue": rate.place.lane.queue.index,
                "mode": rate.place.lane.polled,
                "packets-per-second": rate.packets,
                "interrupts-per-second": rate.interrupts,
                "cpu": rate.cpu,
            }
        )
        for link in links
        for rate in rates(link, own[link.ifindex], before, after)
    ]
    threads = [one for link in links for one in _helpers(link, before, after)]
    devices = [*(_device(link, before, after) for link in links)]
    devices += [{"name": name, "state": GONE} for name in gone]
    found = {
        "time": round(after.clock, 3),
        "seconds": after.at - before.at,
        "devices": devices,
        "lanes": lanes,
    }
    return found | ({"rx-threads": threads} if threads else {})


def _device(link: Link, before: Sample, after: Sample) -> dict[str, Any]:
    rate, source = _of_device(link, before, after)
    return present(
        {
            "name": link.name,
            "ifindex": link.ifindex,
            "state": link.state,
            "packets-per-second": rate,
            "queues-counted-by": source,
        }
    )


def _helpers(link: Link, before: Sample, after: Sample) -> Iterator[dict[str, Any]]:
    """Yield what each rx thread of a device did; flows and backlog are those of the end."""
    for helper in link.helpers:
        key, nothing = (link.ifindex, helper.number), helperrows.NOTHING
        last, pid = after.handled.get(key, nothing), helper.thread and helper.thread.pid
        span = after.at - before.at
        dropped, packets = helperrows.gained(before.handled.get(key, nothing), last, span)
        cpu = _gain(before.seconds, after.seconds, pid, span)
        yield present(
            {
                "device": link.name,
                "thread": helper.number,
                "packets-per-second": packets,
                "dropped-per-second": dropped,
                "backlog": last.backlog,
                "flows": last.flows,
                "cpu": None if cpu is None else min(cpu, 1.0),
            }
        )
