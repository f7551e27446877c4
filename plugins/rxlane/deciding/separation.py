# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that hands what a device received to threads of its own. Pure.

This is "RX flow separation" (niu, 2010), as our kernel series has it. RPS has one
backlog for each CPU, which all devices share: one under load fills it, and the others' packets are
dropped there as well. Each rx thread has a queue of its own, and threads of several devices share a
CPU as the scheduler has it. A flow stays on one thread, and so in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rxlane import cpulist, topology
from rxlane.deciding.draft import Draft, check_thread_cpus
from rxlane.deciding.placement import pool
from rxlane.deciding.placer import Placer, Request
from rxlane.deciding.wanted import Chosen, Wanted
from rxlane.errors import counted
from rxlane.items import (
    IRQ_CPUS,
    KERNEL,
    OFF,
    ON,
    RFS,
    RPS,
    RX_THREAD_CPUS,
    RX_THREAD_SCHED,
    RX_THREADS,
    Value,
)
from rxlane.model import Lane, Link, Queue, Topology, lanes
from rxlane.plan import WHOLE, Target
from rxlane.sections import RX_SCHED_OPTIONS, THREADS_AUTO, FlowSteering, Section

NO_FILE = "kernel has no rx_threads"
NONE = "the device has no rx threads, so there is none to place"
WHY = "a queue for each device and thread, where RPS has one for each CPU that all devices fill"
ONE_OF_BOTH = "the kernel has RPS and RFS or rx threads on a device, not both"
# The default that "RX flow separation" gave niu; more are to be asked for by number.
MOST = 16
# auto: a CPU has threads of so many devices, so that one can use what another leaves.
SHARED = 2

Device = tuple[FlowSteering, Link]


@dataclass(slots=True)
class _Job:
    """A device that has, or will have, rx threads.

    cpus: those that they choose from. shared: all have interrupts or pollers. sharing: how many
    devices choose from the same.
    """

    section: FlowSteering
    link: Link
    like: Section
    cpus: tuple[int, ...] = ()
    shared: bool = False
    node: tuple[int, ...] = ()
    sharing: int = 0
    count: int = 0
    threads: list[Wanted] = field(default_factory=list)

    def target(self, item: str, number: int = WHOLE) -> Target:
        return Target(self.link.name, number, item)

    def reason(self, option: str) -> str:
        return self.section.reason(option)


def plan(
    draft: Draft,
    placer: Placer,
    devices: Iterable[Device],
    bound: Mapping[tuple[str, int], int],
) -> list[Chosen]:
    """Plan how many rx threads each device has, their CPUs and class.

    bound: CPUs of lanes with a bound thread. Returns the CPUs of each rx thread.
    """
    asked = sorted((d for d in devices if d[0].separates), key=lambda d: d[1].ifindex)
    for section in {s.name: s for s, _ in asked}.values():
        check_thread_cpus(placer.topology, section, "rx_thread_cpus", section.rx_cpus or ())
    jobs = [_job(draft, placer, *d, bound) for d in asked if _able(draft, *d)]
    sharing = Counter(job.node for job in jobs)
    for job in jobs:
        job.sharing = sharing[job.node]
        job.count = _count(draft, placer.topology, job)
        job.threads = [_wanted(job, number) for number in range(job.count)]
        if job.section.rx_threads is not None:
            draft.want(job.target(RX_THREADS), job.count, _explained(job))
    chosen = _choose(draft, placer, jobs)
    by_link = {job.link.name: job for job in jobs}
    for one, cpus in chosen:
        _settings(draft, placer.topology, by_link[one.link.name], one, cpus)
    return chosen


def _able(draft: Draft, section: FlowSteering, link: Link) -> bool:
    """True when there is something to plan; else it is said why not."""
    if link.rx_threads is None:
        if section.rx_threads != 0:
            draft.skip(link.name, WHOLE, RX_THREADS, "unsupported", NO_FILE)
        return False
    if section.rx_threads is None and not link.rx_threads:
        draft.skip(link.name, WHOLE, "rx thread settings", "left-alone", NONE)
        return False
    return True


def _job(
    draft: Draft,
    placer: Placer,
    section: FlowSteering,
    link: Link,
    bound: Mapping[tuple[str, int], int],
) -> _Job:
    job = _Job(section, link, _like(section))
    host, first = placer.topology, _wanted(job, 0)
    if section.rx_threads == 0:
        return job
    every = topology.restrict(host, pool(draft, host, first), section.rx_placement, link.node)
    job.node = topology.near(host, every, link.node)
    away = _taken(draft, link, bound)
    free = tuple(n for n in job.node if n not in away and not placer.busy(n))
    job.cpus = section.rx_cpus or free or job.node
    job.shared = not free
    return job


def _like(section: FlowSteering) -> Section:
    """Return what is asked of the threads as of those of NAPIs, for what both are checked by."""
    return Section(
        name=section.name,
        cpus=section.rx_cpus,
        placement=section.rx_placement,
        sched=section.rx_sched,
        allow_realtime_cpu0=section.rx_realtime_cpu0,
        text=section.text,
    )


def _wanted(job: _Job, number: int) -> Wanted:
    present = next((helper for helper in job.link.helpers if helper.number == number), None)
    thread = None if present is None else present.thread
    lane = Lane(job.link.name, Queue("rx", number), None, None, thread, None)
    return Wanted(job.like, job.link, lane, ON, helper=number)


def _taken(draft: Draft, link: Link, bound: Mapping[tuple[str, int], int]) -> set[int]:
    """Return the CPUs where the device's interrupts are taken and its queues polled."""
    found = set()
    for lane in lanes(draft.index, link):
        key = (link.name, lane.queue.index)
        if key in bound:
            found.add(bound[key])
        placed = draft.wanted(Target(*key, IRQ_CPUS))
        cpus: tuple[int, ...] = ()
        if placed is not None:
            cpus = cpulist.parse(str(placed))
        elif lane.irq is not None:
            cpus = lane.irq.arrives
        found.update(cpus if len(cpus) == 1 else ())
    return found


def _count(draft: Draft, host: Topology, job: _Job) -> int:
    """Return how many threads the device is to have; REFUSED for more than there are CPUs.

    A CPU that goes offline must not end a layout: what the device has it keeps, for the kernel
    minds only when it is to start threads, and more come when the CPU does.
    """
    asked = job.section.rx_threads
    if asked is None:
        return job.link.rx_threads or 0
    if asked == THREADS_AUTO:
        if job.section.rx_cpus:
            return len(job.cpus)
        return max(1, min(MOST, len(job.cpus), SHARED * len(job.cpus) // job.sharing))
    every, online = len(host.cpus), len(host.online)
    if asked > every:
        problem = f"{asked} threads for {every} CPUs, and the kernel takes no more"
        remedy = f"give 1..{every} or auto"
        raise job.section.error("rx_threads", problem, remedy, device=job.link.name)
    possible = max(online, job.link.rx_threads or 0)
    if asked <= possible:
        return asked
    draft.warnings.append(
        f"{job.link.name}: {job.reason('rx_threads')}: {online} of {every} CPUs are online, and the"
        f" kernel starts no more threads than that; {counted(possible, 'thread')} until others are"
    )
    return possible


def _explained(job: _Job) -> str:
    """Return the reason for the number: for none of them, the option says all."""
    reason = job.reason("rx_threads")
    if job.section.rx_threads == THREADS_AUTO:
        reason += f": {_why_these(job)}{_why_fewer(job)}"
    return f"{reason}; {WHY}" if job.count else reason


def _why_these(job: _Job) -> str:
    cpus = f"CPUs {cpulist.render(job.cpus)}"
    if job.section.rx_cpus:
        return f"{cpus} are given"
    if job.shared:
        return f"of {cpus} none is free of interrupts and pollers, so they are shared"
    return f"{cpus} are free of its interrupts and pollers"


def _why_fewer(job: _Job) -> str:
    if job.count == len(job.cpus):
        return ""
    if job.count == MOST:
        return f", auto takes {MOST} at most"
    return f", {counted(job.sharing, 'device')} share them"


def _choose(draft: Draft, placer: Placer, jobs: Iterable[_Job]) -> list[Chosen]:
    """Return the CPUs that each thread may run on: one, unless the section leaves them."""
    placed = [
        (job, one, cpus)
        for job in jobs
        for one, cpus in zip(job.threads, _given(placer, job), strict=True)
    ]
    alone = [_request(draft, job, one) for job, one, cpus in placed if cpus is None]
    dealt = iter(placer.deal(alone))
    return [(one, (next(dealt),) if cpus is None else cpus) for _, one, cpus in placed]


def _given(placer: Placer, job: _Job) -> list[tuple[int, ...] | None]:
    """Return what the section says of each thread's CPUs, None where one is to be chosen."""
    given, found = job.section.rx_cpus, list[tuple[int, ...] | None]()
    # The kernel may choose another CPU for what it placed itself.
    own = {h.number for h in job.link.helpers if h.reserved is None and not job.section.rx_kernel}
    for turn, one in enumerate(job.threads):
        if given:
            number = given[turn % len(given)]
            placer.give(number, int(one.exclusive))
            found.append((number,))
        elif given is not None:
            found.append(None)
        elif one.helper in own and one.lane.thread is not None:
            found.append(one.lane.thread.cpus)
        else:
            found.append(placer.topology.online)
    return found


def _request(draft: Draft, job: _Job, one: Wanted) -> Request:
    return Request(
        job.link.ifindex,
        job.cpus,
        job.link.node,
        one.exclusive,
        spread=job.section.rx_placement == topology.SPREAD_LLC,
        stands=draft.stands_on(job.target(RX_THREAD_CPUS, one.helper or 0)),
    )


def _settings(draft: Draft, host: Topology, job: _Job, one: Wanted, cpus: tuple[int, ...]) -> None:
    number, section = one.helper or 0, job.section
    if section.rx_cpus is not None or section.rx_kernel:
        # To a thread that may run everywhere the kernel gives a CPU: that is its word for it.
        free = section.rx_kernel or set(cpus) >= set(host.online)
        value = KERNEL if free else cpulist.render(cpus)
        draft.want(job.target(RX_THREAD_CPUS, number), value, job.reason("rx_thread_cpus"))
    if section.rx_sched is not None:
        reason = section.reason(*RX_SCHED_OPTIONS)
        draft.want(job.target(RX_THREAD_SCHED, number), section.rx_sched, reason)


def exclude(draft: Draft, devices: Iterable[Device]) -> None:
    """Plan RPS and RFS off on all queues of devices that this plan gives rx threads.

    After what other options say of them; management queues have no way of their own here.
    """
    for section, link in devices:
        if not draft.wanted(Target(link.name, WHOLE, RX_THREADS)):
            continue
        queues = link.queues_of("rx")
        reason = f"{section.reason('rx_threads')}: {ONE_OF_BOTH}"
        for queue in queues:
            steered: tuple[tuple[str, object, Value], ...] = (
                (RPS, queue.rps_cpus, OFF),
                (RFS, queue.rps_flow_cnt, 0),
            )
            for item, value, off in steered:
                target = Target(link.name, queue.index, item)
                if value is not None and draft.wanted(target) is None:
                    draft.want(target, off, reason)
        aside = queues[: draft.aside.get(link.name, 0)]
        if aside:
            names = cpulist.render(queue.index for queue in aside)
            draft.warnings.append(
                f"{link.name}: rx threads are the whole device's, so what management queue {names}"
                " receives goes to them too"
            )
