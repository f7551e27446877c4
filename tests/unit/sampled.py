# SPDX-License-Identifier: GPL-2.0-or-later
"""A host with two lanes, and samples of its counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rxlane.model import Snapshot
from rxlane.samples import Counts, Sample
from rxlane.showing import rates
from rxlane.showing.rates import Rate
from unit import synthetic


def host(**link: Any) -> Snapshot:
    row = {"name": "eth0", "rx": 2, "mode": "busy-poll", "sched": "fifo:50", **link}
    return synthetic.snapshot({"cpus": [{"count": 4}], "links": [{"thread_cpus": "each", **row}]})


def sample(at: float, *queues: int, irq: int = 0, cpu: float = 0.0, total: int = 0) -> Sample:
    counted = Counts(dict(enumerate(queues)), total, "netdev")
    return Sample(at, {2: counted}, {40: irq}, {synthetic.FIRST_PID: cpu})


def gains(start: Snapshot, first: Sample, second: Sample) -> Iterator[Rate]:
    (link,) = start.links
    return rates.rates(link, rates.by_link(start)[link.ifindex], first, second)
