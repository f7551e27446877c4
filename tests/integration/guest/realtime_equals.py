#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Busy poll all queues with real-time threads on one CPU, then take the link down; print JSON.

Runs in the guest beside guest/threaded_down.py, needs root: ``realtime_equals.py DEVICE BESIDE``.
What seed 003's script does to a device with more than one queue: mode busy-poll, ``chrt -f 50`` and
``taskset`` to one CPU for every thread. ROUNDS times down and up, then threaded mode off; every
step is told as by threaded_down.py, and nothing is tried after one that hangs. ``received`` is how
many packets came in after the last round. With BESIDE 1 a process that never sleeps has that CPU
with the same policy and priority: only a thread that is told to stop takes precedence over it, so
threaded mode is switched off and that is all.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from guest.threaded_down import ZERO, Step, napis, set_mode, step

BUSY_POLL, PRIORITY, ROUNDS = 2, 50, 5
WINDOW_S = 2.0


def take_cpu(cpu: int, pid: int) -> None:
    os.sched_setaffinity(pid, {cpu})
    os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(PRIORITY))


def spin(cpu: int) -> int:
    """The pid of a process that never sleeps, which has the CPU when this returns."""
    pid = os.fork()
    if pid == 0:
        take_cpu(cpu, 0)
        while True:
            pass
    time.sleep(WINDOW_S)
    return pid


def received(device: str) -> int:
    path = Path(f"/sys/class/net/{device}/statistics/rx_packets")
    before = int(path.read_text())
    time.sleep(WINDOW_S)
    return int(path.read_text()) - before


def rounds(device: str) -> list[tuple[str, Step]]:
    done: list[tuple[str, Step]] = []
    for way in ("down", "up") * ROUNDS:
        done.append((way, step(["ip", "link", "set", "dev", device, way])))
        if not done[-1][1]["ended"]:
            break
    return done


def switch_off(device: str) -> tuple[str, Step]:
    to = f"of=/sys/class/net/{device}/threaded"
    return "off", step(["dd", "status=none", f"if={ZERO}", to])


def run(device: str, beside: bool) -> dict[str, object]:
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {cpu})
    ZERO.write_text("0\n")
    set_mode(device, BUSY_POLL)
    pids = [napi["pid"] for napi in napis(device)]
    for pid in pids:
        take_cpu(cpu, pid)
    if beside:
        process = spin(cpu)
        done = [switch_off(device)]
        os.kill(process, signal.SIGKILL)
        return {"threads": len(pids), "steps": done}
    done = rounds(device)
    if not done[-1][1]["ended"]:
        return {"threads": len(pids), "steps": done}
    got = received(device)
    return {"threads": len(pids), "received": got, "steps": [*done, switch_off(device)]}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2] == "1")), flush=True)
    os._exit(0)
