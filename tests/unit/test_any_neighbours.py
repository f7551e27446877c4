# SPDX-License-Identifier: GPL-2.0-or-later
"""Properties of devices laid out one after the other, on hosts and with options of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from rxlane import topology
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.items import REALTIME
from rxlane.model import Snapshot, Thread, Topology
from rxlane.sections import Policy
from unit import simhost
from unit.asking import asked
from unit.onebyone import host, polled
from unit.simhost import MemoryStore, SimHost

OPTIONS = st.fixed_dictionaries(
    {
        "threaded": st.sampled_from(["on", "busy-poll", "busy-poll@0,on@1-"]),
        "thread_cpus": st.sampled_from(["auto", "one-per-core", "spread-llc", "2", "1,3", "0-3"]),
    },
    optional={"thread_policy": st.just("fifo"), "irq_cpus": st.just("auto")},
)


def options(given: Mapping[str, str]) -> dict[str, object]:
    return {**given, **({"thread_priority": 40} if "thread_policy" in given else {})}


# Three rounds, the most that was ever seen.
@example(
    5,
    2,
    0,
    [
        {"threaded": "on", "thread_cpus": "auto"},
        {"threaded": "on", "thread_cpus": "one-per-core"},
        {"threaded": "busy-poll", "thread_cpus": "auto"},
        {"threaded": "on", "thread_cpus": "auto", "thread_policy": "fifo"},
    ],
)
@given(
    st.integers(2, 16),
    st.sampled_from([1, 2]),
    st.integers(0, 2),
    st.lists(OPTIONS, min_size=2, max_size=4),
)
def test_one_after_the_other_keeps_the_rules(
    count: int, smt: int, isolated: int, asks: Sequence[Mapping[str, str]]
) -> None:
    """Whatever of it is refused; and what was laid out comes to rest."""
    away = range(max(1, count - isolated), count)
    cpus = simhost.topology(count, smt=smt, isolated=away)
    sim, store = SimHost(host(len(asks), cpus=cpus)), MemoryStore()
    done = []
    for number, given_options in enumerate(asks):
        name = f"eth{number}"
        try:
            policy = asked(name, **options(given_options))
            apply(sim, store, policy, [name])
            done.append((name, policy))
        except RxlaneError as error:
            assert error.kind.refused
    own = [lane.poller for lane in polled(sim.observe())]
    check_rules(cpus, [thread for thread in own if thread is not None], sim.observe())
    # Who came first makes way for a poller that took a place beside it, or found no other CPU. A
    # round for each device is what that may take.
    for _ in done:
        if not sum(planned_again(sim, store, *one) for one in done):
            break
    assert not sum(planned_again(sim, store, *one) for one in done)


def planned_again(sim: SimHost, store: MemoryStore, name: str, policy: Policy) -> int:
    """How many settings that writes; none where no place is left that would not be refused."""
    try:
        return apply(sim, store, policy, [name]).written
    except RxlaneError as error:
        assert error.kind.refused
        return 0


def check_rules(cpus: Topology, threads: Sequence[Thread], snapshot: Snapshot) -> None:
    realtime = {n for t in threads if t.policy in REALTIME for n in t.cpus}
    left = set(cpus.housekeeping) - realtime
    assert not realtime or len(left) >= min(topology.HOUSEKEEPING_LEFT, len(cpus.housekeeping))
    for lane in polled(snapshot):
        poller = lane.poller
        assert poller is not None
        if lane.mode != "busy-poll":
            continue
        on_it = [t for t in threads if t.cpus == poller.cpus and t is not poller]
        for other in on_it:
            assert poller.policy not in REALTIME or other.priority > poller.priority
        modes = [one.mode for one in polled(snapshot) if one.poller in on_it]
        assert "busy-poll" not in modes


@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(
            st.sampled_from([1, 2]),
            st.sampled_from(["other", "fifo", "rr", "deadline"]),
            st.sets(st.integers(0, 11), min_size=1),
        ),
        min_size=4,
        max_size=4,
    ),
)
def test_whatever_others_do_a_plan_without_threads_stands(
    count: int, threads: Sequence[tuple[int, str, set[int]]]
) -> None:
    start = host(2, 4, cpus=simhost.topology(count))
    first, second = start.links
    napis = tuple(
        replace(napi, threaded=mode, pid=100 + n)
        for n, (napi, (mode, _, _)) in enumerate(zip(first.napis, threads, strict=True))
    )
    found = tuple(
        Thread(100 + n, f"napi/eth0-{n}", policy, 50, 0, tuple(sorted(cpus)))
        for n, (_, policy, cpus) in enumerate(threads)
    )
    start = replace(start, links=(replace(first, napis=napis), second), threads=found)
    given_options = {"irq_cpus": "auto", "rps": "auto", "defer_hard_irqs": 2}
    assert decide(start, asked("eth1", **given_options)).changes
