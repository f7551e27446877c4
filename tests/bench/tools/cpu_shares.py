#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU shares of a thread that polls and of a CPU hog beside it, and how long the thread waits.

Runs in the guest as root: ``cpu_shares.py POLICY VALUE MILLISECONDS PID...``. The busiest thread
gets the policy: ``other`` with the nice value VALUE, ``fifo`` with the priority VALUE, ``deadline``
with VALUE ms of each 10 ms. The hog, of nice 0, is started before and ends with the window.

Prints JSON: thread and hog, of one CPU each; wait, nanoseconds from when the thread could run until
it did, the mean over its turns (0 without a turn or a thread); turns, a second.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Above the threads that are watched: what time the kernel leaves to ordinary tasks beside a
# real-time thread that always has work is not ours to wait for.
WATCHER = 60
SETTLE_S = 0.5
HOG = "while True: pass"
PERIOD_NS = "10000000"
# One hundredth of the period: what a poll takes above it is paid back within some tenths of a
# second. With 2 µs, near the least that the class takes, a thread had nothing of its next grant.
LEAST_NS, PAID_BACK_S = 100_000, 1.0


def statistics(pid: int) -> list[int]:
    """Nanoseconds on a CPU so far and of waiting for one, and turns.

    Documentation/scheduler/sched-stats.rst.
    """
    return [int(word) for word in Path(f"/proc/{pid}/schedstat").read_text().split()]


def ran(pid: int) -> int:
    return statistics(pid)[0]


def chrt(*words: str) -> None:
    subprocess.run(["chrt", *words], check=True, capture_output=True)


def deadline(pid: int, runtime_ns: int) -> None:
    chrt("--deadline", "--sched-runtime", str(runtime_ns), "--sched-deadline", PERIOD_NS,
         "--sched-period", PERIOD_NS, "--pid", "0", str(pid))  # fmt: skip


def schedule(pid: int, policy: str, value: int) -> None:
    if policy == "deadline":
        deadline(pid, value * 1_000_000)
    elif policy == "fifo":
        chrt("--fifo", "--pid", str(value), str(pid))
    else:
        chrt("--other", "--pid", "0", str(pid))
        os.setpriority(os.PRIO_PROCESS, pid, value)


@contextmanager
def scheduled(pid: int, policy: str, value: int) -> Iterator[None]:
    """The thread with this policy, and afterwards with its own again: a kernel may keep it."""
    own = os.sched_getscheduler(pid), os.sched_getparam(pid)
    nice = os.getpriority(os.PRIO_PROCESS, pid)
    schedule(pid, policy, value)
    try:
        yield
    finally:
        if policy == "deadline":
            # Stock 6.12 goes on counting what a thread was granted that leaves the class asleep,
            # until there is none left to grant.
            deadline(pid, LEAST_NS)
        os.sched_setscheduler(pid, *own)
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        if policy == "deadline":
            time.sleep(PAID_BACK_S)


def busiest(pids: list[int]) -> int:
    """The thread that polls the flood; others of the interface, as those of TX queues, sleep."""
    before = {pid: ran(pid) for pid in pids}
    time.sleep(SETTLE_S)
    return max(pids, key=lambda pid: ran(pid) - before[pid])


def shares(seconds: float, thread: int, hog: int) -> dict[str, float]:
    """What this module prints. thread: 0 for none."""
    time.sleep(SETTLE_S)
    watched = {"hog": hog, "thread": thread} if thread else {"hog": hog}
    before = {name: statistics(pid) for name, pid in watched.items()}
    start = time.monotonic_ns()
    time.sleep(seconds)
    spent = time.monotonic_ns() - start
    found = {"thread": 0.0, "wait": 0.0, "turns": 0.0}
    for name, pid in watched.items():
        on, waited, turns = (
            now - then for now, then in zip(statistics(pid), before[name], strict=True)
        )
        found[name] = on / spent
        if name == "thread":
            found |= {"wait": waited / max(turns, 1), "turns": turns * 1e9 / spent}
    return found


def main() -> None:
    policy, value, milliseconds, *pids = sys.argv[1:]
    # The hog is ordinary again.
    own = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(0, own, os.sched_param(WATCHER))
    thread, seconds = busiest([int(pid) for pid in pids]) if pids else 0, int(milliseconds) / 1000
    hog = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.DEVNULL)
    try:
        if thread:
            with scheduled(thread, policy, int(value)):
                found = shares(seconds, thread, hog.pid)
        else:
            found = shares(seconds, 0, hog.pid)
    finally:
        hog.send_signal(signal.SIGKILL)
        hog.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
