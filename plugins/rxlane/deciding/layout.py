# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that places RX interrupts. Pure.

An interrupt goes to the CPU of its lane's thread, where waking the thread costs no message to
another CPU; without a bound thread it gets a CPU of its own near the device. CPUs are reserved
over all devices of a plan, so that devices go to different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rxlane import cpulist, topology
from rxlane.deciding.draft import Draft, check_cpus, without
from rxlane.deciding.placer import Placer, Request
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
) -> None:
    """Plan the CPUs of every device's RX interrupts. bound: CPUs of lanes with a bound thread."""
    host = draft.view.snapshot.topology
    asked = [one for one in devices if one[0].node or one[0].cpus is not None]
    for section, _ in asked:
        check_cpus(host, section, "irq_cpus", section.cpus or ())
    wanted = _movable(draft, asked)
    for (section, link, lane, irq), cpus in _choose(draft, placer, wanted, bound):
        reason = f"{section.reason('irq_cpus')}, {_called(irq)}"
        target = Target(link.name, lane.queue.index, IRQ_CPUS)
        draft.want(target, cpulist.render(cpus), reason)
    numbers = cpulist.render(irq.number for _, _, _, irq in wanted if irq.number >= 0)
    for writer in draft.view.snapshot.writers if wanted else ():
        if writer in MOVERS:
            draft.warnings.append(
                f"{writer} runs and may move IRQs {numbers} again: {MOVERS[writer]}"
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
    draft: Draft, placer: Placer, wanted: list[Wanted], bound: Mapping[Key, int]
) -> Iterator[tuple[Wanted, tuple[int, ...]]]:
    """Yield the CPUs of each interrupt: those given or its thread's, else one of its own."""
    placed = [(one, _given(placer, one, bound)) for one in wanted]
    alone = [one for one, cpus in placed if cpus is None]
    dealt = iter(placer.deal([_request(draft, placer.topology, one) for one in alone]))
    for one, cpus in placed:
        yield one, (next(dealt),) if cpus is None else cpus


def _given(placer: Placer, one: Wanted, bound: Mapping[Key, int]) -> tuple[int, ...] | None:
    section, link, lane, _ = one
    if section.node:
        return placer.ordinary(link.node)
    thread = bound.get((link.name, lane.queue.index))
    if thread is not None and (not section.cpus or thread in section.cpus):
        return (thread,)
    return None


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
