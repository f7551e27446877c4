#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A TCP stream to an interface with a helper thread; print as JSON what GRO made of its segments.

Runs in the guest as root, beside rx_veth.py and what that needs: ``rx_merged.py BYTES``. Of so many
BYTES: ``segments`` that came in, ``packets`` that the thread was given of them, and ``arrived``,
the bytes that the receiver had and that were what was sent.
"""

import json
import multiprocessing as mp
import socket
import sys
from itertools import cycle, islice
from pathlib import Path

import links  # type: ignore[import-not-found]
from rx_veth import counts, inside, make, thread, tool  # type: ignore[import-not-found]

FAR, NEAR, PEER = "rx-merged-far", "near0", "far0"
NEAR_IP, FAR_IP, PORT = "10.97.0.1", "10.97.0.2", 7000
PATTERN = bytes(range(251))  # a prime: no buffer's size is a multiple of it
PATIENCE_S, CHUNK = 60.0, 1 << 16


def send(size: int) -> None:
    with links.inside(FAR), socket.create_connection((NEAR_IP, PORT), PATIENCE_S) as out:
        out.sendall(bytes(islice(cycle(PATTERN), size)))


def received(listener: socket.socket) -> int:
    """Bytes until the sender has ended or one is not what was sent."""
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE_S)
    size = 0
    with connection:
        while chunk := connection.recv(CHUNK):
            at = size % len(PATTERN)
            if chunk != bytes(islice(cycle(PATTERN), at, at + len(chunk))):
                break
            size += len(chunk)
    return size


def stream(size: int) -> dict[str, int]:
    came = Path(f"/sys/class/net/{NEAR}/statistics/rx_packets")
    before = int(came.read_text()), counts([NEAR], "packets")[0]
    with socket.create_server((NEAR_IP, PORT)) as listener:
        listener.settimeout(PATIENCE_S)
        sender = mp.Process(target=send, args=(size,), daemon=True)
        sender.start()
        arrived = received(listener)
        sender.join()
    return {
        "segments": int(came.read_text()) - before[0],
        "packets": counts([NEAR], "packets")[0] - before[1],
        "arrived": arrived,
    }


def main() -> int:
    tool(f"ip netns add {FAR}")
    try:
        make(NEAR, PEER, FAR)
        tool(f"ip address add {NEAR_IP}/24 dev {NEAR}")
        tool(f"ip link set {NEAR} up")
        inside(FAR, f"ip address add {FAR_IP}/24 dev {PEER}")
        inside(FAR, f"ip link set {PEER} up")
        thread(NEAR)
        seen = stream(int(sys.argv[1]))
        tool(f"ip link delete {NEAR}")
    finally:
        tool(f"ip netns delete {FAR}")
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
