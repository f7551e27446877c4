# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPUs a placement chooses from, and what real-time threads must not take. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rxlane import cpulist
from rxlane.model import ATOM, Topology

# CPUs that must stay for everything else once real-time threads have theirs: one may be busy with
# an interrupt storm, and an operator still needs a shell.
HOUSEKEEPING_LEFT = 2

# How a section lays lanes out where it names no CPUs.
AUTO, NUMA_LOCAL, ONE_PER_CORE, SPREAD_LLC = "auto", "numa-local", "one-per-core", "spread-llc"
PLACEMENTS = (AUTO, NUMA_LOCAL, ONE_PER_CORE, SPREAD_LLC)


# In quarters of the best: cores of one kind differ by a few percent (favoured cores), those of
# another by half.
LEAST_CAPACITY = 3


def efficient(topology: Topology) -> frozenset[int]:
    """Return the CPUs of efficiency cores, by their PMU or else by their capacity."""
    atoms = frozenset(cpu.number for cpu in topology.cpus if cpu.kind == ATOM)
    best = max((cpu.capacity or 0 for cpu in topology.cpus), default=0)
    return atoms or frozenset(
        cpu.number
        for cpu in topology.cpus
        if cpu.capacity is not None and 4 * cpu.capacity < LEAST_CAPACITY * best
    )


def near(topology: Topology, cpus: Collection[int], node: int | None) -> tuple[int, ...]:
    """Return those of the CPUs that are on the node; all of them when none is or node is None."""
    local = {cpu.number for cpu in topology.cpus if cpu.node == node}
    return tuple(n for n in cpus if n in local) or tuple(cpus)


def restrict(
    topology: Topology, cpus: Collection[int], placement: str, node: int | None
) -> tuple[int, ...]:
    """Return those of the CPUs that a placement other than auto chooses from, never none."""
    if placement == NUMA_LOCAL:
        return near(topology, cpus, node)
    if placement == ONE_PER_CORE:
        return first_of_cores(topology, cpus)
    return tuple(cpus)


def first_of_cores(topology: Topology, cpus: Collection[int]) -> tuple[int, ...]:
    """Return the first of the CPUs on each core, in the given order."""
    known = {cpu.number: cpu.siblings for cpu in topology.cpus}
    seen: set[int] = set()
    found = []
    for number in cpus:
        if number not in seen:
            found.append(number)
            seen.update((number, *known.get(number, ())))
    return tuple(found)


def pool(
    topology: Topology, vcpus: Collection[int], exclusive: bool, realtime: bool, cpu0: bool
) -> tuple[int, ...]:
    """Return the CPUs that `auto` chooses from; empty when there is none to give.

    vcpus: CPUs to which vCPUs are bound, which are left out unless there are no others. exclusive:
    a busy poller or a real-time thread, which wants a CPU for itself; fair threads and interrupts
    share all housekeeping CPUs, CPU 0 last. cpu0: real-time threads may use CPU 0.
    """
    every = _pool(topology, exclusive, realtime, cpu0)
    return tuple(n for n in every if n not in vcpus) or every


def _pool(topology: Topology, exclusive: bool, realtime: bool, cpu0: bool) -> tuple[int, ...]:
    usable = topology.open
    if not exclusive:
        ordinary = topology.housekeeping or usable
        return tuple(sorted(ordinary, key=lambda n: (n == 0, n)))
    isolated = tuple(n for n in usable if n not in topology.housekeeping)
    rest = tuple(n for n in topology.housekeeping if n != 0)
    if realtime:
        return _realtime_pool(topology, isolated, rest, cpu0)
    return isolated + rest


def _realtime_pool(
    topology: Topology, isolated: tuple[int, ...], rest: tuple[int, ...], cpu0: bool
) -> tuple[int, ...]:
    """Isolated CPUs, plus as many housekeeping CPUs as may go, highest first.

    Highest first leaves the low CPUs, where firmware and boot put interrupts, to the host.
    """
    spare = max(0, len(topology.housekeeping) - HOUSEKEEPING_LEFT)
    given = isolated + tuple(sorted(sorted(rest, reverse=True)[:spare]))
    beside = siblings(topology, [n for n in topology.housekeeping if n not in given][:1])
    return tuple(n for n in given if (n != 0 or cpu0) and n not in beside)


def siblings(topology: Topology, cpus: Collection[int]) -> set[int]:
    """Return the other CPUs on the cores of these."""
    return {s for cpu in topology.cpus if cpu.number in cpus for s in cpu.siblings} - set(cpus)


def realtime_problem(
    topology: Topology, cpus: Collection[int], cpu0: bool
) -> tuple[str, str] | None:
    """Return (problem, remedy) when real-time threads on these CPUs would endanger the host."""
    online = topology.online
    if len(online) <= HOUSEKEEPING_LEFT:
        problem = (
            f"a real-time thread needs a host of at least {HOUSEKEEPING_LEFT + 1} CPUs,"
            f" this one has {len(online)}"
        )
        return problem, "use thread_policy=other with thread_nice"
    if 0 in cpus and not cpu0:
        return (
            "a real-time thread could run on CPU 0, which carries the kernel's own work",
            "keep CPU 0 out of thread_cpus or set allow_realtime_cpu0=1",
        )
    left = [n for n in topology.housekeeping if n not in cpus]
    if not left:
        return "real-time threads would take the last housekeeping CPU", "give fewer CPUs"
    if len(left) < HOUSEKEEPING_LEFT:
        problem = f"real-time threads would leave only CPU {cpulist.render(left)} for all else"
        return problem, f"leave at least {HOUSEKEEPING_LEFT} housekeeping CPUs"
    if all(siblings(topology, [n]) & set(cpus) for n in left):
        problem = (
            "real-time threads would run on the SMT siblings of every housekeeping CPU that is"
            f" left ({cpulist.render(left)})"
        )
        return problem, "leave a whole core to the host"
    return None


def unusable(topology: Topology, cpus: Sequence[int]) -> tuple[int, str] | None:
    """Return the first CPU of the list that cannot be used, with the reason."""
    known = {cpu.number: cpu for cpu in topology.cpus}
    for number in cpus:
        cpu = known.get(number)
        if cpu is None:
            return number, "does not exist"
        if not cpu.online:
            return number, "is offline"
    return None


def siblings_among(topology: Topology, cpus: Collection[int]) -> tuple[int, int] | None:
    """Return two of the CPUs that share a core, None when all have a core each."""
    for cpu in topology.cpus:
        for other in cpu.siblings:
            if cpu.number in cpus and other > cpu.number and other in cpus:
                return cpu.number, other
    return None
