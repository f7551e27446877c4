# SPDX-License-Identifier: GPL-2.0-or-later
"""What the map marks: ways across nodes, and lanes in each other's way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rxlane.model import Snapshot, Sysctl
from rxlane.showing import marks
from rxlane.showing.marks import CONFLICT, HOP
from unit import synthetic

TWO_NODES = [{"count": 8, "smt": 2, "node": 0}, {"count": 8, "smt": 2, "node": 1, "package": 1}]


def host(*links: dict[str, Any], **more: Any) -> Snapshot:
    return synthetic.snapshot({"cpus": TWO_NODES, "links": list(links), **more})


def polled(queues: int, mode: str = "busy-poll", **more: Any) -> dict[str, Any]:
    return {"rx": queues, "mode": mode, "thread_cpus": "each", "node": 0, "irq": None, **more}


def bound(start: Snapshot, *cpus: int) -> Snapshot:
    """The threads moved to these CPUs, in order."""
    rows = zip(start.threads, cpus, strict=True)
    return replace(start, threads=tuple(replace(t, cpus=(cpu,)) for t, cpu in rows))


def texts(start: Snapshot, kind: str) -> list[str]:
    found = [mark for mark in marks.find(start) if mark.kind == kind]
    return [f"{mark.device} rx{mark.queue}: {mark.text}" for mark in found]


def test_a_local_host_has_no_marks() -> None:
    one = {"name": "eth0", "rx": 4, "node": 0, "irq_cpus": "each"}
    assert marks.find(host(one, {"name": "eth1", "rx": 4, "node": 1, "irq_cpus": "each"})) == ()
    away = bound(host(polled(2, name="eth0", sched="fifo:50")), 2, 4)
    assert marks.find(away) == ()


def test_ways_across_nodes() -> None:
    away = host({"name": "eth0", "rx": 1, "node": 1, "irq_cpus": "each"})
    irqs = tuple(replace(irq, cpus=(3,), effective=(3,)) for irq in away.irqs)
    assert texts(replace(away, irqs=irqs), HOP) == [
        "eth0 rx0: interrupts on node 0, the device is on node 1"
    ]
    far = bound(host(polled(2, "on", name="eth0")), 3, 9)
    assert texts(far, HOP) == ["eth0 rx1: polled on node 1, the device is on node 0"]


def test_a_device_of_unknown_node_hops_between_interrupt_and_thread() -> None:
    far = host(polled(1, "on", name="eth0", node=None, irq=40, irq_cpus="each"))
    assert texts(bound(far, 9), HOP) == ["eth0 rx0: interrupts on node 0, polled on node 1"]
    assert texts(bound(far, 1), HOP) == []


def test_pollers_in_each_others_way() -> None:
    shared = bound(host(polled(1, name="eth0"), polled(1, "on", name="eth1")), 2, 2)
    assert texts(shared, CONFLICT) == ["eth0 rx0: CPU 2 also polls eth1 rx0"]
    beside = bound(host(polled(2, name="eth0")), 2, 3)
    assert texts(beside, CONFLICT) == [
        "eth0 rx0: CPU 2 shares a core with CPU 3, which polls eth0 rx1",
        "eth0 rx1: CPU 3 shares a core with CPU 2, which polls eth0 rx0",
    ]


def test_a_line_for_each_cpu_however_many_it_polls() -> None:
    start = synthetic.snapshot(
        {"cpus": [{"count": 4}], "links": [polled(64, sched="fifo:50", irq=40, irq_cpus="each")]}
    )
    found = marks.find(start)
    assert len(found) == 64 * 3 + 16
    own = "rx0,4,8,12,16,20,24,28,32,36,40,44,48+"
    assert [text for _, queues, text in marks.grouped(found) if queues == own] == [
        "a real-time thread may run on CPU 0, which carries the kernel's own work",
        f"CPU 0 polls eth0 {own}",
        f"CPU 0 also takes the interrupts of eth0 {own}",
    ]
    few = bound(host(polled(3, name="eth0"), polled(1, "on", name="eth1")), 2, 2, 4, 2)
    assert texts(few, CONFLICT) == [
        line
        for queue in (0, 1)
        for line in (
            f"eth0 rx{queue}: CPU 2 polls eth0 rx0-1",
            f"eth0 rx{queue}: CPU 2 also polls eth1 rx0",
        )
    ]


def test_interrupts_and_rps_of_others_on_a_pollers_cpu() -> None:
    start = host(polled(1, name="eth0"), {"name": "eth1", "rx": 3, "node": 0, "irq_cpus": "each"})
    queues = tuple(
        replace(q, rps_cpus=(2, 3)) if q.kind == "rx" and q.index else q
        for q in start.links[1].queues
    )
    links = (start.links[0], replace(start.links[1], queues=queues))
    assert texts(bound(replace(start, links=links), 2), CONFLICT) == [
        "eth0 rx0: CPU 2 also takes the interrupts of eth1 rx2",
        "eth0 rx0: RPS of eth1 rx1-2 brings packets to CPU 2",
    ]


def test_a_busy_poller_that_is_not_bound_and_sockets_that_poll() -> None:
    loose = host(polled(1, name="eth0", thread_cpus="all"))
    loose = replace(loose, sysctls=(Sysctl("net.core.busy_read", 50),))
    assert texts(loose, CONFLICT) == [
        "eth0 rx0: sockets poll as well: net.core.busy_read is 50",
        "eth0 rx0: a busy-polling thread takes a whole CPU, and any of 0-15 may be it",
    ]


def test_what_real_time_threads_take_from_the_host() -> None:
    start = host(polled(3, "on", name="eth0", sched="fifo:50"), isolated="2-14")
    assert texts(bound(start, 0, 3, 15), CONFLICT) == [
        "eth0 rx0: a real-time thread may run on CPU 0, which carries the kernel's own work",
        "eth0 rx0: real-time threads leave CPU 1 for all else",
        "eth0 rx1: real-time threads leave CPU 1 for all else",
        "eth0 rx2: real-time threads leave CPU 1 for all else",
    ]


def test_threads_of_napis_without_an_rx_queue_are_in_the_way_as_well() -> None:
    start = host(polled(2, name="eth0", sched="fifo:50"), polled(1, name="eth1"))
    link = start.links[0]
    queues = tuple(q for q in link.queues if (q.kind, q.index) != ("rx", 1))
    links = (replace(link, queues=queues), start.links[1])
    found = marks.find(bound(replace(start, links=links), 0, 0, 0))
    (napi,) = {mark.napi for mark in found if mark.napi is not None}
    assert marks.grouped(mark for mark in found if mark.device == "eth0") == [
        (
            CONFLICT,
            f"rx0, NAPI {napi}",
            "a real-time thread may run on CPU 0, which carries the kernel's own work",
        ),
        (CONFLICT, f"rx0, NAPI {napi}", f"CPU 0 polls eth0 rx0, NAPI {napi}"),
        (CONFLICT, f"rx0, NAPI {napi}", "CPU 0 also polls eth1 rx0"),
    ]
    assert f"eth1 rx0: CPU 0 also polls eth0 rx0, NAPI {napi}" in texts(
        bound(replace(start, links=links), 0, 0, 0), CONFLICT
    )
    assert len(marks.places(start)) == 3


def test_queues_of_the_same_mark_are_told_together() -> None:
    start = bound(host(polled(3, "on", name="eth0")), 8, 9, 1)
    assert marks.grouped(marks.find(start)) == [
        (HOP, "rx0-1", "polled on node 1, the device is on node 0")
    ]
