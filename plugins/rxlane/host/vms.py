# SPDX-License-Identifier: GPL-2.0-or-later
"""Read what virtual machines of this host run for their network: taps, vhost threads, vCPUs.

A tap is known by its tun_flags, the process behind it by the "iff:" line of its descriptor
(tun_chr_show_fdinfo() in drivers/net/tun.c). vhost threads are called vhost-PID: kernel threads
before 6.4, threads of the process itself since (vhost_task_create()), in its control groups either
way. Threads of QEMU that run a vCPU are called "CPU 0/KVM" or "CPU 0/TCG".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rxlane.host import threads
from rxlane.host.processors import CGROUPS
from rxlane.model import Link, Thread
from rxlane.sysfs import Sysfs

_VCPU = re.compile(r"CPU \d+/(?:KVM|TCG)")
# Each machine holds a reference: kvm_create_vm().
_KVM_USERS = ("sys/module/kvm_intel/refcnt", "sys/module/kvm_amd/refcnt")
_TAP = re.compile(r"^iff:\t(\S+)$", re.M)


@dataclass(slots=True)
class Machines:
    """workers: pids of vhost threads by their process. vcpus: pids of threads that run a vCPU."""

    workers: dict[int, list[int]] = field(default_factory=dict)
    vcpus: list[int] = field(default_factory=list)


def is_tap(sysfs: Sysfs, name: str) -> bool:
    return sysfs.exists(f"sys/class/net/{name}/tun_flags")


def find(sysfs: Sysfs) -> Machines:
    """Look through all processes for those that have vhost threads."""
    found = Machines()
    for pid in (int(name) for name in sysfs.names("proc") if name.isdecimal()):
        match = threads.VHOST.fullmatch(sysfs.read(f"proc/{pid}/comm") or "")
        if match is not None:
            found.workers.setdefault(int(match[1]), []).append(pid)
            continue
        for task in (int(name) for name in sysfs.names(f"proc/{pid}/task")):
            name = sysfs.read(f"proc/{pid}/task/{task}/comm") if task != pid else None
            if name is not None and threads.VHOST.fullmatch(name):
                found.workers.setdefault(pid, []).append(task)
            elif name is not None and _VCPU.fullmatch(name):
                found.vcpus.append(task)
    return found


def with_machines(sysfs: Sysfs, links: Iterable[Link]) -> tuple[tuple[Link, ...], tuple[int, ...]]:
    """Return the links, taps with their vhost threads, and the CPUs that vCPUs are bound to.

    The kernel does not tell which thread of a process serves which of its taps: all are its first
    tap's. Processes are looked through where there are taps or KVM has users, for a machine may
    have other networks. What neither tells of, TCG or a KVM that is no module of x86, is not seen.
    """
    links = tuple(links)
    taps = {link.name for link in links if link.tap}
    if not taps and not any(sysfs.number(file) for file in _KVM_USERS):
        return links, ()
    found = find(sysfs)
    owners: dict[str, int] = {}
    for pid in found.workers:
        mine = taps & _taps_of(sysfs, pid)
        for link in links:
            if link.name in mine:
                owners[link.name] = pid
                break
    return _with_workers(sysfs, links, owners, found), _bound(sysfs, found.vcpus)


def _taps_of(sysfs: Sysfs, pid: int) -> set[str]:
    folder = f"proc/{pid}/fdinfo"
    texts = (sysfs.read(f"{folder}/{name}") or "" for name in sysfs.names(folder))
    return {match[1] for text in texts for match in _TAP.finditer(text)}


def _with_workers(
    sysfs: Sysfs, links: tuple[Link, ...], owners: Mapping[str, int], found: Machines
) -> tuple[Link, ...]:
    def one(link: Link) -> Link:
        if link.name not in owners:
            return link
        pids = sorted(found.workers[owners[link.name]])
        return replace(link, vhosts=workers(sysfs, pids))

    return tuple(one(link) for link in links)


def workers(sysfs: Sysfs, pids: Iterable[int]) -> tuple[Thread, ...]:
    """Return those of the threads that are vhost's, as they are now."""
    known = (threads.read(sysfs, pid, threads.VHOST) for pid in pids)
    return tuple(replace(t, allowed=_allowed(sysfs, t.pid)) for t in known if t is not None)


def _allowed(sysfs: Sysfs, pid: int) -> tuple[int, ...]:
    """Return the CPUs that the thread's control group has, () where the kernel does not tell."""
    group = sysfs.read(f"proc/{pid}/cpuset")
    files = (f"{group}/cpuset.cpus.effective", f"/cpuset{group}/cpuset.effective_cpus")
    known = () if group is None else (sysfs.cpus(f"{CGROUPS}{file}") for file in files)
    return next(filter(None, known), ())


def _bound(sysfs: Sysfs, vcpus: Iterable[int]) -> tuple[int, ...]:
    """Return the CPUs of threads that may not run on all that are online; those that only keep off
    CPUs which are isolated at boot are bound to none: init, and all it starts, keeps off them.
    """
    everybody = set(sysfs.cpus("sys/devices/system/cpu/online"))
    everybody -= set(sysfs.cpus("sys/devices/system/cpu/isolated"))
    known = (threads.affinity(pid) or () for pid in vcpus)
    return tuple(sorted({n for own in known if not everybody <= set(own) for n in own}))
