# SPDX-License-Identifier: GPL-2.0-or-later
"""The measured rows as text tables and as JSON. Pure."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any

from bench import scaling, seed001, seed004
from bench.goodput import Curve, Trip
from bench.scheduling import Shares
from bench.seed000 import FACTOR, FloodRow, SpareRow
from bench.seed001 import IrqRow
from bench.seed002 import Row
from bench.stats import Ratio, Summary
from bench.third import ThirdRow


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first column left, the others right aligned."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        padded = [row[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"


def thousands(value: Summary) -> str:
    return f"{value.median / 1000:.1f} ({value.low / 1000:.1f}..{value.high / 1000:.1f})"


def share(value: Summary) -> str:
    return f"{value.median:.0%} ({value.low:.0%}..{value.high:.0%})"


def times(value: Ratio) -> str:
    if math.isinf(value.median):
        return "all (softirq 0)"
    return f"×{value.median:.1f} ({value.low:.1f}..{value.high:.1f})"


def delta(gain: float) -> str:
    """A gain as the seed prints it: 1.83 is +83 %."""
    return f"{gain - 1:+.0%}"


def flood_table(rows: Sequence[FloodRow]) -> str:
    head = ("size/flows", "offered kpps", "softirq kpps", "threaded kpps", "ratio of medians",
            "as delta", "seed's delta", f"≥{FACTOR:g}")  # fmt: skip
    return text_table(
        head,
        [
            (
                f"{row.seed.size}/{row.seed.flows}",
                f"{row.offered / 1000:.0f}",
                thousands(row.softirq),
                thousands(row.threaded),
                times(row.gain),
                delta(row.gain.median),
                delta(row.seed.gain),
                "yes" if row.holds else "NO",
            )
            for row in rows
        ],
    )


def forwarding_table(rows: Sequence[Row]) -> str:
    head = ("direction, load, way", "kpps", "Mbit/s", "of RPS", "CPUs busy", "IPIs/1,000",
            "packets/batch", "packets/wakeup")  # fmt: skip
    return text_table(
        head,
        [
            (
                f"{row.direction}, {row.load}, {row.way.label}",
                thousands(row.rate),
                f"{row.bits.median / 1e6:.1f}",
                ""
                if row.of_rps is None
                else f"{row.of_rps.median:.2f} ({row.of_rps.low:.2f}..{row.of_rps.high:.2f})",
                f"{row.busy.median:.2f}",
                f"{row.ipis.median:.1f} ({row.ipis.low:.1f}..{row.ipis.high:.1f})",
                f"{row.batch.median:.1f}" if row.way.name == "rx" else "",
                f"{row.wake.median:.0f}" if row.way.name == "rx" else "",
            )
            for row in rows
        ],
    )


def scaling_table(rows: Sequence[scaling.Row]) -> str:
    head = ("direction, load, way", "instructions of the busiest CPU", "of all", "scales")

    def whole(value: Summary) -> str:
        return f"{value.median:.0f} ({value.low:.0f}..{value.high:.0f})"

    return text_table(
        head,
        [
            (
                f"{row.direction}, {row.load}, {row.way.label}",
                whole(row.busiest),
                whole(row.every),
                f"×{row.scales:.2f}",
            )
            for row in rows
        ],
    )


def steering_table(rows: Sequence[seed004.Row]) -> str:
    """Each ratio with the seed's own beside it."""
    seeds = seed004.seed_rows()
    head = ("load, way", "transactions/s", "of off", "of RPS", "CPUs busy",
            *(f"{name} µs" for name in seed004.LATENCIES))  # fmt: skip

    def beside(row: seed004.Row, found: Ratio, way: str) -> str:
        if row.way == way:
            return ""
        own = seeds[row.load, row.way].rate / seeds[row.load, way].rate
        return f"{found.median:.2f} ({found.low:.2f}..{found.high:.2f}; {own:.2f})"

    return text_table(
        head,
        [
            (
                f"{row.load}, {row.way}",
                f"{row.rate.median:.0f} ({row.rate.low:.0f}..{row.rate.high:.0f})",
                beside(row, row.of_off, "off"),
                beside(row, row.of_rps, "rps"),
                f"{row.busy.median:.2f}",
                *(f"{one.median:.0f} ({one.low:.0f}..{one.high:.0f})" for one in row.latency),
                *([""] * (len(seed004.LATENCIES) - len(row.latency))),
            )
            for row in rows
        ],
    )


def irq_table(rows: Sequence[IrqRow]) -> str:
    head = ("size/flows", "offered kpps", "hard kpps", "threaded IRQ kpps", "ratio of medians",
            "as delta", "seed's delta", "NAPI thread kpps", "IRQ of NAPI",
            f"≥{seed001.FACTOR:g}, ≥{seed001.OF_NAPI:g}")  # fmt: skip
    verdict = {None: "", True: "yes", False: "NO"}
    return text_table(
        head,
        [
            (
                f"{row.seed.size}/{row.seed.flows}",
                f"{row.offered / 1000:.0f}",
                thousands(row.hard),
                thousands(row.threaded),
                times(row.gain),
                delta(row.gain.median),
                delta(row.seed.gain),
                thousands(row.napi) if row.napi else "",
                f"{row.of_napi.median:.2f}" if row.of_napi else "",
                verdict[row.holds],
            )
            for row in rows
        ],
    )


def spare_table(rows: Sequence[SpareRow]) -> str:
    head = ("size/flows", "offered msg/s", "CPU left softirq", "CPU left threaded",
            "ratio of medians", "arrived softirq", "arrived threaded", "seed's delta")  # fmt: skip
    return text_table(
        head,
        [
            (
                f"{row.seed.size}/{row.seed.flows}",
                f"{row.offered:.0f}",
                share(row.softirq),
                share(row.threaded),
                times(row.gain),
                f"{row.arrived_softirq:.0%}",
                f"{row.arrived_threaded:.0%}",
                delta(row.seed.gain),
            )
            for row in rows
        ],
    )


def goodput_table(curves: Sequence[Curve]) -> str:
    head = ["offered kpps"]
    for curve in curves:
        head += [f"{curve.mode.label} kpps", "of peak", "of ideal"]
    rows = []
    for number, first in enumerate(curves[0].points):
        row = [f"{first.load / 1000:.0f}"]
        for curve in curves:
            here = curve.points[number]
            row += [thousands(here.goodput), f"{curve.over_peak(here):.2f}",
                    f"{curve.of_ideal(here):.2f}"]  # fmt: skip
        rows.append(row)
    return text_table(head, rows)


def trip_table(trips: Sequence[Trip]) -> str:
    head = ("mode", "beside", "p50 µs", "p99 µs", "lost")
    return text_table(
        head,
        [
            (
                trip.mode.label,
                "an endless computation" if trip.hog else "nothing",
                *(f"{s.median:.0f} ({s.low:.0f}..{s.high:.0f})" for s in (trip.p50, trip.p99)),
                str(trip.lost),
            )
            for trip in trips
        ],
    )


def third_table(rows: Sequence[ThirdRow]) -> str:
    head = ("size/flows", "softirq kpps", "guest threaded", "guest+host threaded",
            "guest", "seed", "guest+host", "seed")  # fmt: skip
    return text_table(
        head,
        [
            (
                f"{row.seed.size}/{row.seed.flows}",
                *(thousands(column) for column in row.columns),
                times(row.guest_gain),
                delta(row.seed.gain),
                times(row.both_gain),
                delta(row.seed.gain_both),
            )
            for row in rows
        ],
    )


def scheduling_table(rows: Sequence[Shares]) -> str:
    return text_table(
        ("polls in", "thread", "expected at most", "hog", "thread waits, µs"),
        [
            (
                row.policy.label,
                "none" if row.policy.expected is None else share(row.thread),
                "" if row.policy.expected is None else f"{row.policy.expected:.0%}",
                share(row.hog),
                "" if row.wait is None else thousands(row.wait),
            )
            for row in rows
        ],
    )


def plain(value: Any) -> Any:
    """Dataclasses, enums and tuples as JSON has them; an infinite ratio becomes null."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
