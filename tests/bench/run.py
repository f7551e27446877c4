# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench`: measures the tables, prints them, and writes JSON and plots to build/bench/.

    run.py [--table 000] [--table 001] [--table 002] [--table 004] [--table goodput] [--table third]
           [--table scheduling] [--table scaling] [--table 003] [--table bases]
           [--quick] [--rounds N] [--kernel ours]

The tables of seeds 000 and 001 share a guest of one CPU; 001 is then measured in one of two, as the
seed's was. 002, scaling, 004 and the latency tables boot guests of their own.

Exit code: 0 every checked row holds; 1 a row does not; 2 bad words on the command line; 3 the
guest was lost or a table could not be measured, which says nothing about the rows.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bench import (
    goodput,
    latency,
    plots,
    scaling,
    scheduling,
    seed000,
    seed001,
    seed002,
    seed004,
    tables,
    third,
)
from bench.flood import Bench, Mode, ModeRefused
from bench.placement import NoRoom, placed, qemu_of
from bench.report import OUT, Report, say, show
from bench.tools import ToolBuildFailed
from lab.kernel import KernelImage, build, debian_prebuilt
from lab.machine import GuestSpec
from lab.monitor import MonitorRefused, virtual_cpus
from lab.progress import StepFailed
from lab.vm import CommandFailed, Guest, GuestLost, Splat

KERNELS: dict[str, Callable[[], KernelImage]] = {
    "ours": partial(build, base="6.12", flavour="fast", patched=True),
    "stock": partial(build, base="6.12", flavour="fast", patched=False),
    "debian": partial(debian_prebuilt, "6.12"),
}
# Two bare round trips of a page-table switch a packet would hide what is compared; an interrupt
# that irqbalance moves between two rounds would be taken for the mode's doing.
CMDLINE = "mitigations=off systemd.mask=irqbalance.service"
SATURATED = 0.7  # softirq mode carries less than this share of a full flood


def table_000(bench: Bench, args: argparse.Namespace, report: Report) -> None:
    floods, spares = seed000.measure(bench, seed000.seed_rows(args.quick), args.rounds, say)
    show("Seed 000, full UDP flood: median (lowest..highest run)", tables.flood_table(floods))
    show(
        "Seed 000, messages above the MTU at the rate softirq mode just carries",
        tables.spare_table(spares),
    )
    plots.plot_000(floods, spares, OUT / "seed000")
    report.results["000"] = {"flood": tables.plain(floods), "spare": tables.plain(spares)}
    report.missed += [
        f"000 {row.seed.size}/{row.seed.flows}: {row.gain.median:.2f} times, not {seed000.FACTOR:g}"
        for row in floods
        if not row.holds
    ]


def table_001(bench: Bench, args: argparse.Namespace, report: Report) -> None:
    cpus = bench.guest.spec.cpus
    rows = seed001.measure(bench, seed001.seed_rows(args.quick), args.rounds, say)
    show(
        f"Seed 001, full UDP flood, virtual CPUs: {cpus}; median (lowest..highest run)",
        tables.irq_table(rows),
    )
    plots.plot_001(rows, cpus, OUT / f"seed001-{cpus}")
    report.results[f"001, CPUs: {cpus}"] = tables.plain(rows)
    report.missed += [
        f"001 {row.seed.size}/{row.seed.flows}: {row.gain.median:.2f} times hard interrupts, not "
        f"{seed001.FACTOR:g}, or {row.of_napi.median:.2f} of the NAPI's thread, not "
        f"{seed001.OF_NAPI:g}"
        for row in rows
        if row.of_napi and row.holds is False
    ]


def table_goodput(bench: Bench, args: argparse.Namespace, report: Report) -> None:
    results: dict[str, object] = {}
    for flows in goodput.FLOWS:
        curves = goodput.measure(bench, flows, args.quick, args.rounds, say)
        name = f"{flows} × {goodput.SIZE} bytes"
        show(
            f"Goodput, {name} (of ideal: over the peak, or over the load where that is less)",
            tables.goodput_table(curves),
        )
        plots.plot_goodput(curves, name, OUT / f"goodput-{flows}")
        results[name] = tables.plain(curves)
        gain = goodput.gain(curves)
        say(f"at full flood nice 10 brings {gain:.2f} times what nice 0 brings")
        if flows == goodput.ALONE and gain < goodput.GAIN:
            report.missed.append(f"goodput nice 10: {gain:.2f} times nice 0, not {goodput.GAIN:g}")
        report.missed += [
            f"goodput {name} {curve.mode.label}: falls to {curve.worst:.2f} of its ideal, "
            f"not {goodput.FLOOR:g}"
            for curve in curves
            if curve.mode is Mode.NICE10 and curve.worst < goodput.FLOOR
        ]
    # Without overload the curves show nothing.
    report.missed += [f"goodput {line}" for line in bench.unfilled]
    trips = goodput.low_load(bench, args.rounds, say)
    show(f"Round trips at low load, one every {goodput.GAP_US} µs", tables.trip_table(trips))
    report.results["goodput"] = {**results, "trips": tables.plain(trips)}


def table_third(bench: Bench, args: argparse.Namespace, report: Report) -> None:
    try:
        rows = third.measure(bench, seed000.seed_rows(args.quick), args.rounds, say)
    except third.HostLacks as lack:
        report.skipped.append(f"third: {lack}")
        return
    show(
        f"Seed 000, third column: the host's stock kernel {os.uname().release} threaded too",
        tables.third_table(rows),
    )
    plots.plot_third(rows, OUT / "third")
    report.results["third"] = tables.plain(rows)


def table_scheduling(bench: Bench, args: argparse.Namespace, report: Report) -> None:
    rows = scheduling.measure(bench, args.rounds, say)
    show(
        "Seeds 000 and 001, CPU shares of a flooded thread that polls and of a hog beside it, and "
        f"the thread's wait for the CPU at {scheduling.LIGHT} messages/s",
        tables.scheduling_table(rows),
    )
    if len(rows) < len(scheduling.POLICIES):
        report.skipped.append("scheduling: the kernel cannot switch the NIC's interrupts")
    plots.plot_scheduling(rows, OUT / "scheduling")
    report.results["scheduling"] = tables.plain(rows)


FLOODS = {"000": table_000, "001": table_001, "goodput": table_goodput, "third": table_third,
          "scheduling": table_scheduling}  # fmt: skip
TABLES = (*FLOODS, "002", "scaling", "003", "004", "bases")
FLOOD_ROUNDS, QUICK_ROUNDS = 5, 3


def saturated(bench: Bench) -> bool:
    bench.set_mode(Mode.SOFTIRQ)
    return bench.flood(max(goodput.FLOWS), goodput.SIZE).share < SATURATED


def measure_all(guest: Guest, names: list[str], args: argparse.Namespace, report: Report) -> bool:
    """Measures the tables of these names; False when the host cannot flood this guest."""
    with placed(qemu_of(guest.folder), virtual_cpus(guest.folder)) as placement:
        report.conditions[f"placement of {guest.spec.cpus}"] = placement
        say(placement)
        bench = Bench(guest)
        if guest.accel != "tcg" and not saturated(bench):
            return False
        for name in names:
            start = time.monotonic()
            FLOODS[name](bench, args, report)
            for line in bench.unfilled:
                say(f"table {name}: {line}")
            bench.unfilled.clear()
            say(f"table {name}: {time.monotonic() - start:.0f} s")
            guest.check_splats()
    return True


def run_floods(
    kernel: KernelImage, cpus: int, names: list[str], args: argparse.Namespace, report: Report
) -> None:
    """One boot; a second one under TCG where the sender cannot saturate a KVM guest."""
    spec = GuestSpec(cpus=cpus, memory_mb=1024, queues=1, extra_cmdline=CMDLINE)
    with Guest(kernel, spec) as guest:
        report.conditions |= {"accelerator": guest.accel, "cmdline": CMDLINE}
        done = measure_all(guest, names, args, report)
    if not done:
        say("the sender does not saturate a guest under KVM: measuring under TCG")
        os.environ["RXLANE_ACCEL"] = "tcg"
        run_floods(kernel, cpus, names, args, report)


@contextmanager
def router(
    kernel: KernelImage, table: str, report: Report, counted: bool = False
) -> Iterator[Bench | None]:
    """A guest of two NICs of one queue; None, with the skip told, where it has no rx_threads."""
    spec = GuestSpec(
        cpus=seed002.CPUS, memory_mb=1024, queues=1, e1000e=True, extra_cmdline=CMDLINE,
        counted=counted,
    )  # fmt: skip
    with Guest(kernel, spec) as guest:
        if guest.run(["cat", f"/sys/class/net/{guest.nic}/rx_threads"], check=False).rc:
            report.skipped.append(f"{table}: the kernel has no rx_threads")
            yield None
        else:
            yield Bench(guest)
            guest.check_splats()


def table_002(kernel: KernelImage, args: argparse.Namespace, rounds: int, report: Report) -> None:
    with router(kernel, "002", report) as bench:
        if bench is None:
            return
        rows = seed002.measure(bench, args.quick, rounds, say)
    show(
        "Seed 002, a router of one NIC queue: median (lowest..highest run)",
        tables.forwarding_table(rows),
    )
    print(f"The seed's own:\n{seed002.SEED.read_text()}")
    report.results["002"] = tables.plain(rows)
    report.missed += [line for row in rows for line in row.missed]


def table_scaling(
    kernel: KernelImage, args: argparse.Namespace, rounds: int, report: Report
) -> None:
    with router(kernel, "scaling", report, counted=True) as bench:
        if bench is None:
            return
        rows = scaling.measure(bench, args.quick, rounds, say)
    show(
        "Seed 002, instructions for a forwarded packet: median (lowest..highest run)",
        tables.scaling_table(rows),
    )
    report.results["scaling"] = tables.plain(rows)


def table_004(kernel: KernelImage, rounds: int, report: Report) -> None:
    spec = GuestSpec(cpus=seed004.CPUS, memory_mb=2048, queues=1, extra_cmdline=CMDLINE)
    with Guest(kernel, spec) as guest:
        rows = seed004.measure(Bench(guest), rounds, say)
        guest.check_splats()
    show(
        "Seed 004, RPS and RFS: median (lowest..highest run; the seed's own ratio)",
        tables.steering_table(rows),
    )
    print(f"The seed's own:\n{seed004.SEED.read_text()}")
    report.results["004"] = tables.plain(rows)


def run_tables(args: argparse.Namespace) -> Report:
    kernel = KERNELS[args.kernel]()
    report = Report(
        {"kernel": kernel.name, "host kernel": os.uname().release, "host CPUs": os.cpu_count()}
    )
    asked = args.rounds
    rounds = asked or (QUICK_ROUNDS if args.quick else FLOOD_ROUNDS)
    if floods := [name for name in args.table if name in FLOODS]:
        args.rounds = rounds
        report.conditions["rounds"] = args.rounds
        run_floods(kernel, 1, floods, args, report)
    if "001" in args.table:
        run_floods(kernel, seed001.SEED_CPUS, ["001"], args, report)
    if "002" in args.table:
        table_002(kernel, args, rounds, report)
    if "scaling" in args.table:
        table_scaling(kernel, args, rounds, report)
    if "004" in args.table:
        table_004(kernel, rounds, report)
    if "003" in args.table:
        latency.table_003(kernel, args.quick, asked, report)
    if "bases" in args.table:
        against = build(base="7.2", flavour="fast", patched=False)
        latency.table_bases([kernel, against], args.quick, asked, report)
    return report


def conclude(report: Report) -> int:
    """Writes the JSON, prints the verdict and returns the exit code."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "bench.json"
    path.write_text(json.dumps(tables.plain(report), indent=1, ensure_ascii=False) + "\n")
    print("Conditions: " + ", ".join(f"{key} {value}" for key, value in report.conditions.items()))
    for line in report.skipped:
        print(f"SKIPPED {line}")
    for line in report.missed:
        print(f"MISSED {line}")
    print(f"Tables {', '.join(report.results)}; JSON and plots in {OUT}")
    if report.missed:
        return 1
    return 3 if report.skipped and os.environ.get("RXLANE_STRICT") == "1" else 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description="figures of the seed documents")
    parser.add_argument("--table", action="append", choices=TABLES, help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rounds", type=int, choices=range(1, 51), metavar="1..50")
    parser.add_argument("--kernel", choices=KERNELS, default="ours")
    args = parser.parse_args(argv)
    args.table = args.table or list(TABLES)
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    try:
        return conclude(run_tables(args))
    except (GuestLost, CommandFailed, Splat, StepFailed, ToolBuildFailed, NoRoom,
            ModeRefused, MonitorRefused, seed002.NothingArrived) as error:  # fmt: skip
        print(f"bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
