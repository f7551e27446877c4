# SPDX-License-Identifier: GPL-2.0-or-later
"""Which login a process belongs to, and whether one began after another.

A confirmation is to show that the host still takes new logins. Being in another process, terminal
or POSIX session shows nothing of that: setsid gives those within the old login. The kernel's audit
session id does: pam_loginuid(8) takes a new, higher one at each login, and it stays with every
descendant. Where the applier had none (containers, an agent), the POSIX session decides.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from rxlane.sysfs import Sysfs

UNSET = 2**32 - 1  # AUDIT_SID_UNSET, include/linux/audit.h


@dataclass(frozen=True, slots=True)
class Login:
    """audit: the audit session id, None without one. newest: the highest id of any process.

    sid, tty: POSIX session and controlling terminal, 0 without one. started: when the session's
    leader started, None when it is gone. at: when this was read. Times in clock ticks since boot.
    """

    audit: int | None
    newest: int | None
    sid: int
    tty: int
    started: int | None
    at: int


def ticks() -> int:
    """Return the time since boot as /proc/PID/stat counts it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def age(login: Login) -> float:
    """Return the seconds since the login was read."""
    return (ticks() - login.at) / os.sysconf("SC_CLK_TCK")


def _audit(sysfs: Sysfs, pid: str) -> int | None:
    number = sysfs.number(f"proc/{pid}/sessionid")
    return None if number == UNSET else number


def _stat(sysfs: Sysfs, pid: str | int, number: int) -> int | None:
    """Return a field of /proc/PID/stat behind the name, numbered as in proc_pid_stat(5)."""
    fields = (sysfs.read(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(fields[number - 3]) if len(fields) > number - 3 else None


def start_of(sysfs: Sysfs, pid: int) -> int | None:
    """Return when a process started, None when there is none."""
    return _stat(sysfs, pid, 22)


def current(sysfs: Sysfs) -> Login:
    """Return the login of this process."""
    found = (_audit(sysfs, name) for name in sysfs.names("proc") if name.isdigit())
    newest = max((n for n in found if n is not None), default=None)
    sid = _stat(sysfs, "self", 6) or 0
    tty = _stat(sysfs, "self", 7) or 0
    return Login(_audit(sysfs, "self"), newest, sid, tty, start_of(sysfs, sid), ticks())


def not_newer(earlier: Login, own: Login) -> str | None:
    """Say why own is no login that began after earlier was read; None when it is one."""
    if own.audit is not None:
        if earlier.newest is not None and own.audit <= earlier.newest:
            return "this login is older than the apply"
        return None
    if earlier.audit is not None:
        return "this process belongs to no login"
    if own.sid == earlier.sid or (own.tty and own.tty == earlier.tty):
        return "this is the session that applied"
    if own.started is None or own.started < earlier.at:
        return "this session is older than the apply"
    return None
