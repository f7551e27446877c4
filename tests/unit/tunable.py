# SPDX-License-Identifier: GPL-2.0-or-later
"""A host whose driver keeps channels, rings and coalescing, and what is planned for it."""

from __future__ import annotations

from dataclasses import replace

from rxlane.model import Capabilities, Link, Snapshot
from rxlane.plan import Plan
from unit import simhost
from unit.simhost import tuned


def host(*links: Link, kernel: Capabilities = simhost.BUSY_POLL, **more: object) -> Snapshot:
    own = links or (tuned(simhost.link(kernel=kernel)),)
    start = simhost.whole(simhost.snapshot(*own, capabilities=kernel))
    return replace(start, **more)  # type: ignore[arg-type]


def framed(driver: str = "r8169", usecs: int = 20) -> Snapshot:
    link = tuned(simhost.link(), rx_usecs=usecs, tx_usecs=72, rx_frames=5, tx_frames=53)
    return host(replace(link, driver=driver))


def after(plan: Plan, item: str = "") -> dict[str, object]:
    return {str(c.target): c.after for c in plan.changes if item in c.target.item}


def skipped(plan: Plan) -> list[str]:
    return [str(s) for s in plan.skips]
