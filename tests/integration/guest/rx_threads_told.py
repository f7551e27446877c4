#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a flooded interface with helper threads tells, and what memory it takes; prints JSON.

Runs as root: ``rx_threads_told.py DEV SECONDS``. ``counts`` are of the helper threads together,
since there are any; ``most`` are the highest values seen in these seconds, every LOOK_S: packets
and bytes that wait for the threads, and bytes of the kernel's own (slab, and pages that nothing
else accounts for). ``killed`` are processes killed for want of memory.
"""

import json
import sys
import time
from pathlib import Path

COUNTS = ("packets", "dropped", "batches", "wakeups")
# What waits, by the names of the files.
WAITING = {"packets": "backlog", "bytes": "backlog_bytes"}
LOOK_S = 0.2
KIB = 1024
# What is left of all memory without these are pages that drivers and the stack took.
ACCOUNTED = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "PageTables",
             "KernelStack", "Percpu")  # fmt: skip


def total(threads: Path, name: str) -> int:
    return sum(int(file.read_text()) for file in threads.glob(f"*/{name}"))


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
    end, most = time.monotonic() + seconds, dict.fromkeys((*WAITING, "memory"), 0)
    while True:
        now = {name: total(threads, file) for name, file in WAITING.items()}
        now["memory"] = memory()
        most = {name: max(value, now[name]) for name, value in most.items()}
        if time.monotonic() >= end:
            break
        time.sleep(LOOK_S)
    counts = {name: total(threads, name) for name in COUNTS}
    json.dump({"counts": counts, "most": most, "killed": killed()}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
