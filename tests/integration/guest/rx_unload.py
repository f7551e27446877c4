#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Remove the module of a flooded device's driver while its helper threads run; print JSON.

Runs in the guest as root, beside rx_stress.py and what that needs, and imports nothing of rxlane:
``rx_unload.py INTERFACE REMOVALS DISTURBANCES SECONDS SEED``, with the module at MODULE and loaded.
One process removes it, which unregisters the interface and frees the driver's code, and loads it
again. Others change the number of threads, their policy and CPUs, read what they tell, take the
link down and up and a CPU offline and back.

A removal counts when the threads had passed PACKETS on since the module was loaded, and none of
them is there once it is gone. For the outcome see contest() of stress.py.
"""

import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from rx_stress import (  # type: ignore[import-not-found]
    PACKETS,
    QUIET_S,
    SIZES,
    folder,
    passed_on,
    read_all,
    resize,
    scheduling,
    size,
    wrong,
)
from stress import (  # type: ignore[import-not-found]
    CPU,
    Board,
    Disturber,
    Fault,
    Gone,
    Nic,
    attempt,
    conclude,
    contest,
    disturb,
    hotplug,
    link,
    tasks_named,
    write,
)

REMOVALS, RESIZES = "removals", "resizes"
MODULE = Path("/root/driver.ko")
QUEUES = 1


def load(nic: Nic) -> None:
    subprocess.run(["insmod", MODULE], check=True)
    nic.set_up(True)


def remove(nic: Nic) -> None:
    """Without waiting: whoever has one of its files open is done in a moment."""
    subprocess.run(["rmmod", nic.driver.name], check=True)
    if left := tasks_named("rx"):
        raise Fault(f"left after the module was removed: {left}")


def passes(nic: Nic) -> bool:
    """Whether threads passed PACKETS on before QUIET_S are over, whoever changes their number."""
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end:
        try:
            if not size(nic):
                write(folder(nic) / "rx_threads", str(max(SIZES)))
            if passed_on(nic) >= PACKETS:
                return True
        except Gone:
            nic.set_up(True)
        time.sleep(0.005)
    return False


def removals(board: Board, nic: Nic) -> None:
    while not board.over():
        if not passes(nic):
            raise Fault(f"no {PACKETS} packets passed on in {QUIET_S:.0f} s")
        remove(nic)
        board.add(REMOVALS)
        load(nic)
        board.acted(REMOVALS)


def afterwards(nic: Nic) -> list[str]:
    attempt(lambda: write(CPU, "1"))
    nic.set_up(True)
    return [fault for count in (*SIZES, max(SIZES)) for fault in wrong(nic, count, QUEUES)]


def main() -> None:
    name, wanted, disturbances, seconds, seed = sys.argv[1:]
    nic, chance = Nic(name), random.Random(int(seed))
    disturbers: dict[str, Disturber] = {
        "link": link,
        "hotplug": hotplug,
        "scheduling": scheduling,
        "read": read_all,
    }
    counts = {REMOVALS: int(wanted)} | dict.fromkeys(disturbers, int(disturbances))
    board = Board(counts, REMOVALS, [RESIZES], float(seconds))
    works = {
        role: partial(disturb, board, nic, role, disturber, random.Random(int(seed) + number))
        for number, (role, disturber) in enumerate(disturbers.items())
    }
    works[REMOVALS] = partial(removals, board, nic)
    works[RESIZES] = partial(resize, board, nic, RESIZES, chance)
    outcome = contest(board, works)
    if not outcome["stuck"]:
        outcome["faults"] = afterwards(nic)
        remove(nic)
    conclude(outcome)


if __name__ == "__main__":
    main()
