# SPDX-License-Identifier: GPL-2.0-or-later
"""The host as it is with every CPU online, which is what a layout starts from. Pure.

A CPU that goes offline must move the lanes that were on it and no others. So lanes are laid out for
all CPUs that are present first, and then only those move that have an offline one.

Of an offline CPU sysfs keeps the number and the node. Its core, the core's kind and its last level
cache are guessed from the others; a wrong guess moves more lanes, and does no other harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rxlane.model import Cpu, Topology
from rxlane.topology import efficient

Shape = tuple[int, ...]  # numbers of a core's CPUs, counted from its first


def whole(host: Topology) -> Topology:
    """Return the host with all CPUs online; the same object when they are."""
    if len(host.online) == len(host.cpus):
        return host
    cores = _cores(host)
    cpus = tuple(replace(cpu, online=True, siblings=cores[cpu.number]) for cpu in host.cpus)
    return replace(host, cpus=_with_caches(host, _with_kinds(host, cpus)))


def _cores(host: Topology) -> dict[int, tuple[int, ...]]:
    """Return the siblings of each CPU, an offline one in the core where it is missing."""
    cores = {cpu.number: cpu.siblings or (cpu.number,) for cpu in host.cpus}
    slow = efficient(host)
    quick = [cpu for cpu in host.cpus if cpu.number not in slow]
    gone = {cpu.number for cpu in quick if not cpu.online}
    shape = _shape(quick)
    lacking = {cpu.number for cpu in quick if len(cores[cpu.number]) == 1}
    while lacking and shape != (0,):
        open_to = {n: _free(_around(n, shape, quick), cores, gone) for n in lacking}
        # Who has the least choice chooses first, such as the host's first CPU; of those who have
        # as much, cores that lack a CPU, then those that are offline as a whole.
        number = min(lacking, key=lambda n: (len(open_to[n]) or len(shape) + 1, n in gone, n))
        core = next(iter(open_to[number]), (number,))
        cores |= dict.fromkeys(core, core)
        lacking -= set(core)
    return cores


def _free(
    around: Iterable[tuple[int, ...]], cores: Mapping[int, tuple[int, ...]], gone: set[int]
) -> list[tuple[int, ...]]:
    """Return those cores that lack a CPU which is gone, and have none of another core."""
    lacking = (core for core in around if not gone.isdisjoint(core))
    return [core for core in lacking if all(set(cores[n]) <= set(core) for n in core)]


def _around(number: int, shape: Shape, cpus: Sequence[Cpu]) -> list[tuple[int, ...]]:
    """Return the cores of this shape that the CPU could belong to."""
    known = {cpu.number for cpu in cpus}
    cores = (tuple(number - at + step for step in shape) for at in shape)
    return [core for core in cores if known.issuperset(core)]


def _shape(cpus: Sequence[Cpu]) -> Shape:
    """Return how all cores look that are whole, (0,) where they look different or have one CPU."""
    online = [cpu for cpu in cpus if cpu.online]
    gone = {cpu.number for cpu in cpus if not cpu.online}
    shapes = {tuple(s - cpu.siblings[0] for s in cpu.siblings) for cpu in online if cpu.siblings}
    most = max(shapes, key=len, default=(0,))
    alone = (cpu.number for cpu in online if len(cpu.siblings) < len(most))
    # A core of another kind lacks nothing: no CPU is gone that could be missing in it.
    other = any(all(gone.isdisjoint(core) for core in _around(n, most, cpus)) for n in alone)
    return (0,) if other or sum(len(s) == len(most) for s in shapes) > 1 else most


def _with_kinds(host: Topology, cpus: tuple[Cpu, ...]) -> tuple[Cpu, ...]:
    """Give offline CPUs the kind and capacity of the nearest CPU with as many siblings."""
    known = {cpu.number: cpu for cpu in host.cpus if cpu.online}
    if not any(cpu.kind or cpu.capacity is not None for cpu in known.values()):
        return cpus
    sizes = {cpu.number: len(cpu.siblings) for cpu in cpus}
    found = []
    for cpu in cpus:
        if cpu.number not in known:
            like = min(
                known.values(),
                key=lambda k: (sizes[k.number] != sizes[cpu.number], abs(k.number - cpu.number)),
            )
            cpu = replace(cpu, kind=like.kind, capacity=like.capacity)
        found.append(cpu)
    return tuple(found)


def _with_caches(host: Topology, cpus: tuple[Cpu, ...]) -> tuple[Cpu, ...]:
    """Put offline CPUs under the cache of their core, else of a neighbour, the one with fewer."""
    known = {cpu.number: cpu.llc for cpu in host.cpus if cpu.online and cpu.llc is not None}
    if not known:
        return cpus
    members = Counter(known.values())
    found = []
    for cpu in cpus:
        if cpu.number not in known:
            beside = [n for n in cpu.siblings if n in known]
            lower = max((n for n in known if n < cpu.number), default=None)
            higher = min((n for n in known if n > cpu.number), default=None)
            near = beside[:1] or [n for n in (lower, higher) if n is not None]
            cpu = replace(cpu, llc=min((known[n] for n in near), key=lambda c: members[c]))
        found.append(cpu)
    return tuple(found)
