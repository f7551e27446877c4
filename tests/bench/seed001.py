# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 001: message sizes × flow counts, interrupts of the guest's NIC hard and threaded in turn.

A full flood of each row. Rows of DEMANDED_SIZE and at least DEMANDED_FLOWS have a thread of the
NAPI take its turn as well. In a guest of one CPU a threaded interrupt must bring the application
there at least FACTOR times what hard ones do, and at least OF_NAPI of what the NAPI's thread does.
In one of SEED_CPUS, as the seed's was, the application has a CPU that the flood leaves alone, and
nothing is demanded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.flood import Bench, Mode, Reading
from bench.seed000 import Row, in_turn, rows_of
from bench.stats import Ratio, Summary, ratio, summary

SEED_TABLE = Path(__file__).with_name("seed001.txt")
FACTOR, OF_NAPI = 3.0, 0.9
DEMANDED_SIZE, DEMANDED_FLOWS = 64, 25
SEED_CPUS = 2
Say = Callable[[str], None]


@dataclass(frozen=True)
class IrqRow:
    """Full flood of so many virtual CPUs: what the application receives, packets a second.

    ``napi`` and ``of_napi`` where the NAPI's thread takes its turn.
    """

    seed: Row
    cpus: int
    offered: float
    hard: Summary
    threaded: Summary
    gain: Ratio
    napi: Summary | None
    of_napi: Ratio | None

    @property
    def holds(self) -> bool | None:
        """None where nothing is demanded."""
        if self.of_napi is None or self.cpus > 1:
            return None
        return self.gain.median >= FACTOR and self.of_napi.median >= OF_NAPI


def demanded(row: Row) -> bool:
    return row.size == DEMANDED_SIZE and row.flows >= DEMANDED_FLOWS


def seed_rows(quick: bool) -> list[Row]:
    """All rows; quick takes what is demanded of few flows, the seed's loss, and the ends."""
    rows = rows_of(SEED_TABLE.read_text(), Row)
    if quick:
        return [row for row in rows if row.flows in (1, 25) and row.size in (64, 256, 1400)]
    return rows


def irq_row(bench: Bench, row: Row, rounds: int) -> IrqRow:
    def run(mode: Mode) -> Reading:
        bench.set_mode(mode)
        return bench.flood(row.flows, row.size, rate)

    modes = [Mode.SOFTIRQ, Mode.IRQ] + ([Mode.THREADED] if demanded(row) else [])
    rate = bench.full_rate(row.flows, row.size)
    read = in_turn(modes, rounds, run)
    carried = {mode: [reading.carried for reading in read[mode]] for mode in modes}
    hard, threaded, napi = (carried.get(m) for m in (Mode.SOFTIRQ, Mode.IRQ, Mode.THREADED))
    assert hard and threaded
    offered = summary([reading.offered for mode in modes for reading in read[mode]]).median
    return IrqRow(
        row, bench.guest.spec.cpus, offered, summary(hard), summary(threaded),
        ratio(threaded, hard),
        summary(napi) if napi else None, ratio(threaded, napi) if napi else None,
    )  # fmt: skip


def measure(bench: Bench, rows: Sequence[Row], rounds: int, say: Say) -> list[IrqRow]:
    """All rows in order; one progress line a row."""
    done: list[IrqRow] = []
    for row in rows:
        done.append(irq_row(bench, row, rounds))
        say(
            f"{row.size}/{row.flows}: threaded {done[-1].gain.median:.1f} times hard interrupts "
            f"under {done[-1].offered:.0f} messages/s"
        )
    bench.set_mode(Mode.SOFTIRQ)
    return done
