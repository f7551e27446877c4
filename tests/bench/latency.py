# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables `003` and `bases`: their guests, where these run, what is shown and checked."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench import bases, latency_tables, plots, seed003
from bench.placement import lanes_placed, qemu_of
from bench.report import OUT, Report, say, show
from bench.rr import POLLED_CPU, SCALE, SPEC, Client, TurnFailed
from bench.tables import plain
from lab.kernel import KernelImage
from lab.monitor import held, virtual_cpus
from lab.vm import Guest

QUICK_ROUNDS = 3


@contextmanager
def clients(kernels: Sequence[KernelImage], table: str, report: Report) -> Iterator[list[Client]]:
    """A booted and placed guest for each kernel; each boots alone. Splat at the end."""
    with ExitStack() as stack:
        guests: list[Guest] = []
        for kernel in kernels:
            with ExitStack() as boot:
                for other in guests:
                    boot.enter_context(held(other.folder))
                guests.append(stack.enter_context(Guest(kernel, SPEC)))
        places = [(qemu_of(guest.folder), virtual_cpus(guest.folder)) for guest in guests]
        words = stack.enter_context(lanes_placed(places, POLLED_CPU))
        names = ", ".join(kernel.name for kernel in kernels)
        report.conditions[table] = f"{names}; {guests[0].accel}; {SPEC.extra_cmdline}; {words}"
        say(words)
        yield [stack.enter_context(Client(guest)) for guest in guests]
        for guest in guests:
            guest.check_splats()


def check(bar: seed003.Bar, table: str, report: Report) -> None:
    if not bar.holds:
        report.missed.append(f"{table} {bar.name}: {bar.value:.2f}, not {bar.limit:g}")


def table_003(kernel: KernelImage, quick: bool, rounds: int | None, report: Report) -> None:
    rounds = rounds or (QUICK_ROUNDS if quick else seed003.ROUNDS)
    with clients([kernel], "003", report) as (client,):
        try:
            rows = seed003.measure(client, seed003.seed_pairs(quick), rounds, say)
        except TurnFailed as failure:
            report.skipped.append(f"003: {failure}")
            return
    checked = seed003.bars(rows)
    show(f"Seed 003, {rounds} rounds, round trips in µs, periods and delays × {SCALE}; "
         "medians of the runs", latency_tables.row_table(rows))  # fmt: skip
    show("Seed 003, checked: geometric mean over the pairs", latency_tables.bar_table(checked))
    show("Seed 003, time spent in recvfrom, SO_BUSY_POLL inline by AF_XDP",
         latency_tables.recv_table(seed003.recv_times(rows), seed003.seed_times()))  # fmt: skip
    plots.plot_003(rows, OUT / "seed003")
    report.results["003"] = {"rows": plain(rows), "bars": plain(checked), "rounds": rounds}
    for bar in checked:
        check(bar, "003", report)


def table_bases(
    kernels: Sequence[KernelImage], quick: bool, rounds: int | None, report: Report
) -> None:
    """``kernels``: ours and the stock one that it is held against."""
    rounds = rounds or (QUICK_ROUNDS if quick else bases.ROUNDS)
    with clients(kernels, "bases", report) as (ours, stock):
        try:
            rows = bases.measure(ours, stock, seed003.seed_pairs(quick), rounds, say)
        except TurnFailed as failure:
            report.skipped.append(f"bases: {failure}")
            return
    checked = bases.bars(rows)
    show(f"Threaded busy-poll on two kernels, {rounds} rounds, round trips in µs; medians",
         latency_tables.base_table(rows))  # fmt: skip
    show("Checked: geometric mean over the pairs", latency_tables.bar_table(checked))
    report.results["bases"] = {"rows": plain(rows), "bars": plain(checked), "rounds": rounds}
    for bar in checked:
        check(bar, "bases", report)
