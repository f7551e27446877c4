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
PARTITIONED = "sys/fs/cgroup/cpuset.cpus.isolated"


def topology(sysfs: Sysfs) -> Topology:
    """Read cores of all kinds, SMT siblings, NUMA nodes, isolated and nohz_full CPUs."""
    online = set(sysfs.cpus(f"{CPU}/online"))
    nodes: dict[int, int] = {}
    for name in sysfs.names(NODE):
        if re.fullmatch(r"node\d+", name):
            nodes |= dict.fromkeys(_node_cpus(sysfs, name), int(name[4:]))
    found = sysfs.cpus(f"{CPU}/present") or tuple(sorted(online))
    caches, kinds = _caches(sysfs, online), _kinds(sysfs)
    cpus = (_cpu(sysfs, n, n in online, nodes.get(n, 0)) for n in found)
    return Topology(
        tuple(replace(c, llc=caches.get(c.number), kind=kinds.get(c.number, "")) for c in cpus),
        # By the command line, and by isolated partitions of control groups since.
        tuple(sorted({*sysfs.cpus(f"{CPU}/isolated"), *sysfs.cpus(PARTITIONED)})),
        sysfs.cpus(f"{CPU}/nohz_full"),
    )


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
