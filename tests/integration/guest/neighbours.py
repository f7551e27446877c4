#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Forgets a neighbour and finds it again, many times; prints JSON {"found", "slowest_s"}.

Runs as root: ``neighbours.py DEV ADDRESS TIMES``. A neighbour is found when its entry has a
link-layer address again within PATIENCE_S, without being asked for more than once by us: what is
lost the kernel asks for again by itself, a second later and three times in all.
"""

import json
import socket
import subprocess
import sys
import time

PATIENCE_S = 4.0
PORT = 9  # discard


def entry(device: str, address: str) -> str:
    argv = ["ip", "neigh", "show", address, "dev", device]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def find(device: str, address: str) -> float:
    """Seconds until it was found; PATIENCE_S if it was not."""
    forget = ["ip", "neigh", "del", address, "dev", device]
    subprocess.run(forget, capture_output=True, check=False)
    if "lladdr" in entry(device, address):
        raise SystemExit(f"{device}: the neighbour {address} is not forgotten")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    began = time.monotonic()
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        target = (address, PORT) if family == socket.AF_INET else \
            (address, PORT, 0, socket.if_nametoindex(device))  # fmt: skip
        asking.sendto(b"", target)
        while (took := time.monotonic() - began) < PATIENCE_S:
            if "lladdr" in entry(device, address):
                return took
            time.sleep(0.01)
    return PATIENCE_S


def main() -> int:
    device, address, times = sys.argv[1:]
    took = [find(device, address) for _ in range(int(times))]
    found = sum(one < PATIENCE_S for one in took)
    json.dump({"found": found, "slowest_s": round(max(took), 3)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
