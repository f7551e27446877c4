#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch NAPIs between all modes under flood while everything else happens; print JSON.

Runs in the guest as root, beside stress.py and what that needs, and imports nothing of rxlane:
``napi_stress.py INTERFACE TOGGLES DISTURBANCES SECONDS SEED``. One process a NAPI switches it; the
disturbers take the link down and up, change the channels, unbind and bind the driver, move the
interface to another network namespace and back, and take a CPU offline and back. Everybody acts
until there were TOGGLES to each mode and all have disturbed often enough, or SECONDS are over.

A toggle counts when the NAPI's thread was seen to appear or vanish, and PACKETS arrived in its
queue since the one before. The outcome: ``counts`` by role and, of toggles, by mode; ``stuck``,
{role: states of its process} of those that no longer act; ``faults``, what was wrong in the end;
``probes``, whether the kernel could tell of stalled tasks.
"""

import multiprocessing as mp
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import links  # type: ignore[import-not-found]
from napi_contract import A_ID, A_PID, A_THREADED, Netdev, attr, u32  # type: ignore[import-not-found]
from stress import (  # type: ignore[import-not-found]
    CPU,
    Arrivals,
    Board,
    Disturber,
    Gone,
    Nic,
    attempt,
    conclude,
    contest,
    contested,
    disturb,
    hotplug,
    link,
    quiet_queues,
    tasks_named,
    write,
)

OFF, ON, BUSY = 0, 1, 2
MODES = {OFF: "off", ON: "on", BUSY: "busy-poll"}
QUEUES = 2
PACKETS = 100
AWAY = "stress-away"
# A queue without a packet for so long, in seconds, is quiet.
QUIET_S = 60.0
# How long a wait for all tasks to pass through the scheduler may take, in seconds.
TASKS_S = 60.0
TRACING = Path("/sys/kernel/tracing")
PROBES = Path("/proc/sys/debug/kprobes-optimization")

# Toggles that count, of all NAPIs.
TOGGLES = "toggles"


def napis(nic: Nic, netdev: Netdev) -> dict[int, tuple[int, int]]:
    """{ID: (mode, pid or 0)} in the order of queues."""
    try:
        replies = netdev.napis(socket.if_nametoindex(nic.name()))
    except OSError as error:
        raise Gone("interface") from error
    found = {}
    for napi in replies:
        number = {kind: struct.unpack("I", napi.get(kind, u32(0)))[0] for kind in
                  (A_ID, A_THREADED, A_PID)}  # fmt: skip
        found[number[A_ID]] = (number[A_THREADED], number[A_PID])
    return dict(sorted(found.items()))


class Toggler:
    """Switches the n-th NAPI; ``act`` returns the mode it is in when that counts, else None."""

    def __init__(self, nic: Nic, chance: random.Random, number: int) -> None:
        self.nic, self.chance, self.number = nic, chance, number
        self.netdev = Netdev()
        self.arrivals = Arrivals(nic, PACKETS, number)

    def _set(self, napi: int, mode: int) -> None:
        if self.chance.randrange(8) == 0:
            write(Path(f"/sys/class/net/{self.nic.name()}/threaded"), str(mode))
            return
        answer = self.netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise Gone("NAPI")

    def act(self) -> str | None:
        before = napis(self.nic, self.netdev)
        if len(before) <= self.number:
            raise Gone("NAPI")
        napi = list(before)[self.number]
        had = before[napi][1]
        mode = OFF if had else self.chance.choice((ON, BUSY))
        enough = self.arrivals.enough()
        self._set(napi, mode)
        now = napis(self.nic, self.netdev).get(napi)
        if now is None:
            raise Gone("NAPI")
        changed = now[0] == mode and bool(now[1]) != bool(had)
        return MODES[mode] if changed and enough else None


def channels(nic: Nic, _chance: random.Random) -> None:
    for count in (1, QUEUES):
        nic.set_channels(count)


def bind(nic: Nic, _chance: random.Random) -> None:
    nic.unbind()
    nic.bind()
    nic.set_channels(QUEUES)
    nic.set_up(True)


def namespace(nic: Nic, chance: random.Random) -> None:
    name = nic.name()
    with contested():
        links.put(name, AWAY)
        time.sleep(chance.uniform(0, 0.05))
        links.fetch(name, AWAY)
    nic.set_up(True)


DISTURBERS: dict[str, Disturber] = {
    "link": link,
    "channels": channels,
    "bind": bind,
    "namespace": namespace,
    "hotplug": hotplug,
}
TOGGLERS = [f"NAPI {number}" for number in range(QUEUES)]


def toggle(board: Board, nic: Nic, role: str, chance: random.Random) -> None:
    toggler = Toggler(nic, chance, TOGGLERS.index(role))
    while not board.over():
        try:
            mode = toggler.act()
            if mode:
                board.add(TOGGLES)
                board.add(role)
                board.add(mode)
        except Gone:
            time.sleep(0.005)
        board.acted(role)


def bring_home(nic: Nic) -> None:
    """Everything that a disturber may have left in the middle."""
    attempt(lambda: write(CPU, "1"), nic.bind)
    with links.inside(AWAY):
        left = links.names()
    for name in left:
        links.fetch(name, AWAY)
    nic.set_up(True)
    nic.set_channels(QUEUES)


def set_all(nic: Nic, netdev: Netdev, mode: int) -> None:
    for napi in napis(nic, netdev):
        answer = netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise SystemExit(f"NAPI {napi}: threaded={mode} was answered {answer}")


def unlike(nic: Nic, netdev: Netdev, mode: int) -> Iterator[str]:
    for napi, (now, pid) in napis(nic, netdev).items():
        if now != mode or bool(pid) != (mode != OFF):
            yield f"NAPI {napi}: mode {now}, pid {pid}, wanted {MODES[mode]}"


def place_probe() -> None:
    """A kernel probe that the kernel may place in either of two ways."""
    if not TRACING.joinpath("kprobe_events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True)
    TRACING.joinpath("kprobe_events").write_text("p:stress dev_change_name\n")
    TRACING.joinpath("events/kprobes/stress/enable").write_text("1")


def replace_probe() -> None:
    """Returns when each task has been through the scheduler: rcu_tasks is waited for in both."""
    for way in ("0", "1"):
        PROBES.write_text(way)


def tasks_stalled() -> list[str]:
    """A busy-polling thread never sleeps; it has to tell of its quiescent states."""
    if not PROBES.exists():
        return []  # a kernel without probes; ours for this test has them
    place_probe()
    waiter = mp.Process(target=replace_probe, daemon=True)
    waiter.start()
    waiter.join(TASKS_S)
    return ["the tasks of RCU make no progress"] if waiter.is_alive() else []


def afterwards(nic: Nic) -> list[str]:
    """What is wrong once it is calm again: each mode is tried, and what was not listed follows."""
    netdev = Netdev()
    faults: list[str] = []
    for mode in (ON, BUSY, ON, OFF):
        set_all(nic, netdev, mode)
        faults += unlike(nic, netdev, mode)
        faults += [
            f"{MODES[mode]}: queue {queue} is quiet"
            for queue in quiet_queues(nic, range(QUEUES), PACKETS, QUIET_S)
        ]
        if mode == BUSY:
            faults += tasks_stalled()
    for mode in (ON, OFF):
        # The NAPI of a queue that is not there just now is switched with its device.
        nic.set_channels(1)
        Path(f"/sys/class/net/{nic.name()}/threaded").write_text(str(mode))
        nic.set_channels(QUEUES)
        faults += [f"back after -L: {fault}" for fault in unlike(nic, netdev, mode)]
    return faults + [f"left: {name}" for name in tasks_named("napi/")]


def main() -> None:
    name, toggles, disturbances, seconds, seed = sys.argv[1:]
    nic = Nic(name)
    subprocess.run(["ip", "netns", "add", AWAY], check=True)
    # From off to one of the others and back: half of them are to off.
    wanted = {TOGGLES: 2 * (len(MODES) - 1) * int(toggles)}
    wanted |= dict.fromkeys(MODES.values(), int(toggles))
    wanted |= dict.fromkeys(DISTURBERS, int(disturbances))
    board = Board(wanted, TOGGLES, TOGGLERS, float(seconds))
    chances = {
        role: random.Random(int(seed) + number)
        for number, role in enumerate([*DISTURBERS, *TOGGLERS])
    }
    works = {
        role: partial(disturb, board, nic, role, disturber, chances[role])
        for role, disturber in DISTURBERS.items()
    } | {role: partial(toggle, board, nic, role, chances[role]) for role in TOGGLERS}
    outcome = contest(board, works)
    outcome["probes"] = PROBES.exists()
    if not outcome["stuck"]:
        bring_home(nic)
        outcome["faults"] = afterwards(nic)
        subprocess.run(["ip", "netns", "delete", AWAY], check=True)
    conclude(outcome)


if __name__ == "__main__":
    main()
