# SPDX-License-Identifier: GPL-2.0-or-later
"""What was counted at one moment, for `rxlane map --watch`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rxlane.model import Handled

# Where a device's packets are counted: by queue in the netdev family or by its driver, or whole.
NETDEV, DRIVER, DEVICE = "netdev", "driver", "device"


@dataclass(frozen=True, slots=True)
class Counts:
    """Packets that a device received, by RX queue as far as source says; None: nobody counts so."""

    queues: Mapping[int, int]
    total: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one moment, in seconds of a steady clock.

    counts: by the device's index, which outlives a rename. seconds: CPU time by pid. handled: of rx
    threads, by the device's index and number. clock: the host's, in seconds since 1970.
    """

    at: float
    counts: Mapping[int, Counts]
    interrupts: Mapping[int, int]
    seconds: Mapping[int, float]
    handled: Mapping[tuple[int, int], Handled] = field(default_factory=dict)
    clock: float = 0.0
