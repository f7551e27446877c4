# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tasks of a guest are at when a stress script finds that one of its roles is stuck.

Runs in the guest as root, beside stress.py, and imports nothing of rxlane. It reads /proc alone, so
that nothing comes onto the console that would be taken for a kernel's complaint.
"""

import os
import time
from pathlib import Path

# For how long, in seconds, it is looked who takes the CPUs, and the least share that is told.
LOOK_S, LEAST = 2.0, 0.02
# Of /proc/PID/stat behind the name: state, and clock ticks in user and kernel mode.
STATE, USER, KERNEL = 0, 11, 12
BLOCKED = "D"


def fields(pid: str) -> list[str]:
    """What stands behind the name in /proc/PID/stat; empty once the task is gone."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def tasks() -> dict[str, list[str]]:
    found = {pid: fields(pid) for pid in os.listdir("/proc") if pid.isdecimal()}
    return {pid: stat for pid, stat in found.items() if stat}


def called(pid: str) -> str:
    try:
        return f"{Path('/proc', pid, 'comm').read_text().strip()} {pid}"
    except OSError:
        return pid


def stack(pid: str) -> list[str]:
    """Where in the kernel it is, the innermost function first; of one that runs, at a guess."""
    try:
        return Path("/proc", pid, "stack").read_text().splitlines()
    except OSError:
        return []


def blocked() -> dict[str, list[str]]:
    """The stacks of all tasks in uninterruptible sleep."""
    return {called(pid): stack(pid) for pid, stat in tasks().items() if stat[STATE] == BLOCKED}


def ticks(stat: list[str]) -> int:
    return int(stat[USER]) + int(stat[KERNEL])


def busy() -> dict[str, float]:
    """Part of one CPU that each task takes, the greatest first."""
    first, began = tasks(), time.monotonic()
    time.sleep(LOOK_S)
    whole = (time.monotonic() - began) * os.sysconf("SC_CLK_TCK")
    taken = {
        called(pid): round((ticks(stat) - ticks(first[pid])) / whole, 2)
        for pid, stat in tasks().items()
        if pid in first
    }
    shares = sorted(taken.items(), key=lambda pair: -pair[1])
    return {name: share for name, share in shares if share >= LEAST}


def evidence() -> dict[str, object]:
    return {"blocked": blocked(), "busy": busy()}
