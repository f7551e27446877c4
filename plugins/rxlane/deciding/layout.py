# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that places RX interrupts. Pure.

An interrupt goes to the CPU of its lane's thread, where waking the thread costs no message to
another CPU; without a bound thread it gets a CPU of its own near the device. CPUs are reserved
over all devices of a plan, so that devices go to different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from rxlane import cpulist, topology
from rxlane.deciding.draft import Draft, check_cpus, without
from rxlane.deciding.handlers import Room
from rxlane.deciding.placer import Placer, Request
from rxlane.deciding.wanted import Chosen
from rxlane.items import IRQ_CPUS
from rxlane.model import MOVERS, Irq, Lane, Link, Topology, lanes
from rxlane.plan import WHOLE, Target
from rxlane.sections import IrqLayout

Key = tuple[str, int]  # device and RX queue
Wanted = tuple[IrqLayout, Link, Lane, Irq]


def place(
    draft: Draft,
    placer: Placer,
    devices: list[tuple[IrqLayout, Link]],
    bound: Mapping[Key, int],
    rows: Iterable[Chosen],
) -> None:
    """Plan the CPUs of every device's RX interrupts.

    bound: CPUs of lanes with a bound thread. rows: all threads that poll.
    """
    host = draft.view.snapshot.topology
    asked = [one for one in devices if one[0].places]
    for section, _ in asked:
        check_cpus(host, section, "irq_cpus", section.cpus or ())
    wanted = _movable(draft, asked)
    room = Room(draft, rows)
    for (section, link, lane, irq), cpus in _choose(draft, placer, wanted, bound, room):
        if not cpus:
            draft.skip(link.name, lane.queue.index, IRQ_CPUS, "left-alone", _held(section, irq))
            continue
        reason = f"{section.reason('irq_cpus')}, {_called(irq)}"
        target = Target(link.name, lane.queue.index, IRQ_CPUS)
        draft.want(target, cpulist.render(cpus), reason)
    numbers = cpulist.render(irq.number for _, _, _, irq in wanted if irq.number >= 0)
    for writer in draft.view.snapshot.writers if wanted else ():
        if writer in MOVERS:
            draft.warnings.append(
                f"{writer} runs and may move IRQs {numbers} again: {MOVERS[writer]}"
            )


def placed(draft: Draft, devices: Iterable[tuple[IrqLayout, Link]]) -> frozenset[int]:
    """Return the interrupts that place() will place; none where no interrupt has a thread."""
    if not draft.view.snapshot.irq_threads:
        return frozenset()
    names = {link.name for section, link in devices if section.places and link.up}
    return frozenset(
        lane.irq.number
        for (device, queue), lane in draft.view.lanes.items()
        if device in names and queue >= draft.aside.get(device, 0)
        if lane.irq is not None and lane.irq.movable
    )


def _held(section: IrqLayout, irq: Irq) -> str:
    return (
        f"{section.reason('irq_cpus')}: real-time threads of other queues would leave no time there"
        f" to the thread of IRQ {irq.number}; give CPUs that no such thread has"
    )


def _called(irq: Irq) -> str:
    return f"IRQ {irq.number}" if irq.number >= 0 else "the new queue's IRQ"


def _movable(draft: Draft, devices: Iterable[tuple[IrqLayout, Link]]) -> list[Wanted]:
    """Return the lanes whose interrupt can be placed."""
    found = []
    for one in interrupts(draft, devices, IRQ_CPUS):
        _, link, lane, irq = one
        if irq.movable:
            found.append(one)
            continue
        reason = f"IRQ {irq.number} is managed by the kernel"
        draft.skip(link.name, lane.queue.index, IRQ_CPUS, "unmovable", reason)
    return found


def interrupts(
    draft: Draft, devices: Iterable[tuple[IrqLayout, Link]], item: str
) -> Iterator[Wanted]:
    """Yield the lanes to be laid out with their interrupts, the first lane of each interrupt.

    What has none, or is another lane's, is reported as a skip of the item.
    """
    owner: dict[int, str] = {}
    for section, link in devices:
        if not link.up:
            reason = f"interface {link.name} is down and may hold no interrupts"
            draft.skip(link.name, WHOLE, item, "down", reason)
            continue
        aside = draft.aside.get(link.name, 0)
        own = list(lanes(draft.index, link))
        if all(lane.irq is None for lane in own):
            # One line for the device: there may be hundreds of queues.
            reason = without(link, "interrupts of its queues")
            draft.skip(link.name, WHOLE, item, "unsupported", reason)
            continue
        for lane in own[:aside]:
            if lane.irq is not None:
                owner.setdefault(lane.irq.number, f"management queue {lane.queue.index}")
        for lane in own[aside:]:
            queue, irq = lane.queue.index, lane.irq
            if irq is None:
                reason = "no interrupt is known for the queue"
                draft.skip(link.name, queue, item, "unsupported", reason)
            elif irq.number in owner:
                reason = f"IRQ {irq.number} also serves {owner[irq.number]} and goes with that"
                draft.skip(link.name, queue, item, "left-alone", reason)
            else:
                owner[irq.number] = f"{link.name} queue {queue}"
                yield section, link, lane, irq


def _choose(
    draft: Draft, placer: Placer, wanted: list[Wanted], bound: Mapping[Key, int], room: Room
) -> Iterator[tuple[Wanted, tuple[int, ...]]]:
    """Yield the CPUs of each interrupt: those given or its thread's, else one of its own.

    None of them where its own thread would get no time.
    """
    requests: list[Request] = []
    placed: list[tuple[Wanted, tuple[int, ...], bool]] = []
    for one in wanted:
        cpus, alone = room.left(one[2], _given(placer, one, bound)), False
        if not cpus and not one[0].node:
            request = _request(draft, placer.topology, one)
            cpus = room.left(one[2], request.pool)
            alone = bool(cpus)
            requests.extend([replace(request, pool=cpus)] if alone else [])
        placed.append((one, cpus, alone))
    dealt = iter(placer.deal(requests))
    for one, cpus, alone in placed:
        yield one, (next(dealt),) if alone else cpus


def _given(placer: Placer, one: Wanted, bound: Mapping[Key, int]) -> tuple[int, ...]:
    """Return the CPUs that are not to be chosen: of a node, or the one of the lane's thread."""
    section, link, lane, _ = one
    if section.node:
        return placer.ordinary(link.node)
    thread = bound.get((link.name, lane.queue.index))
    if thread is not None and (not section.cpus or thread in section.cpus):
        return (thread,)
    return ()


def _request(draft: Draft, host: Topology, one: Wanted) -> Request:
    section, link, lane, _ = one
    stands = draft.stands_on(Target(link.name, lane.queue.index, IRQ_CPUS))
    if section.cpus:
        return Request(link.ifindex, section.cpus, link.node, named=True, stands=stands)
    vcpus = draft.view.snapshot.vcpus
    pool = topology.pool(host, vcpus, exclusive=False, realtime=False, cpu0=False)
    pool = topology.near(host, pool, link.node)
    pool = topology.restrict(host, pool, section.placement, link.node)
    spread = section.placement == topology.SPREAD_LLC
    return Request(link.ifindex, pool, link.node, spread=spread, stands=stands)
