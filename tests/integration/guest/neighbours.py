#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Has a neighbour be found again, many times; prints JSON {way: {"found", "slowest_s"}}.

Runs as root: ``neighbours.py DEV ADDRESS TIMES``. The ways: ``deleted``, all are asked for it, and
it is found when its entry has a link-layer address; ``expired``, its entry is in doubt, it alone is
asked, and it is found when the entry is confirmed. Within PATIENCE_S, and without being asked for
more than once by us: what is lost the kernel asks for again by itself, a second later and three
times in all.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable

Outcome = dict[str, float]
PATIENCE_S = 4.0
PORT = 9  # discard


def entry(device: str, address: str) -> str:
    argv = ["ip", "neigh", "show", address, "dev", device]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def wait_for(device: str, address: str, word: str) -> float:
    """Seconds until the entry says so; PATIENCE_S if it does not."""
    began = time.monotonic()
    while (took := time.monotonic() - began) < PATIENCE_S:
        if word in entry(device, address):
            return took
        time.sleep(0.01)
    return PATIENCE_S


def deleted(device: str, address: str) -> float:
    forget = ["ip", "neigh", "del", address, "dev", device]
    subprocess.run(forget, capture_output=True, check=False)
    if "lladdr" in entry(device, address):
        raise SystemExit(f"{device}: the neighbour {address} is not forgotten")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        target = (address, PORT) if family == socket.AF_INET else \
            (address, PORT, 0, socket.if_nametoindex(device))  # fmt: skip
        asking.sendto(b"", target)
        return wait_for(device, address, "lladdr")


def expired(device: str, address: str) -> float:
    doubt = ["ip", "neigh", "change", address, "dev", device, "nud", "probe"]
    if subprocess.run(doubt, capture_output=True, check=False).returncode:
        # Gone: not found the time before.
        return PATIENCE_S
    return wait_for(device, address, "REACHABLE")


def tried(way: Callable[[str, str], float], device: str, address: str, times: int) -> Outcome:
    took = [way(device, address) for _ in range(times)]
    found = sum(one < PATIENCE_S for one in took)
    return {"found": found, "slowest_s": round(max(took), 3)}


def main() -> int:
    device, address, times = sys.argv[1:]
    ways = (deleted, expired)
    outcomes = {way.__name__: tried(way, device, address, int(times)) for way in ways}
    json.dump(outcomes, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
