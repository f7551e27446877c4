#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Forwarding under one way to spread received flows; prints JSON of one window.

Runs in the guest as root: ``steered.py MODE CPUS MILLISECONDS DEV:OUT...``. MODE is off, rps or rx
(helper threads, one bound to each of CPUS, such as 1,2). What DEV receives leaves by OUT: that is
what was forwarded. IPIs are the rows RES and CAL of /proc/interrupts: reschedulings and function
calls.
"""

import json
import os
import sys
import time
from pathlib import Path

SETTLE_S = 0.5
IPIS = ("RES:", "CAL:")
THREAD = ("packets", "batches", "wakeups", "dropped")


def steer(dev: Path, mode: str, cpus: list[int]) -> None:
    """Switches the other way off first: the kernel takes one of both."""
    masks = [queue / "rps_cpus" for queue in (dev / "queues").glob("rx-*")]
    if mode != "rps":
        for file in masks:
            file.write_text("0")
    (dev / "rx_threads").write_text(str(len(cpus) if mode == "rx" else 0))
    if mode == "rps":
        for file in masks:
            file.write_text(f"{sum(1 << cpu for cpu in cpus):x}")
    if mode == "rx":
        for number, cpu in enumerate(cpus):
            os.sched_setaffinity(int((dev / f"rx_thread/{number}/pid").read_text()), {cpu})


def ipis(table: str) -> int:
    """Of /proc/interrupts. LookupError without one of the rows: nothing was counted then."""
    counts = {row[0]: row[1:] for line in table.splitlines() if (row := line.split())}
    if missing := [name for name in IPIS if name not in counts]:
        raise LookupError(f"/proc/interrupts has no row {', '.join(missing)}")
    return sum(int(n) for name in IPIS for n in counts[name] if n.isdigit())


def busy() -> list[int]:
    """Clock ticks that each CPU was not idle (proc_pid_stat(5), /proc/stat)."""
    rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ticks = {row[0]: [int(n) for n in row[1:9]] for row in rows if row[0][:3] == "cpu"}
    return [sum(all_) - all_[3] - all_[4] for name, all_ in ticks.items() if name != "cpu"]


def statistic(dev: Path, name: str) -> int:
    return int((dev / "statistics" / name).read_text())


def look(pairs: list[tuple[Path, Path]]) -> dict[str, int]:
    threads = [thread for dev, _out in pairs for thread in (dev / "rx_thread").glob("*")]
    return {
        "forwarded": sum(statistic(out, "tx_packets") for _dev, out in pairs),
        "bytes": sum(statistic(out, "tx_bytes") for _dev, out in pairs),
        "taken": sum(statistic(dev, "rx_packets") for dev, _out in pairs),
        "ipis": ipis(Path("/proc/interrupts").read_text()),
        **{name: sum(int((t / name).read_text()) for t in threads) for name in THREAD},
    }


def main(argv: list[str]) -> int:
    mode, cpus, milliseconds = argv[0], [int(cpu) for cpu in argv[1].split(",")], int(argv[2])
    pairs = [
        (Path("/sys/class/net", dev), Path("/sys/class/net", out))
        for dev, _, out in (pair.partition(":") for pair in argv[3:])
    ]
    for dev, _out in pairs:
        steer(dev, mode, cpus)
    time.sleep(SETTLE_S)
    start, before, busy_before = time.monotonic(), look(pairs), busy()
    time.sleep(milliseconds / 1000)
    seconds, after, busy_after = time.monotonic() - start, look(pairs), busy()
    ticks = os.sysconf("SC_CLK_TCK") * seconds
    told = {name: after[name] - before[name] for name in after}
    spent = [(b - a) / ticks for a, b in zip(busy_before, busy_after, strict=True)]
    print(json.dumps({**told, "busy": spent, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, LookupError) as error:
        print(f"steered.py: {error}", file=sys.stderr)
        sys.exit(1)
