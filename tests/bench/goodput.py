# SPDX-License-Identifier: GPL-2.0-or-later
"""Goodput against offered load, 25 flows × 64 bytes, one virtual CPU, three polling modes.

A receiver without livelock delivers what is offered up to its capacity and holds that capacity
beyond it. Each point is therefore judged against the most it could be: the curve's own peak, or
the offered load where that is below the peak. The last load is the full flood (bench/flood.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.flood import Bench, Mode, Reading
from bench.seed000 import in_turn
from bench.stats import Summary, of_ideal, summary

FLOWS = 25
SIZE = 64
LOADS = (10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 140_000, 160_000, 200_000,
         240_000, 280_000)  # fmt: skip
QUICK_LOADS = (10_000, 40_000, 80_000, 160_000)
FLOOR = 0.9
Say = Callable[[str], None]
MODES = (Mode.SOFTIRQ, Mode.THREADED, Mode.NICE10)


@dataclass(frozen=True)
class Point:
    """One load of one curve, packets a second."""

    load: int
    offered: float
    goodput: Summary


@dataclass(frozen=True)
class Curve:
    mode: Mode
    points: tuple[Point, ...]

    @property
    def peak(self) -> float:
        return max(point.goodput.median for point in self.points)

    def over_peak(self, point: Point) -> float:
        return point.goodput.median / self.peak

    def of_ideal(self, point: Point) -> float:
        return of_ideal(point.goodput.median, point.offered, self.peak)

    @property
    def worst(self) -> float:
        return min(self.of_ideal(point) for point in self.points)


def point(load: int, read: list[Reading]) -> Point:
    return Point(
        load,
        summary([one.offered for one in read]).median,
        summary([one.carried for one in read]),
    )


def loads(full: int, quick: bool) -> list[int]:
    """Packets a second to offer, up to the full flood."""
    return [*(load for load in (QUICK_LOADS if quick else LOADS) if load < full), full]


def measure(bench: Bench, quick: bool, rounds: int, say: Say) -> list[Curve]:
    """Each round walks over every load and mode, so that a slow spell of the host, which may last
    a minute, falls into one round of many points and not into all rounds of one."""

    def run(where: tuple[int, Mode]) -> Reading:
        load, mode = where
        bench.set_mode(mode)
        read = bench.flood(FLOWS, SIZE, load)
        say(f"offered {load}, {mode.label}: {read.carried:.0f} carried")
        return read

    offered = loads(bench.full_rate(FLOWS, SIZE), quick)
    places = [(load, mode) for load in offered for mode in MODES]
    read = in_turn(places, rounds, run)
    return [Curve(mode, tuple(point(load, read[load, mode]) for load in offered)) for mode in MODES]
