# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables `003` and `bases` as text. Pure."""

from collections.abc import Mapping, Sequence

from bench.bases import OURS, STOCK, BaseRow
from bench.rr import Polling
from bench.seed003 import NAMES, P5, P50, Bar, Row
from bench.stats import Ratio, Summary
from bench.tables import text_table


def micro(value: Summary) -> str:
    return f"{value.median / 1000:.0f}"


def ranged(value: Summary) -> str:
    return f"{value.median / 1000:.0f} ({value.low / 1000:.0f}..{value.high / 1000:.0f})"


def over(value: Ratio) -> str:
    return f"{value.median:.2f} ({value.low:.2f}..{value.high:.2f})"


def seeds(row: Row, polling: Polling) -> list[str]:
    """The seed's percentiles in µs and its p50 over interrupts'; blanks where it has none."""
    if polling not in row.pair.seed:
        return ["", ""]
    figures = row.pair.seed[polling]
    ratio = figures[P50] / row.pair.seed[Polling.INTERRUPTS][P50]
    return ["/".join(f"{figure / 1000:.1f}" for figure in figures), f"{ratio:.2f}"]


def row_table(rows: Sequence[Row]) -> str:
    head = ("pair", "polling", "p5", "p50", "p95", "p99", "answered", "p5/interrupts",
            "p50/interrupts", "seed's p5/p50/p95/p99", "its p50/int.")  # fmt: skip
    lines = []
    for row in rows:
        for polling in Polling:
            middle = [row.summary(polling, which) for which in range(len(NAMES))]
            lines.append(
                [f"{row.transport.value} {row.pair.label}", polling.label, micro(middle[P5]),
                 ranged(middle[P50]), *(micro(tail) for tail in middle[P50 + 1 :]),
                 f"{row.answered(polling):.1%}", over(row.over_interrupts(polling, P5)),
                 over(row.over_interrupts(polling, P50)), *seeds(row, polling)]
            )  # fmt: skip
    return text_table(head, lines)


def bar_table(bars: Sequence[Bar]) -> str:
    return text_table(
        ("figure", "ours", "at most", "holds"),
        [(bar.name, f"{bar.value:.3f}", f"{bar.limit:g}", "yes" if bar.holds else "NO")
         for bar in bars],
    )  # fmt: skip


def recv_table(ours: Mapping[int, int], seed: Mapping[int, int]) -> str:
    """Calls by their time, [from, twice from) ns, and their shares."""
    lines = []
    for start in sorted({*ours, *seed}):
        line = [f"{start}..{2 * start}"]
        for calls in (ours, seed):
            count = calls.get(start, 0)
            line += [str(count), f"{count / (sum(calls.values()) or 1):.2%}"]
        lines.append(line)
    return text_table(("ns", "calls", "share", "seed's calls", "share"), lines)


def base_table(rows: Sequence[BaseRow]) -> str:
    head = ["pair"]
    for kernel in (OURS, STOCK):
        head += [f"{kernel} {name}" for name in NAMES]
    head += ["p5 ratio", "p50 ratio"]
    return text_table(
        head,
        [
            [f"{row.transport.value} {row.pair.label}",
             *(micro(row.summary(kernel, which))
               for kernel in (OURS, STOCK) for which in range(len(NAMES))),
             over(row.ours_over_stock(P5)), over(row.ours_over_stock(P50))]
            for row in rows
        ],
    )  # fmt: skip
