#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Neighbours in VLANs of an interface whose helper thread drops; print as JSON what became of them.

Runs in the guest as root, beside rx_veth.py, neighbours.py and what they need: ``rx_vlans.py
TIMES``. A veth with a helper thread is flooded through its VLAN, on which rules of tc make packets
dear. On each way, how tags come, {address: what neighbours.py says of it}, and ``packets`` and
``dropped`` of the thread meanwhile. "tag beside the frame" is as NICs hand them over that take them
out, "in the frame" as the others; of two tags the inner one is always in the frame.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rx_veth import (  # type: ignore[import-not-found]
    counts,
    flooded,
    inside,
    load,
    make,
    thread,
    tool,
)

FAR, NEAR, PEER = "rx-vlans-far", "near0", "far0"
HERE = ("10.98.0.1/24", "fd98::1/64")
# The first one floods: what is answered to it would have it found at once.
THERE = ("10.98.0.2/24", "10.98.0.3/24", "fd98::3/64")
OUTER, INNER = ("802.1ad", 88), ("802.1Q", 77)
TAGS = {"802.1Q": (INNER,), "802.1ad and 802.1Q": (OUTER, INNER)}
PLACES = {"tag beside the frame": "on", "in the frame": "off"}
RULES, SETTLE_S = 12_000, 2.0


def stacked(run_ip: str, device: str, tags: tuple[tuple[str, int], ...]) -> str:
    """Make the VLANs one on the other, up; the name of the last one."""
    for protocol, number in tags:
        lower, device = device, f"{device}.{number}"
        tool(f"{run_ip} link add link {lower} name {device} type vlan protocol {protocol} "
             f"id {number}")  # fmt: skip
        tool(f"{run_ip} link set {lower} up")
    tool(f"{run_ip} link set {device} up")
    return device


@contextmanager
def vlans(tags: tuple[tuple[str, int], ...], beside: str) -> Iterator[str]:
    """The VLAN of NEAR, which has rules and its address, and whose peer has one as well."""
    tool(f"ip netns add {FAR}")
    try:
        make(NEAR, PEER, FAR)
        inside(FAR, f"ethtool -K {PEER} txvlan {beside} tx-vlan-stag-hw-insert {beside}")
        far = stacked(f"ip -n {FAR}", PEER, tags)
        near = stacked("ip", NEAR, tags)
        for address in THERE:
            inside(FAR, f"ip address add {address} dev {far} {nodad(address)}")
        for address in HERE:
            tool(f"ip address add {address} dev {near} {nodad(address)}")
        load(near, RULES)
        thread(NEAR)
        yield near
    finally:
        tool(f"ip link delete {NEAR}")
        tool(f"ip netns delete {FAR}")


def nodad(address: str) -> str:
    return "nodad" if ":" in address else ""


def found(tags: tuple[tuple[str, int], ...], beside: str, times: int) -> dict[str, object]:
    looks = Path(__file__).with_name("neighbours.py")
    with vlans(tags, beside) as near:
        with flooded(FAR, HERE[0].partition("/")[0]):
            time.sleep(SETTLE_S)
            before = counted()
            seen = {
                peer: json.loads(tool(f"{sys.executable} {looks} {near} {peer} {times}"))
                for peer in (address.partition("/")[0] for address in THERE[1:])
            }
            after = counted()
    return {"peers": seen} | {name: after[name] - before[name] for name in after}


def counted() -> dict[str, int]:
    return {name: counts([NEAR], name)[0] for name in ("packets", "dropped")}


def main() -> int:
    times = int(sys.argv[1])
    seen = {
        f"{tag}, {place}": found(tags, beside, times)
        for tag, tags in TAGS.items()
        for place, beside in PLACES.items()
    }
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
