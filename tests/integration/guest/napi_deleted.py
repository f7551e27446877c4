#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Delete interfaces whose NAPIs have threads, under flood; print as JSON how that went.

Runs in the guest as root, beside stress.py and what that needs: ``napi_deleted.py ROUNDS``. In each
round and way a pair of veths is made, the NAPIs of one get threads, the other one sends frames
without end, and the first is deleted. Of each way: ``packets``, the fewest that a NAPI had polled
by then; ``threads``, the fewest that there were; ``sending``, whether frames were sent until the
deletion each time; ``deleted``, the longest deletion in seconds; ``bystander``, the longest that
another process waited for a flag of another interface, which takes RTNL, and ``looks``, how often
it asked for one; ``left``, threads that were there afterwards.
"""

import errno
import itertools
import json
import multiprocessing as mp
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized

import links  # type: ignore[import-not-found]
from napi_contract import A_ID, A_THREADED, Netdev, attr, napi_ids, u32  # type: ignore[import-not-found]
from stress import tasks, tasks_named  # type: ignore[import-not-found]

DOOMED, PEER = "doomed0", "doomed1"
QUEUES = 2
PACKETS = 500
ON, BUSY = 1, 2
# Mode, and the priority of its real-time threads, which are all on the last CPU; 0: ordinary ones.
WAYS = {"on": (ON, 0), "busy-poll": (BUSY, 0), "on, FIFO": (ON, 40), "busy-poll, FIFO": (BUSY, 40)}
# UDP to everybody, from as many ports as fill both queues; no checksums, so it goes no further.
FLOWS = 16
POLLED = re.compile(r"rx_queue_\d+_xdp_packets")  # of each NAPI of a veth, XDP or not
# How long packets and threads are waited for, in seconds.
PATIENCE_S = 60.0


def make() -> None:
    queues = f"numtxqueues {QUEUES} numrxqueues {QUEUES}"
    for line in (
        f"ip link add {DOOMED} {queues} type veth peer name {PEER} {queues}",
        # Gives it NAPIs, which it uses for what comes from a device without TSO.
        f"ethtool -K {DOOMED} gro on",
        f"ethtool -K {PEER} tso off",
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


def frame(flow: int) -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 46, 0, 0, 64, socket.IPPROTO_UDP, 0,
                     socket.inet_aton("192.0.2.1"), socket.inet_aton("192.0.2.2"))  # fmt: skip
    udp = struct.pack("!HHHH", 1024 + flow, 9, 26, 0)
    return b"\xff" * 6 + b"\x02" + b"\0" * 5 + b"\x08\x00" + ip + udp + b"\0" * 18


def flood() -> None:
    """Ends when its interface does; a full ring is no reason to."""
    frames = [frame(flow) for flow in range(FLOWS)]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((PEER, 0))
        for one in itertools.cycle(frames):
            try:
                sender.send(one)
            except OSError as error:
                if error.errno not in (errno.ENOBUFS, errno.EAGAIN):
                    return


def polled() -> int:
    """Packets of the NAPI that has polled the fewest."""
    names, values = links.statistic_names(DOOMED), links.statistics(DOOMED)
    pairs = zip(names, values, strict=True)
    return min((value for name, value in pairs if POLLED.fullmatch(name)), default=0)


def arrived() -> int:
    """The same once they are many enough."""
    end = time.monotonic() + PATIENCE_S
    while (count := polled()) < PACKETS and time.monotonic() < end:
        time.sleep(0.01)
    return count


def stand_by(longest: "Synchronized[float]", looks: "Synchronized[int]") -> None:
    while True:
        began = time.monotonic()
        links.set_up("lo", True)
        longest.value = max(longest.value, time.monotonic() - began)
        looks.value += 1
        time.sleep(0.01)


@contextmanager
def bystander() -> Iterator[tuple["Synchronized[float]", "Synchronized[int]"]]:
    told = mp.Value("d", 0.0), mp.Value("i", 0)
    other = mp.Process(target=stand_by, args=told, daemon=True)
    other.start()
    try:
        yield told
    finally:
        other.kill()
        other.join()


def left() -> list[str]:
    """Threads that do not end; a thread that has ended is gone a moment later."""
    end = time.monotonic() + PATIENCE_S
    while (names := tasks_named(f"napi/{DOOMED}-")) and time.monotonic() < end:
        time.sleep(0.05)
    found: list[str] = names
    return found


def once(mode: int, priority: int) -> tuple[int, int, bool, float, list[str]]:
    make()
    threads = thread(mode, priority)
    sender = mp.Process(target=flood, daemon=True)
    sender.start()
    packets, sending = arrived(), sender.is_alive()
    began = time.monotonic()
    subprocess.run(["ip", "link", "delete", DOOMED], check=True)
    took = time.monotonic() - began
    sender.join(PATIENCE_S)
    return packets, threads, sending, took, left()


def rounds(count: int, mode: int, priority: int) -> dict[str, object]:
    with bystander() as (longest, looks):
        rows = [once(mode, priority) for _ in range(count)]
        waited, asked = longest.value, looks.value
    packets, threads, sending, took, names = zip(*rows, strict=True)
    return {
        "packets": min(packets),
        "threads": min(threads),
        "sending": all(sending),
        "deleted": round(max(took), 3),
        "bystander": round(waited, 3),
        "looks": asked,
        "left": [name for found in names for name in found],
    }


def main() -> int:
    count = int(sys.argv[1])
    seen = {way: rounds(count, mode, priority) for way, (mode, priority) in WAYS.items()}
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
