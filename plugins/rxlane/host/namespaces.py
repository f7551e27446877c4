# SPDX-License-Identifier: GPL-2.0-or-later
"""Which network namespace this process is in, and whether its /sys is of the same one."""

from __future__ import annotations

from rxlane.errors import Kind, RxlaneError
from rxlane.sysfs import Sysfs


def inode(sysfs: Sysfs, process: str = "self") -> int:
    """Return the inode of a process' namespace, 0 where /proc does not tell."""
    return sysfs.inode(f"proc/{process}/ns/net")


def refuse_foreign(sysfs: Sysfs) -> None:
    """Raise REFUSED in a namespace that was entered without a /sys of its own.

    A device there and another one outside, of the same name and index, would pass for one. Each
    namespace has a file system of its own; that of PID 1 only root sees.
    """
    own, first = inode(sysfs), inode(sysfs, "1")
    if 0 in (own, first) or own == first:
        return
    outside = sysfs.filesystem("proc/1/root/sys")
    if outside is None or outside != sysfs.filesystem("sys"):
        return
    problem = "/sys is of another network namespace than this process"
    remedy = "`ip netns exec` mounts the right one, `ip netns attach NAME PID` names a container's"
    raise RxlaneError(Kind.REFUSED, problem, remedy=remedy)
