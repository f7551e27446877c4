# SPDX-License-Identifier: GPL-2.0-or-later
"""Sections [irq_layout] and [flow_steering]: what is planned, skipped, refused, and undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rxlane import cpulist, policy
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.items import BACKLOG
from rxlane.model import Link, Snapshot, Sysctl
from rxlane.plan import HOST, WHOLE, Plan, Target
from rxlane.revert import revert
from rxlane.rollback import rollback
from rxlane.senders import deal
from rxlane.settings import View
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.asking import SECOND, TWO_NODES, asked, caches, host, joined, planned, refusal, values
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


def told(link: Link, **options: object) -> list[str]:
    start = simhost.snapshot(link)
    return [str(s) for s in decide(start, asked("eth0", **options)).skips]


def test_a_device_without_interrupts_is_told_once() -> None:
    bare = tuple(replace(q, irq=None) for q in simhost.link(queues=16).queues)
    bond = replace(simhost.link(), napis=(), queues=bare, physical=False, below=("eno0", "eno1"))
    end = "eth0 is a virtual device without interrupts of its queues;"
    start = "eth0: irq-cpus unsupported:"
    assert told(bond, irq_cpus="auto") == [f"{start} {end} name eno0, eno1 in devices="]
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


# -- flows --------------------------------------------------------------------------------------


def test_rps_auto_spreads_a_single_queue() -> None:
    found = planned(host(simhost.link(queues=1)), "rps-cpus", rps="auto", irq_cpus="auto")
    assert found == {"eth0/rx0": "0,2-7"}, "the interrupt's CPU is the last to take"


def test_rps_auto_gives_queues_disjoint_cpus() -> None:
    found = planned(host(simhost.link(queues=2)), "rps-cpus", rps="auto", irq_cpus="auto")
    assert found == {"eth0/rx0": "3-5", "eth0/rx1": "0,6-7"}


def test_rps_auto_keeps_queues_apart_beside_a_device_that_takes_all() -> None:
    start = host(simhost.link(queues=1), SECOND)
    found = planned(start, "rps-cpus", rps="auto", irq_cpus="auto")
    assert len({found[f"eth1/rx{n}"] for n in range(4)}) == 4


def test_rps_auto_is_off_where_queues_reach_every_cpu() -> None:
    plan = decide(host(cpus=simhost.topology(4)), asked(rps="auto"))
    assert set(values(plan, "rps-cpus").values()) == {"off"}
    assert "4 CPUs for 4 queues, fewer than 2 each" in plan.holds[0].reason
    most = decide(host(simhost.link(queues=5)), asked(rps="auto", irq_cpus="auto"))
    assert set(values(most, "rps-cpus").values()) == {"off"}, "one CPU each would spread nothing"


def test_rps_auto_is_beside_the_interrupts() -> None:
    """Also where as many CPUs are left as queues, and all have another device's interrupt."""
    for links in ([simhost.link()], [simhost.link(), SECOND]):
        plan = decide(host(*links), asked(rps="auto", irq_cpus="auto"))
        irqs, masks = values(plan, "irq-cpus"), values(plan, "rps-cpus")
        for name, cpus in masks.items():
            assert len(cpulist.parse(str(cpus))) == 2
            assert int(str(irqs[name])) not in cpulist.parse(str(cpus))
        for link in links:
            own = [n for q in range(4) for n in cpulist.parse(str(masks[f"{link.name}/rx{q}"]))]
            assert sorted(own) == list(range(8))


def test_rps_auto_takes_the_interrupts_cpu_where_there_is_one_other() -> None:
    start = host(simhost.link(queues=1), cpus=simhost.topology(2))
    assert planned(start, "rps-cpus", rps="auto", irq_cpus="auto") == {"eth0/rx0": "0-1"}


def test_rps_auto_is_beside_interrupts_that_stay() -> None:
    """What irqbalance would move tomorrow says nothing; unknown, CPU 0 is the last to take."""
    start = host(simhost.link(queues=1))
    start = replace(start, irqs=tuple(replace(i, cpus=(3,), effective=(3,)) for i in start.irqs))
    assert planned(start, "rps-cpus", rps="auto") == {"eth0/rx0": "0-2,4-7"}
    moving = replace(start, writers=("irqbalance",))
    assert planned(moving, "rps-cpus", rps="auto") == {"eth0/rx0": "1-7"}
    threads = {"threaded": "on", "thread_cpus": "5"}
    assert planned(moving, "rps-cpus", rps="auto", **threads) == {"eth0/rx0": "0-4,6-7"}


@pytest.mark.parametrize("change", ["down", "queue"])
def test_another_device_changes_no_rps(change: str) -> None:
    """12 of 12 masks changed, and with them the CPUs of all other devices' flows."""
    links = [simhost.link(f"eth{n}", 4, ifindex=n + 2, base=9000 + 500 * n) for n in range(4)]
    cpus, options = simhost.topology(16), {"rps": "auto", "irq_cpus": "1-15"}
    before = decide(host(*links, cpus=cpus), asked(**options))
    links[1] = simhost.link("eth1", 4 + (change == "queue"), ifindex=3, base=9500)
    links[1] = replace(links[1], up=change != "down")
    after = decide(host(*links, cpus=cpus), asked(**options))
    irqs, masks = (
        [values(plan, item) for plan in (before, after)] for item in ("irq-cpus", "rps-cpus")
    )
    others = [name for name in masks[0] if not name.startswith("eth1")]
    still = [name for name in others if irqs[0][name] == irqs[1][name]]
    assert len(others) == 12 and len(still) >= 8
    assert {n: masks[0][n] for n in still} == {n: masks[1][n] for n in still}


def test_rps_auto_spreads_devices_too() -> None:
    links = [simhost.link(f"eth{n}", 4, ifindex=n + 2, base=9000 + 500 * n) for n in range(4)]
    found = planned(host(*links, cpus=simhost.topology(16)), "rps-cpus", rps="auto")
    assert len({found[f"eth{n}/rx0"] for n in range(4)}) == 4
    loads = Counter(n for cpus in found.values() for n in cpulist.parse(str(cpus)))
    assert {*loads} >= {*range(1, 16)} and max(loads.values()) <= 4, "three on the average"


@pytest.mark.parametrize(
    ("text", "cpus"), [("off", "off"), ("numa-local", "4-7"), ("1,3", "1,3"), ("0-7", "0-7")]
)
def test_rps(text: str, cpus: str) -> None:
    start = host(simhost.link(node=1), cpus=TWO_NODES)
    assert set(planned(start, "rps-cpus", rps=text).values()) == {cpus}


def test_rfs_sizes_follow_the_queues() -> None:
    plan = decide(host(simhost.link(), SECOND), asked(rfs="auto"))
    assert set(values(plan, "rps-flow-cnt").values()) == {8192}, "32768 among four queues"
    assert values(plan, "net.core.rps_sock_flow_entries") == {
        "net.core.rps_sock_flow_entries": 32768
    }
    many = decide(host(simhost.link(queues=12)), asked(rfs="auto"))
    assert set(values(many, "rps-flow-cnt").values()) == {8192}, "65536 / 12, rounded up"
    given_size = decide(host(simhost.link(queues=3)), asked(rfs="1000"))
    assert set(values(given_size, "rps-flow-cnt").values()) == {512}
    assert given_size.changes[-1].after == 1024
    assert set(planned(host(), "rps-flow-cnt", rfs="off").values()) == {0}


def test_rfs_auto_leaves_a_larger_flow_table_to_the_other_devices() -> None:
    table = "net.core.rps_sock_flow_entries"
    start = host(simhost.link(), SECOND)
    start = replace(start, sysctls=(Sysctl(table, 131072),))
    plan = decide(start, asked("eth0", rfs="auto"))
    assert values(plan, table) == {table: 131072}
    assert set(values(plan, "rps-flow-cnt").values()) == {8192}, "its own share"
    assert values(decide(start, asked("eth0", rfs="512")), table) == {table: 512}, "as it is said"
    sim, store = SimHost(replace(start, sysctls=(Sysctl(table, 0),))), MemoryStore()
    for rfs in ("131072", "auto"):
        apply(sim, store, asked("eth0", rfs=rfs))
    assert View.of(sim.observe()).read(Target(HOST, WHOLE, table)) == 32768, "that one was ours"


def test_xps() -> None:
    start = host(cpus=simhost.topology(6))
    assert list(planned(start, "xps-cpus", xps="auto").values()) == ["0,4", "1,5", "2", "3"]
    few = host(cpus=simhost.topology(2))
    assert list(planned(few, "xps-cpus", xps="auto").values()) == ["0", "1", "0", "1"]
    by_queue = planned(start, "xps-rxqs", xps="rxqs")
    assert by_queue == {f"eth0/tx{n}": str(n) for n in range(4)}
    assert set(planned(start, "xps-cpus", xps="rxqs").values()) == {"off"}
    one = decide(host(simhost.link(queues=1)), asked(xps="auto"))
    assert [s.kind for s in one.skips] == ["left-alone"] and not one.changes


def senders(start: Snapshot, **options: object) -> list[object]:
    start = replace(start, links=tuple(map(joined, start.links)))
    return list(planned(start, "xps-cpus", xps="auto", **options).values())


def test_xps_sends_where_the_interrupt_is() -> None:
    start = host(simhost.link(queues=8))
    assert senders(start, irq_cpus="auto") == [*"12345670"]
    assert senders(start, threaded="on", thread_cpus="auto") == [*"12345670"]
    spread = tuple(replace(irq, effective=irq.cpus) for irq in start.irqs)
    assert senders(replace(start, irqs=spread)) == [*"01234567"], "no interrupt has one CPU"
    there = tuple(replace(irq, effective=(47 - irq.number,)) for irq in start.irqs[:8])
    assert senders(replace(start, irqs=there)) == [*"76543210"], "where they arrive already"


def test_xps_sends_near_the_interrupt() -> None:
    """On its core, its cache and its node, and by a queue in turn where it is on none of these."""
    apart = simhost.topology(8, smt=2)
    assert senders(host(simhost.link(queues=3), cpus=apart), irq_cpus="2,4,6") == [
        *("0,2-3", "1,4-5", "6-7")
    ]
    shared = caches(simhost.topology(8), 4)
    two = host(simhost.link(queues=2), cpus=shared)
    assert senders(two, irq_cpus="2,5") == ["0-3", "4-7"]
    far = host(simhost.link(queues=6, node=1), cpus=TWO_NODES)
    found = senders(far, irq_cpus="auto")
    assert found == ["2,4", "3,5", "6", "7", "0", "1"], "rx4 and rx5 are on 4 and 5 as well"


def test_xps_follows_no_interrupt_of_another_queue() -> None:
    """Those of TX queues that have their own are where the driver put them."""
    start = host(simhost.link(queues=8))
    assert list(planned(start, "xps-cpus", xps="auto", irq_cpus="auto").values()) == [*"01234567"]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=24))
def test_xps_gives_every_cpu_one_queue(smt: int, homes: list[int | None]) -> None:
    found = deal(caches(simhost.topology(18, nodes=3, smt=smt), 3), homes)
    every = [n for cpus in found for n in cpus]
    assert {*every} == {*range(18)} if len(homes) <= 18 else len(every) == len(homes)
    assert all(found) and (len(every) == 18 or len(homes) > 18)


def test_sysctls_are_the_hosts() -> None:
    plan = decide(host(), asked(netdev_max_backlog=4096, busy_read=0))
    assert [(str(c.target), c.before, c.after) for c in plan.changes] == [
        ("net.core.netdev_max_backlog", 1000, 4096)
    ]
    bare = replace(host(), sysctls=())
    skips = decide(bare, asked(busy_poll=5, rfs="auto")).skips
    assert [s.kind for s in skips] == ["unsupported"] * 2 and str(skips[1]).startswith("host: ")


def test_a_longer_backlog_stays() -> None:
    """Another program's; what we made ourselves goes down with the option, and back."""
    sim, store = SimHost(host()), MemoryStore()
    sim.write_sysctl(BACKLOG, 250000)
    assert apply(sim, store, asked(netdev_max_backlog=4096)).written == 0
    rollback(sim, store)
    assert sim.sysctls[BACKLOG] == 250000
    sim.write_sysctl(BACKLOG, 1000)
    for value in (5000, 5000, 4096, 1, 4096):
        done = apply(sim, store, asked(netdev_max_backlog=value))
        assert sim.sysctls[BACKLOG] == max(value, 1000) and verify(done.plan, sim.observe()) == ()
    rollback(sim, store)
    assert sim.sysctls[BACKLOG] == 1000 and store.text is None


def test_an_own_backlog_goes_down_with_a_plan_for_one_device() -> None:
    sim, store = SimHost(host()), MemoryStore()
    for value in (8192, 4096, 1):
        apply(sim, store, asked("eth0", netdev_max_backlog=value), {"eth0"})
        assert sim.sysctls[BACKLOG] == max(value, 1000)
    rollback(sim, store)
    assert sim.sysctls[BACKLOG] == 1000 and store.text is None


def test_kernel_without_steering_is_reported() -> None:
    plan = decide(simhost.snapshot(), asked(rps="auto", rfs="off", xps="auto"))
    assert not plan.changes and {s.kind for s in plan.skips} == {"unsupported"}


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
