# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts of several devices that are laid out one by one, and those of their lanes that poll."""

from __future__ import annotations

from rxlane.apply import apply
from rxlane.model import Index, Lane, Snapshot, Topology, lanes
from unit import simhost
from unit.asking import asked
from unit.simhost import MemoryStore, SimHost

FIFO: dict[str, object] = {
    "threaded": "busy-poll",
    "thread_policy": "fifo",
    "thread_priority": 40,
}


def host(devices: int = 2, queues: int = 2, cpus: Topology | None = None) -> Snapshot:
    links = (
        simhost.link(f"eth{n}", queues, ifindex=n + 2, base=9000 + 500 * n) for n in range(devices)
    )
    return simhost.whole(simhost.snapshot(*links, cpus=cpus))


def laid_out(start: Snapshot, *devices: str, **options: object) -> Snapshot:
    """The host after an apply to these devices."""
    sim = SimHost(start)
    apply(sim, MemoryStore(), asked(*devices, **options), devices)
    return sim.observe()


def polled(snapshot: Snapshot) -> list[Lane]:
    index = Index.of(snapshot)
    found = (lane for link in snapshot.links for lane in lanes(index, link))
    return [lane for lane in found if lane.poller is not None]
