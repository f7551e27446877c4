# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts of virtual machines, by the taps that QEMU has there."""

from __future__ import annotations

from dataclasses import replace

from rxlane.model import Link, Queue, Snapshot, Thread
from unit import simhost

QEMU = 4100


def tap(name: str = "tap0", ifindex: int = 9, count: int = 2) -> Link:
    first = 5000 + 10 * ifindex
    own = (Thread(first + n, f"vhost-{QEMU}", "other", 0, 0, tuple(range(8))) for n in range(count))
    queues = (Queue("rx", 0, rps_cpus=()), Queue("tx", 0))
    return Link(name, ifindex, True, False, queues=queues, tap=True, vhosts=tuple(own))


def host(*taps: Link, vcpus: tuple[int, ...] = ()) -> Snapshot:
    return replace(simhost.whole(simhost.snapshot(simhost.link(), *taps)), vcpus=vcpus)
