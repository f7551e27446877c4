# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPUs send by which TX queue. Pure.

What a queue has sent is freed where its NAPI is polled. The best CPUs to share it are that one and
those that share its cache (Documentation/networking/scaling.rst, "XPS Configuration").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rxlane.model import Cpu, Topology


def deal(host: Topology, homes: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Deal all CPUs out to the queues, offline ones too, so that none that comes or goes moves the
    others. Every CPU has one queue and every queue a CPU, as long as there are as many.

    homes: where each queue is polled, None where that is not known.
    """
    cpus = {cpu.number: cpu for cpu in host.cpus}
    owner: dict[int, int] = {}
    for queue, home in enumerate(homes):
        if home in cpus and home is not None:
            owner.setdefault(home, queue)
    counts = Counter(owner.values())
    for queue in (n for n in range(len(homes)) if not counts[n]):
        left = [(_way(cpus, n, homes[queue]), n) for n in cpus if n not in owner]
        if not left:
            break
        owner[min(left)[1]] = queue
        counts[queue] += 1
    for number in (n for n in cpus if n not in owner):
        ways = ((_way(cpus, number, home), counts[n], n) for n, home in enumerate(homes))
        owner[number] = min(ways)[2]
        counts[owner[number]] += 1
    own = [tuple(n for n in cpus if owner[n] == queue) for queue in range(len(homes))]
    every = tuple(cpus)
    return [got or (every[queue % len(every)],) for queue, got in enumerate(own)]


def _way(cpus: Mapping[int, Cpu], number: int, home: int | None) -> int:
    """Return how far a CPU is from where a queue is polled: core, cache, node, or farther."""
    here, there = cpus[number], None if home is None else cpus.get(home)
    if there is None:
        return 3
    if number in there.siblings:
        return 0
    if here.llc is not None and here.llc == there.llc:
        return 1
    return 2 if here.node == there.node else 3
