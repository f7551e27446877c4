# SPDX-License-Identifier: GPL-2.0-or-later
"""Threaded busy-poll on 6.12 with our series against stock 7.2, which has it of its own.

Both guests are booted; they take turns, and the one whose turn it is not stands still (its clocks
too), so both have the same host in the same minutes. Checked: the p50 of ours over that of 7.2, as
the geometric mean over the pairs of seed 003; and that either answered, as there.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.rr import Client, Polling, Reading, Transport, Turn
from bench.seed003 import NAMES, P50, Bar, Pair, answered, unanswered
from bench.stats import Ratio, Summary, ratio, summary, turns
from lab.monitor import held

ROUNDS = 5
LIMIT = 1.1
OURS, STOCK = "6.12 ours", "7.2 stock"
Say = Callable[[str], None]


@dataclass(frozen=True)
class BaseRow:
    """One pair by one transport, readings by kernel; run i of both stems from round i."""

    pair: Pair
    transport: Transport
    read: dict[str, list[Reading]]

    def values(self, kernel: str, which: int) -> list[float]:
        return [one.percentiles[which] for one in self.read[kernel]]

    def summary(self, kernel: str, which: int) -> Summary:
        return summary(self.values(kernel, which))

    def ours_over_stock(self, which: int) -> Ratio:
        return ratio(self.values(OURS, which), self.values(STOCK, which))


def measure(
    ours: Client, stock: Client, pairs: Sequence[Pair], rounds: int, say: Say
) -> list[BaseRow]:
    """Each kernel runs all pairs by both transports a turn. TurnFailed."""
    clients = {OURS: (ours, stock), STOCK: (stock, ours)}
    rows = [
        BaseRow(pair, transport, {OURS: [], STOCK: []}) for transport in Transport for pair in pairs
    ]
    order = [Turn(Polling.BUSY, row.transport, row.pair.load) for row in rows]
    for kernel in turns([OURS, STOCK], rounds):
        client, other = clients[kernel]
        with held(other.guest.folder):
            readings = client.run(order)
        for row, one in zip(rows, readings, strict=True):
            row.read[kernel].append(one)
        middle = statistics.geometric_mean(one.p50 for one in readings)
        say(f"bases, {kernel}: p50 {middle / 1000:.0f} µs over all pairs")
    return rows


def bars(rows: Sequence[BaseRow]) -> list[Bar]:
    middle = Bar(
        f"threaded busy-poll, {NAMES[P50]} of {OURS} over {STOCK}",
        statistics.geometric_mean(row.ours_over_stock(P50).median for row in rows),
        LIMIT,
    )
    return [middle, unanswered([answered(runs) for row in rows for runs in row.read.values()])]
