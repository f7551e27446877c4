# SPDX-License-Identifier: GPL-2.0-or-later
"""TCP through the guest: from the lab's namespace in by virtio, out by e1000e to a second one.

iperf3 -c -> tap (segmented: the guest gets packets of the MTU) -> guest -> tap -> iperf3 -s
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.flood import GUEST_ADDRESS, Bench
from lab.progress import tool
from lab.qga import Completed
from lab.vm import CommandFailed

NEAR, FAR, GATE, NET = "10.77.0.0/24", "10.79.0.1", "10.79.0.2", "10.79.0.0/24"
TAP = "t-e1000e"
HELPER = Path(__file__).with_name("hostlink.py")
LONGEST_S = 60
START_S = 1.5  # until all streams are past their slow start


@contextmanager
def far_end(bench: Bench) -> Iterator[str]:
    """Moves the guest's second tap to a namespace of its own; its name."""
    guest, dev = bench.guest, bench.guest.nic_of("e1000e")
    name = f"{guest.netns}-far"
    tool(["ip", "netns", "add", name])
    try:
        guest.host(["ip", "link", "set", TAP, "netns", name])
        for words in (f"address add {FAR}/24 dev {TAP}", f"link set {TAP} up",
                      f"route add {NEAR} via {GATE}"):  # fmt: skip
            tool(["ip", "-n", name, *words.split()])
        guest.run(["ip", "address", "replace", f"{GATE}/24", "dev", dev])
        guest.host(["ip", "route", "replace", NET, "via", GUEST_ADDRESS])
        guest.host([sys.executable, str(HELPER), "segment", bench.device])
        yield name
    finally:
        tool(["ip", "netns", "delete", name])


def reach(bench: Bench) -> None:
    """Waits for the far end: the link has just come up. CommandFailed without an answer."""
    bench.guest.host(["ping", "-q", "-c", "1", "-w", "60", FAR], timeout=90)


@contextmanager
def streams(bench: Bench, far: str, count: int) -> Iterator[None]:
    """``count`` TCP streams for as long as the block takes. CommandFailed if they ended."""
    server = subprocess.Popen(
        ["ip", "netns", "exec", far, "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(START_S / 3)
    argv = ["iperf3", "-c", FAR, "-P", str(count), "-t", str(LONGEST_S), "-J"]
    client = bench.guest.popen(argv)
    try:
        time.sleep(START_S)
        yield
        if client.poll() is not None:
            out, err = client.communicate()
            said = json.loads(out).get("error", err) if out else err
            raise CommandFailed(Completed(tuple(argv), client.returncode, "", said))
    finally:
        for one in (client, server):
            one.kill()
            one.communicate()
