# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

from rxlane.decide import decide
from rxlane.plan import Entry
from rxlane.policy import parse_section
from rxlane.sections import Policy
from rxlane.verify import verify, verify_entries
from unit import simhost
from unit.simhost import SimHost


def test_every_cause_is_told_apart() -> None:
    host = SimHost(simhost.snapshot())
    policy = Policy((parse_section("napi", [], {"threaded": "on@1", "thread_cpus": "2"}),))
    plan = decide(host.observe(), policy)
    assert [m.cause for m in verify(plan, host.observe())] == [
        "another program or a driver reset changed it",
        "queue has no thread",
    ]
    host.write_napi(8194, {"threaded": "on"})
    host.write_thread(1000, {"thread-cpus": "2"})
    assert verify(plan, host.observe()) == ()
    host.write_thread(1000, {"thread-cpus": "0-7"})
    drifted = verify(plan, host.observe())
    assert [(str(m.target), m.expected, m.found) for m in drifted] == [
        ("eth0/rx1/thread-cpus", "2", "0-7")
    ]
    host.set_down("eth0")
    assert {m.cause for m in verify(plan, host.observe())} == {"interface is down"}
    del host.links["eth0"]
    assert {m.cause for m in verify(plan, host.observe())} == {"device is gone"}


def test_unsupported_is_no_drift() -> None:
    host = SimHost(simhost.snapshot(capabilities=simhost.STOCK))
    options = {"threaded": "busy-poll", "irq_suspend_timeout": "5"}
    plan = decide(host.observe(), Policy((parse_section("napi", [], options),)))
    assert plan.skips and verify(plan, host.observe()) == ()


def test_entries_of_lost_devices_and_remembered_ones() -> None:
    host = SimHost(simhost.snapshot())
    entries = [
        Entry("eth0", 2, 1, "threaded", "on", "off"),
        Entry("eth0", 2, 1, "thread-cpus", "3", None),
        Entry("gone0", 99, 0, "threaded", "off", "on"),
        Entry("eth0", 2, 7, "threaded", "off", "on"),
    ]
    found = verify_entries(entries, host.observe())
    assert [(str(m.target), m.cause) for m in found] == [
        ("gone0/rx0/threaded", "device is gone"),
        ("eth0/rx7/threaded", "queue is gone"),
    ]
