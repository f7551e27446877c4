#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a client in polling modes one after the other; writes what each run printed, as JSON.

Runs in the guest as root, with the package ``rxlane`` on its path: ``polled_turns.py JOB``, where
JOB is JSON:

    {"device": "eth0", "polled_cpu": 1, "client_cpu": 0, "nice": -20, "result": "/run/turns.json",
     "turns": [{"threaded": 2, "defer": 100, "flush": 15000, "argv": ["/opt/bench/openrr", ...]}]}

The receive NAPI of queue 0 gets the settings, its interrupt and its thread the CPU ``polled_cpu``;
all other interrupts go to ``client_cpu``. The work is done in the background, so that nobody asks
the guest's agent for the outcome meanwhile. Afterwards the NAPI is as after boot.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from rxlane import uapi
from rxlane.errors import RxlaneError
from rxlane.wire.netdev import Netdev, pack_napi_set

AT_BOOT = {"threaded": 0, "defer": 0, "flush": 0}


def receive_napi(netdev: Netdev, device: str) -> int:
    """Id of the NAPI that serves receive queue 0."""
    ifindex = socket.if_nametoindex(device)
    found = [
        row.napi_id
        for row in netdev.queues()
        if (row.ifindex, row.kind, row.index) == (ifindex, "rx", 0) and row.napi_id is not None
    ]
    if not found:
        raise LookupError(f"{device}: the kernel does not tell the NAPI of queue 0")
    return found[0]


def place_interrupts(device: str, polled_cpu: int, client_cpu: int) -> None:
    """Receive interrupts, which virtio_net names virtioN-input.Q, apart from all others."""
    bus = Path(f"/sys/class/net/{device}/device").resolve().name
    for irq in Path("/proc/irq").glob("[0-9]*"):
        polled = (irq / f"{bus}-input.0").is_dir()
        # The timer's and those of absent devices stay where they are.
        with contextlib.suppress(OSError) if not polled else contextlib.nullcontext():
            (irq / "smp_affinity_list").write_text(str(polled_cpu if polled else client_cpu))


def apply(netdev: Netdev, napi: int, turn: dict[str, Any], cpu: int, nice: int) -> None:
    values = {
        uapi.NETDEV_A_NAPI_THREADED: turn["threaded"],
        uapi.NETDEV_A_NAPI_DEFER_HARD_IRQS: turn["defer"],
        uapi.NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: turn["flush"],
    }
    netdev.call(uapi.NETDEV_CMD_NAPI_SET, f"NAPI {napi}", pack_napi_set(napi, values))
    held = next(found for _ifindex, found in netdev.napis() if found.napi_id == napi)
    if held.threaded != turn["threaded"]:
        raise LookupError(f"NAPI {napi}: threaded is {held.threaded}, not {turn['threaded']}")
    if turn["threaded"]:
        if not held.pid:
            raise LookupError(f"NAPI {napi} is threaded but has no thread")
        os.sched_setaffinity(held.pid, {cpu})
        os.setpriority(os.PRIO_PROCESS, held.pid, nice)


def client(argv: list[str]) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(f"{' '.join(argv)}: {done.stderr.strip()}")
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def all_turns(job: dict[str, Any]) -> list[dict[str, Any]]:
    netdev = Netdev()
    napi = receive_napi(netdev, job["device"])
    place_interrupts(job["device"], job["polled_cpu"], job["client_cpu"])
    found = []
    try:
        for turn in job["turns"]:
            apply(netdev, napi, turn, job["polled_cpu"], job["nice"])
            found.append(client(turn["argv"]))
    finally:
        apply(netdev, napi, AT_BOOT, job["polled_cpu"], job["nice"])
    return found


def main() -> None:
    job = json.loads(sys.argv[1])
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    try:
        outcome: dict[str, Any] = {"turns": all_turns(job)}
    except (LookupError, OSError, RxlaneError) as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    result = Path(job["result"])
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(outcome))
    partial.rename(result)


if __name__ == "__main__":
    main()
