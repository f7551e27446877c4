# SPDX-License-Identifier: GPL-2.0-or-later
"""Where lanes go beside each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rxlane import topology
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.model import Snapshot, Topology
from rxlane.plan import Target
from rxlane.policy import Given, parse
from unit import simhost
from unit.asking import (
    FIFO,
    SECOND,
    TWO_NODES,
    asked,
    caches,
    host,
    planned,
    refusal,
    threads,
    values,
)
from unit.simhost import MemoryStore, SimHost

SMT = simhost.topology(8, smt=2)


# -- placements ---------------------------------------------------------------------------------


def test_one_per_core() -> None:
    start = host(simhost.link(queues=5), cpus=SMT)
    found = threads(start, threaded="on", thread_cpus="one-per-core")
    assert list(found.values()) == ["1", "2", "4", "6", "1"], "every core before a second turn"
    irqs = planned(start, "irq-cpus", irq_cpus="one-per-core")
    assert list(irqs.values()) == ["1", "2", "4", "6", "1"]


def test_spread_over_last_level_caches() -> None:
    start = host(cpus=caches(simhost.topology(16), 4))
    assert list(threads(start, threaded="on", thread_cpus="auto").values()) == ["1", "2", "3", "4"]
    found = threads(start, threaded="on", thread_cpus="spread-llc")
    assert list(found.values()) == ["1", "4", "8", "12"]
    assert list(planned(start, "irq-cpus", irq_cpus="spread-llc").values()) == [
        *("1", "4", "8", "12")
    ]


def test_numa_local_threads_stay_on_the_node() -> None:
    start = host(simhost.link(queues=6, node=1), cpus=simhost.topology(8, nodes=2))
    found = threads(start, threaded="on", thread_cpus="numa-local")
    assert list(found.values()) == ["4", "5", "6", "7", "4", "5"]
    wide = threads(start, threaded="on", thread_cpus="numa-local", thread_spread="all")
    assert set(wide.values()) == {"4-7"}


def test_threads_that_may_move_stay_near_the_device() -> None:
    """Ordinary ones, that is: pollers have the whole host, as each alone has."""
    near = {"threaded": "on", "thread_cpus": "auto", "thread_spread": "all"}
    start = host(simhost.link(node=0), replace(SECOND, node=1), cpus=TWO_NODES)
    found = threads(start, **near)
    assert {name.partition("/")[0]: cpus for name, cpus in found.items()} == {
        "eth0": "0-3",
        "eth1": "4-7",
    }
    poll = threads(start, threaded="busy-poll@0", thread_cpus="auto", thread_spread="all")
    assert {*poll.values()} == {"1-7"}
    isolated = simhost.topology(8, nodes=2, isolated=(4, 5, 6, 7))
    assert {*threads(replace(start, topology=isolated), **near).values()} == {"0-3"}
    rows = [
        Given("napi", "poll", ("eth0",), {"threaded": "busy-poll", "thread_cpus": "4-7"}),
        Given("napi", "near", ("eth1",), near),
    ]
    found = values(decide(start, parse(rows)), "thread-cpus")
    assert found["eth1/rx0"] == "0-3", "pollers have the node"


def test_pollers_get_cores_of_their_own_and_their_siblings_stay_idle() -> None:
    start = host(cpus=simhost.topology(16, smt=2))
    options = {"threaded": "on@0-1,busy-poll@2-3", "thread_cpus": "auto", "irq_cpus": "auto"}
    found = {name: int(str(cpu)) for name, cpu in threads(start, **options).items()}
    pollers = {found["eth0/rx2"], found["eth0/rx3"]}
    cores = [n // 2 for n in found.values()]
    assert len(set(cores)) == 4 and 0 not in {n // 2 for n in pollers}


def test_interrupts_of_other_lanes_avoid_the_pollers_cores() -> None:
    start = host(simhost.link(queues=2), SECOND, cpus=SMT)
    options = {"threaded": "busy-poll@0", "thread_cpus": "2,4", "irq_cpus": "auto"}
    found = planned(start, "irq-cpus", **options)
    others = {cpu for name, cpu in found.items() if not name.endswith("rx0")}
    assert others.isdisjoint({"2", "3", "4", "5"})


def test_never_two_pollers_on_one_core_unless_asked() -> None:
    start = host(cpus=SMT)
    found = threads(start, threaded="busy-poll@0-2", thread_cpus="auto")
    assert sorted(map(str, found.values())) == ["2", "4", "6"]
    crowd = host(simhost.link(queues=5), cpus=SMT)
    error = refusal(crowd, threaded="busy-poll", thread_cpus="auto")
    assert "share one core" in str(error) and "name both CPUs" in str(error)
    named = decide(start, asked(threaded="busy-poll@0-1", thread_cpus="2-3"))
    assert any("share one core" in w for w in named.warnings)


def test_pollers_stay_off_the_cpus_of_management_queues_interrupts() -> None:
    start = host()
    irqs = (replace(i, cpus=(2,), effective=(2,)) if i.number == 40 else i for i in start.irqs)
    start = replace(start, irqs=tuple(irqs))
    options: dict[str, object] = {"management_queues": 1, "thread_cpus": "auto"}
    found = threads(start, threaded="busy-poll", **options)
    assert list(found.values()) == ["1", "4", "3"]
    assert list(threads(start, threaded="on", **options, **FIFO).values()) == ["5", "3", "4"]
    fair = threads(start, threaded="on", **options)
    assert list(fair.values()) == ["1", "2", "3"], "they sleep, and share"
    full = replace(start, topology=simhost.topology(4))
    found = threads(full, threaded="busy-poll", **options)
    assert sorted(map(str, found.values())) == ["1", "2", "3"], "none is refused for it"
    back = {Target("eth0", 0, "irq-cpus"): "3"}
    given = asked(threaded="busy-poll", **options)
    late = values(decide(start, given, returning=back), "thread-cpus")
    assert list(late.values()) == ["1", "2", "4"], "where the interrupt goes back to counts"


def test_pollers_do_not_follow_a_management_interrupt_that_irqbalance_moves() -> None:
    sim, store = SimHost(replace(host(), writers=("irqbalance",))), MemoryStore()
    wanted = asked(threaded="busy-poll", management_queues=1, thread_cpus="auto")
    pollers = values(apply(sim, store, wanted).plan, "thread-cpus")
    for cpu in map(int, map(str, pollers.values())):
        sim.irqs[40] = replace(sim.irqs[40], cpus=(cpu,), effective=(cpu,))
        assert apply(sim, store, wanted).written == 0


def test_an_interrupt_that_moves_when_it_comes_next_is_where_it_goes() -> None:
    """Written since, it is said to be where it was: pollers that went by that would move later."""
    sim, store = SimHost(host()), MemoryStore()
    wanted = asked(threaded="busy-poll", management_queues=1, thread_cpus="auto")
    first = values(decide(sim.observe(None), wanted), "thread-cpus")
    for cpu in map(int, map(str, first.values())):
        sim.irqs[40] = replace(sim.irqs[40], cpus=(0,), effective=(cpu,))
        assert values(apply(sim, store, wanted).plan, "thread-cpus") == first
        sim.irqs[40] = replace(sim.irqs[40], effective=(0,))
        assert apply(sim, store, wanted).written == 0


def kinds(cpus: Topology, *efficient: int) -> Topology:
    rows = (replace(c, kind="atom" if c.number in efficient else "core") for c in cpus.cpus)
    return replace(cpus, cpus=tuple(rows))


def test_pollers_prefer_performance_cores() -> None:
    """Here the efficiency cores have the low numbers; interrupts and fair threads share all."""
    start = host(simhost.link(queues=5), cpus=kinds(simhost.topology(8), 0, 1, 2, 3))
    found = threads(start, threaded="busy-poll@0-3", thread_cpus="auto")
    assert sorted(map(str, found.values())) == ["4", "5", "6", "7"]
    more = threads(start, threaded="busy-poll", thread_cpus="auto")
    assert sorted(map(str, more.values())) == ["1", "4", "5", "6", "7"]
    fifo = threads(start, threaded="on@1-2", thread_cpus="auto", **FIFO)
    assert sorted(map(str, fifo.values())) == ["4", "5"]
    fair = planned(start, "irq-cpus", irq_cpus="auto")
    assert list(fair.values()) == ["1", "2", "3", "4", "5"]


def test_an_isolated_efficiency_core_is_the_pollers() -> None:
    cpus = kinds(simhost.topology(8, isolated=(6, 7)), 4, 5, 6, 7)
    found = threads(host(cpus=cpus), threaded="busy-poll@0-2", thread_cpus="auto")
    assert list(found.values()) == ["6", "7", "1"], "isolated by the operator, for just that"


def test_pollers_take_an_efficiency_core_before_a_pollers_sibling() -> None:
    cpus = simhost.topology(8, smt=2)
    rows = (replace(c, siblings=(c.number,)) if c.number > 3 else c for c in cpus.cpus)
    cpus = kinds(replace(cpus, cpus=tuple(rows)), 4, 5, 6, 7)
    found = threads(host(cpus=cpus), threaded="busy-poll@0-2", thread_cpus="auto")
    assert sorted(map(str, found.values())) == ["1", "2", "4"]


def test_a_queue_more_moves_few_threads() -> None:
    cpus = simhost.topology(32)
    fewer, more = (
        threads(host(simhost.link(queues=n), SECOND, cpus=cpus), threaded="on", thread_cpus="auto")
        for n in (4, 5)
    )
    assert {name: more[name] for name in fewer} == fewer


def test_devices_go_to_different_cpus() -> None:
    start = host(simhost.link(), SECOND, cpus=simhost.topology(16))
    found = threads(start, threaded="busy-poll", thread_cpus="auto")
    assert len(set(found.values())) == 8


AUTO = st.sampled_from(
    [
        ("irq-cpus", {"irq_cpus": "auto"}),
        ("thread-cpus", {"threaded": "on", "thread_cpus": "auto"}),
    ]
)


def of_sizes(sizes: list[int], cpus: Topology, nodes: list[int | None]) -> Snapshot:
    rows = zip(range(len(sizes)), sizes, nodes, strict=True)
    return host(
        *(
            simhost.link(f"eth{n}", q, ifindex=n + 2, base=9000 + 500 * n, node=m)
            for n, q, m in rows
        ),
        cpus=cpus,
    )


@st.composite
def shared_hosts(draw: st.DrawFn) -> tuple[Topology, list[int], list[int | None]]:
    """2 to 32 CPUs, of which at least two housekeeping, and the queues and nodes of devices."""
    count, nodes = draw(st.integers(2, 32)), draw(st.integers(1, 2))
    isolated = range(draw(st.integers(2, count)), count)
    smt = draw(st.sampled_from([1, 2]))
    cpus = simhost.topology(count, nodes=nodes, smt=smt, isolated=isolated)
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    # Devices of both kinds, with a node and without, share CPUs unevenly by design.
    kinds = st.none() if draw(st.booleans()) else st.integers(0, nodes - 1)
    return cpus, sizes, [draw(kinds) for _ in sizes]


@given(shared_hosts(), AUTO)
def test_housekeeping_cpus_share_evenly(
    shared: tuple[Topology, list[int], list[int | None]], asked_for: tuple[str, dict[str, str]]
) -> None:
    """Isolated CPUs get nothing; of the others near a device none gets two more than another."""
    cpus, sizes, nodes = shared
    found = planned(of_sizes(sizes, cpus, nodes), asked_for[0], **asked_for[1])
    own = [cpus.housekeeping if n is None else near(cpus, cpus.housekeeping, n) for n in nodes]
    for local in set(own):
        names = {f"eth{n}" for n, its in enumerate(own) if its == local}
        count = Counter(str(v) for k, v in found.items() if k.partition("/")[0] in names)
        loads = [count[str(n)] for n in local]
        assert max(loads) - min(loads) <= 1
        assert sum(loads) == sum(q for q, its in zip(sizes, own, strict=True) if its == local)


@given(
    st.integers(2, 16),
    st.lists(st.integers(1, 24), min_size=1, max_size=4),
    st.integers(0, 12),
    st.integers(0, 15),
)
def test_lanes_that_are_there_count(count: int, sizes: list[int], bound: int, where: int) -> None:
    """Threads that a list crowds on one CPU: it gets interrupts once all others have as many."""
    cpus, crowded = simhost.topology(count), where % count
    busy = simhost.link("busy0", 12, ifindex=90, base=20000)
    rows = of_sizes(sizes, cpus, [None] * len(sizes)).links
    names = tuple(link.name for link in rows)
    napi = {"threaded": "on", "thread_cpus": str(crowded), "management_queues": str(12 - bound)}
    policy = parse(
        [
            Given("napi", "n", ("busy0",), napi),
            Given("irq_layout", "i", names, {"irq_cpus": "auto"}),
        ]
    )
    found = values(decide(host(busy, *rows, cpus=cpus), policy), "irq-cpus")
    given = Counter(int(str(cpu)) for cpu in found.values())
    load = given + Counter({crowded: bound})
    least = min(load[n] for n in range(count))
    assert all(load[n] <= least + 1 for n in given)


def near(cpus: Topology, given: tuple[int, ...], node: int) -> tuple[int, ...]:
    """Those on the node; a node without any has its lanes on those of others."""
    return tuple(c.number for c in cpus.cpus if c.node == node and c.number in given) or given


@given(shared_hosts(), AUTO, st.integers(0, 3))
def test_a_queue_more_moves_few_lanes(
    shared: tuple[Topology, list[int], list[int | None]],
    asked_for: tuple[str, dict[str, str]],
    which: int,
) -> None:
    cpus, sizes, nodes = shared
    more = [q + (n == which % len(sizes)) for n, q in enumerate(sizes)]
    before, after = (
        planned(of_sizes(given, cpus, nodes), asked_for[0], **asked_for[1])
        for given in (sizes, more)
    )
    moved = [name for name, value in before.items() if after[name] != value]
    # Where a CPU has just as many as it may, a lane that is sent on sends on another.
    assert len(moved) <= len(sizes) + 2 + len(before) // 3


@given(
    st.integers(2, 24),
    st.sampled_from([1, 2]),
    st.integers(1, 3),
    st.lists(st.integers(1, 8), min_size=1, max_size=3),
    st.sampled_from(topology.PLACEMENTS),
    st.sampled_from(["on", "busy-poll@1-,on@0"]),
)
def test_every_placement_keeps_the_rules(
    count: int, smt: int, nodes: int, queues: list[int], placement: str, modes: str
) -> None:
    """CPUs are online; no two pollers share a core; applying again changes nothing."""
    cpus = caches(simhost.topology(count, smt=smt, nodes=nodes), 4)
    links = [
        simhost.link(f"eth{n}", size, ifindex=n + 2, base=1000 * (n + 9), node=n % nodes)
        for n, size in enumerate(queues)
    ]
    wanted = asked(threaded=modes, thread_cpus=placement, irq_cpus=placement)
    sim, store = SimHost(host(*links, cpus=cpus)), MemoryStore()
    try:
        done = apply(sim, store, wanted)
    except RxlaneError as error:
        assert error.kind.refused
        assume(False)
        raise
    found = {c.target: c.after for c in (*done.plan.changes, *done.plan.holds)}
    bound = [
        int(str(value))
        for target, value in found.items()
        if target.item == "thread-cpus" and found[target._replace(item="threaded")] == "busy-poll"
    ]
    assert len(set(bound)) == len(bound) and set(bound) <= set(cpus.online)
    assert topology.siblings_among(cpus, bound) is None
    assert apply(sim, store, wanted).written == 0


# -- cpuset partitions --------------------------------------------------------------------------

PARTITIONED = simhost.topology(8, isolated=(5,), partitioned=(6, 7))


@pytest.mark.parametrize("placement", topology.PLACEMENTS)
@pytest.mark.parametrize("options", [{}, FIFO, {"thread_policy": "fifo", "thread_priority": 9}])
def test_nothing_is_laid_out_on_a_partition(placement: str, options: dict[str, object]) -> None:
    start = host(simhost.link(queues=3), cpus=PARTITIONED)
    for mode in ("on", "busy-poll"):
        asks = {"threaded": mode, "thread_cpus": placement, "irq_cpus": placement, **options}
        plan = decide(start, asked(**asks))
        for item in ("thread-cpus", "irq-cpus"):
            assert {"6", "7"}.isdisjoint(map(str, values(plan, item).values()))
    pollers = threads(start, threaded="busy-poll", thread_cpus="auto")
    assert "5" in pollers.values(), "isolated by the command line, for just that"


def test_threads_that_share_stay_off_a_partition() -> None:
    start = host(cpus=PARTITIONED)
    for mode in ("on", "busy-poll@0"):
        shared = threads(start, threaded=mode, thread_cpus="auto", thread_spread="all")
        assert not any("6" in str(cpus) or "7" in str(cpus) for cpus in shared.values())
    workers = decide(start, asked(workqueue_cpus="auto"))
    assert [c.after for c in workers.changes] == ["0-4"]


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("thread_cpus", {"threaded": "on"}),
        ("irq_layout.thread_cpus", {"irq_layout.threaded": "on"}),
        ("rx_thread_cpus", {"rx_threads": "auto"}),
    ],
)
def test_a_partition_named_for_threads_is_refused(option: str, more: dict[str, object]) -> None:
    start = host(simhost.separable(simhost.link()), cpus=PARTITIONED)
    error = refusal(start, **more, **{option: "3-6"})
    assert "CPU 6 is in a cpuset partition, where the kernel puts none of its threads" in str(error)
    assert "choose from 0-5" in str(error)
    assert decide(start, asked(**more, **{option: "3-5"}))


def test_interrupts_of_a_partition_are_no_place_for_their_threads() -> None:
    start = host(cpus=PARTITIONED)
    irqs = tuple(replace(irq, threaded=0, cpus=(6,)) for irq in start.irqs)
    options = {"irq_layout.threaded": "on", "irq_layout.thread_cpus": "auto"}
    found = planned(replace(start, irqs=irqs), "irq-thread-cpus", **options)
    assert set(found.values()) == {"0-5"}
    assert planned(start, "irq-cpus", irq_cpus="6")["eth0/rx0"] == "6", "it is no thread"


def test_all_cpus_in_partitions() -> None:
    start = host(cpus=simhost.topology(4, partitioned=range(4)))
    assert threads(start, threaded="on", thread_cpus="auto")
