# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests ask for, on which simulated hosts, and what is planned or refused of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.model import Irq, IrqThread, Link, Snapshot, Thread, Topology
from rxlane.plan import Plan
from rxlane.policy import parse_mixed, parse_section
from rxlane.sections import Policy
from unit import simhost

FULL = {
    "threaded": "on@1-",
    "thread_cpus": "2-3",
    "thread_nice": "5",
    "defer_hard_irqs": "100",
    "gro_flush_timeout": "15000",
}


TWO_NODES = simhost.topology(8, nodes=2)
SECOND = simhost.link("eth1", 4, ifindex=3, base=9000)
FIFO = {"thread_policy": "fifo", "thread_priority": 50}


def policy(*devices: str, **options: str) -> Policy:
    return Policy((parse_section("napi", devices, options),))


def asked(*devices: str, **options: object) -> Policy:
    return parse_mixed(devices, {n: str(v) for n, v in options.items()})


def host(*links: Link, cpus: Topology | None = None) -> Snapshot:
    return simhost.whole(simhost.snapshot(*links, cpus=cpus))


def caches(cpus: Topology, size: int) -> Topology:
    """Last level caches of so many CPUs each."""
    rows = (replace(c, llc=c.number - c.number % size) for c in cpus.cpus)
    return replace(cpus, cpus=tuple(rows))


def joined(link: Link) -> Link:
    """The link with TX queues on the NAPIs and interrupts of RX queues."""
    own = {q.index: q for q in link.queues if q.kind == "rx"}
    queues = (
        q if q.kind == "rx" else replace(q, napi_id=own[q.index].napi_id, irq=own[q.index].irq)
        for q in link.queues
    )
    return replace(link, queues=tuple(queues))


def in_threads(start: Snapshot, sched: tuple[str, int] = ("other", 0)) -> Snapshot:
    """The host with the handler of each RX interrupt in a thread."""
    irqs = tuple(_in_thread(irq, *sched) if irq.number < 50 else irq for irq in start.irqs)
    rows = tuple(IrqThread(irq.number, irq.cpus) for irq in irqs if irq.thread is not None)
    return replace(start, irqs=irqs, irq_threads=rows)


def _in_thread(irq: Irq, policy: str, priority: int) -> Irq:
    name = f"irq/{irq.number}-{irq.name}"
    thread = Thread(460 + irq.number, name, policy, priority, 0, irq.cpus)
    return replace(irq, threaded=1, thread=thread)


def values(plan: Plan, item: str) -> dict[str, object]:
    found = {str(c.target): c.after for c in (*plan.changes, *plan.holds)}
    return {name.removesuffix(f"/{item}"): v for name, v in found.items() if name.endswith(item)}


def planned(start: Snapshot, item: str, *devices: str, **options: object) -> dict[str, object]:
    return values(decide(start, asked(*devices, **options)), item)


def threads(start: Snapshot, **options: object) -> dict[str, object]:
    return planned(start, "thread-cpus", **options)


def refusal(start: Snapshot, *devices: str, **options: object) -> RxlaneError:
    with pytest.raises(RxlaneError) as caught:
        decide(start, asked(*devices, **options))
    assert "\n" not in str(caught.value)
    return caught.value
