#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a flooded interface with helper threads tells, and what memory it takes; prints JSON.

Runs as root: ``rx_threads_told.py DEV SECONDS``. ``counts`` are of the helper threads together,
since there are any; ``most`` are the highest values seen in these seconds, every LOOK_S: bytes that
wait for the threads, and bytes of the kernel's own (slab, and pages that nothing else accounts
for). ``killed`` are processes killed for want of memory.
"""

import json
import sys
import time
from pathlib import Path

COUNTS = ("packets", "dropped", "batches", "wakeups")
LOOK_S = 0.2
KIB = 1024
# What is left of all memory without these are pages that drivers and the stack took.
ACCOUNTED = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "PageTables",
             "KernelStack", "Percpu")  # fmt: skip


def counts(threads: Path) -> dict[str, int]:
    return {name: sum(int(file.read_text()) for file in threads.glob(f"*/{name}")) for name in
            COUNTS}  # fmt: skip


def memory() -> int:
    """Bytes of slab and of pages that are nobody's."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    table = {row[0].rstrip(":"): int(row[1]) * KIB for row in rows}
    return table["MemTotal"] - sum(table[name] for name in ACCOUNTED)


def killed() -> int:
    rows = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(rows["oom_kill"])


def main() -> int:
    threads, seconds = Path("/sys/class/net", sys.argv[1], "rx_thread"), float(sys.argv[2])
    end, most = time.monotonic() + seconds, {"waiting": 0, "memory": 0}
    while True:
        waiting = sum(int(file.read_text()) for file in threads.glob("*/backlog_bytes"))
        most = {"waiting": max(most["waiting"], waiting), "memory": max(most["memory"], memory())}
        if time.monotonic() >= end:
            break
        time.sleep(LOOK_S)
    json.dump({"counts": counts(threads), "most": most, "killed": killed()}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
