#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Take an interface with threaded NAPIs down, switch threaded mode off, up again; print JSON.

Stand-alone but for guest/napi_contract.py beside it: runs in the guest, needs root. Usage:
``threaded_down.py DEVICE MODE PEER`` with MODE 1 (enabled) or 2 (busy-poll) and PEER an address
that answers ping through DEVICE. Every step is a child process with a deadline, as a child that
hangs in the kernel can not be ended: it is left behind. Each step tells
``ended``; if so ``rc`` and ``seconds``; if not ``states``, its states in /proc over a second.
After a step that hangs the others are tried, to see what it takes along, but for the last ping.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from guest.napi_contract import A_ID, A_IRQ, A_THREADED, Netdev, attr, napi_ids, u32

DEADLINE_S = 30.0
A_PID = 4
ZERO = Path("/root/zero")

Step = dict[str, object]


def states(pid: int) -> str:
    """One letter of /proc/PID/stat each tenth of a second: D is uninterruptible sleep."""
    seen = ""
    for _sample in range(10):
        seen += Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        time.sleep(0.1)
    return seen


def step(argv: list[str], source: Path = Path(os.devnull)) -> Step:
    """Runs a command on ``source``; it holds nothing of ours, so that it can be left behind."""
    start = time.monotonic()
    with source.open() as stdin:
        child = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        rc = child.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        return {"ended": False, "states": states(child.pid)}
    return {"ended": True, "rc": rc, "seconds": round(time.monotonic() - start, 2)}


def set_mode(device: str, mode: int) -> None:
    """Threaded mode of each NAPI with an ID, over netlink."""
    netdev = Netdev()
    for napi in napi_ids(netdev, device):
        answer = netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise SystemExit(f"mode {mode} of NAPI {napi}: {answer}")


def napis(device: str) -> list[dict[str, int]]:
    """ID, mode, PID and interrupt of each NAPI, 0 for what is not reported."""
    keys = {"id": A_ID, "mode": A_THREADED, "pid": A_PID, "irq": A_IRQ}
    found = Netdev().napis(socket.if_nametoindex(device))
    return [
        {name: struct.unpack("I", napi.get(kind, u32(0)))[0] for name, kind in keys.items()}
        for napi in found
    ]


def run(device: str, mode: int, peer: str) -> dict[str, object]:
    link = ["ip", "link", "set", "dev", device]
    ping = ["ping", "-q", "-c", "3", "-i", "0.2", "-w", "30", "-I", device, peer]
    ZERO.write_text("0\n")
    steps = {
        "ping": ping,
        "down": [*link, "down"],
        "off": ["dd", "status=none", f"if={ZERO}", f"of=/sys/class/net/{device}/threaded"],
        "up": [*link, "up"],
        # Needs RTNL, but nothing of this device.
        "other": ["ip", "link", "set", "dev", "lo", "mtu", "65535"],
        "ping after": ping,
    }
    set_mode(device, mode)
    done: dict[str, object] = {"napis before": napis(device)}
    hung = False
    for name, argv in steps.items():
        if not (hung and name == "ping after"):
            done[name] = outcome = step(argv)
            hung = hung or not outcome["ended"]
    if not hung:
        done["napis after"] = napis(device)
    return done


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), sys.argv[3])), flush=True)
    # Not an exit that waits for anything: a child may be stuck.
    os._exit(0)
