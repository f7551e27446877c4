# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the lab's own threads run on the host, so that the guest's CPUs are whole CPUs.

A flood on two host CPUs is a contest of three: the virtual CPU, QEMU's main loop, which carries
packets from the tap into the ring, and the sender. Left to the scheduler, the virtual CPU and the
main loop share a CPU some of the time; then fewer packets reach the ring, the guest is never
saturated and both modes look alike. So the virtual CPU gets the first host CPU to itself, and
everything else the others; all of them go before other work of the host for the run's time. Of
several virtual CPUs each gets one, which the rest shares with them where no other is left.

With autogroups (sched(7)) a nice level counts only within its session; the session has a level
of its own in /proc/PID/autogroup, which is set as well where that file exists.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

URGENT = -15  # nice level during the run
CARRIER_PRIORITY = 50  # of what carries packets and then sleeps
FIRST = -20
SLICE_NS = 100_000  # the shortest that the scheduler grants
SYS_SCHED_SETATTR = 314  # x86-64


class NoRoom(Exception):
    """The host cannot give the virtual CPU a CPU of its own."""


def threads_of(pid: int) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


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
def lifted(cpus: set[int]) -> Iterator[None]:
    """This process, whose children inherit, on ``cpus`` and before other work; then undone."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    affinity = os.sched_getaffinity(0)
    # SIGTERM must not leave the caller's session at our level: turned into SystemExit, it unwinds.
    handler = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    session = set_autogroup(os.getpid(), URGENT)
    os.sched_setaffinity(0, cpus)
    os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.setpriority(os.PRIO_PROCESS, 0, before)
        set_autogroup(os.getpid(), session)
        os.sched_setaffinity(0, affinity)


def own_cpus(whose: str) -> list[int]:
    """This process's CPUs, at least two, the first of which is for ``whose``. NoRoom."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise NoRoom(f"one host CPU: others would take the time of {whose}")
    return cpus


def shared_out(cpus: Sequence[int], virtual: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    """({thread id of a virtual CPU: its host CPU}, host CPUs of the rest). NoRoom."""
    if len(virtual) > len(cpus):
        raise NoRoom(f"{len(virtual)} virtual CPUs on {len(cpus)} host CPUs")
    return dict(zip(virtual, cpus, strict=False)), list(cpus[len(virtual) :] or cpus)


@contextmanager
def placed(qemu: int, virtual: Sequence[int]) -> Iterator[str]:
    """Places QEMU's threads and this process; undone for this process.

    ``virtual`` are the thread ids of the virtual CPUs. Yields one line that says what was done, for
    the report. NoRoom with fewer host CPUs than virtual ones, or with one.
    """
    own, rest = shared_out(own_cpus("the virtual CPU"), virtual)
    set_autogroup(qemu, URGENT)
    for tid in threads_of(qemu):
        os.setpriority(os.PRIO_PROCESS, tid, URGENT)
        os.sched_setaffinity(tid, {own[tid]} if tid in own else set(rest))
    with lifted(set(rest)):
        yield (
            f"virtual CPUs on host CPUs {list(own.values())}, the rest on {rest}, all at nice "
            f"{URGENT}"
        )


class SchedAttr(ctypes.Structure):
    """struct sched_attr (sched_setattr(2)), as the first kernels that had it knew it."""

    _fields_ = [
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32), ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64), ("period", ctypes.c_uint64),
    ]  # fmt: skip


def set_short_slice(tid: int, nice: int) -> None:
    """SCHED_OTHER with slices of SLICE_NS, so that a wakeup preempts whoever has longer ones.

    Kernels before 6.12 take the nice level and leave the slice. OSError.
    """
    attr = SchedAttr(ctypes.sizeof(SchedAttr), os.SCHED_OTHER, 0, nice, 0, SLICE_NS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SYS_SCHED_SETATTR, tid, ctypes.byref(attr), 0):
        number = ctypes.get_errno()
        raise OSError(number, f"sched_setattr of thread {tid}: {os.strerror(number)}")


def place_lane(qemu: int, virtual: Sequence[int], polled: int, cpus: Sequence[int]) -> None:
    """Threads of one QEMU; ``virtual`` are the thread ids by virtual CPU."""
    set_autogroup(qemu, FIRST)
    for tid in threads_of(qemu):
        client = tid in virtual and tid != virtual[polled]
        os.sched_setaffinity(tid, {cpus[1] if client else cpus[0]})
        if tid in virtual:
            set_short_slice(tid, FIRST)
        else:
            os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(CARRIER_PRIORITY))


@contextmanager
def lanes_placed(guests: Sequence[tuple[int, Sequence[int]]], polled: int) -> Iterator[str]:
    """Places guests of which virtual CPU ``polled`` polls and the others run the client.

    ``guests``: QEMU's pid and its virtual CPUs' thread ids. The client's host CPU is nobody else's:
    its virtual CPU has its own sending to finish before it can receive. QEMU's main loop and the
    echo, which inherits this process's CPUs, share that of the polled one; they carry a packet and
    sleep, in real time, or a poller would hold them up. Virtual CPUs are not real-time: one that
    spins would meet the throttling (50 ms of each second) and starve the host's own threads.
    """
    cpus = own_cpus("the virtual CPU that polls")
    for qemu, virtual in guests:
        place_lane(qemu, virtual, polled, cpus)
    with lifted({cpus[0]}):
        yield (
            f"client's virtual CPU on host CPU {cpus[1]}, the polled one on {cpus[0]}, at nice "
            f"{FIRST} with slices of {SLICE_NS // 1000} µs; QEMU's main loop and the echo on "
            f"{cpus[0]}, SCHED_FIFO {CARRIER_PRIORITY}"
        )
