# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the lab's own threads run on the host, so that the guest's CPU is a whole CPU.

A flood on two host CPUs is a contest of three: the virtual CPU, QEMU's main loop, which carries
packets from the tap into the ring, and the sender. Left to the scheduler, the virtual CPU and the
main loop share a CPU some of the time; then fewer packets reach the ring, the guest is never
saturated and both modes look alike. So the virtual CPU gets the first host CPU to itself, and
everything else the others; all of them go before other work of the host for the run's time.

With autogroups (sched(7)) a nice level counts only within its session; the session has a level
of its own in /proc/PID/autogroup, which is set as well where that file exists.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

URGENT = -15  # nice level during the run


class NoRoom(Exception):
    """The host cannot give the virtual CPU a CPU of its own."""


def busiest_thread(usage: dict[int, int]) -> int:
    """Thread id with the most CPU time: of a freshly booted one-CPU guest, the virtual CPU."""
    return max(usage, key=lambda tid: usage[tid])


def cpu_ticks(stat: str) -> int:
    """utime + stime, in clock ticks, from a line of /proc/PID/task/TID/stat (proc(5))."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def thread_usage(pid: int) -> dict[int, int]:
    tasks = Path(f"/proc/{pid}/task")
    return {int(task.name): cpu_ticks((task / "stat").read_text()) for task in tasks.iterdir()}


def autogroup_nice(text: str) -> int:
    """Level of a session from /proc/PID/autogroup: ``/autogroup-16 nice 0``."""
    return int(text.split()[-1])


def set_autogroup(pid: int, level: int | None) -> int | None:
    """Sets the level of the process's session; returns the one before, None without autogroups."""
    control = Path(f"/proc/{pid}/autogroup")
    if level is None or not control.exists():
        return None
    before = autogroup_nice(control.read_text())
    control.write_text(str(level))
    return before


def qemu_of(folder: Path) -> int:
    """Pid of the QEMU whose command line names the guest's folder. NoRoom when there is none."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        if b"qemu" in words[0] and any(str(folder).encode() in word for word in words):
            return int(entry.name)
    raise NoRoom(f"no QEMU runs the guest of {folder}")


@contextmanager
def placed(qemu: int) -> Iterator[str]:
    """Places QEMU's threads and this process, whose children inherit; undone for this process.

    Yields one line that says what was done, for the report. NoRoom on a single-CPU host.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise NoRoom("one host CPU: the sender would take the virtual CPU's time")
    usage = thread_usage(qemu)
    virtual = busiest_thread(usage)
    set_autogroup(qemu, URGENT)
    for tid in usage:
        os.setpriority(os.PRIO_PROCESS, tid, URGENT)
        os.sched_setaffinity(tid, {cpus[0]} if tid == virtual else set(cpus[1:]))
    before = os.getpriority(os.PRIO_PROCESS, 0)
    # SIGTERM must not leave the caller's session at our level: turned into SystemExit, it unwinds.
    handler = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    session = set_autogroup(os.getpid(), URGENT)
    os.sched_setaffinity(0, set(cpus[1:]))
    os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    try:
        yield f"virtual CPU on host CPU {cpus[0]}, the rest on {cpus[1:]}, all at nice {URGENT}"
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.setpriority(os.PRIO_PROCESS, 0, before)
        set_autogroup(os.getpid(), session)
        os.sched_setaffinity(0, set(cpus))
