#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Who polls a NAPI that a timer schedules, by mode of its interrupt; print JSON.

Runs in the guest as root, beside irq_busy_poll.py and what that needs, and imports nothing of
rxlane: ``irq_timer.py INTERFACE PEER``. With interrupts that stay off for DEFERRED polls, one each
TIMEOUT_NS, of each packet one poll is the interrupt's and all others are of napi_watchdog(). The
peer is asked for PACKETS of them. {"threaded" or "hard": {polls: {beginning of the task's name:
number}, raised: how often the softirq of receiving was, anywhere, interrupts: how many came}}
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from irq_busy_poll import Polls  # type: ignore[import-not-found]
from irq_stress import Interrupts  # type: ignore[import-not-found]
from stress import Nic  # type: ignore[import-not-found]

DEFERRED, TIMEOUT_NS = 20, 2_000_000
PACKETS, APART_S = 20, "0.1"


def came(interrupts: Interrupts) -> int:
    """How many of the device's interrupts the CPUs have counted."""
    numbers = {interrupts.file(kind).parent.parent.name for kind in interrupts.kinds}
    rows = (row.split() for row in Path("/proc/interrupts").read_text().splitlines()[1:])
    return sum(
        sum(int(word) for word in row[1:] if word.isdecimal())
        for row in rows
        if row[0].rstrip(":") in numbers
    )


def observed(interrupts: Interrupts, polls: Polls, value: int, peer: str) -> dict[str, Any]:
    for kind in interrupts.kinds:
        interrupts.file(kind).write_text(str(value))
    before = came(interrupts)
    polls.start()
    ping = ["ping", "-q", "-c", str(PACKETS), "-i", APART_S, "-W", "10", peer]
    subprocess.run(ping, check=True, capture_output=True)
    return {**polls.stop(), "interrupts": came(interrupts) - before}


def main() -> None:
    nic, peer = Nic(sys.argv[1]), sys.argv[2]
    settings = Path("/sys/class/net", nic.name())
    (settings / "napi_defer_hard_irqs").write_text(str(DEFERRED))
    (settings / "gro_flush_timeout").write_text(str(TIMEOUT_NS))
    interrupts, polls = Interrupts(nic), Polls(nic.name())
    seen = {
        name: observed(interrupts, polls, value, peer)
        for name, value in (("threaded", 1), ("hard", 0))
    }
    polls.end()
    for name in ("napi_defer_hard_irqs", "gro_flush_timeout"):
        (settings / name).write_text("0")
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
