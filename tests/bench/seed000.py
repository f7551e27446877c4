# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 000: message sizes × flow counts, the guest's NIC polled in softirq and threaded in turn.

Rows whose message fits the MTU are flooded at full rate: threaded must bring the application at
least FACTOR times softirq's packets. A larger message is lost with any one of its fragments, so
under full flood neither mode delivers; there the CPU that the network leaves to an application is
read instead, at the offered rate that softirq mode just carries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from bench.flood import Bench, Mode, Reading
from bench.stats import Ratio, Summary, just_carried, ratio, summary, turns

SEED_TABLE = Path(__file__).with_name("seed000.txt")
MTU = 1500
HEADERS = 28  # IPv4 and UDP
FACTOR = 3.0
# The part of what is offered that threaded mode must bring: many times nothing is no gain.
LEAST = 0.02
SEARCH_START = 2000.0  # messages a second
SEARCH_MS = 1000
A_AND_B = (Mode.SOFTIRQ, Mode.THREADED)
Say = Callable[[str], None]
P = TypeVar("P")
R = TypeVar("R")
Kind = TypeVar("Kind", bound="Row")


@dataclass(frozen=True)
class Row:
    """One row of a seed's table, in thousands of packets a second."""

    size: int
    flows: int
    vanilla: float
    threaded: float

    @property
    def fits(self) -> bool:
        return self.size + HEADERS <= MTU

    @property
    def gain(self) -> float:
        return self.threaded / self.vanilla


@dataclass(frozen=True)
class SeedRow(Row):
    """With a third column, where the hypervisor is threaded too."""

    both: float

    @property
    def gain_both(self) -> float:
        return self.both / self.vanilla


@dataclass(frozen=True)
class FloodRow:
    """Full flood: application packets a second."""

    seed: SeedRow
    softirq: Summary
    threaded: Summary
    gain: Ratio
    offered: float

    @property
    def holds(self) -> bool:
        return self.gain.median >= FACTOR and self.threaded.median >= LEAST * self.offered


@dataclass(frozen=True)
class SpareRow:
    """At the rate softirq just carries: CPU left to an application, as a share of one CPU."""

    seed: SeedRow
    offered: float
    softirq: Summary
    threaded: Summary
    gain: Ratio
    arrived_softirq: float
    arrived_threaded: float


def rows_of(text: str, kind: type[Kind]) -> list[Kind]:
    """Rows of a table such as seed000.txt. ValueError on a malformed one."""
    columns = len(fields(kind)) - len(("size", "flows"))
    rows = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        where, *figures = line.split()
        if len(figures) != columns:
            raise ValueError(f"{columns} figures expected: {line}")
        size, flows = (int(part) for part in where.split("/"))
        rows.append(kind(size, flows, *(float(figure) for figure in figures)))
    return rows


def seed_rows(quick: bool) -> list[SeedRow]:
    """All rows; quick takes the ends and the middle of sizes and flow counts."""
    rows = rows_of(SEED_TABLE.read_text(), SeedRow)
    if quick:
        return [row for row in rows if row.size in (64, 1438, 4096) and row.flows in (1, 25, 200)]
    return rows


def in_turn(places: Sequence[P], rounds: int, run: Callable[[P], R]) -> dict[P, list[R]]:
    """The readings at each place, such as a mode; run i of every place stems from round i."""
    read: dict[P, list[R]] = {place: [] for place in places}
    for place in turns(places, rounds):
        read[place].append(run(place))
    return read


def flood_row(bench: Bench, row: SeedRow, rounds: int) -> FloodRow:
    def run(mode: Mode) -> Reading:
        bench.set_mode(mode)
        return bench.flood(row.flows, row.size, rate)

    rate = bench.full_rate(row.flows, row.size)
    read = in_turn(A_AND_B, rounds, run)
    softirq, threaded = ([r.carried for r in read[mode]] for mode in A_AND_B)
    offered = summary([r.offered for mode in A_AND_B for r in read[mode]]).median
    return FloodRow(row, summary(softirq), summary(threaded), ratio(threaded, softirq), offered)


def spare_row(bench: Bench, row: SeedRow, rounds: int) -> SpareRow:
    def carried(rate: float) -> float:
        return bench.flood(row.flows, row.size, rate, spin=True, window_ms=SEARCH_MS).share

    def run(mode: Mode) -> Reading:
        bench.set_mode(mode)
        return bench.flood(row.flows, row.size, offered, spin=True)

    bench.set_mode(Mode.SOFTIRQ)
    whole = bench.idle_spin()
    offered = just_carried(carried, SEARCH_START)
    read = in_turn(A_AND_B, rounds, run)
    softirq, threaded = ([r.spun / whole for r in read[mode]] for mode in A_AND_B)
    arrived = [summary([r.share for r in read[mode]]).median for mode in A_AND_B]
    return SpareRow(
        row, offered, summary(softirq), summary(threaded), ratio(threaded, softirq), *arrived
    )


def measure(
    bench: Bench, rows: Sequence[SeedRow], rounds: int, say: Say
) -> tuple[list[FloodRow], list[SpareRow]]:
    """All rows in order; one progress line a row."""
    floods: list[FloodRow] = []
    spares: list[SpareRow] = []
    for row in rows:
        if row.fits:
            done = flood_row(bench, row, rounds)
            floods.append(done)
            say(
                f"{row.size}/{row.flows}: threaded {done.gain.median:.1f} times softirq "
                f"under {done.offered:.0f} messages/s"
            )
        else:
            left = spare_row(bench, row, rounds)
            spares.append(left)
            say(
                f"{row.size}/{row.flows}: at {left.offered:.0f} messages/s "
                f"{left.softirq.median:.0%} of the CPU left in softirq, "
                f"{left.threaded.median:.0%} threaded"
            )
    return floods, spares
