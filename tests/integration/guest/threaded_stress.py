#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Change the threaded mode of an interface in many ways at once; print JSON: changes by role.

Runs in the guest beside guest/threaded_down.py, needs root:
``threaded_stress.py DEVICE SECONDS SEED``. Each role is a process that acts until the time is
over: ``sysfs`` writes 0 or 1 for the whole device, ``netlink`` sets a random mode of a random NAPI,
``link`` takes the interface down and up, ``pin`` gives threads a CPU and a nice value. A role that
does not end within GRACE_S has the states of its process in its place.
"""

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from guest.napi_contract import A_ID, A_THREADED, Netdev, attr, u32
from guest.threaded_down import napis, states

GRACE_S = 60.0
ROLES = ("sysfs", "netlink", "netlink", "link", "pin")
# What a NAPI that is just not there, or not up, answers.
PASSING = (0, errno.ENOENT)


def sysfs(device: str, chance: random.Random) -> None:
    Path(f"/sys/class/net/{device}/threaded").write_text(f"{chance.randrange(2)}\n")


def netlink(device: str, chance: random.Random) -> None:
    found = napis(device)
    if not found:
        time.sleep(0.01)
        return
    napi = chance.choice(found)["id"]
    answer = Netdev().napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(chance.randrange(3))))
    if answer["errno"] not in PASSING:
        raise SystemExit(f"napi-set: {answer}")


def link(device: str, chance: random.Random) -> None:
    for state in ("down", "up"):
        subprocess.run(["ip", "link", "set", "dev", device, state], check=True)
        time.sleep(chance.uniform(0, 0.3))


def pin(device: str, chance: random.Random) -> None:
    for napi in napis(device):
        if not napi["pid"]:
            continue
        try:
            os.sched_setaffinity(napi["pid"], {chance.randrange(os.cpu_count() or 1)})
            os.setpriority(os.PRIO_PROCESS, napi["pid"], chance.randrange(-5, 6))
        except ProcessLookupError:
            continue


ACTIONS: dict[str, Callable[[str, random.Random], None]] = {
    "sysfs": sysfs,
    "netlink": netlink,
    "link": link,
    "pin": pin,
}


def act(role: str, device: str, seconds: float, seed: int) -> int:
    """How often the role acted."""
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        ACTIONS[role](device, chance)
        count += 1
    return count


def run(device: str, seconds: float, seed: int) -> dict[str, object]:
    children = [
        subprocess.Popen(
            [sys.executable, __file__, device, str(seconds), str(seed + n), role],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for n, role in enumerate(ROLES)
    ]
    done: dict[str, object] = {}
    for role, child in zip(ROLES, children, strict=True):
        name = role if role not in done else f"{role} again"
        try:
            out, _err = child.communicate(timeout=seconds + GRACE_S)
            done[name] = int(out) if child.returncode == 0 else f"ended with {child.returncode}"
        except subprocess.TimeoutExpired:
            done[name] = states(child.pid)
    return done


if __name__ == "__main__":
    if len(sys.argv) > 4:
        print(act(sys.argv[4], sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
        raise SystemExit
    print(json.dumps(run(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))), flush=True)
    os._exit(0)
