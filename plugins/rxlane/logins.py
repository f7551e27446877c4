# SPDX-License-Identifier: GPL-2.0-or-later
"""Over which devices somebody is logged in. Addresses are looked up here and kept nowhere.

sshd gives the processes of a login SSH_CONNECTION. It is looked for in this process's ancestors,
which covers sudo, and in every login session of the host, which covers a daemon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from rxlane import rtnetlink
from rxlane.sysfs import Sysfs

SLICES = "sys/fs/cgroup/user.slice"
# The client's address and port, the server's address and port.
_SSH = re.compile(r"(?:^|\0)SSH_CONNECTION=([^\s\0]+) (?:[^\s\0]+ ([^\s\0]+))?")
DEPTH = 64  # of the ancestors looked at, and of devices upon devices


def ancestors(sysfs: Sysfs, pid: int) -> list[int]:
    """Return the process and those that started it, nearest first."""
    found: list[int] = []
    while pid > 1 and len(found) < DEPTH:
        found.append(pid)
        text = sysfs.read(f"proc/{pid}/stat")
        # After the name, which may hold spaces and parentheses: state, parent, ...
        fields = [] if text is None else text.rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def sessions(sysfs: Sysfs) -> Iterable[str]:
    """Yield the folders of systemd's login sessions."""
    for user in sysfs.folders(SLICES):
        for name in sysfs.folders(f"{SLICES}/{user}"):
            if name.startswith("session-"):
                yield f"{SLICES}/{user}/{name}"


def processes(sysfs: Sysfs, session: str) -> set[int]:
    """Return the processes of a session; one outside of the PID namespace is 0."""
    return {int(pid) for pid in (sysfs.read(f"{session}/cgroup.procs") or "").split()}


def hidden(sysfs: Sysfs) -> bool:
    """True where a login may be over any device, for its processes are not to be read.

    Those of others take CAP_SYS_PTRACE, and hidepid= or a PID namespace may hide them at all.
    """
    return any(_hides(sysfs, session) for session in sessions(sysfs))


def _hides(sysfs: Sysfs, session: str) -> bool:
    own = {pid: sysfs.read(f"proc/{pid}/environ") for pid in processes(sysfs, session)}
    if any(_SSH.search(text) for text in own.values() if text):
        return False
    unread = {pid for pid, text in own.items() if text is None}
    # What has ended meanwhile hides nothing.
    return bool(unread and unread.intersection(processes(sysfs, session)))


def connections(sysfs: Sysfs, pid: int) -> set[tuple[str, str]]:
    """Return the addresses from and at which somebody is logged in, as far as this user may see.

    The second is empty where it is not told.
    """
    found = set()
    logged_in = (one for session in sessions(sysfs) for one in processes(sysfs, session))
    for one in dict.fromkeys((*ancestors(sysfs, pid), *logged_in)):
        match = _SSH.search(sysfs.read(f"proc/{one}/environ") or "")
        if match is not None:
            found.add((match[1], match[2] or ""))
    return found


def below(sysfs: Sysfs, name: str) -> list[str]:
    """Return the device and those it stands upon: a bond's ports, a VLAN's or a bridge's."""
    found = [name]
    for one in found:
        names = sysfs.names(f"sys/class/net/{one}")
        lower = (n.removeprefix("lower_") for n in names if n.startswith("lower_"))
        found.extend(n for n in lower if n not in found and len(found) < DEPTH)
    return found


def devices(
    sysfs: Sysfs,
    names: dict[int, str],
    pid: int | None = None,
    route: Callable[[str, str], int | None] = rtnetlink.route,
    holders: Callable[[Iterable[str]], Iterable[int]] = rtnetlink.holders,
) -> tuple[str, ...]:
    """Return the devices that may carry a login. names: by ifindex, as the kernel has them.

    Packets come in by the device with the server's address, of a VRF as well, or by another; what
    is known of the way back is the route that the server's address takes.
    """
    found = connections(sysfs, os.getpid() if pid is None else pid)
    servers = {server for _, server in found if server}
    indexes = {*(holders(servers) if servers else ()), *(route(*one) for one in found)}
    own = (below(sysfs, names[index]) for index in indexes if index in names)
    return tuple(sorted({name for each in own for name in each}))
