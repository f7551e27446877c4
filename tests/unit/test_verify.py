# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

from dataclasses import replace

from rxlane.decide import decide
from rxlane.model import Snapshot
from rxlane.plan import Entry, Journal, Skip
from rxlane.policy import parse_section
from rxlane.sections import Policy
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.simhost import SimHost


def test_every_cause_is_told_apart() -> None:
    host = SimHost(simhost.snapshot())
    policy = Policy((parse_section("napi", [], {"threaded": "on@1", "thread_cpus": "2"}),))
    plan = decide(host.observe(), policy)
    causes = [m.cause for m in verify(plan, host.observe())]
    assert "as it was before" in causes[0] and causes[1:] == ["queue has no thread"]
    host.write_napi(8194, {"threaded": "on"})
    host.write_thread(1000, {"thread-cpus": "2"})
    assert verify(plan, host.observe()) == ()
    host.write_thread(1000, {"thread-cpus": "0-7"})
    drifted = verify(plan, host.observe())
    assert [(str(m.target), m.expected, m.found) for m in drifted] == [
        ("eth0/rx1/thread-cpus", "2", "0-7")
    ]
    assert drifted[0].cause == "another program or a driver reset changed it"
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
    entries = (
        Entry("eth0", 2, 1, "threaded", "on", "off"),
        Entry("eth0", 2, 1, "thread-cpus", "3", None),
        Entry("gone0", 99, 0, "threaded", "off", "on"),
        Entry("eth0", 2, 7, "threaded", "off", "on"),
        Entry("eth0", 2, 2, "threaded", "on", "off"),
    )
    found = verify_journal(Journal("boot", entries), host.observe())
    assert [(str(m.target), m.cause) for m in found.drifted] == [
        ("gone0/rx0/threaded", "device is gone"),
        ("eth0/rx7/threaded", "queue is gone"),
    ]
    assert [str(entry.target) for entry in found.passed] == [
        "eth0/rx1/threaded",
        "eth0/rx2/threaded",
    ]


def test_what_is_left_has_the_present_name_too() -> None:
    """As the settings beside it: a device may be renamed after it was laid out."""
    host = SimHost(simhost.snapshot())
    entry = Entry("old0", 2, 1, "threaded", "on", "off")
    left = (Skip("old0", 1, "irq-cpus", "unmovable", "x"), Skip("eth9", 1, "rps-cpus", "down", "y"))
    found = verify_journal(Journal("boot", (entry,), left=left), host.observe())
    assert [e.device for e in found.passed] == ["eth0"]
    assert [skip.device for skip in found.left] == ["eth0", "eth9"]


def test_who_may_have_done_it() -> None:
    start = simhost.whole(simhost.snapshot())
    entry = Entry("eth0", 2, 1, "irq-cpus", "0-3", "4")
    journal = Journal("boot", (entry,))

    def cause(host: Snapshot) -> str:
        (mismatch,) = verify_journal(journal, host).drifted
        return mismatch.cause

    assert cause(start) == "another program or a driver reset changed it"
    back = replace(start, irqs=tuple(replace(irq, cpus=(0, 1, 2, 3)) for irq in start.irqs))
    assert "as it was before" in cause(back)
    assert "irqbalance runs" in cause(replace(back, writers=("irqbalance",)))
