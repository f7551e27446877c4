#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Poll all queues with real-time threads on one CPU, then take the link down; print JSON.

Runs in the guest beside guest/threaded_down.py, irq_stress.py and stress.py, needs root:
``realtime_equals.py DEVICE THREADS BESIDE``. What seed 003's script does to a device with more than
one queue: ``chrt -f 50`` and ``taskset`` to one CPU for every thread. THREADS is ``napi``, those of
the NAPIs in mode busy-poll, or ``irq``, those of all interrupts that users can switch. ROUNDS times
down and up, then threaded mode off; every step is told as by threaded_down.py, and nothing is tried
after one that hangs. ``received`` holds the packets after the last round, with irq those of each
queue. With BESIDE 1 a process that never sleeps has that CPU with the same policy and priority:
only a thread that is told to stop takes precedence over it, so threaded mode is switched off and
that is all.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from guest.threaded_down import ZERO, Step, napis, set_mode, step
from irq_stress import Interrupts  # type: ignore[import-not-found]
from stress import Nic  # type: ignore[import-not-found]

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


def received(counts: Callable[[], list[int]]) -> list[int]:
    """What the counts, of packets, grew by within WINDOW_S."""
    before = counts()
    time.sleep(WINDOW_S)
    return [now - was for was, now in zip(before, counts(), strict=True)]


def rounds(device: str) -> list[tuple[str, Step]]:
    done: list[tuple[str, Step]] = []
    for way in ("down", "up") * ROUNDS:
        done.append((way, step(["ip", "link", "set", "dev", device, way])))
        if not done[-1][1]["ended"]:
            break
    return done


def napi_threads(device: str) -> tuple[list[int], list[Path]]:
    """The threads after all NAPIs were made to busy poll, and the files that switch it off."""
    set_mode(device, BUSY_POLL)
    return [napi["pid"] for napi in napis(device)], [Path(f"/sys/class/net/{device}/threaded")]


def irq_threads(nic: Nic) -> tuple[list[int], list[Path]]:
    """The threads after all interrupts were switched, and the files that switch it off."""
    interrupts = Interrupts(nic)
    files = [interrupts.file(kind) for kind in interrupts.kinds]
    for path in files:
        path.write_text("1")
    return [interrupts.thread(kind) for kind in interrupts.kinds], files


def switch_off(files: list[Path]) -> tuple[str, Step]:
    return "off", step(["tee", *map(str, files)], ZERO)


def run(device: str, threads: str, beside: bool) -> dict[str, object]:
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {cpu})
    ZERO.write_text("0\n")
    nic = Nic(device)
    pids, files = irq_threads(nic) if threads == "irq" else napi_threads(device)
    for pid in pids:
        take_cpu(cpu, pid)
    if beside:
        process = spin(cpu)
        done = [switch_off(files)]
        os.kill(process, signal.SIGKILL)
        return {"threads": len(pids), "steps": done}
    done = rounds(device)
    if not done[-1][1]["ended"]:
        return {"threads": len(pids), "steps": done}
    # vmxnet3 of 6.12 does not tell those of its queues.
    got = received(nic.by_queue if threads == "irq" else lambda: [nic.received()])
    return {"threads": len(pids), "received": got, "steps": [*done, switch_off(files)]}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], sys.argv[3] == "1")), flush=True)
    os._exit(0)
