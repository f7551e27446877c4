#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Bonds of two whose members have helper threads; print as JSON what came of it.

Runs in the guest as root, beside rx_veth.py and what that needs: ``rx_bonds.py SECONDS``. Bonds of
veths in two network namespaces face each other; the members on this side have a helper thread each,
both on one CPU, and rules of tc that make packets dear. ``answered`` of ECHOES requests are;
``packets`` and ``dropped`` are those of each member's thread.

- ``802.3ad``: LACP with its fast rate, beside a flood of SECONDS that begins after the requests.
  ``ports`` are the fewest that the aggregate had meanwhile, ``partner`` whether its partner was
  always the same, ``failures`` how often a member was lost, and ``later`` what was dropped in the
  second half.
- ``active-backup``: the active member loses its link, the other one takes over.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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

FAR = "rx-bonds-far"
MEMBERS, PEERS = ("near0", "near1"), ("far0", "far1")
BOND, BOND_FAR, NEAR_IP, FAR_IP = "nearb", "farb", "10.99.0.1", "10.99.0.2"
ECHOES, RULES = 20, 4000
PATIENCE_S, LOOK_S = 30.0, 0.2
LACP = "mode 802.3ad lacp_rate fast xmit_hash_policy layer3+4 miimon 100"
BACKUP = "mode active-backup miimon 100"
NOBODY = "00:00:00:00:00:00"

far = partial(inside, FAR)


@contextmanager
def bonds(mode: str) -> Iterator[None]:
    tool(f"ip netns add {FAR}")
    try:
        for member, peer in zip(MEMBERS, PEERS, strict=True):
            make(member, peer, FAR)
            load(member, RULES)
        for run, bond, members, address in (
            (tool, BOND, MEMBERS, NEAR_IP),
            (far, BOND_FAR, PEERS, FAR_IP),
        ):
            run(f"ip link add {bond} type bond {mode}")
            for member in members:
                run(f"ip link set {member} master {bond}")
                run(f"ip link set {member} up")
            run(f"ip address add {address}/24 dev {bond}")
            run(f"ip link set {bond} up")
        for member in MEMBERS:
            thread(member)
        yield
    finally:
        for link in (*MEMBERS, BOND):  # the other side's go with these
            subprocess.run(f"ip link delete {link}".split(), check=False)
        tool(f"ip netns delete {FAR}")


def answered() -> int:
    # The first one may have to wait for the links.
    subprocess.run(f"ping -q -c 1 -w 30 {FAR_IP}".split(), capture_output=True, check=False)
    ping = f"ping -q -c {ECHOES} -i 0.05 -W 10 {FAR_IP}".split()
    shown = subprocess.run(ping, capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+) received", shown)
    return int(found[1]) if found else 0


def aggregate() -> tuple[int, str, int]:
    """(ports, address of the partner, failures of links) of this side."""
    told = Path(f"/proc/net/bonding/{BOND}").read_text()
    ports = re.search(r"Number of ports: (\d+)", told)
    partner = re.search(r"Partner Mac Address: (\S+)", told)
    failures = sum(map(int, re.findall(r"Link Failure Count: (\d+)", told)))
    return int(ports[1]) if ports else 0, partner[1] if partner else NOBODY, failures


def agreed() -> tuple[int, str, int]:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        ports, partner, failures = aggregate()
        if ports == len(MEMBERS) and partner != NOBODY:
            break
        time.sleep(LOOK_S)
    return ports, partner, failures


def lacp(seconds: float) -> dict[str, object]:
    with bonds(LACP):
        first = agreed()
        came = answered()
        rows, drops = [], [counts(MEMBERS, "dropped")]
        with flooded(FAR, NEAR_IP):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                rows.append(aggregate())
                drops.append(counts(MEMBERS, "dropped"))
                time.sleep(LOOK_S)
        # Seen at the end as in the middle: the flood lasted.
        later = [now - then for now, then in zip(drops[-1], drops[len(drops) // 2], strict=True)]
        return {
            "answered": came,
            "ports": min(row[0] for row in rows),
            "partner": {row[1] for row in rows} == {first[1]} and first[1] != NOBODY,
            "failures": rows[-1][2] - first[2],
            "packets": counts(MEMBERS, "packets"),
            "dropped": drops[-1],
            "later": later,
        }


def backup() -> dict[str, object]:
    with bonds(BACKUP):
        came = [answered()]
        active = Path(f"/sys/class/net/{BOND}/bonding/active_slave").read_text().strip()
        first = counts(MEMBERS, "packets")
        far(f"ip link set {PEERS[MEMBERS.index(active)]} down")
        came.append(answered())
        second = counts(MEMBERS, "packets")
        other = Path(f"/sys/class/net/{BOND}/bonding/active_slave").read_text().strip()
        grown = [now - then for now, then in zip(second, first, strict=True)]
        return {
            "answered": min(came),
            "first": first[MEMBERS.index(active)],
            "other": other if other != active else "",
            "packets": grown[MEMBERS.index(other)],
        }


def main() -> int:
    seen = {"echoes": ECHOES, "802.3ad": lacp(float(sys.argv[1])), "active-backup": backup()}
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
