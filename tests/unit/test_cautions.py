# SPDX-License-Identifier: GPL-2.0-or-later
"""What a plan warns of: threads that may be where they are, at a price."""

from __future__ import annotations

from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.model import Snapshot
from unit import simhost
from unit.asking import SECOND, asked, host
from unit.simhost import MemoryStore, SimHost

FOUR = simhost.topology(4)
EVERY = (
    "busy-polling threads are on every housekeeping CPU (0-3), and all else gets what they leave:"
    " thread fewer queues, or leave a CPU out of thread_cpus"
)
CPU_0 = (
    "eth0 queue 1: its busy-polling thread is on CPU 0, which carries the kernel's own work: leave"
    " that out of thread_cpus"
)


def warned(start: Snapshot, *devices: str, **options: object) -> list[str]:
    return list(decide(start, asked(*devices, **options)).warnings)


def test_pollers_on_every_housekeeping_cpu() -> None:
    start = host(cpus=FOUR)
    assert warned(start, threaded="busy-poll", thread_cpus="0-3") == [EVERY]
    assert warned(start, threaded="busy-poll@0-2", thread_cpus="1-3") == []
    isolated = host(cpus=simhost.topology(8, isolated=(4, 5, 6, 7)))
    assert warned(isolated, threaded="busy-poll", thread_cpus="0-3") == [EVERY]
    assert warned(isolated, threaded="busy-poll", thread_cpus="4-7") == []
    assert warned(host(cpus=FOUR), threaded="on", thread_cpus="0-3") == [], "they sleep"


def test_those_of_other_devices_count_and_what_stands_is_no_news() -> None:
    sim = SimHost(host(simhost.link(), SECOND, cpus=FOUR))
    first = asked("eth0", threaded="busy-poll@0-2", thread_cpus="1-3")
    apply(sim, MemoryStore(), first, ["eth0"])
    last = {"threaded": "busy-poll@0", "thread_cpus": "0"}
    assert warned(sim.observe(), "eth1", **last) == [EVERY]
    apply(sim, MemoryStore(), asked("eth1", **last), ["eth1"])
    assert warned(sim.observe(), "eth1", **last) == []


def test_pollers_for_which_no_isolated_core_is_left() -> None:
    start = host(cpus=simhost.topology(8, isolated=(5, 6)))
    many = warned(start, threaded="busy-poll", thread_cpus="auto")
    text = "busy pollers of queues 2-3 are on housekeeping CPUs 1-2"
    assert many == [f"eth0: {text}: no isolated core is free near the device"]
    fifo = {"thread_policy": "fifo", "thread_priority": "5"}
    (one,) = warned(start, threaded="on@0-2", thread_cpus="auto", **fifo)
    assert "real-time thread of queue 2 is on housekeeping CPU 2: no isolated" in one
    assert warned(start, threaded="busy-poll@0-1", thread_cpus="auto") == []
    assert warned(start, threaded="busy-poll@0-1", thread_cpus="1-2") == [], "they were named"
    assert warned(start, threaded="on", thread_cpus="auto") == [], "ordinary threads belong there"
    assert warned(host(), threaded="busy-poll", thread_cpus="auto") == [], "there is none"


def test_threads_that_share_the_only_housekeeping_cpu() -> None:
    start = host(cpus=simhost.topology(8, isolated=range(1, 8)))
    text = "4 threads share CPU 0, for no other housekeeping CPU is there: name some of the"
    for more in ({}, {"irq_cpus": "auto"}, {"thread_spread": "all"}):
        found = warned(start, threaded="on", thread_cpus="auto", **more)
        assert found == [f"{text} isolated ones (1-7) in thread_cpus"], "once, whatever else is"
    assert warned(start, threaded="on@1", thread_cpus="auto") == []
    assert warned(start, threaded="on", thread_cpus="1-4") == []
    assert warned(start, threaded="on", thread_cpus="0") == [], "it was named"
    single = host(cpus=simhost.topology(1))
    assert warned(single, threaded="on", thread_cpus="auto") == [], "there is no other"
    two = host(cpus=simhost.topology(8, isolated=range(2, 8)))
    assert warned(two, threaded="on", thread_cpus="auto") == []


def test_a_poller_on_cpu_0() -> None:
    start = host(cpus=FOUR)
    assert warned(start, threaded="busy-poll@1", thread_cpus="0") == [CPU_0]
    assert warned(start, threaded="on@1", thread_cpus="0") == []
    fifo = {"thread_policy": "fifo", "thread_priority": "5", "allow_realtime_cpu0": "1"}
    assert warned(start, threaded="busy-poll@1", thread_cpus="0", **fifo) == [], "it was allowed"
