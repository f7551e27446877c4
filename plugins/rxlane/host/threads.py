# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel threads of lanes: reading and setting their CPU and scheduling class.

System calls only, no process is started. A pid comes from napi-get, for an interrupt's thread from
kthreadd's children, for an rx thread from its file in sysfs, and is checked to be such a kernel
thread before it is touched: pids are reused, and thread names alone are not unique.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from rxlane import cpulist, uapi
from rxlane.errors import Kind, RxlaneError
from rxlane.items import FAIR, REALTIME, restorable
from rxlane.model import Thread
from rxlane.sysfs import Sysfs

NAPI = re.compile("napi/")  # napi_kthread_create() in net/core/dev.c: "napi/%s-%d"
# setup_irq_thread() in kernel/irq/manage.c: "irq/%d-%s"; "irq/%d-s-%s" is a handler's second one.
IRQ = re.compile(r"irq/(\d+)-(?!s-)")


Stat = tuple[str, int, int, int, int]


# vhost_worker_create() in drivers/vhost/vhost.c: "vhost-%d"
VHOST = re.compile(r"vhost-(\d+)")
# "rx%d/%s" by the name that the device had then ("RX flow separation" of our kernel series)
RX = re.compile(r"rx\d+/")
# task_cpus_allowed() in fs/proc/array.c
_ALLOWED = re.compile(r"^Cpus_allowed_list:\t([-,0-9]+)$", re.M)


def parse_stat(text: str) -> Stat | None:
    """Return (name, flags, nice, real-time priority, policy) of /proc/PID/stat.

    Field numbers as in proc_pid_stat(5); the name may hold spaces and parentheses.
    """
    head, separator, rest = text.rpartition(")")
    fields = rest.split()
    if not separator or len(fields) < 39:
        return None
    name = head.partition("(")[2]
    # rest starts at field 3 (state); flags is 9, nice 19, rt_priority 40, policy 41.
    return name, int(fields[6]), int(fields[16]), int(fields[37]), int(fields[38])


def read(sysfs: Sysfs, pid: int, kind: re.Pattern[str] = NAPI) -> Thread | None:
    """Return the thread of this kind with this pid, None when there is none (any more)."""
    found = identify(sysfs, pid, kind)
    own = None if found is None else affinity(pid)
    if found is None or own is None:
        return None
    name, _, nice, priority, policy = found
    shown = uapi.SCHED_POLICY.get(policy, str(policy))
    return Thread(pid, name, shown, priority, nice, own)


def glance(pid: int) -> Thread | None:
    """Return what read() does but for the name, of a pid that napi-get has just given.

    Without a look at /proc, which costs ten times as much; who writes to the thread takes that
    look. None for a thread that is gone.
    """
    try:
        policy, priority = os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK, 0
        shown = uapi.SCHED_POLICY.get(policy, str(policy))
        if shown in REALTIME:
            priority = os.sched_getparam(pid).sched_priority
        nice = os.getpriority(os.PRIO_PROCESS, pid)
        return Thread(pid, "", shown, priority, nice, tuple(sorted(os.sched_getaffinity(pid))))
    except ProcessLookupError:
        return None


def look(sysfs: Sysfs, pid: int, kind: re.Pattern[str] = NAPI) -> Thread | None:
    """glance(), with the name of a thread whose class could not be restored: messages name it."""
    found = glance(pid)
    if found is None or restorable(found.policy):
        return found
    return read(sysfs, pid, kind)


def identify(sysfs: Sysfs, pid: int, kind: re.Pattern[str]) -> Stat | None:
    """Return what parse_stat() does of a kernel thread of this kind, None when it is none."""
    text = sysfs.read_again(f"proc/{pid}/stat")
    facts = None if text is None else parse_stat(text)
    flags = uapi.PF_KTHREAD | (uapi.PF_USER_WORKER if kind is VHOST else 0)
    if facts is None or not facts[1] & flags or not kind.match(facts[0]):
        return None
    return facts


def affinity(pid: int) -> tuple[int, ...] | None:
    """Return the CPUs that a thread may run on, None when it is gone."""
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except ProcessLookupError:
        return None


def with_offline(sysfs: Sysfs, thread: Thread, offline: Collection[int]) -> Thread:
    """Return the thread with those of its CPUs, too, that sched_getaffinity() leaves out.

    What it may run on must not get less by being put back while CPUs are offline.
    """
    match = _ALLOWED.search(sysfs.read(f"proc/{thread.pid}/status") or "")
    away = {*cpulist.parse(match[1])}.intersection(offline) if match else set()
    return replace(thread, cpus=tuple(sorted(away.union(thread.cpus)))) if away else thread


def cpu_ticks(sysfs: Sysfs, pid: int) -> int | None:
    """Return the CPU time a thread has had, in clock ticks; None when it is gone."""
    rest = (sysfs.read(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    # utime is field 14 of proc_pid_stat(5), stime 15; rest starts at 3.
    return int(rest[11]) + int(rest[12]) if len(rest) > 12 else None


def set_cpus(pid: int, cpus: Iterable[int]) -> None:
    wanted = set(cpus)
    try:
        os.sched_setaffinity(pid, wanted)
    except OSError as error:
        raise _failed(pid, f"CPUs {sorted(wanted)}", error) from error


def set_sched(pid: int, nice_now: int, sched: str) -> None:
    """Set what Thread.sched shows: POLICY:NICE, or POLICY:PRIORITY[:NICE] when real-time."""
    policy, _, numbers = sched.partition(":")
    number, _, nice = numbers.partition(":")
    try:
        if policy in REALTIME:
            parameter = os.sched_param(int(number))
            os.sched_setscheduler(pid, uapi.SCHED_NUMBER[policy], parameter)
            _renice(pid, nice_now, int(nice or 0))
        elif policy in FAIR:
            os.sched_setscheduler(pid, uapi.SCHED_NUMBER[policy], os.sched_param(0))
            _renice(pid, nice_now, int(number))
        else:
            raise RxlaneError(Kind.UNSUPPORTED, f"scheduling class {policy} cannot be set")
    except OSError as error:
        raise _failed(pid, sched, error) from error


def _renice(pid: int, nice_now: int, nice: int) -> None:
    """Set the nice value where it differs; a change of class keeps it."""
    if nice != nice_now:
        os.setpriority(os.PRIO_PROCESS, pid, nice)


def _failed(pid: int, what: str, error: OSError) -> RxlaneError:
    reason = os.strerror(error.errno or 0)
    return RxlaneError(Kind.KERNEL, f"setting thread {pid} to {what}: {reason}")
