# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 003: five rates and processing delays, five ways to poll, AF_XDP and UDP.

All times are rr.SCALE times the seed's; the share of its time that the client works (0, 75, 95,
96 and 94 %) is the seed's.

Checked, for each transport: with a blocking client, threaded busy-poll's p5 and p50 over those of
interrupts, as the geometric mean over the five pairs; and that of either all but UNANSWERED of the
requests of each pair were answered, without which there is nothing to compare. Tails and
SO_BUSY_POLL are reported.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rr import SCALE, Client, Load, Polling, Reading, Transport, Turn
from bench.stats import Ratio, Summary, ratio, summary, turns

SEED_TABLE = Path(__file__).with_name("seed003.txt")
ROUNDS = 9
SEEDS_POLLING = (Polling.INTERRUPTS, Polling.INLINE, Polling.OWN_THREAD, Polling.BUSY)
NAMES = ("p5", "p50", "p95", "p99")
P5, P50, P99 = 0, 1, 3
LIMITS = {P5: 0.8, P50: 0.95}
# Share of the requests. A client that has 4 % of its time to spare, and 0.3 s after its last
# request, misses more only where answers are lost or take much longer than the periods.
UNANSWERED = 0.1
COMPARED = (Polling.INTERRUPTS, Polling.BUSY)
HISTOGRAM_PAIR = (32_000, 30)
Say = Callable[[str], None]
Percentiles = tuple[float, ...]  # as NAMES has them, ns


@dataclass(frozen=True)
class Pair:
    """A row of the seed: packets a second, delay in µs, and its percentiles by way of polling."""

    rate: int
    delay_us: int
    seed: dict[Polling, Percentiles]

    @property
    def label(self) -> str:
        return f"{self.rate / 1000:g}K/{self.delay_us} µs"

    @property
    def load(self) -> Load:
        """What is asked of our client."""
        return Load(round(SCALE * 1_000_000 / self.rate), SCALE * self.delay_us)


def answered(runs: Sequence[Reading]) -> float:
    """Share of the requests."""
    return sum(one.received for one in runs) / sum(one.sent for one in runs)


@dataclass(frozen=True)
class Row:
    """One pair by one transport; run i of every way of polling stems from round i."""

    pair: Pair
    transport: Transport
    read: dict[Polling, list[Reading]]

    def values(self, polling: Polling, which: int) -> list[float]:
        return [one.percentiles[which] for one in self.read[polling]]

    def summary(self, polling: Polling, which: int) -> Summary:
        return summary(self.values(polling, which))

    def over_interrupts(self, polling: Polling, which: int) -> Ratio:
        return ratio(self.values(polling, which), self.values(Polling.INTERRUPTS, which))

    def answered(self, polling: Polling) -> float:
        return answered(self.read[polling])


@dataclass(frozen=True)
class Bar:
    """A figure that is checked."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def data_lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def parse_pair(where: str, figures: Sequence[str]) -> Pair:
    """``where`` is RATE/DELAY. ValueError unless each way of polling has all percentiles."""
    rate, delay = (int(part) for part in where.split("/"))
    each = len(NAMES)
    if len(figures) != each * len(SEEDS_POLLING):
        raise ValueError(f"{where}: {len(figures)} figures, not {each * len(SEEDS_POLLING)}")
    seed = {
        polling: tuple(float(figure) for figure in figures[each * at : each * (at + 1)])
        for at, polling in enumerate(SEEDS_POLLING)
    }
    return Pair(rate, delay, seed)


def parse(text: str) -> tuple[list[Pair], dict[int, int]]:
    """The pairs of seed003.txt, and its recvfrom times: {from ns: calls}. ValueError."""
    lines = data_lines(text)
    pairs = [parse_pair(where, rest) for where, *rest in lines if where != "recvfrom"]
    times = {int(rest[0]): int(rest[1]) for where, *rest in lines if where == "recvfrom"}
    return pairs, times


def seed_pairs(quick: bool) -> list[Pair]:
    """All pairs; quick takes the lightest, the fastest and one that leaves little time."""
    pairs, _times = parse(SEED_TABLE.read_text())
    return pairs[:3] if quick else pairs


def seed_times() -> dict[int, int]:
    """The seed's recvfrom times {from ns: calls}."""
    _pairs, times = parse(SEED_TABLE.read_text())
    return times


def grouped(order: Sequence[Turn], readings: Iterable[Reading]) -> dict[Polling, list[Reading]]:
    """Readings by their way of polling, each in the order of its runs."""
    read: dict[Polling, list[Reading]] = {turn.polling: [] for turn in order}
    for turn, one in zip(order, readings, strict=True):
        read[turn.polling].append(one)
    return read


def measure(client: Client, pairs: Sequence[Pair], rounds: int, say: Say) -> list[Row]:
    """Every pair by both transports; the ways of polling alternate. TurnFailed."""
    rows = []
    for transport in Transport:
        for pair in pairs:
            order = [Turn(polling, transport, pair.load) for polling in turns([*Polling], rounds)]
            row = Row(pair, transport, grouped(order, client.run(order)))
            rows.append(row)
            p5, p50 = (row.over_interrupts(Polling.BUSY, which).median for which in (P5, P50))
            say(f"{transport.value} {pair.label}: busy-poll's p5 {p5:.2f}, p50 {p50:.2f} "
                "of interrupts'")  # fmt: skip
    return rows


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Threaded busy-poll against interrupts, by transport, and what was not answered."""
    ratios = [
        Bar(
            f"{transport.value} {NAMES[which]} of threaded busy-poll over interrupts",
            statistics.geometric_mean(
                row.over_interrupts(Polling.BUSY, which).median
                for row in rows
                if row.transport is transport
            ),
            limit,
        )
        for transport in Transport
        for which, limit in LIMITS.items()
    ]
    shares = [row.answered(polling) for row in rows for polling in COMPARED]
    return [*ratios, unanswered(shares)]


def unanswered(shares: Sequence[float]) -> Bar:
    """Of the shares that were answered, the least."""
    return Bar("share of a pair's requests without an answer", 1 - min(shares), UNANSWERED)


def recv_times(rows: Sequence[Row]) -> dict[int, int]:
    """recvfrom calls {from ns: calls} of SO_BUSY_POLL by AF_XDP at HISTOGRAM_PAIR."""
    calls: dict[int, int] = {}
    for row in rows:
        if row.transport is Transport.XDP and (row.pair.rate, row.pair.delay_us) == HISTOGRAM_PAIR:
            for one in row.read[Polling.INLINE]:
                for power, count in enumerate(one.recv_log2):
                    if count:
                        calls[1 << power] = calls.get(1 << power, 0) + count
    return calls
