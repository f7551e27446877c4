#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch the interrupts of a device to threaded mode and back while all else happens; print JSON.

Runs in the guest as root, beside stress.py and what that needs, and imports nothing of rxlane:
``irq_stress.py INTERFACE SWITCHES DISTURBANCES SECONDS SEED``. One process an interrupt switches
it. Others write its affinity, change policy and affinity of the threads, take the link down and up
(which frees interrupts, with most drivers), unbind and bind the driver, and take a CPU offline and
back. Everybody acts until all have acted often enough or SECONDS are over.

A switch counts when the file reads what was written, and PACKETS arrived in the queue of the
interrupt since its last one that did; those of interrupts that serve no flooded queue never count.
While a disturber has taken the traffic away nobody looks for it, until it has brought it back,
which took ``back_s`` at most. At other times, ``watched_s`` in all, ``quiet_s`` is the longest that
a flooded queue was seen without a packet, for which a look that came late counts LATE_S only: then
the guest had no CPU. ``unseen_s`` is the longest between two looks at a queue that got none, and
``queues`` are the flooded ones. For the rest of the outcome see contest() of stress.py.
"""

import errno
import multiprocessing as mp
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.synchronize import Lock
from pathlib import Path

from stress import (  # type: ignore[import-not-found]
    CPU,
    Arrivals,
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
    quiet_queues,
    reschedule,
    tasks,
    tasks_named,
    write,
)

SWITCHES = "switches"
PACKETS = 100
# After the link or the driver came back it may take so long for packets to come.
BACK_S = 60.0
# Between two looks at the counters, and what one that came late counts for.
LOOK_S, WATCH_S, LATE_S = 0.05, 3.0, 0.2
# How the actions of interrupts are called, without the names of interface and device.
KIND = re.compile(r"(?:input|output|rx|tx|TxRx)[-.](\d+)$")
RECEIVING = ("input", "rx", "TxRx")
# Of a write to the file of an interrupt that is just being freed or requested.
MAY_FAIL = (errno.EIO, errno.ENOENT, errno.EOPNOTSUPP)


class Interrupts:
    """Those of a device that users can switch, by the kind at the end of their names."""

    def __init__(self, nic: Nic) -> None:
        # The vectors belong to the PCI device, of which that of virtio is a child.
        place: Path = nic.place
        self.vectors = (place if (place / "msi_irqs").is_dir() else place.parent) / "msi_irqs"
        self.kinds = [kind for kind, path in self._files().items() if switchable(path)]
        # Whoever has one is the only one to switch this interrupt.
        self.locks: dict[str, Lock] = {kind: mp.Lock() for kind in self.kinds}
        self.known: dict[str, Path] = {}

    def _files(self) -> dict[str, Path]:
        found = {}
        try:
            numbers = sorted(os.listdir(self.vectors), key=int)
        except FileNotFoundError:
            return {}
        for number in numbers:
            for path in Path("/proc/irq", number).glob("*/threaded"):
                if match := KIND.search(path.parent.name):
                    found[match[0]] = path
        return found

    def file(self, kind: str) -> Path:
        # It names number and action, so as long as it stands it is that of this kind. To look for
        # it anew takes an emulated guest longer than the switch.
        if kind not in self.known or not self.known[kind].exists():
            self.known = self._files()
        if kind not in self.known:
            raise Gone(kind)
        return self.known[kind]

    def thread(self, kind: str) -> int:
        """The process ID of its thread."""
        start = f"irq/{self.file(kind).parent.parent.name}-"
        pids: list[int] = list(tasks(start))
        if not pids:
            raise Gone(start)
        return pids[0]


def switchable(path: Path) -> bool:
    try:
        path.write_text("0")
    except OSError:
        return False
    return True


def set_mode(path: Path, value: int) -> None:
    # Not by open(), which seeks: procfs answers EINVAL for a file that has just been removed.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in MAY_FAIL:
            raise Fault(f"writing {value} to {path}: {error}") from error
        raise Gone(path) from error


def mode(path: Path) -> int:
    try:
        return int(path.read_text())
    except OSError as error:
        raise Gone(path) from error


def queue_of(kind: str) -> int | None:
    """The receive queue that an interrupt serves, if any."""
    match = KIND.search(kind)
    return int(match[1]) if match and kind.startswith(RECEIVING) else None


def switch(
    board: Board, nic: Nic, interrupts: Interrupts, kind: str, flooded: Sequence[int]
) -> None:
    queue = queue_of(kind)
    counts = queue in flooded
    arrivals = Arrivals(nic, PACKETS, queue if counts else None)
    while not board.over():
        try:
            enough = arrivals.enough()
            with interrupts.locks[kind]:
                path = interrupts.file(kind)
                value = 1 - mode(path)
                set_mode(path, value)
                held = mode(path) == value
            if held and enough:
                board.add(kind)
                if counts:
                    board.add(SWITCHES)
        except Gone:
            time.sleep(0.005)
        board.acted(kind)


class Traffic:
    """Who has ``calm`` has the interface: a disturber that takes it away, or who counts packets."""

    def __init__(self, nic: Nic, queues: list[int]) -> None:
        self.nic, self.queues = nic, queues
        self.calm: Lock = mp.Lock()
        self.quiet, self.unseen = mp.Value("d", 0.0), mp.Value("d", 0.0)
        self.watched, self.back = mp.Value("d", 0.0), mp.Value("d", 0.0)

    def counts(self) -> list[int]:
        found = self.nic.by_queue()
        return [found[queue] for queue in self.queues if queue < len(found)]

    def wait(self) -> None:
        """Until packets arrive on all queues. Raises Fault where they do not."""
        first, began = self.counts(), time.monotonic()
        while (passed := time.monotonic() - began) < BACK_S:
            now = self.counts()
            if len(now) == len(first) == len(self.queues) and all(
                new - old >= PACKETS for old, new in zip(first, now, strict=True)
            ):
                self.back.value = max(self.back.value, passed)
                return
            if len(first) != len(self.queues):
                first = now
            time.sleep(0.05)
        raise Fault(f"packets of the queues {self.queues}: {first}, {BACK_S:.0f} s later {now}")

    def look(self) -> None:
        """Notes for how long no packet came."""
        since = dict.fromkeys(range(len(self.queues)), 0.0)
        counts, at = self.counts(), time.monotonic()
        end = at + WATCH_S
        while time.monotonic() < end:
            time.sleep(LOOK_S)
            new, now = self.counts(), time.monotonic()
            self.watched.value += now - at
            for queue, (old, count) in enumerate(zip(counts, new, strict=True)):
                if count != old:
                    since[queue] = 0.0
                    continue
                since[queue] += min(now - at, LATE_S)
                self.quiet.value = max(self.quiet.value, since[queue])
                self.unseen.value = max(self.unseen.value, now - at)
            counts, at = new, now

    def told(self) -> dict[str, float]:
        """In seconds; see above."""
        values = {"quiet_s": self.quiet, "unseen_s": self.unseen, "watched_s": self.watched,
                  "back_s": self.back}  # fmt: skip
        return {name: round(value.value, 2) for name, value in values.items()}


def observe(board: Board, traffic: Traffic) -> None:
    while not board.over():
        try:
            with traffic.calm:
                traffic.look()
        except Gone as error:
            raise Fault(f"{error} while nobody took it away") from error
        board.add("observer")
        board.acted("observer")
        time.sleep(0.5)


def away(traffic: Traffic, disturber: Disturber, nic: Nic, chance: random.Random) -> None:
    """A disturber that takes the traffic away, and waits for it to come back."""
    with traffic.calm:
        disturber(nic, chance)
        traffic.wait()


def bind(interrupts: Interrupts, nic: Nic, _chance: random.Random) -> None:
    numbers = os.listdir(interrupts.vectors)
    nic.unbind()
    left = [name for number in numbers for name in tasks_named(f"irq/{number}-")]
    if left:
        raise Fault(f"left after unbind: {left}")
    nic.bind()
    nic.set_up(True)
    spread(nic)


def spread(nic: Nic) -> None:
    """The flood's flows differ in ports only, by which igb tells them apart if told so; who does
    by itself, or cannot, refuses.
    """
    words = ["ethtool", "-N", nic.name(), "rx-flow-hash", "udp4", "sdfn"]
    subprocess.run(words, check=False, capture_output=True)


def affinity(interrupts: Interrupts, _nic: Nic, chance: random.Random) -> None:
    """CPUs for an interrupt; the write fails if none of them is online."""
    file = interrupts.file(chance.choice(interrupts.kinds))
    write(file.parent.parent / "smp_affinity_list", chance.choice(("0", "0-1", "1")))


def scheduling(interrupts: Interrupts, _nic: Nic, chance: random.Random) -> None:
    """Policy and CPUs of a thread."""
    kind = chance.choice(interrupts.kinds)
    with interrupts.locks[kind]:
        set_mode(interrupts.file(kind), 1)
        reschedule(interrupts.thread(kind), chance)


def flooded_queues(nic: Nic) -> list[int]:
    """Those that the flood reaches: it is up to the driver how flows are told apart."""
    first = nic.by_queue()
    time.sleep(2)
    pairs = zip(first, nic.by_queue(), strict=True)
    return [queue for queue, (old, new) in enumerate(pairs) if new - old >= PACKETS]


def wrong(
    traffic: Traffic, interrupts: Interrupts, value: int, threads: list[str]
) -> Iterator[str]:
    for kind in interrupts.kinds:
        path = interrupts.file(kind)
        path.write_text(str(value))
        if mode(path) != value:
            yield f"{kind}: not {value} after it was written"
    if quiet := quiet_queues(traffic.nic, traffic.queues, PACKETS, BACK_S):
        yield f"mode {value}: quiet queues {quiet}"
    names = tasks_named("irq/")
    added = len(interrupts.kinds) if value else 0
    if len(names) != len(threads) + added:
        yield f"mode {value}: {names}, before it all {threads}"


def afterwards(nic: Nic, interrupts: Interrupts, traffic: Traffic, threads: list[str]) -> list[str]:
    """What is wrong once it is calm again."""
    attempt(lambda: write(CPU, "1"), nic.bind)
    nic.set_up(True)
    spread(nic)
    traffic.wait()
    return [fault for value in (1, 0, 1, 0) for fault in wrong(traffic, interrupts, value, threads)]


def main() -> None:
    name, switches, disturbances, seconds, seed = sys.argv[1:]
    nic = Nic(name)
    interrupts, threads = Interrupts(nic), tasks_named("irq/")
    spread(nic)
    traffic = Traffic(nic, flooded_queues(nic))
    if not interrupts.kinds or not traffic.queues:
        raise SystemExit(f"{name}: switchable {interrupts.kinds}, flooded {traffic.queues}")
    disturbers: dict[str, Disturber] = {
        "affinity": partial(affinity, interrupts),
        "scheduling": partial(scheduling, interrupts),
        "link": partial(away, traffic, link),
        "bind": partial(away, traffic, partial(bind, interrupts)),
        "hotplug": hotplug,
    }
    wanted = {SWITCHES: int(switches)} | dict.fromkeys(disturbers, int(disturbances))
    board = Board(wanted, SWITCHES, ["observer", *interrupts.kinds], float(seconds))
    works = {"observer": partial(observe, board, traffic)}
    for number, (role, disturber) in enumerate(disturbers.items()):
        chance = random.Random(int(seed) + number)
        works[role] = partial(disturb, board, nic, role, disturber, chance)
    for kind in interrupts.kinds:
        works[kind] = partial(switch, board, nic, interrupts, kind, traffic.queues)
    outcome = contest(board, works) | traffic.told() | {"queues": traffic.queues}
    if not outcome["stuck"]:
        outcome["faults"] = afterwards(nic, interrupts, traffic, threads)
    conclude(outcome)


if __name__ == "__main__":
    main()
