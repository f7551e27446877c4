# SPDX-License-Identifier: GPL-2.0-or-later
"""What the stress scripts have in common: many processes, a board of counts, a watch over them.

Runs in the guest as root, beside evidence.py, napi_contract.py and links.py, and imports nothing of
rxlane. One process a role: togglers switch something, disturbers take the interface away in some
way and bring it back. Everybody acts until all have acted often enough or the time is over.
"""

import json
import multiprocessing as mp
import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import evidence  # type: ignore[import-not-found]
import links  # type: ignore[import-not-found]
from napi_contract import Netdev  # type: ignore[import-not-found]

CPU = Path("/sys/devices/system/cpu/cpu1/online")
# A role that did nothing for so long, in seconds, is stuck.
STUCK_S = 120.0
# How often the counts are told meanwhile, in seconds.
TELL_S = 60.0
# How far, of all it has to do, a disturber may be ahead of what sets the pace.
AHEAD = 0.02
# The longest pause of a disturber, in seconds, and after how many failures its pauses grow no more.
PAUSE_S, LATE = 5.0, 5
# How drivers call the packets of a receive queue in their statistics.
OF_QUEUE = re.compile(r"rx_?(?:queue_)?\d+_packets")
# How often, and with which pauses in seconds, packets are looked for.
ATTEMPTS, LOOK_S = 80, 0.005


class Gone(Exception):
    """The interface, or what was to be done with it, is away just now: a disturber has it."""


class Fault(Exception):
    """What must not happen. It ends the process of the role, which is then told as stuck."""


@contextmanager
def contested() -> Iterator[None]:
    """Gone where it fails: which of the disturbers was faster is nobody's fault."""
    try:
        yield
    except OSError as error:
        raise Gone(error) from error


def write(path: Path, text: str) -> None:
    with contested():
        path.write_text(text)


class Nic:
    """The interface by its place on the bus, since its name may change when it is bound anew."""

    def __init__(self, name: str) -> None:
        self.place = Path(f"/sys/class/net/{name}/device").resolve()
        self.driver = (self.place / "driver").resolve()
        self.told, self.places = 0, list[int]()  # values of statistics, which are queues' packets

    def name(self) -> str:
        with contested():
            found = os.listdir(self.place / "net")
        if not found:
            raise Gone("interface")
        return found[0]

    def received(self) -> int:
        with contested():
            return int(Path(f"/sys/class/net/{self.name()}/statistics/rx_packets").read_text())

    def by_queue(self) -> list[int]:
        """Packets of each receive queue; of a single one those of the interface.

        What drivers tell the netdev family is no part of what they tell ethtool, and the reverse.
        """
        name = self.name()
        with contested():
            told_netdev: list[int] = Netdev().received(socket.if_nametoindex(name))
        if told_netdev:
            return told_netdev
        found = self._told_ethtool(name)
        if not found and len(list(Path(f"/sys/class/net/{name}/queues").glob("rx-*"))) > 1:
            raise Gone("statistics of queues")
        return found or [self.received()]

    def _told_ethtool(self, name: str) -> list[int]:
        with contested():
            values = links.statistics(name)
            # To ask for the names, too, takes an emulated guest longer than a packet's way.
            if self.told != len(values):
                keys = links.statistic_names(name)
                self.places = [at for at, key in enumerate(keys) if OF_QUEUE.fullmatch(key)]
                self.told = len(values)
        return [values[at] for at in self.places]

    def set_up(self, up: bool) -> None:
        with contested():
            links.set_up(self.name(), up)

    def set_channels(self, combined: int) -> None:
        with contested():
            links.set_channels(self.name(), combined)

    def unbind(self) -> None:
        write(self.driver / "unbind", self.place.name)

    def bind(self) -> None:
        write(self.driver / "bind", self.place.name)


class Arrivals:
    """Whether enough packets have arrived since it was last so, on all queues or on one."""

    def __init__(self, nic: Nic, packets: int, queue: int | None = None) -> None:
        self.nic, self.packets, self.queue = nic, packets, queue
        self.seen = 0

    def _now(self) -> int:
        if self.queue is None:
            return self.nic.received()
        queues = self.nic.by_queue()
        if self.queue >= len(queues):
            raise Gone("queue")
        return queues[self.queue]

    def enough(self) -> bool:
        """Waits a moment for them, without taking the CPU from who receives them."""
        for _attempt in range(ATTEMPTS):
            now = self._now()
            if now < self.seen:
                self.seen = 0  # bound anew: it counts from the start
            if now - self.seen >= self.packets:
                self.seen = now
                return True
            time.sleep(LOOK_S)
        return False


def link(nic: Nic, chance: random.Random) -> None:
    nic.set_up(False)
    time.sleep(chance.uniform(0, 0.05))
    nic.set_up(True)


def hotplug(_nic: Nic, chance: random.Random) -> None:
    write(CPU, "0")
    time.sleep(chance.uniform(0, 0.05))
    write(CPU, "1")


# Of threads that receive; real-time ones of low priority, for a moment only.
POLICIES = ((os.SCHED_OTHER, 0), (os.SCHED_BATCH, 0), (os.SCHED_FIFO, 3), (os.SCHED_RR, 2))


def reschedule(pid: int, chance: random.Random) -> None:
    """Other CPUs and another class for a thread, then the ordinary one."""
    policy, priority = chance.choice(POLICIES)
    with contested():
        os.sched_setaffinity(pid, chance.choice(({0}, {0, 1})))
        os.sched_setscheduler(pid, policy, os.sched_param(priority))
        time.sleep(chance.uniform(0, 0.02))
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


Disturber = Callable[[Nic, random.Random], None]


class Board:
    """What all processes write on: ``counts`` of successes, ``acts`` of successes and failures.

    ``wanted`` is how often each key is to be counted at least, ``pace`` the one of these that no
    disturber may be far ahead of, and ``also`` are keys without a limit.
    """

    def __init__(
        self, wanted: Mapping[str, int], pace: str, also: Iterable[str], seconds: float
    ) -> None:
        self.wanted, self.pace = dict(wanted), pace
        self.keys = [*wanted, *also]
        self.counts = mp.Array("q", len(self.keys))
        self.acts = mp.Array("q", len(self.keys))
        self.end = time.monotonic() + seconds

    def add(self, key: str) -> None:
        with self.counts:
            self.counts[self.keys.index(key)] += 1

    def acted(self, key: str) -> None:
        self.acts[self.keys.index(key)] += 1

    def done(self, key: str) -> float:
        """The part of what is wanted."""
        return int(self.counts[self.keys.index(key)]) / self.wanted[key]

    def ahead(self, role: str) -> bool:
        return self.done(role) > self.done(self.pace) + AHEAD

    def over(self) -> bool:
        return time.monotonic() > self.end or all(self.done(key) >= 1 for key in self.wanted)

    def told(self) -> dict[str, int]:
        return {key: int(self.counts[place]) for place, key in enumerate(self.keys)}


def disturb(board: Board, nic: Nic, role: str, disturber: Disturber, chance: random.Random) -> None:
    """Pauses for about as long as it acts, and the longer the more often it came too late: where
    all acted all the time, each would undo what the others are at, and hardly one succeed.
    """
    late = 0
    while not board.over():
        began = time.monotonic()
        try:
            disturber(nic, chance)
            board.add(role)
            late = 0
        except Gone:
            late += 1
        board.acted(role)
        longest = (time.monotonic() - began) * 2 ** (min(late, LATE) + 1)
        time.sleep(min(chance.uniform(0, longest), PAUSE_S))
        # Who is ahead leaves the others more of the time.
        while board.ahead(role) and not board.over():
            board.acted(role)
            time.sleep(0.1)


def watch(board: Board, children: Mapping[str, BaseProcess]) -> list[str]:
    """Waits for all to end; the roles that do not act any more, should there be any."""
    last = {role: (-1, time.monotonic()) for role in children}
    told = time.monotonic()
    while any(child.is_alive() for child in children.values()):
        time.sleep(0.5)
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            # On the guest's console, for who waits; its level is that of a notice.
            Path("/dev/kmsg").write_text(f"<5>stress: {board.told()}\n")
        for role, child in children.items():
            acts = board.acts[board.keys.index(role)]
            if acts != last[role][0] or not child.is_alive():
                last[role] = (acts, time.monotonic())
        stuck = [role for role, (_, at) in last.items() if time.monotonic() - at > STUCK_S]
        if stuck:
            return stuck
    return [role for role, child in children.items() if child.exitcode]


def state(child: BaseProcess) -> str:
    """How it ended, or its state, the command it waits for, and where in the kernel both are."""
    if not child.is_alive():
        return f"ended with {child.exitcode}"
    who = ["--pid", str(child.pid), "--ppid", str(child.pid)]
    shown = subprocess.run(
        ["ps", "-o", "pid=,stat=,wchan:30=,args=", *who], capture_output=True, text=True
    )
    rows = [row.split(maxsplit=1) for row in shown.stdout.splitlines()]
    return "\n".join(line for pid, row in rows for line in (row, *evidence.stack(pid)))


def contest(board: Board, works: Mapping[str, Callable[[], None]]) -> dict[str, Any]:
    """Runs each work in a process of its own: counts, seconds, and {role: its state} if stuck.

    With a role that is stuck also what all other tasks are at, see evidence.py.
    """
    started = time.monotonic()
    children = {}
    for role, work in works.items():
        children[role] = mp.get_context("fork").Process(target=work, daemon=True)
        children[role].start()
    stuck = watch(board, children)
    outcome = {
        "counts": board.told(),
        "seconds": round(time.monotonic() - started),
        "stuck": {role: state(children[role]) for role in stuck},
        "faults": [],
    }
    return outcome | (evidence.evidence() if stuck else {})


def conclude(outcome: dict[str, Any]) -> NoReturn:
    """Prints the outcome. A child in uninterruptible sleep cannot be waited for."""
    print(json.dumps(outcome), flush=True)
    os._exit(0)


def attempt(*steps: Callable[[], None]) -> None:
    """What disturbers may have left in the middle; what is done already does not matter."""
    for step in steps:
        try:
            step()
        except Gone:
            continue


def quiet_queues(nic: Nic, queues: Sequence[int], packets: int, patience: float) -> list[int]:
    """Those of the flooded ``queues`` that do not deliver so many packets in ``patience`` s."""
    if not queues:
        raise ValueError("no queue to look at")
    first, end = nic.by_queue(), time.monotonic() + patience
    quiet = list(queues)
    while quiet and time.monotonic() < end:
        time.sleep(0.2)
        now = nic.by_queue()
        quiet = [queue for queue in quiet if now[queue] - first[queue] < packets]
    return quiet


def tasks(start: str) -> dict[int, str]:
    """{process ID: name} of all whose name begins like this; one that ends meanwhile has none."""
    found = {}
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = comm.read_text().strip()
        except OSError:
            continue
        if name.startswith(start):
            found[int(comm.parent.name)] = name
    return found


def tasks_named(start: str) -> list[str]:
    """The names alone."""
    return list(tasks(start).values())
