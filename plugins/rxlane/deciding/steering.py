# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that steers flows behind the queues: RPS, RFS, XPS, sysctls. Pure.

Sizes of the flow tables follow "rfs: Receive Flow Steering" (commit fec5e652e5): one table of the
host with the CPU that each flow's application runs on, one for each queue with the CPU that its
packets went to last; the kernel rounds both to a power of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rxlane import cpulist
from rxlane.deciding import cutting
from rxlane.deciding.draft import Draft, check_rps, one_value
from rxlane.deciding.placer import Placer, Request
from rxlane.deciding.senders import deal
from rxlane.errors import counted
from rxlane.items import (
    BACKLOG,
    FLOW_ENTRIES,
    IRQ_CPUS,
    NTUPLE,
    OFF,
    ON,
    RFS,
    RPS,
    XPS,
    XPS_RXQS,
    Value,
)
from rxlane.model import Link, Queue
from rxlane.plan import HOST, WHOLE, Target
from rxlane.sections import RFS_AUTO, FlowSteering, Policy

# What Documentation/networking/scaling.rst gives for a host of moderate load, and the share of a
# queue in it on a device of 8.
LEAST_FLOWS = 32768
FLOWS_A_QUEUE = 4096
# Of CPUs that RPS gives a queue: to hand all its packets to one other CPU spreads nothing.
LEAST_SHARE = 2
NO_RPS, NO_RFS = "kernel has no RPS", "kernel has no RFS"
SEPARATED = "its rx threads exclude it: rx_threads=off would end them"
NO_TABLE = "this network namespace has no flow table"

Device = tuple[FlowSteering, Link]


def steer(
    draft: Draft,
    placer: Placer,
    devices: list[Device],
    policy: Policy,
    bound: Mapping[tuple[str, int], int],
) -> None:
    """Plan what the policy asks for on the devices of its sections and for the host.

    bound: CPUs of lanes with a bound thread.
    """
    for section in {s.name: s for s, _ in devices}.values():
        check_rps(draft.view.snapshot.topology, section, "rps", section.rps_cpus)
    polled = _polled(draft, bound)
    for section, link in sorted(devices, key=lambda one: one[1].ifindex):
        _rps(draft, placer, section, link, polled)
        _xps(draft, section, link, polled)
    _rfs(draft, devices)
    _arfs(draft, policy, devices)
    _sysctls(draft, policy.steering)


def _polled(draft: Draft, bound: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return the CPU where each lane is polled, of those that are polled on one.

    An interrupt that this plan leaves alone counts as long as nothing runs that would move it.
    """
    lanes = draft.view.lanes
    placed: dict[int, tuple[int, ...]] = {}
    if not draft.moving:
        placed = {irq.number: irq.arrives for irq in draft.view.snapshot.irqs}
    for key, lane in lanes.items():
        cpus = draft.coming(Target(*key, IRQ_CPUS))
        if lane.irq is not None and cpus is not None:
            placed[lane.irq.number] = cpulist.parse(str(cpus))
    own = {key: placed.get(lane.irq.number, ()) for key, lane in lanes.items() if lane.irq}
    return {key: cpus[0] for key, cpus in own.items() if len(cpus) == 1} | dict(bound)


def _steered(draft: Draft, link: Link) -> list[Queue]:
    """Return the receive queues that are not kept as they are for management."""
    return link.queues_of("rx")[draft.aside.get(link.name, 0) :]


def _rps(
    draft: Draft,
    placer: Placer,
    section: FlowSteering,
    link: Link,
    polled: Mapping[tuple[str, int], int],
) -> None:
    if section.rps is None:
        return
    if section.rps != OFF and draft.separated(link):
        draft.skip(link.name, WHOLE, RPS, "left-alone", SEPARATED)
        return
    own, every = _steered(draft, link), link.count("rx")
    reason = section.reason("rps")
    near = placer.ordinary(link.node)
    if own and all(queue.rps_cpus is None for queue in own):
        draft.skip(link.name, WHOLE, RPS, "unsupported", NO_RPS)
        return
    chosen: list[tuple[int, ...]] = [()] * len(own)
    if section.rps == "auto":
        stand = [draft.stands(Target(link.name, queue.index, RPS)) for queue in own]
        stood = [cpus for cpus in stand if cpus is not None]
        # A queue kept for management has a CPU as well.
        if _redundant(stand, every, near):
            reason += f": {counted(len(near), 'CPU')} for {counted(every, 'queue')},"
            reason += f" fewer than {LEAST_SHARE} each"
        elif len(stood) == len(stand):
            chosen = _keep(placer, near, link, stood)
        else:
            at = [polled.get((link.name, queue.index)) for queue in own]
            chosen = _deal(placer, near, link, at, every)
    elif section.rps in ("numa-local", "list"):
        chosen = [near if section.rps == "numa-local" else section.rps_cpus] * len(own)
    for queue, cpus in zip(own, chosen, strict=True):
        if queue.rps_cpus is None:
            draft.skip(link.name, queue.index, RPS, "unsupported", NO_RPS)
            continue
        draft.want(Target(link.name, queue.index, RPS), cpulist.render(cpus) or OFF, reason)


def _redundant(stand: Sequence[tuple[int, ...] | None], every: int, near: tuple[int, ...]) -> bool:
    """True where RPS would only add messages between CPUs that have interrupts of their own.

    A CPU that goes offline takes RPS from no other queue, unless no more CPUs are left than queues.
    """
    if None in stand:
        return LEAST_SHARE * every > len(near)
    return not any(stand) or every >= len(near)


def _deal(
    placer: Placer, near: tuple[int, ...], link: Link, polled: Sequence[int | None], every: int
) -> list[tuple[int, ...]]:
    """Return CPUs for each queue, by the device's place alone: were it by what other devices have,
    one that comes or goes would change their flows' CPUs too.

    polled: where each queue's interrupt is. Queues have different CPUs, and as long as there are
    others none of those where the device's interrupts start.
    """
    share = max(LEAST_SHARE, (len(near) - every) // len(polled))
    ring = placer.ring(link, near, past=min(len(polled), len(near) - share * len(polled)))
    free, found = ring, list[tuple[int, ...]]()
    for own in polled:
        # CPU 0 carries the kernel's own work, and so may be last where none is known to be.
        last = own or 0
        cpus = (*(n for n in free if n != last), last)[:share]
        free = tuple(n for n in free if n not in cpus)
        found.append(cpus)
    # All but the last queue could leave their interrupt's CPU to a later one.
    if own in found[-1]:
        _exchange(found, polled, own, ring)
    return [tuple(sorted(cpus)) for cpus in found]


def _exchange(
    found: list[tuple[int, ...]], polled: Sequence[int | None], own: int, ring: tuple[int, ...]
) -> None:
    """Give the last queue another CPU for its own interrupt's: one of the nearest queue that may
    have this one; where there is none such, the next CPU of the ring for a second time.
    """
    given = next((n for n in ring if n not in found[-1]), own)
    for at in reversed(range(len(found) - 1)):
        if polled[at] != own:
            *kept, given = found[at]
            found[at] = (*kept, own)
            break
    found[-1] = tuple(given if n == own else n for n in found[-1])


def _keep(
    placer: Placer, near: tuple[int, ...], link: Link, stand: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return for each queue what is left of the CPUs that it has on the whole host, or others."""
    one, found = Request(link.ifindex, near, link.node), list[tuple[int, ...]]()
    for at, stood in enumerate(stand):
        left = tuple(n for n in stood if n in near)
        # As many as it had, by those alone: see Placer.inherit().
        found.append(left or tuple(sorted({placer.inherit(one, n, at) for n in stood})))
    return found


def _xps(
    draft: Draft, section: FlowSteering, link: Link, polled: Mapping[tuple[str, int], int]
) -> None:
    if section.xps is None:
        return
    senders = link.queues_of("tx")
    if not any(q.xps_cpus is not None for q in senders):
        many = len(senders) > 1
        why = "kernel has no XPS" if many else "a device with one TX queue has nothing to choose"
        draft.skip(link.name, WHOLE, XPS, "unsupported" if many else "left-alone", why)
        return
    dealt = _senders_cpus(draft, link, senders, polled) if section.xps == "auto" else ()
    receivers = {q.index for q in link.queues_of("rx")}
    for at, queue in enumerate(senders):
        if queue.xps_cpus is None:
            continue
        cpus = rxqs = OFF
        if section.xps == "auto":
            cpus = cpulist.render(dealt[at])
        elif section.xps == "rxqs" and queue.index in receivers:
            rxqs = str(queue.index)
        reason = section.reason("xps")
        draft.want(Target(link.name, queue.index, XPS), cpus, reason)
        if queue.xps_rxqs is not None:
            draft.want(Target(link.name, queue.index, XPS_RXQS), rxqs, reason)
        elif rxqs != OFF:
            draft.skip(link.name, queue.index, XPS_RXQS, "unsupported", "kernel has no xps_rxqs")


def _senders_cpus(
    draft: Draft, link: Link, senders: list[Queue], polled: Mapping[tuple[str, int], int]
) -> list[tuple[int, ...]]:
    """Return the CPUs that send by each queue; one that has only offline CPUs shares the next."""
    host = draft.view.snapshot.topology
    stand = [draft.stands(Target(link.name, queue.index, XPS)) for queue in senders]
    own = [cpus for cpus in stand if cpus]
    if len(own) < len(senders):
        own = deal(host, _homes(link, senders, polled))
    every, online = [cpu.number for cpu in host.cpus], set(host.online)
    found = []
    for cpus in own:
        at = every.index(cpus[0])
        following = (n for n in (*every[at:], *every[:at]) if n in online)
        found.append(tuple(n for n in cpus if n in online) or (next(following),))
    return found


def _homes(
    link: Link, senders: Iterable[Queue], polled: Mapping[tuple[str, int], int]
) -> list[int | None]:
    """Return where each queue is polled that shares a receive queue's NAPI or interrupt."""
    places = [(queue, polled.get((link.name, queue.index))) for queue in link.queues_of("rx")]
    napis: dict[int | None, int | None] = {q.napi_id: place for q, place in reversed(places)}
    irqs: dict[int | None, int | None] = {q.irq: place for q, place in reversed(places)}
    for known in (napis, irqs):
        known.pop(None, None)
    return [napis.get(q.napi_id, irqs.get(q.irq)) for q in senders]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _rfs(draft: Draft, devices: list[Device]) -> None:
    """Plan the flow tables: the host's for all devices that want one, each queue its share."""
    apart = {link.name for section, link in devices if section.rfs and draft.separated(link)}
    for name in sorted(apart):
        draft.skip(name, WHOLE, RFS, "left-alone", SEPARATED)
    devices = [(section, link) for section, link in devices if link.name not in apart]
    wanted = [(section, link) for section, link in devices if section.rfs]
    queues = sum(link.count("rx") for _, link in wanted)
    entries = 0
    for section, _ in wanted:
        enough = max(LEAST_FLOWS, FLOWS_A_QUEUE * queues)
        asked = enough if section.rfs == RFS_AUTO else section.rfs or 0
        entries = max(entries, _power_of_two(asked))
    target = Target(HOST, WHOLE, FLOW_ENTRIES)
    table = draft.view.read(target)
    size = entries
    if table is not None and any(section.rfs == RFS_AUTO for section, _ in wanted):
        # Flows of other devices may need a larger one.
        size = _at_least(draft, target, entries, table)
    for section, link in devices:
        if section.rfs is not None:
            _device_flows(draft, section, link, entries if section.rfs else 0, table is not None)
    if not entries or table is None:
        return
    section = wanted[0][0]
    reason = f"{section.reason('rfs')}: {counted(queues, 'queue')}"
    draft.want(target, size, reason)


def _at_least(draft: Draft, target: Target, value: int, present: Value) -> int:
    """Return the value, or what the setting is where that is more and was not made by us."""
    return max(value, int(draft.returning.get(target, present)))


def _device_flows(
    draft: Draft, section: FlowSteering, link: Link, entries: int, table: bool
) -> None:
    own = _steered(draft, link)
    reason = section.reason("rfs")
    if entries and not table:
        draft.skip(link.name, WHOLE, RFS, "unsupported", NO_TABLE)
        return
    if own and all(queue.rps_flow_cnt is None for queue in own):
        draft.skip(link.name, WHOLE, RFS, "unsupported", NO_RFS)
        return
    for queue in own:
        if queue.rps_flow_cnt is None:
            draft.skip(link.name, queue.index, RFS, "unsupported", NO_RFS)
            continue
        share = _power_of_two(-(-entries // len(own))) if entries else 0
        draft.want(Target(link.name, queue.index, RFS), share, reason)


def _arfs(draft: Draft, policy: Policy, devices: list[Device]) -> None:
    """Plan the switch of the filters by which a NIC brings a flow to its application's queue.

    The driver may still lack ndo_rx_flow_steer(), which no interface tells; the switch is then
    without effect.
    """
    view = draft.view
    for section, link in devices:
        if section.arfs is None:
            continue
        if link.tunable(NTUPLE) is None:
            if section.arfs == ON:
                why = f"driver {link.driver or 'unknown'} has no filters to steer flows by"
                draft.skip(link.name, WHOLE, NTUPLE, "unsupported", why)
            continue
        reason, target = section.reason("arfs"), Target(link.name, WHOLE, NTUPLE)
        stands = draft.present.read(target) == section.arfs
        who = None if stands else cutting.at_risk(view, policy, link.name, NTUPLE)
        if who is not None:
            draft.skip(*target, "left-alone", cutting.left_alone(view, link.name, reason, who))
            continue
        draft.want(target, section.arfs, reason)


def _sysctls(draft: Draft, sections: Iterable[FlowSteering]) -> None:
    given = list(sections)
    for name in dict.fromkeys(name for s in given for name, _ in s.sysctls):
        option = name.rpartition(".")[2]
        asked = ((s, name, dict(s.sysctls).get(name)) for s in given)
        for section, _, value in one_value(asked, option):
            target = Target(HOST, WHOLE, name)
            present = draft.view.read(target)
            if present is None:
                why = "this kernel or network namespace does not have it"
                draft.skip(HOST, WHOLE, name, "unsupported", why)
                continue
            if name == BACKLOG:
                # Somebody else may need a longer one: it is of all devices.
                value = _at_least(draft, target, value, present)
            draft.want(target, value, section.reason(option))
