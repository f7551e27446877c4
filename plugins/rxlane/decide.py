# SPDX-License-Identifier: GPL-2.0-or-later
"""(Snapshot, Policy) -> Plan. Pure: it works on a recorded host as on the running one.

Raises OPTION, NO_DEVICE or REFUSED before anything is planned; what the kernel or driver lacks
becomes a Skip with its reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from rxlane import cpulist, topology
from rxlane.deciding import (
    cautions,
    classes,
    dangers,
    hardware,
    housekeeping,
    irqthreads,
    layout,
    modes,
    neighbours,
    niceness,
    onlinelists,
    placement,
    separation,
    steering,
    vmhost,
)
from rxlane.deciding.draft import Draft, assigned, check_existing
from rxlane.deciding.placer import Placer, starts, weight
from rxlane.deciding.wanted import Chosen, Wanted
from rxlane.deciding.whole import whole
from rxlane.errors import RxlaneError
from rxlane.items import CPUS, IRQ_CPUS, Value
from rxlane.model import Index, Link, Snapshot, Topology
from rxlane.plan import Plan, Target
from rxlane.sections import FlowSteering, Policy
from rxlane.settings import View

NOTHING: Mapping[Target, Value] = MappingProxyType({})


def decide(
    snapshot: Snapshot,
    policy: Policy,
    view: View | None = None,
    returning: Mapping[Target, Value] = NOTHING,
    compared: bool = False,
) -> Plan:
    """Lay out every device that the policy names; see the module for what it raises.

    view: the snapshot's, where the caller has one. returning: settings that go back to these values
    when the plan is written, unless it wants another. compared: the plan is not to be written, so
    that no thread can lose its class by it.
    """
    present = View.of(snapshot) if view is None else view
    policy = niceness.chosen(policy, snapshot)
    devices = assigned(snapshot, policy.sections)
    wanted = {**hardware.returning(returning), **hardware.counts(devices)}
    future = hardware.foresee(snapshot, wanted)
    planned = present if future is snapshot else View.of(future)
    coming = {**returning, **modes.of_whole_devices(future, policy)}
    others = neighbours.find(planned, neighbours.of_plan(future, policy), coming)

    def attempt(met: tuple[Chosen, ...]) -> Plan:
        plan = _decide(planned, present, policy, others, returning, met)
        if not compared:
            classes.check(present, plan.changes, policy)
        return plan

    try:
        return attempt(others)
    except RxlaneError as refusal:
        # Making way for other devices may be what is refused, not staying where one is.
        with contextlib.suppress(RxlaneError):
            if others:
                return attempt(())
        raise refusal


def _decide(
    view: View,
    present: View,
    policy: Policy,
    others: tuple[Chosen, ...],
    returning: Mapping[Target, Value],
    met: tuple[Chosen, ...],
) -> Plan:
    """decide(). view: the host as it will be with its channels. met: of the others, threads
    outside of the plan, those that it keeps away from.
    """
    snapshot, future = present.snapshot, view.snapshot
    devices = assigned(snapshot, policy.sections)
    draft = Draft(view, Index.of(future), present, returning)
    draft.aside = {link.name: section.management_queues for section, link in devices}
    draft.placed = layout.placed(draft, assigned(future, policy.irq))
    hardware.plan(draft, policy, devices)
    placed = (*devices, *assigned(future, policy.irq), *_spread(future, policy))
    # Devices that are laid out one after the other start apart as those of one plan do.
    every = (*(link for link in future.links if link.physical), *(link for _, link in placed))
    begin = partial(_placer, starts(every), met, _staying(draft), snapshot.vcpus)
    placer = _stand(draft, begin, policy, others) or begin(future.topology)
    policy, left_out = onlinelists.reduced(policy, future.topology)
    draft.warnings += left_out
    _lay_out(draft, placer, policy, others)
    return draft.plan()


def _staying(draft: Draft) -> tuple[int, ...]:
    """Return the CPUs of the interrupts that management queues keep; none where something moves
    them, for pollers would go out of their way again and again.
    """
    if draft.moving:
        return ()
    kept = (
        (Target(*key, IRQ_CPUS), lane.irq)
        for key, lane in draft.view.lanes.items()
        if key[1] < draft.aside.get(key[0], 0)
    )
    found: list[int] = []
    for target, irq in kept:
        back = draft.returning.get(target)
        cpus = () if irq is None else irq.arrives
        cpus = cpus if back is None else cpulist.parse(str(back))
        found.extend(cpus if len(cpus) == 1 else ())
    return tuple(found)


def _placer(
    begins: Mapping[int, float],
    met: Iterable[Chosen],
    interrupts: Iterable[int],
    vcpus: Collection[int],
    host: Topology,
) -> Placer:
    """interrupts: CPUs to which some come that stay there."""
    placer = Placer(host, begins, vcpus=vcpus)
    for number in interrupts:
        placer.meet(number, 0)
    for one, cpus in met:
        if len(cpus) == 1:
            placer.meet(cpus[0], weight(one.exclusive, one.polling))
    return placer


def _spread(host: Snapshot, policy: Policy) -> list[tuple[FlowSteering, Link]]:
    """Return the devices whose flows are laid out over CPUs, by rx threads or RPS."""
    steered = assigned(host, policy.steering)
    return [one for one in steered if one[0].separates or one[0].rps == "auto"]


def _stand(
    draft: Draft,
    begin: Callable[[Topology], Placer],
    policy: Policy,
    others: tuple[Chosen, ...],
) -> Placer | None:
    """Lay out the whole host where CPUs are offline, for the draft to keep to."""
    snapshot = draft.view.snapshot
    complete = whole(snapshot.topology)
    if complete is snapshot.topology:
        return None
    view = View.of(replace(snapshot, topology=complete))
    trial = Draft(view, draft.index, draft.present, draft.returning)
    trial.aside, trial.placed = draft.aside, draft.placed
    placer = begin(complete)
    try:
        _lay_out(trial, placer, policy, others)
    except RxlaneError:
        return None  # there is nothing to keep to where the whole host would be refused
    draft.standing = trial.decided()
    return placer.fork(snapshot.topology)


def _lay_out(draft: Draft, placer: Placer, policy: Policy, others: tuple[Chosen, ...]) -> None:
    """Plan everything that belongs to queues, on the host as it will be with its channels.

    others: threads outside of the plan. The placer is left with the lanes' threads and interrupts.
    """
    snapshot = draft.view.snapshot
    threaded: list[Wanted] = []
    devices = assigned(snapshot, policy.sections)
    for section in {section.name: section for section, _ in devices}.values():
        check_existing(placer.topology, section, "thread_cpus", section.cpus or ())
    for section, link in devices:
        threaded.extend(modes.plan(draft, section, link))
    chosen = placement.place(draft, placer, threaded, others)
    interrupts = assigned(snapshot, policy.irq)
    bound = _bound(draft)
    layout.place(draft, placer, interrupts, bound, (*chosen, *others))
    handlers, present = irqthreads.plan(draft, placer, interrupts)
    irqthreads.warn(draft, threaded)
    steered = assigned(snapshot, policy.steering)
    helpers = separation.plan(draft, placer, steered, bound)
    running = [*chosen, *handlers, *helpers]
    placement.check_realtime(placer.topology, running, others)
    dangers.check_threads(draft, running, present, others)
    cautions.warn(draft, placer.topology, chosen, [*handlers, *helpers], others)
    flows = placer.fork(snapshot.topology)
    alone = (row for row in (*chosen, *helpers, *others) if row[0].exclusive)
    busy = {cpus[0] for _, cpus in alone if len(cpus) == 1}
    if any(section.idle_siblings for section in policy.irq):
        beside = topology.siblings(snapshot.topology, busy)
        # Idle siblings are a wish; the kernel's own work must have a CPU.
        if set(snapshot.topology.housekeeping) - busy - beside:
            flows.polled.update(beside)
            busy |= beside
    steering.steer(draft, flows, steered, policy, bound)
    separation.exclude(draft, steered)
    polled = dangers.polled([*chosen, *others])
    vmhost.plan(draft, policy.steering, polled)
    dangers.check_sockets(draft, threaded, others, policy.steering)
    housekeeping.keep(draft, policy.irq, busy, polled)


def _bound(draft: Draft) -> dict[tuple[str, int], int]:
    """Return the CPU of each lane whose thread will be bound to one.

    A thread that is there and that this plan does not bind counts with the CPUs it has, or goes
    back to. Queues that share a NAPI share its thread, which is planned at the first of them.
    """
    online = draft.view.snapshot.topology.online
    found = {}
    for key, lane in draft.view.lanes.items():
        if draft.mode(lane) in (None, "off"):
            continue
        first = key if lane.shared_with is None else (key[0], lane.shared_with)
        cpus = draft.coming(Target(*first, CPUS))
        if cpus is None and lane.thread is not None:
            cpus = cpulist.render(lane.thread.cpus)
        numbers = () if cpus is None else cpulist.parse(str(cpus))
        if len(numbers) == 1 and numbers[0] in online:
            found[key] = numbers[0]
    return found
