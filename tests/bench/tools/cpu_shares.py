#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU shares of a NAPI thread and of a CPU hog beside it; prints JSON, of one CPU each.

Runs in the guest as root: ``cpu_shares.py POLICY VALUE MILLISECONDS PID...``. The busiest thread
gets the policy: ``other`` with the nice value VALUE, ``fifo`` with the priority VALUE, ``deadline``
with VALUE ms of each 10 ms. The hog, of nice 0, is started before and ends with the window.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SETTLE_S = 0.5
HOG = "while True: pass"
PERIOD_NS = "10000000"


def ran(pid: int) -> int:
    """Nanoseconds on a CPU so far (Documentation/scheduler/sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def chrt(*words: str) -> None:
    subprocess.run(["chrt", *words], check=True, capture_output=True)


def schedule(pid: int, policy: str, value: int) -> None:
    if policy == "deadline":
        chrt("--deadline", "--sched-runtime", str(value * 1_000_000),
             "--sched-deadline", PERIOD_NS, "--sched-period", PERIOD_NS,
             "--pid", "0", str(pid))  # fmt: skip
    elif policy == "fifo":
        chrt("--fifo", "--pid", str(value), str(pid))
    else:
        chrt("--other", "--pid", "0", str(pid))
        os.setpriority(os.PRIO_PROCESS, pid, value)


def busiest(pids: list[int]) -> int:
    """The thread that polls the flood; others of the interface, as those of TX queues, sleep."""
    before = {pid: ran(pid) for pid in pids}
    time.sleep(SETTLE_S)
    return max(pids, key=lambda pid: ran(pid) - before[pid])


def shares(policy: str, value: int, seconds: float, thread: int, hog: int) -> dict[str, float]:
    if thread:
        schedule(thread, policy, value)
    time.sleep(SETTLE_S)
    watched = {"hog": hog, "napi": thread} if thread else {"hog": hog}
    before, start = {name: ran(pid) for name, pid in watched.items()}, time.monotonic_ns()
    time.sleep(seconds)
    spent = time.monotonic_ns() - start
    used = {name: (ran(pid) - before[name]) / spent for name, pid in watched.items()}
    if thread:
        schedule(thread, "other", 0)
    return {"napi": 0.0, **used}


def main() -> None:
    policy, value, milliseconds, *pids = sys.argv[1:]
    thread = busiest([int(pid) for pid in pids]) if pids else 0
    hog = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.DEVNULL)
    try:
        found = shares(policy, int(value), int(milliseconds) / 1000, thread, hog.pid)
    finally:
        hog.send_signal(signal.SIGKILL)
        hog.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
