# SPDX-License-Identifier: GPL-2.0-or-later
"""Warnings of deferred interrupts that have no effect or cost much delay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane import policy
from rxlane.decide import decide
from rxlane.items import FLUSH
from rxlane.model import Snapshot
from rxlane.plan import Target
from unit import simhost

HOST = simhost.snapshot()


def warnings(start: Snapshot, **options: object) -> list[str]:
    wanted = policy.parse_mixed((), {n: str(v) for n, v in options.items()})
    return [text for text in decide(start, wanted).warnings if "gro_flush_timeout" in text]


@pytest.mark.parametrize(
    "options",
    [
        {"defer_hard_irqs": 100, "gro_flush_timeout": 15000},
        {"defer_hard_irqs": 100, "gro_flush_timeout": 1_000_000},
        {"defer_hard_irqs": 0, "gro_flush_timeout": 0},
        {"defer_hard_irqs": 100, "threaded": "busy-poll"},
        {"defer_hard_irqs": 2, "gro_flush_timeout": 5_000_000, "irq_suspend_timeout": 20_000_000},
        {"threaded": "on"},
    ],
)
def test_nothing_to_warn_of(options: dict[str, object]) -> None:
    assert warnings(HOST, **options) == []


def test_deferral_without_a_timer() -> None:
    (text,) = warnings(HOST, defer_hard_irqs=100, management_queues=1)
    assert text == (
        "eth0 queues 1-3: defer_hard_irqs=100 has no effect with gro_flush_timeout=0: set both,"
        " as 100 and 15000, or neither"
    )
    (some,) = warnings(HOST, defer_hard_irqs=100, threaded="busy-poll@1-2,on@3")
    assert some.startswith("eth0 queues 0,3: ")


def test_a_long_timer() -> None:
    (text,) = warnings(HOST, defer_hard_irqs=1, gro_flush_timeout=2_500_000)
    assert text == (
        "eth0 queues 0-3: with gro_flush_timeout=2500000 packets wait up to 2.5 ms for a poll while"
        " interrupts are deferred, unless an application busy-polls: give 1000000 or less"
    )


@pytest.mark.parametrize("options", [{}, {"defer_hard_irqs": 0}])
def test_a_long_timer_without_deferral(options: dict[str, object]) -> None:
    (text,) = warnings(HOST, gro_flush_timeout=2_500_000, **options)
    assert text == (
        "eth0 queues 0-3: with gro_flush_timeout=2500000 packets wait up to 2.5 ms in GRO for"
        " others to be merged with them: give 1000000 or less"
    )


def test_what_the_host_has_counts() -> None:
    link = simhost.link()
    napis = tuple(replace(napi, gro_flush_timeout=15000) for napi in link.napis)
    there = simhost.snapshot(replace(link, napis=napis))
    assert warnings(there, defer_hard_irqs=100) == []
    assert len(warnings(there, defer_hard_irqs=100, gro_flush_timeout=0)) == 1
    back = {Target("eth0", n, FLUSH): 0 for n in range(4)}
    wanted = policy.parse_mixed((), {"defer_hard_irqs": "100"})
    assert len(decide(there, wanted, returning=back).warnings) == 1, "it goes back to none"


def test_timers_of_the_whole_device() -> None:
    link = simhost.link(kernel=simhost.STOCK)
    stock = simhost.snapshot(link, capabilities=simhost.STOCK)
    assert len(warnings(stock, defer_hard_irqs=100)) == 1
    assert warnings(stock, defer_hard_irqs=100, gro_flush_timeout=15000) == []
