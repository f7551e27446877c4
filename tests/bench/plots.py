# SPDX-License-Identifier: GPL-2.0-or-later
"""One plot a table, as PNG and SVG beside the JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.goodput import Curve
from bench.rr import Polling, Transport
from bench.scheduling import Shares
from bench.seed000 import FACTOR, FloodRow, SpareRow
from bench.seed001 import IrqRow
from bench.seed003 import P5, P50, P99, Row
from bench.stats import Summary
from bench.third import COLUMNS, ThirdRow

# From the Okabe-Ito palette: told apart with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000")


def figure(rows: int = 1) -> tuple[Any, Any]:
    """A figure of ``rows`` panels drawn without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, 1, figsize=(11, 4 * rows), constrained_layout=True)


def save(drawn: Any, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        drawn.savefig(path, dpi=120)
    return paths


def bars(axes: Any, labels: Sequence[str], series: Sequence[tuple[str, list[Summary]]],
         scale: float) -> None:  # fmt: skip
    """Grouped bars of the medians with the range of the runs as error bars."""
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series):
        medians = [value.median / scale for value in values]
        below = [(value.median - value.low) / scale for value in values]
        above = [(value.high - value.median) / scale for value in values]
        places = [index + (number + 0.5) * width - 0.4 for index in range(len(values))]
        axes.bar(places, medians, width, yerr=(below, above), label=name, color=COLOURS[number],
                 error_kw={"linewidth": 0.8})  # fmt: skip
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right")
    axes.legend()


def plot_000(floods: Sequence[FloodRow], spares: Sequence[SpareRow], stem: Path) -> list[Path]:
    drawn, (full, spare) = figure(2)
    bars(full, [f"{row.seed.size}/{row.seed.flows}" for row in floods],
         [("softirq", [row.softirq for row in floods]),
          ("threaded", [row.threaded for row in floods])], 1000)  # fmt: skip
    full.set(title=f"Full UDP flood, one virtual CPU (threaded must reach {FACTOR:g} × softirq)",
             ylabel="kpps at the application", xlabel="message size / flows")  # fmt: skip
    bars(spare, [f"{row.seed.size}/{row.seed.flows}" for row in spares],
         [("softirq", [row.softirq for row in spares]),
          ("threaded", [row.threaded for row in spares])], 0.01)  # fmt: skip
    spare.set(title="Messages above the MTU, offered at the rate softirq mode just carries",
              ylabel="% of the CPU left", xlabel="message size / flows")  # fmt: skip
    return save(drawn, stem)


def plot_001(rows: Sequence[IrqRow], cpus: int, stem: Path) -> list[Path]:
    drawn, axes = figure()
    bars(axes, [f"{row.seed.size}/{row.seed.flows}" for row in rows],
         [("hard interrupt", [row.hard for row in rows]),
          ("threaded interrupt", [row.threaded for row in rows])], 1000)  # fmt: skip
    axes.set(title=f"Full UDP flood, virtual CPUs: {cpus}", ylabel="kpps at the application",
             xlabel="message size / flows")  # fmt: skip
    return save(drawn, stem)


def plot_goodput(curves: Sequence[Curve], name: str, stem: Path) -> list[Path]:
    drawn, axes = figure()
    for curve, colour in zip(curves, COLOURS, strict=False):
        offered = [point.offered / 1000 for point in curve.points]
        axes.plot(offered, [curve.over_peak(point) for point in curve.points], "o-", color=colour,
                  label=f"{curve.mode.label} (peak {curve.peak / 1000:.0f} kpps)")  # fmt: skip
    axes.axhline(0.9, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        title=f"Goodput over its own peak, {name}, one virtual CPU",
        xlabel="offered kpps",
        ylabel="goodput / peak",
        xscale="log",
        ylim=(0, 1.05),
    )
    axes.legend()
    return save(drawn, stem)


def plot_third(rows: Sequence[ThirdRow], stem: Path) -> list[Path]:
    drawn, axes = figure()
    bars(axes, [f"{row.seed.size}/{row.seed.flows}" for row in rows],
         [(label, [row.columns[number] for row in rows])
          for number, (label, _, _) in enumerate(COLUMNS)], 1000)  # fmt: skip
    axes.set(title="Flood by way of a veth pair with GRO (host's stock kernel), one virtual CPU",
             ylabel="kpps at the application", xlabel="message size / flows")  # fmt: skip
    return save(drawn, stem)


def plot_scheduling(rows: Sequence[Shares], stem: Path) -> list[Path]:
    drawn, axes = figure()
    bars(axes, [row.policy.label for row in rows],
         [("thread", [row.thread for row in rows]),
          ("hog of nice 0", [row.hog for row in rows])], 0.01)  # fmt: skip
    axes.set(title="Full flood and a CPU hog on one virtual CPU", ylabel="% of the CPU")
    return save(drawn, stem)


def spread(row: Row, polling: Polling) -> Summary:
    """The p50 with p5 and p99 as its range, each the median of the runs."""
    low, middle, high = (row.summary(polling, which).median for which in (P5, P50, P99))
    return Summary(middle, low, high, len(row.read[polling]))


def plot_003(rows: Sequence[Row], stem: Path) -> list[Path]:
    drawn, panels = figure(len(Transport))
    for transport, axes in zip(Transport, panels, strict=True):
        own = [row for row in rows if row.transport is transport]
        bars(axes, [row.pair.label for row in own],
             [(polling.label, [spread(row, polling) for row in own]) for polling in Polling],
             1000)  # fmt: skip
        axes.set(
            title=f"Round trips by {transport.value}: p50, with p5 and p99 as the range",
            ylabel="µs",
            yscale="log",
            xlabel="packets a second / delay of the seed",
        )
    return save(drawn, stem)
