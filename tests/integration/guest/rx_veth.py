# SPDX-License-Identifier: GPL-2.0-or-later
"""Veths with helper threads that are flooded from a network namespace; of the scripts rx_*.py.

Needs root and, beside it, links.py and what that needs; three CPUs or more.
"""

import itertools
import multiprocessing as mp
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import links  # type: ignore[import-not-found]

WORK_CPU, FLOOD_CPU = 1, 2
FLOWS, PORT = 16, 9
LIST = 0xFFF  # rules in a list of cls_u32


def tool(line: str, told: str = "") -> str:
    argv = line.split()
    done = subprocess.run(argv, check=True, capture_output=True, text=True, input=told)
    return done.stdout


def inside(namespace: str, line: str) -> str:
    return tool(f"ip netns exec {namespace} {line}")


def make(near: str, far: str, namespace: str) -> None:
    """A veth here that polls what its peer there sends by a NAPI."""
    tool(f"ip link add {near} type veth peer name {far} netns {namespace}")
    # Gives it NAPIs, which it uses for what comes from a device without TSO.
    tool(f"ethtool -K {near} gro on")
    inside(namespace, f"ethtool -K {far} tso off")


def load(device: str, count: int) -> None:
    """Rules that no packet matches and each IPv4 packet is compared with."""
    rule = f"filter add dev {device} ingress protocol ip prio {{}} u32 match ip src 203.0.{{}}.{{}}"
    lines = [f"qdisc add dev {device} clsact"]
    for number in range(count):
        lines.append(f"{rule.format(number // LIST + 1, *divmod(number, 256))} action drop")
    tool("tc -batch -", "\n".join([*lines, ""]))


def thread(device: str) -> None:
    """Its packets are delivered by one thread, on WORK_CPU."""
    folder = Path(f"/sys/class/net/{device}")
    (folder / "rx_threads").write_text("1")
    os.sched_setaffinity(int((folder / "rx_thread/0/pid").read_text()), {WORK_CPU})


def counts(devices: Iterable[str], name: str) -> list[int]:
    """So many ``packets`` were delivered, or ``dropped``, by each one's thread."""
    folders = (Path(f"/sys/class/net/{device}/rx_thread/0") for device in devices)
    return [int((folder / name).read_text()) for folder in folders]


def flood(namespace: str, address: str) -> None:
    """From there, in FLOWS flows, without end and as fast as it goes."""
    os.sched_setaffinity(0, {FLOOD_CPU})
    with links.inside(namespace):
        senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
    for number, sender in enumerate(senders):
        sender.connect((address, PORT + number))
    for sender in itertools.cycle(senders):
        try:
            sender.send(b"\0" * 32)
        except OSError:
            continue  # refused, as nobody listens, or no room


@contextmanager
def flooded(namespace: str, address: str) -> Iterator[None]:
    sender = mp.Process(target=flood, args=(namespace, address), daemon=True)
    sender.start()
    try:
        yield
    finally:
        sender.kill()
        sender.join()
