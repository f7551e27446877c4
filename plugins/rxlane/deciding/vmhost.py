# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() for a host of virtual machines: vhost threads, and RPS of their taps. Pure.

A tap has no NAPI to thread: what a guest sends is received in its vhost thread, and goes on in
softirq on that thread's CPU, or by RPS on others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rxlane import cpulist
from rxlane.deciding.draft import Draft, check_cpus, check_rps, check_work, one_value
from rxlane.items import OFF, RPS, VHOST_CPUS
from rxlane.model import Link
from rxlane.plan import HOST, WHOLE, Target
from rxlane.sections import FlowSteering

NO_TAP = "no tap is there"
SEPARATED = "its rx threads exclude it"


def plan(draft: Draft, sections: Iterable[FlowSteering], polled: Collection[int]) -> None:
    """Plan what the sections ask for on every tap of the host, which come and go with guests.

    polled: CPUs that real-time pollers never leave.
    """
    given = list(sections)
    taps = [link for link in draft.view.snapshot.links if link.tap]
    for section, _, cpus in one_value(((s, "", s.vhost_cpus) for s in given), "vhost_cpus"):
        check_work(draft, section, "vhost_cpus", cpus, polled)
        _workers(draft, section, taps, _chosen(draft, section, cpus, polled))
    for section, _, cpus in one_value(((s, "", s.tap_rps) for s in given), "tap_rps"):
        _rps(draft, section, taps, cpus)


def _chosen(
    draft: Draft, section: FlowSteering, cpus: tuple[int, ...], polled: Collection[int]
) -> tuple[int, ...]:
    """Return the CPUs given, checked; of auto the ordinary ones to which no vCPU is bound."""
    snapshot = draft.view.snapshot
    check_cpus(snapshot.topology, section, "vhost_cpus", cpus)
    taken = sorted({*cpus} & {*snapshot.vcpus})
    if taken:
        draft.warnings.append(
            f"{section.reason('vhost_cpus')}: vCPUs are bound to {cpulist.render(taken)} as well"
        )
    if cpus:
        return cpus
    away = {*snapshot.vcpus, *polled}
    return tuple(n for n in snapshot.topology.housekeeping if n not in away)


def _workers(draft: Draft, section: FlowSteering, taps: list[Link], cpus: tuple[int, ...]) -> None:
    if not any(tap.vhosts for tap in taps):
        draft.skip(HOST, WHOLE, VHOST_CPUS, "left-alone", "no vhost thread serves a tap now")
        return
    if not cpus:
        why = "vCPUs are bound to every housekeeping CPU, or real-time threads poll there"
        draft.skip(HOST, WHOLE, VHOST_CPUS, "left-alone", why)
        return
    reason = section.reason("vhost_cpus")
    for tap in taps:
        for number, thread in enumerate(tap.vhosts):
            # __sched_setaffinity() drops the others, and answers EINVAL where none is left.
            own = thread.reaches(cpus)
            if own:
                target = Target(tap.name, number, VHOST_CPUS)
                draft.want(target, cpulist.render(own), f"{reason}, {thread.name}")
                continue
            why = f"the control group of {thread.name} has CPUs {cpulist.render(thread.allowed)}"
            draft.skip(tap.name, number, VHOST_CPUS, "left-alone", f"{why} only")


def _rps(draft: Draft, section: FlowSteering, taps: list[Link], cpus: tuple[int, ...]) -> None:
    check_rps(draft.view.snapshot.topology, section, "tap_rps", cpus)
    if not taps:
        draft.skip(HOST, WHOLE, f"{RPS} of taps", "left-alone", NO_TAP)
    reason = section.reason("tap_rps")
    for tap in taps:
        if cpus and draft.separated(tap):
            draft.skip(tap.name, WHOLE, RPS, "left-alone", SEPARATED)
            continue
        for queue in (q for q in tap.queues if q.kind == "rx" and q.rps_cpus is not None):
            target = Target(tap.name, queue.index, RPS)
            if draft.wanted(target) is None:  # a section that names the tap knows better
                draft.want(target, cpulist.render(cpus) or OFF, reason)
