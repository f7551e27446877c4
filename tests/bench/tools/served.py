#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Steer received flows in one way and look at a server under load; prints JSON of one window.

Runs in the guest as root beside steered.py: ``served.py WAY CONNECTIONS MILLISECONDS DEV``. WAY is
off, rps or rfs, over all CPUs. Waits until so many TCP connections are established; ``segments``
are those that came in meanwhile, which with requests and answers in turn is one a transaction.
"""

import json
import os
import sys
import time
from pathlib import Path

from steered import busy  # type: ignore[import-not-found]

ENTRIES = 32768
ESTABLISHED_S = 240.0
SETTLE_S = 1.0


def steer(dev: Path, way: str) -> None:
    cpus = f"{(1 << (os.cpu_count() or 1)) - 1:x}"
    entries = str(ENTRIES if way == "rfs" else 0)
    Path("/proc/sys/net/core/rps_sock_flow_entries").write_text(entries)
    for queue in (dev / "queues").glob("rx-*"):
        (queue / "rps_cpus").write_text("0" if way == "off" else cpus)
        (queue / "rps_flow_cnt").write_text(entries)


def tcp(name: str) -> int:
    """A counter of /proc/net/snmp: a line of names, and one of their values."""
    rows = Path("/proc/net/snmp").read_text().splitlines()
    names, values = (row.split() for row in rows if row.startswith("Tcp:"))
    return int(values[names.index(name)])


def main(argv: list[str]) -> int:
    way, connections, milliseconds, dev = argv[0], int(argv[1]), int(argv[2]), argv[3]
    steer(Path("/sys/class/net", dev), way)
    end = time.monotonic() + ESTABLISHED_S
    while (there := tcp("CurrEstab")) < connections:
        if time.monotonic() > end:
            print(f"served.py: {there} of {connections} connections", file=sys.stderr)
            return 1
        time.sleep(0.2)
    time.sleep(SETTLE_S)
    start, before, busy_before = time.monotonic(), tcp("InSegs"), busy()
    time.sleep(milliseconds / 1000)
    seconds, after, busy_after = time.monotonic() - start, tcp("InSegs"), busy()
    ticks = os.sysconf("SC_CLK_TCK") * seconds
    spent = [(b - a) / ticks for a, b in zip(busy_before, busy_after, strict=True)]
    print(json.dumps({"segments": after - before, "seconds": seconds, "busy": spent}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
