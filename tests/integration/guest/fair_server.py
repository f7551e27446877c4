# SPDX-License-Identifier: GPL-2.0-or-later
"""Run in the guest: whether the scheduler counts the fair server of a CPU as a task.

    fair_server.py SAMPLES SECONDS

Beside a real-time process that never sleeps on CPU 1 this ordinary one runs only when the fair
server lets it, and then looks how many tasks /proc/loadavg counts as running, until it has
SAMPLES, for SECONDS at most. Printed: how often it was which number, {"2": 49, "3": 1}.
"""

import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

CPU = 1
HOG_FIFO = 50
LOADAVG = Path("/proc/loadavg")


def hog() -> int:
    """The pid of a real-time process that holds CPU already."""
    here, there = os.pipe()
    pid = os.fork()
    if pid:
        os.read(here, 1)
        return pid
    os.sched_setaffinity(0, {CPU})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(HOG_FIFO))
    os.write(there, b".")
    while True:
        pass


def preempted() -> int:
    """How often another task took the CPU from this one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def running() -> int:
    """How many tasks are counted as running, this process among them."""
    return int(LOADAVG.read_text().split()[3].partition("/")[0])


def main() -> None:
    samples, seconds = int(sys.argv[1]), float(sys.argv[2])
    found: Counter[int] = Counter()
    pid = hog()
    try:
        os.sched_setaffinity(0, {CPU})
        end = time.monotonic() + seconds
        while found.total() < samples and time.monotonic() < end:
            before, count = preempted(), running()
            if preempted() == before:
                found[count] += 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
