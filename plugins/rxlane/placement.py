# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that places threads: CPU, scheduling class, and the refusals. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rxlane import cpulist, topology
from rxlane.draft import Draft, check_cpus
from rxlane.errors import Kind, RxlaneError
from rxlane.model import CPUS, REALTIME, SCHED, UNKNOWN_SCHED, Lane, Link, Target, Topology
from rxlane.sections import Section


@dataclass(frozen=True, slots=True)
class Wanted:
    """A lane to be placed and the mode it will be in."""

    section: Section
    link: Link
    lane: Lane
    mode: str

    @property
    def realtime(self) -> bool:
        return (self.section.sched or "").partition(":")[0] in REALTIME

    @property
    def polling(self) -> bool:
        return self.mode == "busy-poll"


def place(draft: Draft, host: Topology, wanted: list[Wanted]) -> topology.Placer:
    """Plan CPU and class of every thread; raise REFUSED when the host would be endangered.

    Returns the placer, which knows the CPUs that are taken.
    """
    threaded = [w for w in wanted if w.mode != "off"]
    _report_softirq(draft, wanted)
    _check_lists(host, threaded)
    chooser = _Chooser(host)
    chosen = [(one, chooser.choose(one)) for one in threaded]
    _check_realtime(host, chosen)
    _check_pollers(draft, host, chosen)
    for one, cpus in chosen:
        _plan(draft, one, cpus)
    return chooser.placer


def _report_softirq(draft: Draft, wanted: list[Wanted]) -> None:
    """Report thread options that meet no thread, unless the section's own modes say why."""
    for one in (w for w in wanted if not w.section.modes):
        if one.mode == "off" and (one.section.cpus is not None or one.section.sched is not None):
            device, queue = one.link.name, one.lane.queue.index
            reason = "the queue is not threaded, so it has no thread"
            draft.skip(device, queue, "thread settings", "left-alone", reason)


def _refuse(one: Wanted, option: str, problem: str, remedy: str) -> RxlaneError:
    return RxlaneError(
        Kind.REFUSED,
        problem,
        section=one.section.name,
        option=option,
        value=one.section.option(option) or None,
        device=one.link.name,
        queue=one.lane.queue.index,
        remedy=remedy,
    )


def _check_lists(host: Topology, threaded: list[Wanted]) -> None:
    for section in {w.section.name: w.section for w in reversed(threaded)}.values():
        check_cpus(host, section, "thread_cpus", section.cpus or ())


class _Chooser:
    """Chooses CPUs for one thread after the other."""

    def __init__(self, host: Topology) -> None:
        self._host = host
        self._online = host.online
        self.placer = topology.Placer(host)
        self._turns: Counter[str] = Counter()
        self._pools: dict[tuple[bool, bool, bool], tuple[int, ...]] = {}

    def choose(self, one: Wanted) -> tuple[int, ...]:
        """Return the CPUs the thread may run on: one unless the section shares or leaves them."""
        given = one.section.cpus
        if given is None:
            return self._online
        if one.section.shared_cpus:
            return given or self._pool(one)
        if given:
            turn = self._turns[one.section.name]
            self._turns[one.section.name] += 1
            self.placer.taken[given[turn % len(given)]] += 1
            return (given[turn % len(given)],)
        pool = self._pool(one)
        return (self.placer.take(pool, one.link.node, one.polling or one.realtime),)

    def _pool(self, one: Wanted) -> tuple[int, ...]:
        kind = (one.polling or one.realtime, one.realtime, one.section.allow_realtime_cpu0)
        if kind not in self._pools:
            self._pools[kind] = topology.pool(self._host, *kind)
        pool = self._pools[kind]
        if not pool and one.realtime:
            problem, remedy = topology.realtime_problem(self._host, self._online, False) or (
                "there is no CPU for a real-time thread",
                "give thread_cpus",
            )
            raise _refuse(one, "thread_policy", problem, remedy)
        return pool or self._online


def _check_realtime(host: Topology, chosen: list[tuple[Wanted, tuple[int, ...]]]) -> None:
    taken: set[int] = set()
    for one, cpus in chosen:
        if not one.realtime:
            continue
        if taken.issuperset(cpus):
            continue
        taken.update(cpus)
        found = topology.realtime_problem(host, taken, one.section.allow_realtime_cpu0)
        if found is not None:
            problem, remedy = found
            if one.section.cpus is None and len(host.online) > topology.HOUSEKEEPING_LEFT:
                remedy = "set thread_cpus to auto or to the CPUs that real-time threads may have"
            raise _refuse(one, "thread_policy", problem, remedy)


def _check_poller_cpus(pollers: list[tuple[Wanted, tuple[int, ...]]]) -> None:
    """Refuse two pollers on one CPU, and more pollers than CPUs whatever they are bound to."""
    bound = Counter(cpus[0] for _, cpus in pollers if len(cpus) == 1)
    crowded = {number for number, count in bound.items() if count > 1}
    sections = {one.section.name for one, cpus in pollers if len(cpus) == 1 and cpus[0] in crowded}
    group = [row for row in pollers if row[0].section.name in sections] if crowded else pollers
    used = {n for _, cpus in group for n in cpus}
    if crowded or len(group) > len(used):
        problem = f"{len(group)} busy-polling threads for {len(used)} CPUs"
        remedy = "thread fewer queues or give more CPUs: a poller takes a whole CPU"
        raise _refuse(group[-1][0], "thread_cpus", problem, remedy)


def _check_pollers(
    draft: Draft, host: Topology, chosen: list[tuple[Wanted, tuple[int, ...]]]
) -> None:
    pollers = [(one, cpus) for one, cpus in chosen if one.polling]
    _check_poller_cpus(pollers)
    for one, cpus in pollers:
        if len(cpus) > 1:
            draft.warnings.append(
                f"{one.link.name} queue {one.lane.queue.index}: a busy-polling thread without"
                " thread_cpus takes a whole CPU wherever the scheduler puts it"
            )
    pinned = {cpus[0] for _, cpus in pollers if len(cpus) == 1}
    pair = topology.siblings_among(host, pinned)
    if pair is not None:
        draft.warnings.append(
            f"busy-polling threads on CPUs {pair[0]} and {pair[1]} share one core"
        )


def _plan(draft: Draft, one: Wanted, cpus: tuple[int, ...]) -> None:
    device, queue, section = one.link.name, one.lane.queue.index, one.section
    thread = one.lane.thread
    if thread is not None and thread.policy in UNKNOWN_SCHED:
        reason = f"thread {thread.pid} is SCHED_{thread.policy.upper()}, which cannot be restored"
        draft.skip(device, queue, "thread settings", "unsupported", reason)
        return
    if section.cpus is not None:
        reason = f"thread_cpus={section.option('thread_cpus')} in [{section.name}]"
        draft.want(Target(device, queue, CPUS), cpulist.render(cpus), reason)
    if section.sched is not None:
        reason = f"thread_policy={section.sched} in [{section.name}]"
        draft.want(Target(device, queue, SCHED), section.sched, reason)
