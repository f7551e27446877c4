# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads what `rxlane map --watch` counts: packets, interrupts, CPU time of threads."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rxlane.host import helpers
from rxlane.host.threads import cpu_ticks
from rxlane.model import Link, Snapshot
from rxlane.samples import DEVICE, DRIVER, NETDEV, Counts, Sample
from rxlane.sysfs import Sysfs
from rxlane.wire.gstats import Driver
from rxlane.wire.netdev import Netdev


class Counters:
    """Where a device's packets are counted is found at each sample: drivers come and go."""

    def __init__(self, root: str | Path = "/") -> None:
        self._sysfs = Sysfs(root)
        self._netdev = Netdev()
        self._driver = Driver()
        self._ticks = os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._netdev.close()
        self._driver.close()

    def sample(self, snapshot: Snapshot, links: Iterable[Link]) -> Sample:
        """Count once for these links; what is not counted anywhere is absent."""
        own = list(links)
        irqs = {q.irq for link in own for q in link.queues if q.kind == "rx" and q.irq}
        received: dict[int, dict[int, int]] = {}
        for (ifindex, queue), packets in self._netdev.received().items():
            received.setdefault(ifindex, {})[queue] = packets
        counts = {link.ifindex: self._counts(link, received.get(link.ifindex)) for link in own}
        handlers = [irq.thread.pid for irq in snapshot.irqs if irq.thread is not None]
        aside = [(link, helper) for link in own for helper in link.helpers]
        pids = [*(t.pid for t in snapshot.threads), *handlers]
        pids += [helper.thread.pid for _, helper in aside if helper.thread is not None]
        threads = ((pid, cpu_ticks(self._sysfs, pid)) for pid in pids)
        seconds = {pid: ticks / self._ticks for pid, ticks in threads if ticks is not None}
        handled = {
            (link.ifindex, helper.number): helpers.handled(self._sysfs, link.name, helper.number)
            for link, helper in aside
        }
        at, interrupts = time.monotonic(), self._interrupts(irqs)
        return Sample(at, counts, interrupts, seconds, handled, time.time())

    def _counts(self, link: Link, own: Mapping[int, int] | None) -> Counts:
        """Take the queues' counts from the kernel, else the driver, else the device's own."""
        total = self._sysfs.number(f"sys/class/net/{link.name}/statistics/rx_packets")
        if own:
            return Counts(own, total, NETDEV)
        told = self._driver.received(link.name)
        if told:
            return Counts(told, total, DRIVER)
        if link.count("rx") == 1 and total is not None:
            return Counts({0: total}, total, DEVICE)
        return Counts({}, total, None)

    def _interrupts(self, wanted: Collection[int]) -> dict[int, int]:
        """Return how often each interrupt came, on all CPUs together."""
        found: dict[int, int] = {}
        for line in (self._sysfs.read("proc/interrupts") or "").splitlines()[1:]:
            name, _, rest = line.partition(":")
            if not name.strip().isdigit() or int(name) not in wanted:
                continue
            total = 0
            for word in rest.split():
                if not word.isdigit():
                    break
                total += int(word)
            found[int(name)] = total
        return found
