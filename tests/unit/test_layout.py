# SPDX-License-Identifier: GPL-2.0-or-later
"""Section [irq_layout]: planned and skipped; and with [flow_steering]: refused and undone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rxlane import cpulist, policy
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Link, Snapshot
from rxlane.plan import Plan
from rxlane.revert import revert
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.asking import SECOND, TWO_NODES, asked, host, planned, refusal, values
from unit.faults import WAYS, all_comes_back
from unit.simhost import MemoryStore, SimHost

# -- interrupts ---------------------------------------------------------------------------------


def test_each_interrupt_gets_a_cpu_of_its_own_near_the_device() -> None:
    start = host(simhost.link(queues=3, node=1), cpus=TWO_NODES)
    assert planned(start, "irq-cpus", irq_cpus="auto") == {
        "eth0/rx0": "4",
        "eth0/rx1": "5",
        "eth0/rx2": "6",
    }


def test_more_queues_than_near_cpus_stay_near() -> None:
    start = host(simhost.link(queues=6, node=1), cpus=TWO_NODES)
    found = planned(start, "irq-cpus", irq_cpus="auto").values()
    assert list(found) == ["4", "5", "6", "7", "4", "5"]


def test_devices_go_to_different_cpus_and_to_cpu_0_last() -> None:
    start = host(simhost.link(queues=3), replace(SECOND, queues=SECOND.queues[:3]))
    found = planned(start, "irq-cpus", irq_cpus="auto")
    assert len(set(found.values())) == 6 and "0" not in found.values()
    every = planned(host(simhost.link(), SECOND), "irq-cpus", irq_cpus="auto")
    assert sorted(map(str, every.values())) == list("01234567")


def test_a_queue_more_moves_no_other_interrupt() -> None:
    one, two = simhost.link(queues=5), simhost.link("eth1", 5, ifindex=3, base=9000)
    cpus = simhost.topology(16)
    before = planned(host(simhost.link(), SECOND, cpus=cpus), "irq-cpus", irq_cpus="auto")
    after = planned(host(one, two, cpus=cpus), "irq-cpus", irq_cpus="auto")
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 2


def test_an_interrupt_follows_the_thread_of_its_lane() -> None:
    options = {"threaded": "on@1-", "thread_cpus": "5-7", "irq_cpus": "auto"}
    found = planned(host(), "irq-cpus", **options)
    assert found == {"eth0/rx0": "1", "eth0/rx1": "5", "eth0/rx2": "6", "eth0/rx3": "7"}
    given_list = planned(host(), "irq-cpus", **(options | {"irq_cpus": "2,6"}))
    assert list(given_list.values()) == ["2", "6", "6", "2"], "rx2 has its thread on 6"


def test_numa_local_allows_the_whole_node() -> None:
    start = host(simhost.link(node=1), SECOND, cpus=TWO_NODES)
    found = planned(start, "irq-cpus", irq_cpus="numa-local")
    assert {found[f"eth0/rx{n}"] for n in range(4)} == {"4-7"}
    assert {found[f"eth1/rx{n}"] for n in range(4)} == {"0-7"}, "no node: all CPUs"


def test_isolated_cpus_get_no_interrupt_of_their_own() -> None:
    start = host(cpus=simhost.topology(8, isolated=range(3, 8)))
    assert set(planned(start, "irq-cpus", irq_cpus="auto").values()) == {"0", "1", "2"}
    assert set(planned(start, "irq-cpus", irq_cpus="4").values()) == {"4"}, "unless named"


def test_what_cannot_be_placed_is_told() -> None:
    start = host()
    queues = [replace(q, irq=None) if q.index == 1 else q for q in start.links[0].queues]
    queues = [replace(q, irq=40) if q.index == 2 else q for q in queues]
    irqs = tuple(replace(i, movable=i.number != 43) for i in start.irqs)
    start = replace(start, links=(replace(start.links[0], queues=tuple(queues)),), irqs=irqs)
    plan = decide(start, asked(irq_cpus="auto"))
    assert {s.queue: s.kind for s in plan.skips} == {
        1: "unsupported",
        2: "left-alone",
        3: "unmovable",
    }
    assert list(values(plan, "irq-cpus")) == ["eth0/rx0"]


@pytest.mark.parametrize(("options", "follows"), [
    ({}, True),
    ({"thread_policy": "fifo", "thread_priority": 40}, True),
    ({"threaded": "busy-poll"}, False),
])  # fmt: skip
def test_a_thread_that_sleeps_goes_to_its_fixed_interrupt(
    options: dict[str, object], follows: bool
) -> None:
    start, places = host(), (5, 4, 7, 6)
    rows = zip(start.irqs, places, strict=False)
    irqs = tuple(replace(i, movable=False, cpus=(n,), effective=(n,)) for i, n in rows)
    fixed = replace(start, irqs=(*irqs, *start.irqs[4:]))
    given = {"threaded": "on", "thread_cpus": "auto", **options}
    found = planned(fixed, "thread-cpus", **given)
    assert (list(found.values()) == [*map(str, places)]) == follows


def told(link: Link, **options: object) -> list[str]:
    start = simhost.snapshot(link)
    return [str(s) for s in decide(start, asked("eth0", **options)).skips]


def test_a_device_without_interrupts_is_told_once() -> None:
    bare = tuple(replace(q, irq=None) for q in simhost.link(queues=16).queues)
    bond = replace(simhost.link(), napis=(), queues=bare, physical=False, below=("eno0", "eno1"))
    end = "eth0 is a virtual device without interrupts of its queues;"
    start = "eth0: irq-cpus unsupported:"
    assert told(bond, irq_cpus="auto") == [f"{start} {end} name eno0, eno1 in its place"]
    alone = replace(bond, below=(), queues=())
    assert told(alone, irq_cpus="4") == [f"{start} {end} of a bond or bridge, name the ports"]
    nic = replace(bond, physical=True, driver="ena")
    assert told(nic, irq_cpus="auto") == [f"{start} driver ena reports no interrupts of its queues"]
    unlinked = tuple(replace(q, napi_id=None) for q in bare)
    lanes = told(replace(bond, queues=unlinked), threaded="on")
    assert len(lanes) == 1 and "without NAPI instances; name eno0, eno1" in lanes[0]


def test_another_writer_is_told() -> None:
    start = replace(host(), writers=("irqbalance",))
    assert "40-43" in decide(start, asked(irq_cpus="auto")).warnings[0]
    assert decide(start, asked(rps="off")).warnings == ()
    agent = replace(host(), writers=("google-guest-agent", "NetworkManager"))
    (warning,) = decide(agent, asked(irq_cpus="auto")).warnings
    assert "google-guest-agent runs" in warning and "set_multiqueue=false" in warning


def test_device_that_is_down_keeps_its_interrupts() -> None:
    plan = decide(host(simhost.link(up=False)), asked(irq_cpus="auto", rps="1"))
    assert [s.kind for s in plan.skips] == ["down"] and len(values(plan, "rps-cpus")) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"irq_cpus": "3,64"}, "[irq_layout] irq_cpus=3,64: CPU 64 does not exist"),
        ({"irq_cpus": "5"}, "CPU 5 is offline; CPUs 0-4,6-7 are online"),
        ({"rps": "0,9"}, "[flow_steering] rps=0,9: CPU 9 does not exist"),
        ({"rps": "5"}, "CPU 5 is offline"),
        ({"rps": "6-7"}, "CPU 7 is isolated"),
    ],
)
def test_refusals(options: dict[str, str], words: str) -> None:
    start = host(cpus=simhost.topology(8, offline=(5,), isolated=(7,)))
    error = refusal(start, **options)
    assert error.kind is Kind.REFUSED and words in str(error)


def clash(kind: str, devices: tuple[str, str], *options: dict[str, str]) -> str:
    rows = zip("ab", devices, options, strict=True)
    given_rows = [policy.Given(kind, name, (device,), own) for name, device, own in rows]
    with pytest.raises(RxlaneError) as caught:
        decide(host(simhost.link(), SECOND), policy.parse(given_rows))
    return str(caught.value)


def test_one_section_a_device_and_one_value_a_sysctl() -> None:
    same, both = ("eth0", "eth0"), ("eth0", "eth1")
    already = "section [a] already"
    assert already in clash("irq_layout", same, {"irq_cpus": "auto"}, {"irq_cpus": "auto"})
    assert already in clash("flow_steering", same, {"rps": "off"}, {"rps": "off"})
    words = clash("flow_steering", both, {"busy_read": "1"}, {"busy_read": "2"})
    assert words.startswith("[b] busy_read=2: section [a] sets it to 1")


# -- apply and back -----------------------------------------------------------------------------

FULL = {
    "threaded": "on@1-",
    "thread_cpus": "auto",
    "irq_cpus": "auto",
    "rps": "auto",
    "rfs": "auto",
    "xps": "auto",
    "netdev_max_backlog": "4096",
}


def test_the_one_order() -> None:
    sim = SimHost(host())
    apply(sim, MemoryStore(), asked(**FULL))
    kinds = [line.split()[0] for line in sim.log]
    assert list(dict.fromkeys(kinds)) == ["irq", "napi", "thread", "queue", "sysctl"]
    assert kinds == sorted(kinds, key=["irq", "napi", "thread", "queue", "sysctl"].index)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_at_any_write_comes_back(way: str) -> None:
    all_comes_back(way, host(), asked(**FULL))


def test_an_original_that_is_refused_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, store, tried = SimHost(host()), MemoryStore(), list[int]()
    apply(sim, store, asked(irq_cpus="auto", rps="2"))
    write_irq = sim.write_irq

    def noted(number: int, cpus: str) -> None:
        tried.append(number)
        write_irq(number, cpus)

    sim.managed = {41}
    monkeypatch.setattr(sim, "write_irq", noted)
    done = apply(sim, store, asked(rps="2"))
    assert sorted(tried) == [40, 41, 42, 43]
    journal = store.load()
    assert journal is not None and journal.left == done.plan.skips
    assert [str(s) for s in journal.left] == ["eth0 queue 1: irq-cpus unmovable: IRQ 41 is managed"]


def test_a_managed_interrupt_is_unmovable_and_fails_nothing() -> None:
    sim = SimHost(host())
    before, store = simhost.settings(sim), MemoryStore()
    sim.managed = {41}
    done = apply(sim, store, asked(irq_cpus="auto", rps="2"))
    assert done.written == 7 and len(done.unmovable) == 1
    assert [str(s) for s in done.plan.skips] == [
        "eth0 queue 1: irq-cpus unmovable: IRQ 41 is managed"
    ]
    assert verify(done.plan, sim.observe()) == ()
    journal = store.load()
    assert journal is not None and not verify_journal(journal, sim.observe()).drifted
    assert apply(sim, store, asked(irq_cpus="auto", rps="2")).written == 0
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_drift_of_the_hosts_settings_is_found() -> None:
    sim, store = SimHost(host()), MemoryStore()
    done = apply(sim, store, asked(**FULL))
    sim.write_sysctl("net.core.netdev_max_backlog", 7)
    sim.write_irq(40, "0-7")
    sim.write_queue(sim.links["eth0"], 2, {"xps-cpus": "off"})
    assert [str(m.target) for m in verify(done.plan, sim.observe())] == [
        "eth0/rx0/irq-cpus",
        "eth0/tx2/xps-cpus",
        "net.core.netdev_max_backlog",
    ]


def test_a_device_alone_leaves_the_hosts_settings() -> None:
    sim, store = SimHost(host(simhost.link(), SECOND)), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, asked(**FULL))
    rollback(sim, store, ["eth0"])
    assert sim.sysctls["net.core.netdev_max_backlog"] == 4096
    rollback(sim, store, None, {"irq-cpus"})
    assert {i.cpus for i in sim.irqs.values()} == {tuple(range(8))}
    assert sim.links["eth1"].napis[1].threaded == 1
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "threaded": st.sampled_from(["on@1-", "off", "busy-poll@3"]),
        "thread_cpus": st.sampled_from(["auto", "4-7"]),
        "irq_cpus": st.sampled_from(["auto", "numa-local", "1-3", "0"]),
        "rps": st.sampled_from(["off", "auto", "numa-local", "1-2"]),
        "rfs": st.sampled_from(["off", "auto", "500", "16777216"]),
        "xps": st.sampled_from(["off", "auto", "rxqs"]),
        "netdev_max_backlog": st.sampled_from(["1", "5000"]),
        "busy_read": st.sampled_from(["0", "50"]),
    },
)


@st.composite
def hosts(draw: st.DrawFn) -> Snapshot:
    """1 to 64 CPUs on 1 to 4 nodes, SMT or not, some isolated; up to three devices."""
    count = draw(st.integers(8, 64))
    isolated = draw(st.sets(st.integers(4, count - 1), max_size=count // 2))
    cpus = simhost.topology(
        count,
        nodes=draw(st.integers(1, 4)),
        smt=draw(st.sampled_from([1, 2])),
        isolated=isolated,
    )
    links = [
        simhost.link(
            f"eth{n}",
            draw(st.integers(4, 20)),
            ifindex=n + 2,
            base=8193 + 1000 * n,
            node=draw(st.sampled_from([None, 0, 1])),
        )
        for n in range(draw(st.integers(1, 3)))
    ]
    return host(*links, cpus=cpus)


def kept_rules(start: Snapshot, plan: Plan, options: Collection[str]) -> None:
    """The rules that no plan may break, whatever the host and the options."""
    online, housekeeping = set(start.topology.online), set(start.topology.housekeeping)
    for change in (*plan.changes, *plan.holds):
        item, value = change.target.item, str(change.after)
        if item.endswith("-cpus") and value != "off":
            cpus = set(cpulist.parse(value))
            assert cpus and cpus <= online
            assert item != "rps-cpus" or cpus <= housekeeping
        if item in ("rps-flow-cnt", "net.core.rps_sock_flow_entries"):
            assert int(value) & (int(value) - 1) == 0
        assert change.reason


def sockets_poll_beside(*rows: dict[str, str]) -> bool:
    """True for what is refused: also where an earlier policy of the rows lets sockets poll."""
    reads = any(row.get("busy_read") == "50" for row in rows)
    return reads and any("busy" in row.get("threaded", "") for row in rows)


@settings(max_examples=80, deadline=None)
@given(hosts(), st.lists(OPTIONS, min_size=1, max_size=3))
def test_any_layout_on_any_host_comes_back(start: Snapshot, rows: list[dict[str, str]]) -> None:
    sim, store = SimHost(start), MemoryStore()
    before = simhost.settings(sim)
    assume(not sockets_poll_beside(*rows))
    for options in rows:
        done = apply(sim, store, asked(**options))
        kept_rules(start, done.plan, options)
        assert verify(done.plan, sim.observe()) == ()
        assert apply(sim, store, asked(**options)).written == 0
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


@settings(max_examples=60, deadline=None)
@given(hosts(), OPTIONS)
def test_revert_of_any_plan_names_every_original(start: Snapshot, options: dict[str, str]) -> None:
    assume(not sockets_poll_beside(options))
    plan = decide(start, asked(**options))
    undone = {c.target: (c.before, c.after) for c in revert(plan, start).changes}
    had = {c.target: (c.after, c.before) for c in plan.changes if c.before is not None}
    assert undone == had
