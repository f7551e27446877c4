#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Isolate the CPU of a NAPI's thread with a cpuset partition and give it back; print JSON.

Runs in the guest as root, beside napi_contract.py and napi_threads_kept.py, and imports nothing of
rxlane. Arguments: a network interface, and "flooded" if that is what happens to it, as only then
there is a thread that always finds work. A thread is described as napi_threads_kept.py does.
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

from napi_threads_kept import (  # type: ignore[import-not-found]
    BUSY,
    OFF,
    ON,
    Lane,
    Scheduling,
    online,
    overridden,
    traffic,
)

CGROUPS = Path("/sys/fs/cgroup")
PARTITION = CGROUPS / "lanes"
# The kernel tells threads of a change by a work item, and a thread that is where it should not be
# notices once a second, when it is woken.
SETTLE_S = 1.5
# A thread that always finds work looks once a second, too, which in a busy guest takes longer.
FLOODED_S = 4.0
# Seconds in which a CPU has gone offline; a lock that is never given up takes longer than any.
GONE_S = 20


@contextmanager
def partition(cpu: int) -> Iterator[None]:
    """A partition that has ``cpu`` for itself. Threads of NAPIs need not be back there yet."""
    (CGROUPS / "cgroup.subtree_control").write_text("+cpuset")
    PARTITION.mkdir()
    try:
        (PARTITION / "cpuset.cpus").write_text(str(cpu))
        state = PARTITION / "cpuset.cpus.partition"
        state.write_text("isolated")
        if state.read_text().strip() != "isolated":
            raise SystemExit(f"CPU {cpu} is not isolated: {state.read_text()}")
        yield
        state.write_text("member")
    finally:
        PARTITION.rmdir()


@contextmanager
def isolated(cpu: int) -> Iterator[None]:
    """The same, and threads of NAPIs are where they go then, and where they go after that."""
    with partition(cpu):
        time.sleep(SETTLE_S)
        traffic()
        yield
    time.sleep(SETTLE_S)
    traffic()


@contextmanager
def hog(priority: int) -> Iterator[None]:
    """A task that has the CPU of the partition for itself."""
    pid = os.fork()
    if not pid:
        (PARTITION / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        while True:
            pass
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def runs_on(pid: int) -> int:
    """The CPU that a task runs on, or waits for: field 39 of proc_pid_stat(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])


def another_goes(lane: Lane, cpu: int, other: int) -> dict[str, bool]:
    """Take ``other`` offline while a poller that was moved off ``cpu`` waits there again."""
    lane.mode(BUSY)
    lane.give(os.SCHED_FIFO, 10, 0, cpu)
    traffic()
    off = f"open('/sys/devices/system/cpu/cpu{other}/online', 'w').write('0')"
    with partition(cpu):
        with hog(50):
            time.sleep(SETTLE_S)
            waits = runs_on(lane.pid()) == cpu
            goes = subprocess.Popen([sys.executable, "-c", off])
            try:
                gone = goes.wait(GONE_S) == 0
            except subprocess.TimeoutExpired:
                gone = False
        goes.wait()
        online(other, True)
    lane.mode(OFF)
    return {"waits": waits, "gone": gone}


def restart(lane: Lane) -> None:
    lane.mode(OFF)
    lane.mode(ON)
    traffic()


def polled_s(pid: int) -> float:
    """How long a task has run, in seconds: proc_pid_schedstat(5)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def under_flood(lane: Lane, cpu: int) -> dict[str, object]:
    """The thread in a partition's way while its polls leave work, and its share of a CPU then."""
    lane.mode(ON)
    lane.give(os.SCHED_BATCH, 0, -7, cpu)
    pid = lane.pid()
    time.sleep(FLOODED_S)
    with partition(cpu):
        begun, polled = time.monotonic(), polled_s(pid)
        time.sleep(FLOODED_S)
        share = (polled_s(pid) - polled) / (time.monotonic() - begun)
        isolated = lane.scheduling()
    lane.mode(OFF)
    return {"cpu": cpu, "share": share, "isolated": isolated}


def kept(lane: Lane, cpu: int) -> dict[str, object]:
    """The thread in the way of partitions in every mode, and with traffic when it is looked at."""
    seen: dict[str, Scheduling] = {}
    lane.mode(ON)
    lane.give(os.SCHED_BATCH, 0, -7, cpu)
    traffic()
    with isolated(cpu):
        seen["isolated"] = lane.scheduling()
    seen["isolated, member"] = lane.scheduling()
    with isolated(cpu):
        restart(lane)
        seen["isolated, off, on"] = lane.scheduling()
    seen["isolated, off, on, member"] = lane.scheduling()
    restart(lane)
    seen["off, on"] = lane.scheduling()
    with isolated(cpu):
        seen["off, on, isolated"] = lane.scheduling()
    seen["off, on, isolated, member"] = lane.scheduling()
    lane.mode(BUSY)
    lane.give(os.SCHED_FIFO, 50, 0, cpu)
    with isolated(cpu):
        seen["poller, isolated"] = lane.scheduling()
    seen["poller, isolated, member"] = lane.scheduling()
    lane.give(os.SCHED_BATCH, 0, -7, 0)
    lane.mode(OFF)
    lane.mode(BUSY)
    traffic()
    # Nobody wakes a thread that polls without end, so nobody but itself sees where it was pinned.
    lane.give(os.SCHED_BATCH, 0, -7, cpu)
    with isolated(cpu):
        seen["busy-poll, pinned, isolated"] = lane.scheduling()
    seen["busy-poll, pinned, isolated, member"] = lane.scheduling()
    lane.mode(OFF)
    lost = overridden(lane)
    hotplug = another_goes(lane, cpu, cpu - 1)
    return {"cpu": cpu, "seen": seen, "overridden": lost, "hotplug": hotplug}


def main() -> int:
    lane, cpu = Lane(sys.argv[1]), (os.cpu_count() or 1) - 1
    look = under_flood if "flooded" in sys.argv[2:] else kept
    json.dump(look(lane, cpu), sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
