#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch NAPIs between all modes under flood while everything else happens; print JSON.

Runs in the guest as root, beside napi_contract.py, and imports nothing of rxlane:
``napi_stress.py INTERFACE TOGGLES DISTURBANCES SECONDS SEED``. One process a NAPI switches it; the
disturbers take the link down and up, change the channels, unbind and bind the driver, move the
interface to another network namespace and back, and take a CPU offline and back. Everybody acts
until all have acted often enough or SECONDS are over.

A toggle counts when the NAPI's thread was seen to appear or vanish, and PACKETS arrived since the
one before. The outcome: ``counts`` by role and, of toggles, by mode; ``stuck``, {role: states of
its process} of those that no longer act; ``faults``, what was wrong in the end; ``probes``, whether
the kernel could tell of stalled tasks.
"""

import json
import multiprocessing as mp
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from napi_contract import A_ID, A_PID, A_THREADED, Netdev, attr, u32  # type: ignore[import-not-found]

OFF, ON, BUSY = 0, 1, 2
MODES = {OFF: "off", ON: "on", BUSY: "busy-poll"}
QUEUES = 2
PACKETS = 100
AWAY = "stress-away"
CPU = Path("/sys/devices/system/cpu/cpu1/online")
# A role that did nothing for so long, in seconds, is stuck; a queue without a packet is quiet.
STUCK_S, QUIET_S = 120.0, 60.0
# How far, of all it has to do, a disturber may be ahead of the toggles.
AHEAD = 0.02
# How long a wait for all tasks to pass through the scheduler may take, in seconds.
TASKS_S = 60.0
TRACING = Path("/sys/kernel/tracing")
PROBES = Path("/proc/sys/debug/kprobes-optimization")


class Gone(Exception):
    """The interface, or what was to be done with it, is away just now: a disturber has it."""


def command(*argv: str) -> None:
    """Raises Gone where it fails: which of the disturbers was faster is nobody's fault."""
    if subprocess.run(argv, capture_output=True, timeout=600, check=False).returncode:
        raise Gone(argv)


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise Gone(path) from error


class Nic:
    """The interface by its place on the bus, since its name may change when it is bound anew."""

    def __init__(self, name: str) -> None:
        self.place = Path(f"/sys/class/net/{name}/device").resolve()
        self.driver = (self.place / "driver").resolve()

    def name(self) -> str:
        try:
            return os.listdir(self.place / "net")[0]
        except (FileNotFoundError, IndexError) as error:
            raise Gone("interface") from error

    def received(self) -> int:
        try:
            path = Path(f"/sys/class/net/{self.name()}/statistics/rx_packets")
            return int(path.read_text())
        except OSError as error:
            raise Gone("statistics") from error

    def by_queue(self) -> list[int]:
        told = subprocess.run(["ethtool", "-S", self.name()], capture_output=True, text=True)
        return [int(n) for n in re.findall(r"rx_?(?:queue_)?\d+_packets: (\d+)", told.stdout)]

    def napis(self, netdev: Netdev) -> dict[int, tuple[int, int]]:
        """{ID: (mode, pid or 0)} in the order of queues."""
        try:
            replies = netdev.napis(socket.if_nametoindex(self.name()))
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
        self.seen = 0

    def _traffic(self) -> bool:
        """Waits a moment for the packets that make a toggle count."""
        for _attempt in range(200):
            now = self.nic.received()
            if now < self.seen:
                self.seen = 0  # bound anew: it counts from the start
            if now - self.seen >= PACKETS:
                self.seen = now
                return True
            time.sleep(0.002)
        return False

    def _set(self, napi: int, mode: int) -> None:
        if self.chance.randrange(8) == 0:
            write(Path(f"/sys/class/net/{self.nic.name()}/threaded"), str(mode))
            return
        answer = self.netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise Gone("NAPI")

    def act(self) -> str | None:
        before = self.nic.napis(self.netdev)
        if len(before) <= self.number:
            raise Gone("NAPI")
        napi = list(before)[self.number]
        had = before[napi][1]
        mode = OFF if had else self.chance.choice((ON, BUSY))
        enough = self._traffic()
        self._set(napi, mode)
        now = self.nic.napis(self.netdev).get(napi)
        if now is None:
            raise Gone("NAPI")
        changed = now[0] == mode and bool(now[1]) != bool(had)
        return MODES[mode] if changed and enough else None


def link(nic: Nic, chance: random.Random) -> None:
    name = nic.name()
    command("ip", "link", "set", name, "down")
    time.sleep(chance.uniform(0, 0.05))
    command("ip", "link", "set", name, "up")


def channels(nic: Nic, _chance: random.Random) -> None:
    for count in (1, QUEUES):
        command("ethtool", "-L", nic.name(), "combined", str(count))


def bind(nic: Nic, _chance: random.Random) -> None:
    write(nic.driver / "unbind", nic.place.name)
    write(nic.driver / "bind", nic.place.name)
    command("ethtool", "-L", nic.name(), "combined", str(QUEUES))
    command("ip", "link", "set", nic.name(), "up")


def namespace(nic: Nic, chance: random.Random) -> None:
    name = nic.name()
    command("ip", "link", "set", name, "netns", AWAY)
    time.sleep(chance.uniform(0, 0.05))
    command("ip", "-n", AWAY, "link", "set", name, "netns", "1")
    command("ip", "link", "set", name, "up")


def hotplug(_nic: Nic, chance: random.Random) -> None:
    write(CPU, "0")
    time.sleep(chance.uniform(0, 0.05))
    write(CPU, "1")


DISTURBERS: dict[str, Callable[[Nic, random.Random], None]] = {
    "link": link,
    "channels": channels,
    "bind": bind,
    "namespace": namespace,
    "hotplug": hotplug,
}
TOGGLERS = [f"NAPI {number}" for number in range(QUEUES)]


class Board:
    """What all processes write their counts on. ``counts``: successes by role and by mode."""

    def __init__(self, toggles: int, disturbances: int, seconds: float) -> None:
        self.keys = [*DISTURBERS, *TOGGLERS, *MODES.values()]
        self.counts = mp.Array("q", len(self.keys))
        self.acts = mp.Array("q", len(self.keys))
        self.toggles, self.disturbances = toggles, disturbances
        self.end = time.monotonic() + seconds

    def add(self, key: str) -> None:
        with self.counts:
            self.counts[self.keys.index(key)] += 1

    def acted(self, key: str) -> None:
        self.acts[self.keys.index(key)] += 1

    def count(self, key: str) -> int:
        return int(self.counts[self.keys.index(key)])

    def done(self, role: str) -> float:
        """The part of its duty that a role has done."""
        if role in DISTURBERS:
            return self.count(role) / self.disturbances
        return sum(self.count(mode) for mode in MODES.values()) / self.toggles

    def ahead(self, role: str) -> bool:
        return self.done(role) > self.done(TOGGLERS[0]) + AHEAD

    def over(self) -> bool:
        return time.monotonic() > self.end or all(
            self.done(role) >= 1 for role in (*DISTURBERS, TOGGLERS[0])
        )


def disturb(board: Board, nic: Nic, role: str, chance: random.Random) -> None:
    while not board.over():
        try:
            DISTURBERS[role](nic, chance)
            board.add(role)
        except Gone:
            time.sleep(0.01)
        board.acted(role)
        time.sleep(chance.uniform(0, 0.1))
        # Who is ahead leaves the others more of the time.
        while board.ahead(role) and not board.over():
            board.acted(role)
            time.sleep(0.1)


def toggle(board: Board, nic: Nic, role: str, chance: random.Random) -> None:
    toggler = Toggler(nic, chance, TOGGLERS.index(role))
    while not board.over():
        try:
            mode = toggler.act()
            if mode:
                board.add(role)
                board.add(mode)
        except Gone:
            time.sleep(0.005)
        board.acted(role)


def watch(board: Board, children: dict[str, mp.Process]) -> list[str]:
    """Waits for all to end; the roles that do not act any more, should there be any."""
    last = {role: (-1, time.monotonic()) for role in children}
    while any(child.is_alive() for child in children.values()):
        time.sleep(0.5)
        for role, child in children.items():
            acts = board.acts[board.keys.index(role)]
            if acts != last[role][0] or not child.is_alive():
                last[role] = (acts, time.monotonic())
        stuck = [role for role, (_, at) in last.items() if time.monotonic() - at > STUCK_S]
        if stuck:
            return stuck
    return [role for role, child in children.items() if child.exitcode]


def state(child: mp.Process) -> str:
    """How it ended, or its state, where in the kernel it waits, and the command it waits for."""
    if not child.is_alive():
        return f"ended with {child.exitcode}"
    shown = subprocess.run(
        ["ps", "-o", "stat=,wchan:30=,args=", "--pid", str(child.pid), "--ppid", str(child.pid)],
        capture_output=True,
        text=True,
    )
    return shown.stdout


def bring_home(nic: Nic) -> None:
    """Everything that a disturber may have left in the middle."""
    steps: list[Callable[[], None]] = [
        lambda: write(CPU, "1"),
        lambda: write(nic.driver / "bind", nic.place.name),
    ]
    for step in steps:
        try:
            step()
        except Gone:
            continue  # it is so already
    shown = subprocess.run(["ip", "-n", AWAY, "-br", "link"], capture_output=True, text=True)
    for name in re.findall(r"^((?!lo\b)[\w.]+)", shown.stdout, re.M):
        command("ip", "-n", AWAY, "link", "set", name, "netns", "1")
    command("ip", "link", "set", nic.name(), "up")
    command("ethtool", "-L", nic.name(), "combined", str(QUEUES))


def quiet_queues(nic: Nic) -> list[int]:
    """Queues that no packet comes from, though all are flooded."""
    first = nic.by_queue()
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end:
        quiet = [n for n, (old, new) in enumerate(zip(first, nic.by_queue(), strict=True))
                 if new - old < PACKETS]  # fmt: skip
        if not quiet:
            return []
        time.sleep(0.2)
    return quiet if first else [-1]


def set_all(nic: Nic, netdev: Netdev, mode: int) -> None:
    for napi in nic.napis(netdev):
        answer = netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise SystemExit(f"NAPI {napi}: threaded={mode} was answered {answer}")


def unlike(nic: Nic, netdev: Netdev, mode: int) -> Iterator[str]:
    for napi, (now, pid) in nic.napis(netdev).items():
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
        faults += [f"{MODES[mode]}: queue {queue} is quiet" for queue in quiet_queues(nic)]
        if mode == BUSY:
            faults += tasks_stalled()
    for mode in (ON, OFF):
        # The NAPI of a queue that is not there just now is switched with its device.
        command("ethtool", "-L", nic.name(), "combined", "1")
        Path(f"/sys/class/net/{nic.name()}/threaded").write_text(str(mode))
        command("ethtool", "-L", nic.name(), "combined", str(QUEUES))
        faults += [f"back after -L: {fault}" for fault in unlike(nic, netdev, mode)]
    left = [comm.read_text().strip() for comm in Path("/proc").glob("[0-9]*/comm")]
    return faults + [f"left: {comm}" for comm in left if comm.startswith("napi/")]


def main() -> None:
    name, toggles, disturbances, seconds, seed = sys.argv[1:]
    nic = Nic(name)
    subprocess.run(["ip", "netns", "add", AWAY], check=True)
    board = Board(int(toggles), int(disturbances), float(seconds))
    started = time.monotonic()
    children = {}
    for number, role in enumerate([*DISTURBERS, *TOGGLERS]):
        work = disturb if role in DISTURBERS else toggle
        chance = random.Random(int(seed) + number)
        child = mp.Process(target=work, args=(board, nic, role, chance), daemon=True)
        child.start()
        children[role] = child
    stuck = watch(board, children)
    outcome = {
        "counts": {key: board.count(key) for key in board.keys},
        "seconds": round(time.monotonic() - started),
        "stuck": {role: state(children[role]) for role in stuck},
        "faults": [],
        "probes": PROBES.exists(),
    }
    if not stuck:
        bring_home(nic)
        outcome["faults"] = afterwards(nic)
        subprocess.run(["ip", "netns", "delete", AWAY], check=True)
    print(json.dumps(outcome), flush=True)
    # A child in uninterruptible sleep cannot be waited for.
    os._exit(0)


if __name__ == "__main__":
    mp.set_start_method("fork")
    main()
