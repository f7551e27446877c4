# SPDX-License-Identifier: GPL-2.0-or-later
"""Read the host's CPUs: cores of all kinds, SMT, caches, NUMA nodes, which are isolated."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from rxlane.model import ATOM, CORE, Cpu, Topology
from rxlane.sysfs import Sysfs

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
CGROUPS = "sys/fs/cgroup"


def topology(sysfs: Sysfs) -> Topology:
    """Read cores of all kinds, SMT siblings, NUMA nodes, and CPUs that are set apart."""
    online = set(sysfs.cpus(f"{CPU}/online"))
    nodes: dict[int, int] = {}
    for name in sysfs.names(NODE):
        if re.fullmatch(r"node\d+", name):
            nodes |= dict.fromkeys(_node_cpus(sysfs, name), int(name[4:]))
    found = sysfs.cpus(f"{CPU}/present") or tuple(sorted(online))
    caches, kinds = _caches(sysfs, online), _kinds(sysfs)
    cpus = (_cpu(sysfs, n, n in online, nodes.get(n, 0)) for n in found)
    isolated = sysfs.cpus(f"{CPU}/isolated")
    partitioned = _partitioned(sysfs, online, isolated)
    return Topology(
        tuple(replace(c, llc=caches.get(c.number), kind=kinds.get(c.number, "")) for c in cpus),
        # By the command line; newer kernels list isolated partitions here, too.
        tuple(n for n in isolated if n not in partitioned),
        sysfs.cpus(f"{CPU}/nohz_full"),
        tuple(sorted(partitioned)),
    )


def _partitioned(sysfs: Sysfs, online: Collection[int], isolated: Collection[int]) -> set[int]:
    """Return the CPUs of control groups' partitions, isolated or not.

    The root group's effective CPUs are those that cpuset_cpus_allowed() leaves to the kernel's
    threads. In a container what looks like the root group is not, which cgroup.events tells. The
    list of isolated CPUs has those of the command line as well.
    """
    listed = set(sysfs.cpus(f"{CGROUPS}/cpuset.cpus.isolated")) - set(isolated)
    left = set(sysfs.cpus(f"{CGROUPS}/cpuset.cpus.effective"))
    if not left or sysfs.exists(f"{CGROUPS}/cgroup.events"):
        return listed
    return listed | (set(online) - left)


def possible(sysfs: Sysfs) -> tuple[int, ...]:
    """Return every CPU that this kernel can ever have."""
    return sysfs.cpus(f"{CPU}/possible")


def _node_cpus(sysfs: Sysfs, node: str) -> set[int]:
    """Return a node's CPUs: cpulist has those online, links to them stay while they are offline."""
    links = (re.fullmatch(r"cpu(\d+)", name) for name in sysfs.names(f"{NODE}/{node}"))
    return {int(m[1]) for m in links if m} | set(sysfs.cpus(f"{NODE}/{node}/cpulist"))


def _caches(sysfs: Sysfs, online: Collection[int]) -> dict[int, int]:
    """Return for each CPU the lowest one that shares its last level cache, read once a cache."""
    found: dict[int, int] = {}
    for number in sorted(online):
        if number in found:
            continue
        base = f"{CPU}/cpu{number}/cache"
        last = max((n for n in sysfs.names(base) if n.startswith("index")), default=None)
        shared = () if last is None else sysfs.cpus(f"{base}/{last}/shared_cpu_list")
        found |= {n: shared[0] for n in shared}
    return found


def _kinds(sysfs: Sysfs) -> dict[int, str]:
    """Return performance and efficiency cores of a hybrid x86 host, by their PMUs' CPUs."""
    return {n: kind for kind in (CORE, ATOM) for n in sysfs.cpus(f"sys/devices/cpu_{kind}/cpus")}


def _cpu(sysfs: Sysfs, number: int, online: bool, node: int) -> Cpu:
    base = f"{CPU}/cpu{number}/topology"
    return Cpu(
        number,
        online,
        sysfs.number(f"{base}/physical_package_id") or 0,
        sysfs.number(f"{base}/core_id") or 0,
        node,
        sysfs.cpus(f"{base}/thread_siblings_list") or (number,),
        # arm64 and newer x86 kernels have it.
        capacity=sysfs.number(f"{CPU}/cpu{number}/cpu_capacity"),
    )
