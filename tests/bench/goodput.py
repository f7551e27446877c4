# SPDX-License-Identifier: GPL-2.0-or-later
"""Goodput against offered load, 1 and 25 flows × 64 bytes, one virtual CPU, three polling modes.

A receiver without livelock delivers what is offered up to its capacity and holds that capacity
beyond it. Each point is therefore judged against the most it could be: the curve's own peak, or
the offered load where that is below the peak. The last load is the full flood (bench/flood.py).

Each flow has a process of its own that receives it. One process has half of the CPU beside a thread
of its level, which is less than it needs for all that the thread brings; of 25 the thread is one
among many. So it is with one flow that yielding must bring more.

What a thread that yields to applications costs is latency, so round trips at a low load stand
beside: on an idle guest, and with an application of nice 0 that computes without end.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.flood import GUEST_ADDRESS, REMOTE, Bench, Mode, Reading
from bench.seed000 import in_turn
from bench.stats import Summary, of_ideal, quotient, summary

ALONE = 1
FLOWS = (ALONE, 25)
SIZE = 64
LOADS = (10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 140_000, 160_000, 200_000,
         240_000, 280_000)  # fmt: skip
QUICK_LOADS = (10_000, 40_000, 80_000, 160_000)
FLOOR = 0.9
GAIN = 1.2  # of the thread that yields over one that does not, one flow at full flood
ECHO_PORT, TRIPS, GAP_US, LOST_MS = 6500, 400, 2000, 500
HOG = "rxlane-bench-hog"
PID = "/run/udpecho.pid"
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


@dataclass(frozen=True)
class Trip:
    """Round trips of one mode in µs, runs of one kind; hog: beside one. lost: of all runs."""

    mode: Mode
    hog: bool
    p50: Summary
    p99: Summary
    lost: int


def gain(curves: Sequence[Curve]) -> float:
    """What the application gets at full flood with the thread at nice 10, over nice 0."""
    last = {curve.mode: curve.points[-1].goodput.median for curve in curves}
    return quotient(last[Mode.NICE10], last[Mode.THREADED])


def point(load: int, read: list[Reading]) -> Point:
    return Point(
        load,
        summary([one.offered for one in read]).median,
        summary([one.carried for one in read]),
    )


def loads(full: int, quick: bool) -> list[int]:
    """Packets a second to offer, up to the full flood."""
    return [*(load for load in (QUICK_LOADS if quick else LOADS) if load < full), full]


def measure(bench: Bench, flows: int, quick: bool, rounds: int, say: Say) -> list[Curve]:
    """Each round walks over every load and mode, so that a slow spell of the host, which may last
    a minute, falls into one round of many points and not into all rounds of one."""

    def run(where: tuple[int, Mode]) -> Reading:
        load, mode = where
        bench.set_mode(mode)
        read = bench.flood(flows, SIZE, load)
        say(f"{flows} flows, offered {load}, {mode.label}: {read.carried:.0f} carried")
        return read

    offered = loads(bench.full_rate(flows, SIZE), quick)
    places = [(load, mode) for load in offered for mode in MODES]
    read = in_turn(places, rounds, run)
    return [Curve(mode, tuple(point(load, read[load, mode]) for load in offered)) for mode in MODES]


def low_load(bench: Bench, rounds: int, say: Say) -> list[Trip]:
    """Round trips in every mode by turns, without and with a hog."""
    found: list[Trip] = []
    with _answering(bench):
        for hog in (False, True):
            with _computing(bench) if hog else nullcontext():
                read = in_turn(list(MODES), rounds, lambda mode: _trips(bench, mode))
            found += [_trip(mode, hog, read[mode]) for mode in MODES]
            say(f"round trips {'beside a hog' if hog else 'on an idle guest'}: done")
    return found


def _trip(mode: Mode, hog: bool, read: list[dict[str, Any]]) -> Trip:
    p50, p99 = (summary([one["rtt_ns"][name] / 1000 for one in read]) for name in ("p50", "p99"))
    return Trip(mode, hog, p50, p99, sum(one["lost"] for one in read))


def _trips(bench: Bench, mode: Mode) -> dict[str, Any]:
    bench.set_mode(mode)
    done = bench.guest.host(
        [str(bench.built["udpecho"]), "--to", GUEST_ADDRESS, "--port", str(ECHO_PORT),
         "--count", str(TRIPS), "--gap-us", str(GAP_US), "--timeout-ms", str(LOST_MS)]
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _answering(bench: Bench) -> Iterator[None]:
    serve = ["--serve", "--port", str(ECHO_PORT), "--background", PID]
    bench.guest.run([f"{REMOTE}/udpecho", *serve])
    try:
        yield
    finally:
        bench.guest.run(["kill", bench.guest.read(PID).decode().strip()])


@contextmanager
def _computing(bench: Bench) -> Iterator[None]:
    start = ["systemd-run", "--quiet", "--collect", f"--unit={HOG}"]
    bench.guest.run([*start, "sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        bench.guest.run(["systemctl", "kill", "--signal=KILL", HOG])
