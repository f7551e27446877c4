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

from rxlane import cpulist, topology, uapi
from rxlane.deciding import (
    cautions,
    classes,
    dangers,
    deferral,
    hardware,
    housekeeping,
    irqthreads,
    layout,
    neighbours,
    niceness,
    placement,
    separation,
    steering,
    vmhost,
)
from rxlane.deciding.draft import Draft, assigned, without
from rxlane.deciding.placer import Placer, starts, weight
from rxlane.deciding.wanted import Chosen, Wanted
from rxlane.deciding.whole import whole
from rxlane.errors import Kind, RxlaneError
from rxlane.items import CPUS, DEFER, FLUSH, IRQ_CPUS, MODES, OFF, ON, SUSPEND, THREADED, Value
from rxlane.model import Index, Lane, Link, Snapshot, Topology, lanes
from rxlane.options import option_of
from rxlane.plan import WHOLE, Plan, Target
from rxlane.sections import FlowSteering, Policy, Section, mode_of
from rxlane.settings import View

ATTRIBUTE = {
    DEFER: uapi.NETDEV_A_NAPI_DEFER_HARD_IRQS,
    FLUSH: uapi.NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT,
    SUSPEND: uapi.NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT,
}
NO_NAPI_SET = "kernel does not support NAPI_SET"
NO_PER_NAPI = "kernel does not support per-NAPI threaded mode"
NO_BUSY_POLL = "kernel does not support busy-poll threaded NAPI"
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
    future = hardware.foresee(snapshot, hardware.counts(devices))
    planned = present if future is snapshot else View.of(future)
    coming = {**returning, **_whole_modes(future, policy)}
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
    hardware.plan(draft, policy, devices)
    placed = (*devices, *assigned(future, policy.irq), *_spread(future, policy))
    # Devices that are laid out one after the other start apart as those of one plan do.
    every = (*(link for link in future.links if link.physical), *(link for _, link in placed))
    begin = partial(_placer, starts(every), met, _staying(draft), snapshot.vcpus)
    placer = _stand(draft, begin, policy, others) or begin(future.topology)
    _lay_out(draft, placer, policy, others)
    return draft.plan()


def _whole_modes(snapshot: Snapshot, policy: Policy) -> dict[Target, Value]:
    """Return the modes that whole devices will be in on a kernel that knows no others.

    Those are the modes of their management queues as well.
    """
    found: dict[Target, Value] = {}
    if uapi.NETDEV_A_NAPI_THREADED in snapshot.capabilities.settable:
        return found
    for section, link in assigned(snapshot, policy.sections):
        queues = neighbours.managed(section, link)
        modes = {mode_of(section.modes, queue.index) for queue in queues}
        if len(modes) == 1 and modes <= {OFF, ON} and link.threaded is not None:
            found[Target(link.name, WHOLE, THREADED)] = str(modes.pop())
    return found


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
    """Lay out the whole host where CPUs are offline, for the draft to keep to; see whole.py."""
    snapshot = draft.view.snapshot
    complete = whole(snapshot.topology)
    if complete is snapshot.topology:
        return None
    view = View.of(replace(snapshot, topology=complete))
    trial = Draft(view, draft.index, draft.present, draft.returning, aside=draft.aside)
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
    for section, link in assigned(snapshot, policy.sections):
        threaded.extend(_device(draft, section, link))
    chosen = placement.place(draft, placer, threaded, others)
    interrupts = assigned(snapshot, policy.irq)
    bound = _bound(draft, threaded)
    layout.place(draft, placer, interrupts, bound)
    handlers, present = irqthreads.plan(draft, placer, interrupts)
    steered = assigned(snapshot, policy.steering)
    helpers = separation.plan(draft, placer, steered, bound)
    running = [*chosen, *handlers, *helpers]
    placement.check_realtime(placer.topology, running, others)
    dangers.check_threads(snapshot, running, present, others)
    dangers.check_interrupts(draft, present, (*running, *others), interrupts)
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


def _bound(draft: Draft, threaded: list[Wanted]) -> dict[tuple[str, int], int]:
    """Return the CPU of each lane whose thread will be bound to one.

    A thread that is there and that this plan does not bind counts with the CPUs it has. Queues that
    share a NAPI share its thread, which is planned at the first of them.
    """
    online = draft.view.snapshot.topology.online
    modes = {(w.link.name, w.lane.queue.index): w.mode for w in threaded}
    found = {}
    for key, lane in draft.view.lanes.items():
        first = key if lane.shared_with is None else (key[0], lane.shared_with)
        if modes.get(first, lane.mode) in (None, "off"):
            continue
        cpus = draft.wanted(Target(*first, CPUS))
        if cpus is None and lane.thread is not None:
            cpus = cpulist.render(lane.thread.cpus)
        numbers = () if cpus is None else cpulist.parse(str(cpus))
        if len(numbers) == 1 and numbers[0] in online:
            found[key] = numbers[0]
    return found


def _device(draft: Draft, section: Section, link: Link) -> list[Wanted]:
    """Plan one device's modes and timers; return the lanes whose threads are to be placed."""
    own = list(lanes(draft.index, link))
    _check_queues(section, link, own)
    if not link.up:
        reason = f"interface {link.name} is down, no NAPI instances"
        draft.skip(link.name, WHOLE, "napi", "down", reason)
        return []
    if not any(lane.napi for lane in own):
        reason = _unlinked(link, own) if link.napis else without(link, "NAPI instances")
        draft.skip(link.name, WHOLE, "napi", "unsupported", reason)
        return []
    managed = _managed(draft, section, link, own)
    # Without modes of its own a section places the threads that are there already.
    modes = {lane.queue.index: lane.mode or "off" for lane in managed}
    if section.modes:
        modes = _modes(draft, section, link, managed)
    _timers(draft, section, link, managed)
    polled = {lane.queue.index: lane.mode for lane in managed} | modes
    deferral.warn(draft, section, link, [n for n, mode in polled.items() if mode != "busy-poll"])
    back = {lane.queue.index: neighbours.returned(lane, draft.returning) for lane in managed}
    return [Wanted(section, link, lane, modes.get(queue, "off")) for queue, lane in back.items()]


def _unlinked(link: Link, own: list[Lane]) -> str:
    return (
        f"driver {link.driver or 'unknown'} links no queue to a NAPI, and {len(link.napis)} NAPIs"
        f" for {len(own)} RX queues cannot be put in order"
    )


def _check_queues(section: Section, link: Link, own: list[Lane]) -> None:
    """Refuse a queue that the device has not; an open range such as 4- may be empty."""
    for rule in section.modes:
        for low, high in rule.spans or ():
            last = low if high is None else high
            if high is not None and last >= len(own):
                has = f"RX queues 0-{len(own) - 1}" if own else "no RX queue"
                remedy = f"name queues that exist or use an open range such as {low}-"
                raise section.error(
                    "threaded",
                    f"the device has {has}",
                    remedy,
                    kind=Kind.OPTION,
                    device=link.name,
                    queue=max(low, len(own)),
                )


def _managed(draft: Draft, section: Section, link: Link, own: list[Lane]) -> list[Lane]:
    """Return the lanes to be laid out: not the management queues, one lane for each NAPI."""
    aside = section.management_queues
    if aside:
        names = cpulist.render(range(min(aside, len(own))))
        reason = f"management_queues={aside} keeps queue {names} as it is"
        if uapi.NETDEV_A_NAPI_THREADED not in draft.view.snapshot.capabilities.settable:
            reason += ", but for what this kernel can only set for the whole device"
        if aside >= len(own):
            reason += f"; {link.name} has {len(own)}, so there is none to lay out"
        draft.skip(link.name, WHOLE, "lanes", "left-alone", reason)
    result = []
    for lane in own[aside:]:
        number = lane.queue.index
        if lane.napi is None:
            draft.skip(link.name, number, "lane", "unsupported", "no NAPI is known for the queue")
        elif lane.shared_with is not None:
            reason = f"its NAPI also serves queue {lane.shared_with} and goes with that"
            draft.skip(link.name, number, "lane", "left-alone", reason)
        else:
            result.append(lane)
    return result


def _modes(draft: Draft, section: Section, link: Link, managed: list[Lane]) -> dict[int, str]:
    """Plan threaded modes; return the mode each queue will be in, where it changes or holds."""
    modes = ((lane.queue.index, mode_of(section.modes, lane.queue.index)) for lane in managed)
    wanted = {queue: mode for queue, mode in modes if mode is not None}
    capabilities = draft.view.snapshot.capabilities
    reason = section.reason("threaded")
    if uapi.NETDEV_A_NAPI_THREADED not in capabilities.settable:
        why = NO_PER_NAPI if capabilities.napi_set else NO_NAPI_SET
        alike = len(set(wanted.values())) == 1 and len(wanted) == len(managed)
        return _whole_device(draft, section, link, wanted, why, alike)
    done = {}
    for queue, mode in wanted.items():
        if MODES.index(mode) > capabilities.max_threaded:
            draft.skip(link.name, queue, f"threaded={mode}", "unsupported", NO_BUSY_POLL)
            continue
        draft.want(Target(link.name, queue, THREADED), mode, reason)
        done[queue] = mode
    return done


def _whole_device(
    draft: Draft, section: Section, link: Link, wanted: dict[int, str], why: str, alike: bool
) -> dict[int, str]:
    """Fall back to the device-wide sysfs file, which knows off and on.

    alike: every managed queue is to be in the same mode, the only thing the file can express.
    """
    for queue, mode in wanted.items():
        if mode == "busy-poll":
            draft.skip(link.name, queue, "threaded=busy-poll", "unsupported", why)
    rest = {queue: mode for queue, mode in wanted.items() if mode != "busy-poll"}
    if not rest:
        return {}
    if not alike or link.threaded is None:
        instead = " or ".join(f"threaded={mode}" for mode in dict.fromkeys(rest.values()))
        reason = f"{why}, and the device's threaded file sets all queues alike: give {instead}"
        if link.threaded is None:
            reason = f"{why}, and the device has no threaded file"
        for queue, mode in rest.items():
            draft.skip(link.name, queue, f"threaded={mode}", "unsupported", reason)
        return {}
    mode = next(iter(rest.values()))
    reason = f"{section.reason('threaded')}, device-wide: {why}"
    draft.want(Target(link.name, WHOLE, THREADED), mode, reason)
    if section.management_queues and mode == "on":
        names = cpulist.render(range(section.management_queues))
        draft.warnings.append(
            f"{link.name}: {why}: threaded=on is set for the whole device, so management queue"
            f" {names} is threaded too"
        )
    return rest


def _timers(draft: Draft, section: Section, link: Link, managed: list[Lane]) -> None:
    wanted = {
        DEFER: section.defer_hard_irqs,
        FLUSH: section.gro_flush_timeout,
        SUSPEND: section.irq_suspend_timeout,
    }
    for item, value in wanted.items():
        if value is None or not managed:
            continue
        reason = section.reason(option_of(item))
        if ATTRIBUTE[item] in draft.view.snapshot.capabilities.settable:
            for lane in managed:
                draft.want(Target(link.name, lane.queue.index, item), value, reason)
            continue
        capable = draft.view.snapshot.capabilities.napi_set
        why = f"this kernel's NAPI_SET does not take {item}" if capable else NO_NAPI_SET
        whole = Target(link.name, WHOLE, item)
        if draft.view.read(whole) is None:
            why = f"{why}, and there is no device-wide file for it"
            draft.skip(link.name, WHOLE, item, "unsupported", why)
            continue
        draft.want(whole, value, f"{reason}, device-wide: {why}")
        if section.management_queues:
            draft.warnings.append(
                f"{link.name}: {why}: {item} is set for the whole device, management"
                " queues included"
            )
