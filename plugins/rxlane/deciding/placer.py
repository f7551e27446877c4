# SPDX-License-Identifier: GPL-2.0-or-later
"""Hands out CPUs to the lanes of a plan, counted over all devices and parts of it. Pure.

How many lanes a CPU gets follows from what it costs to put one there, so lanes are spread evenly.
Which lanes these are follows from the device and the lane's place in it as far as the numbers
allow: were it the order of choice too, one queue more would move every lane that chooses later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from rxlane.model import Cpu, Link, Topology
from rxlane.topology import efficient, first_of_cores, near

# What a busy poller counts beside real-time threads, which sleep: more than all of them together.
POLLER = 1 << 20
# The golden section: devices that start so far apart along the CPUs are spread however many they
# are, and one device more moves no other's start.
APART = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Request:
    """A lane that wants one CPU of a non-empty pool.

    node: the device's. exclusive: a busy poller or a real-time thread, which wants a CPU for
    itself. polling: it is the first, which leaves others none. spread: over last level caches.
    prefer: the CPU of an interrupt that cannot move. named: the operator named the CPUs, so CPU 0
    is one as the others. stands: where it is in the layout of the whole host.
    """

    ifindex: int
    pool: tuple[int, ...]
    node: int | None = None
    exclusive: bool = False
    polling: bool = False
    spread: bool = False
    prefer: int | None = None
    named: bool = False
    stands: int | None = None

    @property
    def weight(self) -> int:
        """What it counts for those that would come to its CPU."""
        return weight(self.exclusive, self.polling)


def weight(exclusive: bool, polling: bool) -> int:
    return POLLER if polling else int(exclusive)


@cache
def _ranks(count: int) -> list[int]:
    """Return, for each distance along so many CPUs, when it is tried: half way round comes first.

    In the order of the distances' bits read backwards. Whatever CPUs are offline together, a
    package, every second one, all second threads, their lanes go to different ones.
    """
    width = (count - 1).bit_length()
    order = sorted(range(count), key=lambda n: int(f"{n:0{width}b}"[::-1], 2))
    return [rank for _, rank in sorted(zip(order, range(count), strict=True))]


def starts(links: Iterable[Link]) -> dict[int, float]:
    """Return a start for each device among those of its node, by ifindex."""
    ranks: Counter[int | None] = Counter()
    found = {}
    for link in sorted({link.ifindex: link for link in links}.values(), key=lambda li: li.ifindex):
        found[link.ifindex] = ranks[link.node] * APART % 1
        ranks[link.node] += 1
    return found


@dataclass(slots=True)
class _Row:
    """CPUs that are as good as each other for some lanes.

    extras: how many lanes go there once every CPU of all rows has its even share.
    """

    cpus: list[int]
    extras: int = 0


@dataclass(slots=True)
class Placer:
    """Counts what each CPU has, so that devices do not pile up on one CPU.

    starts: where each device's lanes start along the CPUs, 0 to 1, by ifindex; see starts().
    vcpus: CPUs to which vCPUs are bound.
    resumed: it goes on from a layout of the whole host, whose lanes stand and are counted.
    """

    topology: Topology
    starts: Mapping[int, float] = field(default_factory=dict)
    vcpus: Collection[int] = ()
    taken: Counter[int] = field(default_factory=Counter)
    # By CPU, what weight() says of the lanes that are there.
    polled: Counter[int] = field(default_factory=Counter)
    caches: Counter[int | None] = field(default_factory=Counter)
    resumed: bool = False
    _cpus: dict[int, Cpu] = field(init=False)
    _away: frozenset[int] = field(init=False)
    _slow: frozenset[int] = field(init=False)
    _online: frozenset[int] = field(init=False)
    _places: dict[int, int] = field(init=False)
    # CPUs that pollers came to after theirs had gone.
    _entered: set[int] = field(default_factory=set)
    # By CPU, how many fair lanes left it for others.
    _left: Counter[int] = field(default_factory=Counter)
    # What _heirs() found, by what that depends on beside `polled`.
    _alike: dict[tuple[object, ...], list[int]] = field(default_factory=dict)
    # By CPU, what stays there whatever the plan says, and what weight() says of that.
    _met: Counter[int] = field(default_factory=Counter)
    _met_polled: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._cpus = {cpu.number: cpu for cpu in self.topology.cpus}
        self._away = frozenset((*self.topology.isolated, *self.topology.nohz_full))
        self._slow = efficient(self.topology)
        self._online = frozenset(self.topology.online)
        self._places = {cpu.number: place for place, cpu in enumerate(self.topology.cpus)}

    def fork(self, topology: Topology) -> Placer:
        """Return another placer that goes on from here, on a host that may have fewer CPUs."""
        resumed = self.resumed or topology != self.topology
        left = Placer(topology, self.starts, self.vcpus, resumed=resumed)
        for number in topology.online:
            left.note(number, 0, self.taken[number])
            left.polled[number] = self.polled[number]
        left._met, left._met_polled = self._met, self._met_polled
        return left

    def meet(self, number: int, weight: int) -> None:
        """Note a CPU that a thread or interrupt has which stays there, whatever the plan says."""
        self._met[number] += 1
        self._met_polled[number] += weight

    def leave(self, number: int, weight: int) -> None:
        """Note the CPU of a thread of the plan that it leaves where it is."""
        if not self.resumed:
            self.meet(number, weight)

    def busy(self, number: int) -> bool:
        """True where a busy poller or a real-time thread is, of the plan or not."""
        return bool(self.polled.get(number) or self._met_polled.get(number))

    def polls(self, number: int) -> bool:
        """True where a busy poller is, of the plan or not."""
        return self.polled.get(number, 0) + self._met_polled.get(number, 0) >= POLLER

    def give(self, number: int, weight: int) -> None:
        """Count a CPU that the operator named for a lane."""
        if not self.resumed:
            self.note(number, weight)

    def note(self, number: int, weight: int, count: int = 1) -> None:
        """Count a CPU as taken by so many lanes."""
        cpu = self._cpus[number]
        self.taken[number] += count
        self.caches[cpu.llc] += count
        if weight:
            self.polled[number] += count * weight
            self._alike.clear()

    def deal(self, requests: Sequence[Request]) -> list[int]:
        """Return a CPU for each request; those of a device are in the order of its queues.

        Pollers choose first, then real-time threads, then lanes with an interrupt that cannot move;
        of each, devices that have a node. Then those move that are in the way of what meet()
        noted: were that taken into account before, a device that is planned again would make way
        for one that came later and made way for it.
        """
        if self.resumed:
            with self._among_others():
                return self._settle(requests)
        found = self._deal(requests)
        self._make_way(requests, found)
        return [found[number] for number in range(len(requests))]

    @contextmanager
    def _among_others(self) -> Iterator[None]:
        """Count the threads of devices outside of the plan for a while."""
        self.taken.update(self._met)
        self.polled.update(self._met_polled)
        self._alike.clear()
        try:
            yield
        finally:
            self.taken.subtract(self._met)
            self.polled.subtract(self._met_polled)
            self._alike.clear()

    def _make_way(self, requests: Sequence[Request], found: dict[int, int]) -> None:
        rows = [n for n in found if self._in_the_way(requests[n], found[n])]
        for number in rows:
            self.note(found[number], requests[number].weight, -1)
        with self._among_others():
            for number in sorted(_by_turn(requests, rows), key=lambda n: -requests[n].weight):
                found[number] = self.take(requests[number])

    def _in_the_way(self, one: Request, number: int) -> bool:
        """True for a lane on a poller's core, and for one that wants a CPU alone and is not."""
        core = {number, *self._cpus[number].siblings}
        return any(self._met_polled.get(n) for n in core) or (
            one.exclusive and bool(self._met.get(number))
        )

    def _deal(self, requests: Sequence[Request]) -> dict[int, int]:
        """Return the CPU of each request as it is with no devices outside of the plan."""
        found: dict[int, int] = {}
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, one in enumerate(requests):
            kind = (self._reach(one), one.spread, one.weight, one.prefer, one.named)
            alike[kind].append(number)
        groups = sorted(
            (_by_turn(requests, rows) for rows in alike.values()),
            key=lambda rows: (requests[rows[0]].prefer is None, requests[rows[0]].node is None),
        )
        for heavy in (POLLER, weight(exclusive=True, polling=False)):
            left = [rows for rows in groups if requests[rows[0]].weight == heavy]
            while left:
                for rows in left:
                    self._place(requests, rows, found)
                # Those that found no CPU near: those of other devices have theirs now.
                left = [more for rows in left if (more := [n for n in rows if n not in found])]
        for rows in groups:
            if not requests[rows[0]].exclusive:
                self._place(requests, rows, found)
        return found

    def _settle(self, requests: Sequence[Request]) -> list[int]:
        """Leave lanes where they stand; place those that cannot stay, pollers first."""
        found: dict[int, int] = {}
        for exclusive in (True, False):
            rows = [n for n, one in enumerate(requests) if one.exclusive == exclusive]
            lost = []
            for number in rows:
                one = requests[number]
                if one.stands is not None and self._may_stay(one, one.stands):
                    found[number] = one.stands
                    continue
                if one.stands in self._online:
                    self.note(one.stands, one.weight, -1)
                if exclusive or one.stands is None:
                    lost.append(number)
                    continue
                found[number] = self.inherit(one, one.stands, self._left[one.stands])
                self._left[one.stands] += 1
            for number in sorted(_by_turn(requests, lost), key=lambda n: not requests[n].polling):
                found[number] = self.take(requests[number])
                if exclusive:
                    self._entered.add(found[number])
        return [found[number] for number in range(len(requests))]

    def inherit(self, one: Request, gone: int, turn: int) -> int:
        """Return the CPU for the fair lane number turn of those that leave one, and count it.

        Away from pollers and near the device, then by the two CPUs' places among those as good and
        the turn alone: were it by what CPUs have now, one more that goes offline would move lanes
        that were not on it. Where the CPU of its turn is offline too, it looks on from there.
        """
        ring = self._heirs(one)
        at = {number: place for place, number in enumerate(ring)}
        ranks, own = _ranks(len(ring)), int(gone in at and len(ring) > 1)
        # Those of a package that is gone as a whole start apart along the other's CPUs.
        start = at.get(gone, self._places[gone]) + ranks.index(own + turn % (len(ring) - own))
        online = (n for n in ring if n in self._online)
        best = min(online, key=lambda n: ranks[(at[n] - start) % len(ring)])
        self.note(best, one.weight)
        return best

    def _heirs(self, one: Request) -> list[int]:
        """Return the CPUs that would be as good for the fair lane as each other, all online."""
        key = (one.pool, one.node, one.prefer)
        if key not in self._alike:
            self._alike[key] = self._found_alike(one)
        return self._alike[key]

    def _found_alike(self, one: Request) -> list[int]:
        costs = {n: self._cost(n, one)[:3] for n in one.pool}
        lowest = min(costs.values())
        best = {n for n, cost in costs.items() if cost == lowest}
        kinds = {self._kind(n, one) for n in best}
        alike = (n for n in self._places if n not in self._online and self._kind(n, one) in kinds)
        return sorted(best.union(alike), key=self._places.__getitem__)

    def _kind(self, number: int, one: Request) -> tuple[object, ...]:
        """Return what says whether a lane may go to the CPU, and how gladly."""
        apart = (self._away, self.topology.partitioned, self.vcpus)
        return (*self._cost(number, one)[:3], *(number in cpus for cpus in apart))

    def _may_stay(self, one: Request, number: int) -> bool:
        if number not in one.pool:
            return False
        core = {number, *self._cpus[number].siblings}
        return one.exclusive or not core & self._entered

    def _reach(self, one: Request) -> tuple[tuple[int, ...], int | None]:
        """Return the CPUs that the lane may go to, and the node where only that tells them apart.

        A fair lane leaves its node for nothing but a poller's.
        """
        local = near(self.topology, one.pool, one.node)
        alike = len(local) == len(one.pool)
        return one.pool, None if alike else one.node

    def _place(self, requests: Sequence[Request], rows: list[int], found: dict[int, int]) -> None:
        found |= zip(rows, self._share([requests[n] for n in rows]), strict=False)

    def take(self, one: Request) -> int:
        """Return the best CPU of the pool and count it as taken.

        Cores without a poller first; the preferred CPU; then for pollers the least used, else the
        device's own node: a fair thread shares a CPU there rather than pay for the way with every
        packet; then for pollers isolated CPUs and performance cores; CPU 0, which carries the
        kernel's own work, after those that have as much; with spread the last level cache that
        serves fewest; cores without another thread; the lowest number.
        """
        best = min(one.pool, key=lambda n: (*self._cost(n, one), n))
        self.note(best, one.weight)
        return best

    def _take_many(self, one: Request, count: int) -> list[int]:
        """Take the best CPU so many times; only what a lane changes is weighed again."""
        costs = {n: (*self._cost(n, one), n) for n in one.pool}
        found = []
        for _ in range(count):
            best = min(costs.values())[-1]
            self.note(best, one.weight)
            found.append(best)
            cpu = self._cpus[best]
            beside = {best, *cpu.siblings}
            if one.spread:
                beside.update(n for n in costs if self._cpus[n].llc == cpu.llc)
            costs.update({n: (*self._cost(n, one), n) for n in beside if n in costs})
        return found

    def ordinary(self, node: int | None) -> tuple[int, ...]:
        """Return the node's housekeeping CPUs that no poller has and no vCPU is bound to; others
        where it has none.

        What is sent to a poller's CPU waits for a thread that never yields, and softirqs take
        their time from a vCPU that they interrupt.
        """
        every = self.topology.housekeeping or self.topology.open
        free = tuple(n for n in every if not self.busy(n)) or every
        return near(self.topology, tuple(n for n in free if n not in self.vcpus) or free, node)

    def shared(self, cpus: tuple[int, ...], node: int | None) -> tuple[int, ...]:
        """Return those of the CPUs near the node among which a thread may move, pollers' last."""
        return near(self.topology, tuple(n for n in cpus if not self.busy(n)) or cpus, node)

    def ring(self, link: Link, cpus: Sequence[int], past: int) -> tuple[int, ...]:
        """Return the CPUs in the order in which a device's interrupts go along them, first threads
        of cores before second ones and CPU 0 last, from so many past the device's start; after them
        siblings of CPUs that have a poller, with which they share a core.
        """
        ordered = sorted(cpus, key=lambda n: (n == 0, n))
        firsts = first_of_cores(self.topology, ordered)
        every = (*firsts, *(n for n in ordered if n not in firsts))
        quiet = tuple(n for n in every if not any(map(self.busy, self._cpus[n].siblings))) or every
        at = (int(self.starts[link.ifindex] * len(quiet)) + past) % len(quiet)
        return (*quiet[at:], *quiet[:at], *(n for n in every if n not in quiet))

    def _cost(self, number: int, one: Request) -> tuple[int, ...]:
        cpu = self._cpus[number]
        used, away = self.taken.get(number, 0), int(one.node is not None and cpu.node != one.node)
        return (
            sum(self.polled.get(s, 0) for s in (*cpu.siblings, number)),
            int(number != one.prefer),
            *((used, away) if one.exclusive else (away, used)),
            int(one.exclusive and number not in self._away),
            int(one.exclusive and number in self._slow),
            int(number == 0 and not one.named),
            self.caches[cpu.llc] if one.spread else 0,
            sum(self.taken.get(s, 0) for s in cpu.siblings if s != number)
            + int(one.exclusive and number != 0 and 0 in cpu.siblings),
        )

    def _share(self, requests: list[Request]) -> list[int]:
        """Return CPUs for the first of these requests, which are alike but for their lanes.

        All of them unless they are exclusive: then as many as there are CPUs of the best kind.
        """
        one = requests[0]
        rows = self._rows(one)
        cpus = tuple(n for row in rows for n in row.cpus)
        own = requests[: len(cpus)] if one.exclusive else requests
        before = Counter({n: self.taken.get(n, 0) for n in cpus})
        picks = self._take_many(replace(one, pool=cpus), len(own))
        after = Counter({n: self.taken.get(n, 0) for n in cpus})
        level = min(after.values())
        for row in rows:
            row.extras = sum(max(0, after[n] - max(level, before[n])) for n in row.cpus)
        for number in picks:
            self.note(number, one.weight, -1)
        top = max(after[n] for n in picks)
        found = _Dealer(rows, before, level, top).deal(own, self.starts)
        for number in found:
            self.note(number, one.weight)
        return found

    def _rows(self, one: Request) -> list[_Row]:
        """Return the CPUs that requests like this one share, in rows of equal ones, best first."""
        costs = {n: self._cost(n, one) for n in one.pool}
        # What having more lanes than another CPU does not outweigh; a poller shares none.
        fixed = 4 if one.exclusive else 3
        best = min(cost[:fixed] for cost in costs.values())
        spread = one.spread and len({self._cpus[n].llc for n in one.pool}) > 1
        turns: Counter[object] = Counter()
        rows: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number in sorted(n for n in one.pool if costs[n][:fixed] == best):
            cpu = self._cpus[number]
            group = cpu.llc if spread else min((*cpu.siblings, number))
            rows[*costs[number][4:], turns[group]].append(number)
            turns[group] += number != 0 or one.named
        ordered = [_Row(rows[key]) for key in sorted(rows)]
        return ordered[:1] if one.exclusive else ordered


def _turns(requests: Iterable[Request]) -> Iterator[int]:
    """Yield for each request its place among those of its device."""
    seen: Counter[int] = Counter()
    for one in requests:
        yield seen[one.ifindex]
        seen[one.ifindex] += 1


def _by_turn(requests: Sequence[Request], rows: list[int]) -> list[int]:
    """Sort requests so that each device has its turn with one lane."""
    turns = dict(zip(rows, _turns(requests[n] for n in rows), strict=True))
    return sorted(rows, key=lambda n: (turns[n], requests[n].ifindex))


@dataclass(slots=True)
class _Dealer:
    """Says which lane goes where, once it is known how many go to each row of CPUs.

    load: what each CPU has. level: what each will have at least. top: the most that one has which
    gets any.
    """

    rows: list[_Row]
    load: Counter[int]
    level: int
    top: int
    _row_of: dict[int, _Row] = field(init=False)

    def __post_init__(self) -> None:
        self._row_of = {number: row for row in self.rows for number in row.cpus}

    def deal(self, requests: list[Request], starts: Mapping[int, float]) -> list[int]:
        """Return a CPU for each request: its own place as far as there is room.

        A device's lanes stand side by side along all CPUs; one whose place is taken looks for the
        like in each row, then for the next place that is free.
        """
        ring = [n for row in self.rows for n in row.cpus]
        rows = (ring, *(row.cpus for row in self.rows))
        walks = [
            [(row, int(starts[one.ifindex] * len(row)) + turn) for row in rows]
            for one, turn in zip(requests, _turns(requests), strict=True)
        ]
        found = [next(self._free(walk, 1), None) for walk in walks]
        return [
            next(self._free(walk, len(ring))) if number is None else number
            for number, walk in zip(found, walks, strict=True)
        ]

    def _free(self, walk: list[tuple[list[int], int]], steps: int) -> Iterator[int]:
        for cpus, at in walk:
            for step in range(min(steps, len(cpus))):
                number = cpus[(at + step) % len(cpus)]
                if self._admit(number):
                    yield number

    def _admit(self, number: int) -> bool:
        if self.load[number] >= self.level:
            row = self._row_of[number]
            if not row.extras or self.load[number] >= self.top:
                return False
            row.extras -= 1
        self.load[number] += 1
        return True
