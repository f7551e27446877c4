# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that places threads: CPU, scheduling class, and the refusals. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rxlane import cpulist, topology
from rxlane.deciding.dangers import holds_up
from rxlane.deciding.draft import Draft, check_thread_cpus
from rxlane.deciding.handlers import needed
from rxlane.deciding.neighbours import named
from rxlane.deciding.placer import Placer, Request, weight
from rxlane.deciding.wanted import Chosen, Wanted, refuse
from rxlane.errors import RxlaneError, counted
from rxlane.items import CPUS, SCHED
from rxlane.model import Lane, Topology
from rxlane.plan import Target
from rxlane.sections import SCHED_OPTIONS

POLLER = "busy-polling thread"


def place(
    draft: Draft, placer: Placer, wanted: list[Wanted], others: Iterable[Chosen] = ()
) -> list[Chosen]:
    """Plan CPU and class of every thread; raise REFUSED for pollers in each other's way.

    others: threads outside of the plan. Returns the CPUs of each thread.
    """
    host = placer.topology
    threaded = [w for w in wanted if w.mode != "off"]
    _report_softirq(draft, wanted)
    _check_lists(host, wanted)
    chosen = _Chooser(draft, placer).choose(threaded)
    _check_pollers(draft, host, chosen)
    _check_others(draft, host, chosen, [row for row in others if row[0].polling])
    for one, own in chosen:
        _plan(draft, one, own)
    return chosen


def _report_softirq(draft: Draft, wanted: list[Wanted]) -> None:
    """Report thread options that meet no thread, unless the section's own modes say why."""
    for one in (w for w in wanted if not w.section.modes):
        if one.mode == "off" and (one.section.cpus is not None or one.section.sched is not None):
            device, queue = one.link.name, one.lane.queue.index
            reason = "the queue is not threaded, so it has no thread"
            draft.skip(device, queue, "thread settings", "left-alone", reason)


def _check_lists(host: Topology, wanted: list[Wanted]) -> None:
    for section in {w.section.name: w.section for w in reversed(wanted)}.values():
        check_thread_cpus(host, section, "thread_cpus", section.cpus or ())


class _Chooser:
    """Chooses the CPUs of all threads."""

    def __init__(self, draft: Draft, placer: Placer) -> None:
        self._draft = draft
        self._placer = placer
        self._host = placer.topology
        self._online = self._host.online
        self._turns: Counter[str] = Counter()
        self._pools: dict[tuple[bool, bool, bool, int], tuple[int, ...]] = {}

    def choose(self, threaded: list[Wanted]) -> list[Chosen]:
        """Return the CPUs each thread may run on: one unless the section shares or leaves them.

        Lists that name their CPUs choose first.
        """
        placed = [(one, self._given(one)) for one in threaded]
        auto = [one for one, cpus in placed if cpus is None]
        dealt = iter(self._placer.deal([self._request(one) for one in auto]))
        return [
            (one, (next(dealt),) if cpus is None else cpus or self._shared(one))
            for one, cpus in placed
        ]

    def _given(self, one: Wanted) -> tuple[int, ...] | None:
        """Return the CPUs that the section says, None where one is to be chosen, () where many."""
        given = one.section.cpus
        if given is None:
            thread = one.lane.thread
            own = () if thread is None else thread.cpus
            stays = tuple(n for n in own if n in self._online) or self._online
            if len(stays) == 1:
                self._placer.leave(stays[0], weight(one.exclusive, one.polling))
            return stays
        if one.section.shared_cpus:
            return given
        if not given:
            return None
        turn = self._turns[one.section.name]
        self._turns[one.section.name] += 1
        number = given[turn % len(given)]
        self._placer.give(number, weight(one.exclusive, one.polling))
        return (number,)

    def _shared(self, one: Wanted) -> tuple[int, ...]:
        """Return the CPUs among which a thread may move; an ordinary one's are near the device, as
        one that is bound leaves its node for nothing but pollers.
        """
        every = tuple(sorted(self._pool(one)))
        return every if one.exclusive else self._placer.shared(every, one.link.node)

    def _request(self, one: Wanted) -> Request:
        return Request(
            one.link.ifindex,
            self._pool(one),
            one.link.node,
            one.exclusive,
            one.polling,
            one.section.placement == topology.SPREAD_LLC,
            None if one.polling else _fixed(one.lane),
            stands=self._draft.stands_on(Target(one.link.name, one.lane.queue.index, CPUS)),
        )

    def _pool(self, one: Wanted) -> tuple[int, ...]:
        kind = (one.exclusive, one.realtime, one.section.allow_realtime_cpu0, holds_up(one))
        if kind not in self._pools:
            self._pools[kind] = pool(self._draft, self._host, one)
        return topology.restrict(
            self._host, self._pools[kind], one.section.placement, one.link.node
        )


def pool(draft: Draft, host: Topology, one: Wanted) -> tuple[int, ...]:
    """Return the CPUs that a thread like this one chooses from; REFUSED where none may have it."""
    vcpus, cpu0 = draft.view.snapshot.vcpus, one.section.allow_realtime_cpu0
    found = topology.pool(host, vcpus, one.exclusive, one.realtime, cpu0)
    if not found and one.realtime:
        problem, remedy = topology.realtime_problem(host, host.online, False) or (
            "there is no CPU for a real-time thread",
            "give thread_cpus",
        )
        raise refuse(one, "thread_policy", problem, remedy)
    if holds_up(one) >= 0:
        found = _beside_no_handler(draft, found, holds_up(one))
    return found or host.open


def _beside_no_handler(draft: Draft, cpus: tuple[int, ...], upto: int) -> tuple[int, ...]:
    """Return those of the CPUs to which no interrupt's thread of up to this priority is bound, else
    none of an interrupt that is no lane's, which stays; where all have one, the refusal says so.

    Interrupts that the plan places keep away themselves: where they are now says nothing.
    """
    threads = [
        thread
        for thread in needed(draft)
        if len(thread.cpus) == 1 and thread.priority <= upto and thread.irq not in draft.placed
    ]
    lanes = {lane.irq.number for lane in draft.view.lanes.values() if lane.irq is not None}
    for bound in (threads, [t for t in threads if t.irq not in lanes]):
        held = {n for thread in bound for n in thread.cpus}
        if not held.issuperset(cpus):
            return tuple(n for n in cpus if n not in held)
    return cpus


def _fixed(lane: Lane) -> int | None:
    """Return the CPU of an interrupt that cannot come to its thread: the thread goes there."""
    irq = lane.irq
    if irq is None or irq.movable:
        return None
    return irq.arrives[0] if len(irq.arrives) == 1 else None


def check_realtime(host: Topology, chosen: Iterable[Chosen], others: Iterable[Chosen] = ()) -> None:
    """Refuse real-time threads that together would take too much of the host.

    others: threads outside of the plan, to which those come that it leaves alone.
    """
    rows = [row for row in chosen if row[0].realtime]
    planned = [row for row in rows if not row[0].untouched(row[1])]
    left = [row for row in rows if row[0].untouched(row[1])]
    _check_own(host, planned)
    _check_sum(host, planned, [*left, *(row for row in others if row[0].realtime)])


def _check_own(host: Topology, chosen: Iterable[Chosen]) -> None:
    taken: set[int] = set()
    for one, cpus in chosen:
        # What one section allows for its threads says nothing of another's.
        cpu0 = one.section.allow_realtime_cpu0 or 0 not in cpus
        if cpu0 and taken.issuperset(cpus):
            continue
        taken.update(cpus)
        found = topology.realtime_problem(host, taken, cpu0)
        if found is not None:
            problem, remedy = found
            if one.section.cpus is None and len(host.online) > topology.HOUSEKEEPING_LEFT:
                remedy = "set thread_cpus to auto or to the CPUs that real-time threads may have"
            raise refuse(one, "thread_policy", problem, remedy)


def _check_sum(host: Topology, chosen: list[Chosen], others: list[Chosen]) -> None:
    """Refuse what real-time threads would take together with those of other devices.

    Only where the plan makes it worse: what others have taken is no reason to refuse it, nor is
    what its own threads have already.
    """
    present = _cpus(others) | _cpus(row for row in chosen if row[0].stands(row[1]))
    added = _cpus(chosen) - present
    found = topology.realtime_problem(host, present | added, cpu0=True)
    if not others or not added or found is None:
        return
    before = topology.realtime_problem(host, present, cpu0=True)
    if before is not None and added.isdisjoint(host.housekeeping):
        return
    problem, remedy = found
    one = next(one for one, cpus in chosen if added.intersection(cpus))
    raise refuse(one, "thread_policy", f"{problem}, with those of {named(others)}", remedy)


def _cpus(rows: Iterable[Chosen]) -> set[int]:
    return {n for _, cpus in rows for n in cpus}


def _check_poller_cpus(host: Topology, pollers: list[Chosen]) -> None:
    """Refuse two pollers on one CPU, and more pollers than CPUs whatever they are bound to."""
    bound = Counter(cpus[0] for _, cpus in pollers if len(cpus) == 1)
    crowded = {number for number, count in bound.items() if count > 1}
    sections = {one.section.name for one, cpus in pollers if len(cpus) == 1 and cpus[0] in crowded}
    group = [row for row in pollers if row[0].section.name in sections] if crowded else pollers
    used = {n for _, cpus in group for n in cpus}
    if crowded or len(group) > len(used):
        raise _too_many(host, group, used)


def _too_many(host: Topology, group: list[Chosen], used: set[int]) -> RxlaneError:
    """Return the refusal of pollers that have these CPUs and are more than that."""
    last = group[-1][0]
    if last.section.cpus != ():
        problem = f"{counted(len(group), POLLER)} for {counted(len(used), 'CPU')}"
        remedy = "thread fewer queues or give more CPUs: a poller takes a whole CPU"
        return refuse(last, "thread_cpus", problem, remedy)
    word = last.section.placement
    others = "leaves the others to the host" if word == topology.AUTO else "takes no others"
    cpus = cpulist.named("CPU", used)
    problem = f"{counted(len(group), POLLER)} for {cpus} ({word} {others})"
    own = [one.lane.queue.index for one, _ in group if one.link is last.link]
    such = ""
    if len(own) == len(group):
        room = len(topology.first_of_cores(host, sorted(used)))
        such = f", such as busy-poll@{cpulist.render(own[-room:])},"
    return refuse(last, "thread_cpus", problem, f"thread fewer queues{such} or name CPUs")


def _check_pollers(
    draft: Draft, host: Topology, chosen: list[tuple[Wanted, tuple[int, ...]]]
) -> None:
    pollers = [(one, cpus) for one, cpus in chosen if one.polling]
    if all(one.untouched(cpus) for one, cpus in pollers):
        return
    _check_poller_cpus(host, pollers)
    for one, cpus in pollers:
        if len(cpus) > 1:
            draft.warnings.append(
                f"{one.link.name} queue {one.lane.queue.index}: a busy-polling thread takes a whole"
                f" one of CPUs {cpulist.render(cpus)}, wherever the scheduler puts it"
            )
    pinned = {cpus[0]: one for one, cpus in pollers if len(cpus) == 1}
    pair = topology.siblings_among(host, pinned)
    if pair is None:
        return
    problem = f"busy-polling threads on CPUs {pair[0]} and {pair[1]} share one core"
    chosen_here = [pinned[n] for n in pair if not pinned[n].section.cpus]
    if chosen_here:
        remedy = "thread fewer queues, or name both CPUs in thread_cpus to have it so"
        raise refuse(chosen_here[0], "thread_cpus", problem, remedy)
    draft.warnings.append(problem)


def _check_others(
    draft: Draft, host: Topology, chosen: Iterable[Chosen], others: list[Chosen]
) -> None:
    """Refuse pollers that the plan adds where those of other devices leave them no CPU or core."""
    pollers = [row for row in chosen if row[0].polling]
    added = [row for row in pollers if not row[0].stands(row[1])]
    theirs = {cpus[0]: (one, cpus) for one, cpus in others if len(cpus) == 1}
    if not added or not theirs:
        return
    had = _cpus(added) & set(theirs)
    kept = {cpus[0] for one, cpus in pollers if len(cpus) == 1 and one.stands(cpus)}
    free = _cpus(added) - had - kept
    crowded = next((one for one, cpus in added if len(cpus) == 1 and had.issuperset(cpus)), None)
    if crowded is not None or (had and len(added) > len(free)):
        problem = f"{counted(len(added), POLLER)} for {counted(len(free), 'CPU')} beside those of "
        remedy = "thread fewer queues or give other CPUs: a poller takes a whole CPU"
        rows = [theirs[n] for n in had]
        raise refuse(crowded or added[-1][0], "thread_cpus", problem + named(rows), remedy)
    for one, cpus in added:
        if len(cpus) == 1:
            _check_core(draft, host, one, cpus[0], theirs)


def _check_core(
    draft: Draft, host: Topology, one: Wanted, number: int, theirs: Mapping[int, Chosen]
) -> None:
    beside = sorted(topology.siblings(host, [number]) & set(theirs))
    if not beside:
        return
    other = theirs[beside[0]][0].link.name
    problem = f"busy-polling threads on CPUs {number} and {beside[0]}, of {other}, share one core"
    if not one.section.cpus:
        remedy = "thread fewer queues, or name the CPU in thread_cpus to have it so"
        raise refuse(one, "thread_cpus", problem, remedy)
    draft.warnings.append(problem)


def _plan(draft: Draft, one: Wanted, cpus: tuple[int, ...]) -> None:
    device, queue, section = one.link.name, one.lane.queue.index, one.section
    if section.cpus is not None:
        reason = section.reason("thread_cpus")
        draft.want(Target(device, queue, CPUS), cpulist.render(cpus), reason)
    if section.sched is not None:
        reason = section.reason(*SCHED_OPTIONS)
        draft.want(Target(device, queue, SCHED), section.sched, reason)
