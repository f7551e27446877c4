# SPDX-License-Identifier: GPL-2.0-or-later
"""Over which devices somebody is logged in. Addresses are looked up here and kept nowhere.

sshd gives the processes of a login SSH_CONNECTION. It is looked for in this process's ancestors,
which covers sudo, and in every login session of the host, which covers a daemon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from rxlane.host import slices
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink

_SERVICE = re.compile(r"(?:sshd?|dropbear)(?:@.*)?\.service")
# The client's address and port, the server's address and port.
_SSH = re.compile(r"(?:^|\0)SSH_CONNECTION=([^\s\0]+) (?:[^\s\0]+ ([^\s\0]+))?")
DEPTH = 64  # of the ancestors looked at, and of devices upon devices

# The addresses of a login: the client's, and the server's, which is empty where it is not told.
Ends = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Logins:
    """connections: from and at which addresses somebody is logged in, as far as this user may see.

    hidden: a login may be over any device, for its processes are not to be read. Those of others
    take CAP_SYS_PTRACE, and hidepid= or a PID namespace may hide them at all.
    """

    connections: frozenset[Ends]
    hidden: bool


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


def services(sysfs: Sysfs) -> Iterable[str]:
    """Yield the folders of what lets people in: without PAM, a login's processes stay there."""
    system = slices.folder(sysfs, slices.SYSTEM)
    for name in sysfs.folders(system):
        if _SERVICE.fullmatch(name):
            yield f"{system}/{name}"


def sessions(sysfs: Sysfs) -> Iterable[str]:
    """Yield the folders of systemd's login sessions."""
    users = slices.folder(sysfs, slices.USER)
    for user in sysfs.folders(users):
        for name in sysfs.folders(f"{users}/{user}"):
            if name.startswith("session-"):
                yield f"{users}/{user}/{name}"


def processes(sysfs: Sysfs, session: str) -> set[int]:
    """Return the processes of a session; one outside of the PID namespace is 0."""
    return {int(pid) for pid in (sysfs.read(f"{session}/cgroup.procs") or "").split()}


def look(sysfs: Sysfs, pid: int | None = None) -> Logins:
    """Return who is logged in. pid: the process whose ancestors are looked at, None for this one.

    The environ of each process is read once, so that of one that ends both tell the same.
    """
    started = ancestors(sysfs, os.getpid() if pid is None else pid)
    told = {one: _ends(sysfs, one) for one in started}
    hidden = False
    for session in sessions(sysfs):
        own = processes(sysfs, session)
        told |= {one: _ends(sysfs, one) for one in own.difference(told)}
        hidden |= _hides(sysfs, session, {one: told[one] for one in own})
    for service in services(sysfs):
        # What cannot be read of these hides nothing: as a rule nobody's login is there.
        told |= {one: _ends(sysfs, one) for one in processes(sysfs, service).difference(told)}
    return Logins(frozenset().union(*(ends for ends in told.values() if ends)), hidden)


def _ends(sysfs: Sysfs, pid: int) -> frozenset[Ends] | None:
    """Return what a process tells of its login, nothing of none; None where it cannot be read."""
    text = sysfs.read(f"proc/{pid}/environ")
    if text is None:
        return None
    match = _SSH.search(text)
    return frozenset() if match is None else frozenset([(match[1], match[2] or "")])


def _hides(sysfs: Sysfs, session: str, told: Mapping[int, frozenset[Ends] | None]) -> bool:
    """True where none of a session's processes tells of a login, and one that is there might."""
    if any(told.values()):
        return False
    unread = {pid for pid, ends in told.items() if ends is None}
    # What has ended meanwhile hides nothing.
    return bool(unread and unread.intersection(processes(sysfs, session)))


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
    connections: Collection[Ends],
    names: dict[int, str],
    routes: Callable[[str, str], Iterable[int]] = rtnetlink.routes,
    holders: Callable[[Iterable[str]], Iterable[int]] = rtnetlink.holders,
) -> tuple[str, ...]:
    """Return the devices that may carry one of the logins. names: by ifindex, as the kernel has it.

    Packets come in by the device with the server's address, of a VRF as well, or by another; what
    is known of the way back are the routes that the server's address takes. Where that is a tunnel,
    a switch of another kind or the host itself, any hardware may be what carries it.
    """
    found: set[str] = set()
    having = {server: {*holders([server])} for server in {server for _, server in connections}}
    for client, server in connections:
        indexes = {*having[server], *routes(client, server)}
        own = {name for n in indexes if n in names for name in below(sysfs, names[n])}
        found |= own
        if not any(_is_hardware(sysfs, name) for name in own):
            found.update(name for name in names.values() if _is_hardware(sysfs, name))
    return tuple(sorted(found))


def _is_hardware(sysfs: Sysfs, name: str) -> bool:
    return sysfs.exists(f"sys/class/net/{name}/device")
