#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Delete interfaces whose NAPIs have threads, under flood; print as JSON how that went.

Runs in the guest as root, beside stress.py and what that needs: ``napi_deleted.py ROUNDS``. In each
round and way a pair of veths is made, the NAPIs of one get threads, the other one sends frames
without end, and the first is deleted. Of each way: ``packets``, the fewest that had arrived by
then; ``threads``, the fewest that there were; ``deleted``, the longest deletion in seconds;
``bystander``, the longest that another process waited for a flag of another interface, which takes
RTNL; ``left``, threads that were there afterwards.
"""

import json
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import links  # type: ignore[import-not-found]
from napi_contract import A_ID, A_THREADED, Netdev, attr, napi_ids, u32  # type: ignore[import-not-found]
from stress import tasks, tasks_named  # type: ignore[import-not-found]

DOOMED, PEER = "doomed0", "doomed1"
QUEUES = 2
PACKETS = 500
ON, BUSY = 1, 2
# Mode, and the priority of its real-time threads, which are all on the last CPU; 0: ordinary ones.
WAYS = {"on": (ON, 0), "busy-poll": (BUSY, 0), "on, FIFO": (ON, 40), "busy-poll, FIFO": (BUSY, 40)}
# To everybody, from nobody in particular, of a type for experiments.
FRAME = b"\xff" * 6 + b"\x02" + b"\0" * 5 + b"\x88\xb5" + b"\0" * 50
# How long packets and threads are waited for, in seconds.
PATIENCE_S = 60.0


def make() -> None:
    queues = f"numtxqueues {QUEUES} numrxqueues {QUEUES}"
    for line in (
        f"ip link add {DOOMED} {queues} type veth peer name {PEER} {queues}",
        f"ethtool -K {DOOMED} gro on",
        f"ip link set {PEER} up",
        f"ip link set {DOOMED} up",
    ):
        subprocess.run(line.split(), check=True)


def thread(mode: int, priority: int) -> int:
    """Have each NAPI poll by a thread of its own; how many of these there are then."""
    netdev = Netdev()
    for napi in napi_ids(netdev, DOOMED):
        answer = netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise SystemExit(f"NAPI {napi}: threaded={mode} was answered {answer}")
    found: dict[int, str] = tasks(f"napi/{DOOMED}-")
    for pid in found if priority else ():
        os.sched_setaffinity(pid, {(os.cpu_count() or 1) - 1})
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))
    return len(found)


def flood() -> None:
    """Ends when its interface does."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((PEER, 0))
        while True:
            try:
                sender.send(FRAME)
            except BlockingIOError:
                continue
            except OSError:
                return


def arrived() -> int:
    """Packets that the doomed one has received, once they are many enough."""
    counter = Path(f"/sys/class/net/{DOOMED}/statistics/rx_packets")
    end = time.monotonic() + PATIENCE_S
    while (count := int(counter.read_text())) < PACKETS and time.monotonic() < end:
        time.sleep(0.01)
    return count


def stand_by(longest: "Synchronized[float]") -> None:
    while True:
        began = time.monotonic()
        links.set_up("lo", True)
        longest.value = max(longest.value, time.monotonic() - began)
        time.sleep(0.01)


@contextmanager
def bystander() -> Iterator["Synchronized[float]"]:
    longest = mp.Value("d", 0.0)
    other = mp.Process(target=stand_by, args=(longest,), daemon=True)
    other.start()
    try:
        yield longest
    finally:
        other.kill()


def left() -> list[str]:
    """Threads that do not end; a thread that has ended is gone a moment later."""
    end = time.monotonic() + PATIENCE_S
    while (names := tasks_named(f"napi/{DOOMED}-")) and time.monotonic() < end:
        time.sleep(0.05)
    found: list[str] = names
    return found


def once(mode: int, priority: int) -> tuple[int, int, float, list[str]]:
    make()
    threads = thread(mode, priority)
    sender = mp.Process(target=flood, daemon=True)
    sender.start()
    packets = arrived()
    began = time.monotonic()
    subprocess.run(["ip", "link", "delete", DOOMED], check=True)
    took = time.monotonic() - began
    sender.join(PATIENCE_S)
    return packets, threads, took, left()


def rounds(count: int, mode: int, priority: int) -> dict[str, object]:
    with bystander() as longest:
        rows = [once(mode, priority) for _ in range(count)]
        waited = longest.value
    packets, threads, took, names = zip(*rows, strict=True)
    return {
        "packets": min(packets),
        "threads": min(threads),
        "deleted": round(max(took), 3),
        "bystander": round(waited, 3),
        "left": [name for found in names for name in found],
    }


def main() -> int:
    count = int(sys.argv[1])
    seen = {way: rounds(count, mode, priority) for way, (mode, priority) in WAYS.items()}
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
