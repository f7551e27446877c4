# SPDX-License-Identifier: GPL-2.0-or-later
"""A host whose kernel has rx threads, what is asked of it and what is planned."""

from __future__ import annotations

from dataclasses import replace

from rxlane.model import Link, Snapshot
from rxlane.plan import Plan
from rxlane.policy import Given, parse
from rxlane.sections import Policy
from unit import simhost


def host(
    threads: int = 0, cpus: int = 8, nodes: int = 1, isolated: tuple[int, ...] = ()
) -> Snapshot:
    """A NIC of two queues, whose interrupts are taken on CPU 0, on a kernel with rx threads."""
    topology = simhost.topology(cpus, nodes=nodes, isolated=isolated)
    found = simhost.whole(simhost.snapshot(simhost.link(queues=2), cpus=topology))
    return replace(found, links=(simhost.separable(found.links[0], threads),))


def steered(start: Snapshot, rps: tuple[int, ...] = (1, 2), flows: int = 0) -> Snapshot:
    """The host with RPS, or RFS, on every queue."""

    def on(link: Link) -> Link:
        queues = (
            replace(q, rps_cpus=rps, rps_flow_cnt=flows) if q.kind == "rx" else q
            for q in link.queues
        )
        return replace(link, queues=tuple(queues))

    return replace(start, links=tuple(on(link) for link in start.links))


def asked(**options: str) -> Policy:
    return parse([Given("flow_steering", "flows", (), options)])


def planned(plan: Plan) -> dict[str, object]:
    return {str(c.target): c.after for c in (*plan.changes, *plan.holds)}


def cpus_of(plan: Plan, device: str = "eth0") -> list[object]:
    own = planned(plan)
    names = (f"{device}/rx-thread{n}/rx-thread-cpus" for n in range(64))
    return [own[name] for name in names if name in own]
