# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 002: how forwarding scales, by the instructions of the busiest CPU a packet.

Two host cores run all of the guest's CPUs, so that a rate does not grow with them. Were each a core
of its own, the one that has most to do for a packet would set the rate: here its instructions are
counted (lab.counted), at rates that lose nothing, with nothing to pass and with a list of rules.
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product

from bench import flood, seed002
from bench.flood import Bench
from bench.seed000 import in_turn
from bench.seed002 import DIRECTIONS, SCRIPT, WAYS, NothingArrived, Offered, Say, Way
from bench.stats import Summary, quotient, summary

LOADS = {"routing": Offered(12_000), "rules": Offered(6_000, seed002.RULES)}
# The guest counts packets for so long, and in the middle of it instructions are counted.
PACKETS_MS, SKIP_S, COUNT_S = 9000, 4.0, 4.0
MOST_LOST = 0.02  # of what was taken in; the CPUs were to have time for all
ROUNDS = 3


@dataclass(frozen=True)
class Spent:
    """Instructions a forwarded packet: of the busiest CPU, and of all."""

    busiest: float
    every: float


@dataclass(frozen=True)
class Row:
    """scales: how many times the packets of the way `off` the busiest CPU would have time for."""

    direction: str
    load: str
    way: Way
    busiest: Summary
    every: Summary
    scales: float


def spent(first: Sequence[int], last: Sequence[int], seconds: float, rate: float) -> Spent:
    """Of the counts of each CPU, so many seconds apart, at packets a second."""
    each = [(b - a) / seconds / rate for a, b in zip(first, last, strict=True)]
    return Spent(max(each), sum(each))


def rows(direction: str, load: str, read: dict[Way, list[Spent]]) -> list[Row]:
    """The rows of one direction and load, in the order of WAYS."""
    busiest = {way: summary([run.busiest for run in runs]) for way, runs in read.items()}
    alone = busiest[WAYS[0]].median
    return [
        Row(
            direction,
            load,
            way,
            busiest[way],
            summary([run.every for run in runs]),
            quotient(alone, busiest[way].median),
        )
        for way, runs in read.items()
    ]


def window(bench: Bench, way: Way, wanted: Sequence[tuple[str, str]]) -> Spent:
    """Of what is under way over these pairs of devices. NothingArrived where it is not all."""
    argv = ["python3", f"{flood.REMOTE}/{SCRIPT.name}", way.name, way.list, str(PACKETS_MS)]
    guest = bench.guest
    with ThreadPoolExecutor(1) as other:
        done = other.submit(guest.run, [*argv, *(":".join(pair) for pair in wanted)], 120)
        time.sleep(SKIP_S)
        start, first = time.monotonic(), guest.instructions()
        time.sleep(COUNT_S)
        last, seconds = guest.instructions(), time.monotonic() - start
        told = json.loads(done.result().stdout)
    run = seed002.seen(told)
    if run.rate < (1 - MOST_LOST) * run.taken:
        raise NothingArrived(f"{way.label}: {run.rate:.0f} of {run.taken:.0f} packets a second")
    return spent(first, last, seconds, run.rate)


def measure(bench: Bench, quick: bool, rounds: int, say: Say) -> list[Row]:
    """In one direction and, unless quick, in both. NothingArrived, CommandFailed."""
    seed002.set_up(bench)
    found: list[Row] = []
    for direction, load in product(DIRECTIONS[: 1 if quick else None], LOADS):
        wanted = seed002.lines(bench, both=direction == "both")
        for line in wanted:
            seed002.lead(bench.guest, line)
        offered = LOADS[load]
        with seed002.ruled(bench.guest, wanted, offered.rules):
            run = partial(_run, bench, wanted, offered.rate, f"{direction}, {load}", say)
            found += rows(direction, load, in_turn(WAYS, min(rounds, ROUNDS), run))
    return found


def _run(
    bench: Bench, wanted: Sequence[seed002.Line], rate: int, label: str, say: Say, way: Way
) -> Spent:
    with seed002.flooded(bench, wanted, rate) as pairs:
        one = window(bench, way, pairs)
    say(f"{label}, {way.label}: {one.busiest:.0f} instructions a packet of {one.every:.0f}")
    return one
