# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that chooses nice levels where a section leaves that to us. Pure.

In a virtual machine threads that poll share few CPUs with the applications that they receive for,
and the host goes on sending however much is lost. At the applications' level they take half of the
CPU for packets that nobody then has the time to read; ten levels below they yield, the ring
overflows, which costs nothing, and what is received is also read (`make bench`, table goodput).
On a host it is the other way round: what waits is the guests'.
"""

from __future__ import annotations

from dataclasses import replace

from rxlane.model import Snapshot
from rxlane.sections import SCHED_AUTO, Policy

IN_GUEST, ON_HOST = 10, 0


def chosen(policy: Policy, snapshot: Snapshot) -> Policy:
    """Return the policy with numbers for all nice levels that are auto."""
    nice = IN_GUEST if snapshot.virtual else ON_HOST

    def number(sched: str | None) -> str | None:
        return sched and sched.replace(SCHED_AUTO, f":{nice}")

    return replace(
        policy,
        sections=tuple(replace(s, sched=number(s.sched)) for s in policy.sections),
        irq=tuple(replace(s, thread_sched=number(s.thread_sched)) for s in policy.irq),
        steering=tuple(replace(s, rx_sched=number(s.rx_sched)) for s in policy.steering),
    )
