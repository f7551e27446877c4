# SPDX-License-Identifier: GPL-2.0-or-later
"""Rates between two samples of counters, and what is shown of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane.model import Snapshot
from rxlane.samples import Counts, Sample
from rxlane.showing import rates, table
from rxlane.showing.marks import Place, places
from unit import synthetic
from unit.sampled import gains, host, sample


def test_rates_between_two_samples() -> None:
    start = host()
    first, second = sample(10.0, 100, 7), sample(12.0, 2100, 7, irq=50, cpu=1.0, total=2000)
    one, two = gains(start, first, second)
    assert (one.packets, one.interrupts, one.cpu) == (1000.0, 25.0, 0.5)
    assert (two.packets, two.interrupts, two.cpu) == (0.0, None, None)


def test_counters_that_began_anew_or_are_new_give_no_rate() -> None:
    start = host()
    first, second = sample(1.0, 100), sample(2.0, 5, 9)
    one, two = gains(start, first, second)
    assert one.packets is None and two.packets is None
    assert next(gains(start, first, first)).packets is None


def test_queues_of_one_napi_are_counted_together() -> None:
    start = host(queues_a_napi=2)
    (one,) = gains(start, sample(0.0, 0, 0), sample(1.0, 30, 12))
    assert one.packets == 42


def test_the_screen() -> None:
    start = host()
    text = rates.screen(
        start, start.links, sample(0, 0, 0), sample(1, 1234567, 9, irq=5, cpu=0.98, total=1234576)
    )
    assert text.splitlines() == [
        "eth0: 1,234,576 packets/s, counted by queue (netdev)",
        "queue mode      CPU policy  packets/s interrupts/s thread CPU",
        "rx0   busy-poll 0   fifo/50 1,234,567            5  98% ##########",
        "rx1   busy-poll 1   fifo/50         9            - -",
    ]
    style = table.Style(True, True)
    styled = rates.screen(start, start.links, sample(0, 0), sample(1, 1, cpu=0.5), style)
    assert "\x1b[35mbusy-poll\x1b[0m" in styled and "\u2588" * 5 in styled and "#" not in styled


def test_the_screen_fits_80_columns() -> None:
    cpus = [{"count": 512}]
    row = {"name": "enp193s0f0np0", "mode": "busy-poll", "sched": "other:-20", "rx": 1}
    start = synthetic.snapshot({"cpus": cpus, "links": [row]})
    scattered = replace(start.threads[0], cpus=tuple(range(0, 512, 2)))
    start = replace(start, threads=(scattered,))
    counted = Counts({0: 999_999_999}, 999_999_999, "driver")
    last = Sample(1.0, {2: counted}, {40: 10**7}, {synthetic.FIRST_PID: 1.0})
    none = Counts({0: 0}, 0, "driver")
    first = Sample(0.0, {2: none}, {40: 0}, {synthetic.FIRST_PID: 0.0})
    text = rates.screen(start, start.links, first, last)
    assert max(map(len, text.splitlines())) <= 80 and "100% ##########" in text


def test_lanes_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each device: 256 of them with 8 queues took more than a second."""
    calls = []

    def counted(snapshot: Snapshot) -> list[Place]:
        calls.append(snapshot)
        return places(snapshot)

    monkeypatch.setattr(rates, "places", counted)
    row = {"rx": 2, "mode": "on"}
    links = [{"name": "eth0", **row}, {"name": "eth1", **row}]
    start = synthetic.snapshot({"cpus": [{"count": 4}], "links": links})
    text = rates.screen(start, start.links, sample(0, 0), sample(1, 5))
    assert text.count("rx1 ") == 2 and len(calls) == 1
    assert len(rates.plain(start, start.links, sample(0, 0), sample(1, 5))["lanes"]) == 4
    assert len(calls) == 2
