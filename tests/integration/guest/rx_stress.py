#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Change the helper threads of a flooded device while everything else happens; print JSON.

Runs in the guest as root, beside stress.py, napi_stress.py and what these need, and imports nothing
of rxlane: ``rx_stress.py INTERFACE RESIZES DISTURBANCES SECONDS SEED``. One process changes their
number. The disturbers take the link down and up, unbind and bind the driver (which unregisters the
interface), move it to another network namespace and back, take a CPU offline and back, try RPS,
which excludes helper threads, switch threaded NAPI, change policy and CPUs of the helper threads
and read all that they tell. Everybody acts until all have acted often enough or SECONDS are over.

A resize counts when the file reads what was written, and the threads passed PACKETS on since the
one before. For the outcome see contest() of stress.py.
"""

import errno
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from napi_stress import (  # type: ignore[import-not-found]
    AWAY,
    QUEUES,
    bind,
    bring_home,
    namespace,
)
from stress import (  # type: ignore[import-not-found]
    Board,
    Disturber,
    Gone,
    Nic,
    conclude,
    contest,
    contested,
    disturb,
    hotplug,
    link,
    quiet_queues,
    reschedule,
    tasks_named,
    write,
)

RESIZES = "resizes"
SIZES = (0, 1, 2)
PACKETS = 100
# Without a packet for so long, in seconds, a queue is quiet, or a thread does nothing.
QUIET_S = 60.0


def folder(nic: Nic) -> Path:
    return Path("/sys/class/net", nic.name())


def size(nic: Nic) -> int:
    with contested():
        return int((folder(nic) / "rx_threads").read_text())


def passed_on(nic: Nic) -> int:
    """Packets that the helper threads there are have taken."""
    with contested():
        files = (folder(nic) / "rx_thread").glob("*/packets")
        return sum(int(file.read_text()) for file in files)


def pids(nic: Nic) -> list[int]:
    with contested():
        return [int(file.read_text()) for file in (folder(nic) / "rx_thread").glob("*/pid")]


def busy(nic: Nic) -> bool:
    """Whether the threads pass packets on; None are asked where there are none."""
    first = passed_on(nic)
    for _attempt in range(200):
        if passed_on(nic) - first >= PACKETS:
            return True
        time.sleep(0.002)
    return False


def resize(board: Board, nic: Nic, role: str, chance: random.Random) -> None:
    while not board.over():
        try:
            had = size(nic)
            enough = not had or busy(nic)
            new = chance.choice([n for n in SIZES if n != had])
            write(folder(nic) / "rx_threads", str(new))
            if size(nic) == new and enough:
                board.add(role)
        except Gone:
            time.sleep(0.005)
        board.acted(role)


def rps(nic: Nic, _chance: random.Random) -> None:
    """Both are never there; which of them the kernel refuses is a matter of who came first."""
    queue = folder(nic) / "queues/rx-0/rps_cpus"
    try:
        queue.write_text("3")
        with contested():
            queue.write_text("0")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise Gone("queue") from error


def threaded(nic: Nic, _chance: random.Random) -> None:
    for value in ("1", "0"):
        write(folder(nic) / "threaded", value)


def scheduling(nic: Nic, chance: random.Random) -> None:
    """Policy and CPUs of a helper thread."""
    found = pids(nic)
    if not found:
        raise Gone("threads")
    reschedule(chance.choice(found), chance)


def read_all(nic: Nic, _chance: random.Random) -> None:
    with contested():
        files = [file for file in (folder(nic) / "rx_thread").rglob("*") if file.is_file()]
        if not files:
            raise Gone("threads")
        for file in files:
            file.read_text()


DISTURBERS: dict[str, Disturber] = {
    "link": link,
    "bind": bind,
    "namespace": namespace,
    "hotplug": hotplug,
    "rps": rps,
    "threaded": threaded,
    "scheduling": scheduling,
    "read": read_all,
}


def wrong(nic: Nic, count: int, queues: int) -> Iterator[str]:
    """What is wrong with so many threads, on a device of so many queues, once it is calm."""
    (folder(nic) / "rx_threads").write_text(str(count))
    names = sorted(tasks_named("rx"))
    if names != [f"rx{number}/{nic.name()}"[:15] for number in range(count)]:
        yield f"{count} threads: there are {names}"
    if quiet := quiet_queues(nic, range(queues), PACKETS, QUIET_S):
        yield f"{count} threads: quiet queues {quiet}"
    first, end = passed_on(nic), time.monotonic() + QUIET_S
    while count and passed_on(nic) - first < PACKETS:
        if time.monotonic() > end:
            yield f"{count} threads: they pass nothing on"
            return
        time.sleep(0.1)


def afterwards(nic: Nic) -> list[str]:
    write(folder(nic) / "threaded", "0")
    # A role that was ended in the middle may have left it on.
    (folder(nic) / "rx_threads").write_text("0")
    (folder(nic) / "queues/rx-0/rps_cpus").write_text("0")
    return [fault for count in (*SIZES, 0) for fault in wrong(nic, count, QUEUES)]


def main() -> None:
    name, resizes, disturbances, seconds, seed = sys.argv[1:]
    nic = Nic(name)
    subprocess.run(["ip", "netns", "add", AWAY], check=True)
    wanted = {RESIZES: int(resizes)} | dict.fromkeys(DISTURBERS, int(disturbances))
    board = Board(wanted, RESIZES, [], float(seconds))
    works = {
        role: partial(disturb, board, nic, role, disturber, random.Random(int(seed) + number))
        for number, (role, disturber) in enumerate(DISTURBERS.items())
    }
    works[RESIZES] = partial(resize, board, nic, RESIZES, random.Random(int(seed) - 1))
    outcome = contest(board, works)
    if not outcome["stuck"]:
        bring_home(nic)
        outcome["faults"] = afterwards(nic)
        subprocess.run(["ip", "netns", "delete", AWAY], check=True)
    conclude(outcome)


if __name__ == "__main__":
    main()
