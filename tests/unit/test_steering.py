# SPDX-License-Identifier: GPL-2.0-or-later
"""Section [flow_steering]: RPS, RFS, XPS and sysctls as planned and skipped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import cpulist
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.deciding.senders import deal
from rxlane.items import BACKLOG
from rxlane.model import Snapshot, Sysctl
from rxlane.plan import HOST, WHOLE, Target
from rxlane.settings import View
from rxlane.verify import verify
from unit import simhost
from unit.asking import SECOND, TWO_NODES, asked, caches, host, joined, planned, values
from unit.simhost import MemoryStore, SimHost


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
            assert apart(masks, link.name) == list(range(8))


def apart(found: dict[str, object], device: str) -> list[int]:
    """All CPUs of a device's queues, as often as they have them."""
    own = (cpus for name, cpus in found.items() if name.startswith(f"{device}/"))
    return sorted(n for cpus in own for n in cpulist.parse(str(cpus)))


@pytest.mark.parametrize(
    ("irqs", "masks"),
    [
        ((3, 0), ["0-1", "2-3"]),
        ((1, 0), ["0,2", "1,3"]),
        ((0, 0), ["1-2", "1,3"]),  # none can have CPU 0
    ],
)
def test_rps_auto_exchanges_the_cpu_that_the_last_queue_must_not_have(
    irqs: tuple[int, int], masks: list[str]
) -> None:
    """It took one for a second time, and its interrupt's CPU had nothing."""
    start = host(simhost.link(queues=2), cpus=simhost.topology(4))
    there = tuple(
        replace(irq, effective=(irqs[irq.number - 40],)) if irq.number < 42 else irq
        for irq in start.irqs
    )
    found = planned(replace(start, irqs=there), "rps-cpus", rps="auto")
    assert list(found.values()) == masks


@pytest.mark.parametrize(("devices", "queues", "cpus"), [(2, 8, 16), (4, 4, 8), (3, 5, 10)])
def test_rps_auto_uses_every_cpu_once(devices: int, queues: int, cpus: int) -> None:
    links = [
        simhost.link(f"eth{n}", queues, ifindex=n + 2, base=9000 + 500 * n) for n in range(devices)
    ]
    start = host(*links, cpus=simhost.topology(cpus))
    plan = decide(start, asked(rps="auto", irq_cpus="auto"))
    irqs, masks = values(plan, "irq-cpus"), values(plan, "rps-cpus")
    for link in links:
        assert apart(masks, link.name) == list(range(cpus))
    assert not any(int(str(irqs[q])) in cpulist.parse(str(own)) for q, own in masks.items())


def test_rps_auto_uses_cpu_0_where_no_interrupt_is_known() -> None:
    start = replace(host(), writers=("irqbalance",))
    assert apart(planned(start, "rps-cpus", rps="auto"), "eth0") == list(range(8))


def test_rps_auto_takes_siblings_of_pollers_last() -> None:
    """The second thread of a core was first among equals where its first one polls."""
    cpus = simhost.topology(16)
    cores = tuple(replace(c, siblings=(c.number % 8, c.number % 8 + 8)) for c in cpus.cpus)
    start = host(cpus=replace(cpus, cpus=cores))
    options = {"threaded": "busy-poll@0-1", "thread_cpus": "1,2", "irq_cpus": "auto", "rps": "auto"}
    found = apart(planned(start, "rps-cpus", **options), "eth0")
    assert len(found) == 8 and not {1, 2, 9, 10} & {*found}
    one = replace(start, links=(replace(start.links[0], queues=start.links[0].queues[:1]),))
    alone = options | {"threaded": "busy-poll", "thread_cpus": "1"}
    assert planned(one, "rps-cpus", **alone) == {"eth0/rx0": "0,2-8,10-15"}


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
