#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Let each allocation of switching interrupts to threaded mode fail, one at a time; print JSON.

Runs in the guest as root on a kernel with TEST_IRQ_THREADED, beside failing.py, irq_busy_poll.py,
irq_stress.py and stress.py, and imports nothing of rxlane: ``irq_alloc_failures.py INTERFACE``. The
interface has traffic. After each write the mode must be as before, where it failed, or as written,
and so must be where the handler runs, or who polls the NAPI, whether there is a thread, and the
CPUs that were asked for it. An interrupt that is freed and requested again may have lost its
thread, then in whole, and the next time has it back. The outcome is ``operations``, {operation:
{what came of it: how often}}, and ``faults``, what was none of this.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from failing import (  # type: ignore[import-not-found]
    KTHREADD,
    MOST_ALLOCATIONS,
    ROUNDS,
    Task,
    Trial,
    finish,
    inject,
    prepare,
)
from irq_busy_poll import Polls  # type: ignore[import-not-found]
from irq_stress import Interrupts  # type: ignore[import-not-found]
from stress import Nic, tasks  # type: ignore[import-not-found]

TEST = Path("/sys/kernel/debug/irq_threaded")
# Kinds of interrupts of the test module that can be switched.
KINDS = ("threadable", "normal")
# A handler that was called in vain for so long, in seconds, is lost.
HANDLED_S = 10.0

# What the threads may run on, of those that are asked for it.
CPUS = {0}

# (what the file reads, whether there is a thread, where the handler runs, the thread's CPUs if such
# were asked for)
State = tuple[int, bool, str, frozenset[int]]
HARD: State = (0, False, "hard", frozenset())


class Switch:
    """The file of one interrupt, held open, and how to tell where its handler runs."""

    def __init__(self, path: Path, runs_in: Callable[[], str], pinned: bool) -> None:
        self.path, self.runs_in, self.pinned = path, runs_in, pinned
        self.file = os.open(path, os.O_WRONLY)
        self.threaded: State = (1, True, "thread", frozenset(CPUS if pinned else ()))

    def reopen(self) -> None:
        """After the interrupt was freed."""
        os.close(self.file)
        self.file = os.open(self.path, os.O_WRONLY)

    def write(self, value: int) -> int:
        """0 or the errno."""
        try:
            # Files of interrupts have no position to write at.
            os.write(self.file, str(value).encode())
        except OSError as error:
            return int(error.errno or 0)
        return 0

    def threads(self) -> list[int]:
        return list(tasks(f"irq/{self.path.parent.parent.name}-"))

    def state(self) -> State:
        threads = self.threads()
        cpus = frozenset().union(*(os.sched_getaffinity(pid) for pid in threads))
        mode = int(self.path.read_text())
        return mode, bool(threads), self.runs_in(), cpus if self.pinned else frozenset()

    def reset(self, value: int) -> None:
        if code := self.write(value):
            raise SystemExit(f"{self.path}: cannot be reset to {value}: {os.strerror(code)}")

    def pin(self) -> None:
        """What users ask for is kept for the threads that follow."""
        if self.pinned:
            for pid in self.threads():
                os.sched_setaffinity(pid, CPUS)


def counts(kind: str) -> dict[str, int]:
    return {where: int((TEST / kind / where).read_text()) for where in ("hard", "thread")}


def handled_in(kind: str) -> str:
    """Where the handler of a test interrupt runs, when one comes in."""
    before = counts(kind)
    (TEST / kind / "fire").write_text("1")
    end = time.monotonic() + HANDLED_S
    while time.monotonic() < end:
        now = counts(kind)
        if moved := [where for where in now if now[where] != before[where]]:
            return "+".join(moved)
        time.sleep(0.001)
    return "nowhere"


def of_test(kind: str) -> Switch:
    number = (TEST / kind / "irq").read_text().strip()
    path = Path(f"/proc/irq/{number}/test-threaded-{kind}/threaded")
    # The other ones' threads follow the interrupt.
    return Switch(path, lambda: handled_in(kind), pinned=kind == "normal")


def polled_in(polls: Polls) -> str:
    """Who of the next ones that find packets polls last; the first may still be on its way out."""
    end = time.monotonic() + HANDLED_S
    polls.start()
    while len(found := polls.who()) < 3 and time.monotonic() < end:
        time.sleep(0.005)
    polls.stop()
    if not found:
        return "nowhere"
    return "thread" if found[-1] == "irq" else "hard"


def of_device(nic: Nic) -> tuple[str, Switch]:
    """Of the only receive queue."""
    nic.set_channels(1)
    interrupts = Interrupts(nic)
    kind = interrupts.kinds[0]
    polls = Polls(nic.name(), "work > 0")
    return kind, Switch(interrupts.file(kind), lambda: polled_in(polls), pinned=True)


def first_time(switch: Switch, task: Task, label: str) -> tuple[dict[str, int], list[str]]:
    """What is allocated once for an interrupt, when it is first switched on."""
    came = {"errors": 0, "done": 0}
    faults: list[str] = []
    before = switch.state()
    for nth in range(1, 50):
        task.arm(nth)
        code = switch.write(1)
        task.disarm()
        if code == 0:
            came["done"] += 1
            return came, faults
        came["errors"] += 1
        if switch.state() != before:
            faults.append(f"{label}, allocation {nth}: {switch.state()} not {before}")
    return came, [*faults, f"{label}: never done"]


def trials(switch: Switch, name: str) -> list[Trial]:
    """From 0 to 1 and back."""
    after = {0: HARD, 1: switch.threaded}

    def trial(value: int) -> Trial:
        return Trial(
            f"{name}: {value}, from {1 - value}", lambda: switch.reset(1 - value), switch.state,
            lambda: switch.write(value), lambda _before: after[value],
        )  # fmt: skip

    return [trial(1), trial(0)]


class Requested:
    """An interrupt in threaded mode is freed and requested again while memory lacks."""

    def __init__(self, kind: str, switch: Switch) -> None:
        self.file, self.switch = TEST / kind / "cycle", switch
        self.label = f"{kind}: requested again"
        self.came = {"errors": 0, "without": 0, "done": 0}
        self.faults: list[str] = []

    def _cycle(self) -> bool:
        try:
            self.file.write_text("1")
        except OSError:
            return False
        return True

    def _state(self) -> State | None:
        """None without a file: what /proc lacks, interrupts do without."""
        try:
            return self.switch.state()
        except FileNotFoundError:
            return None

    def once(self, arm: Callable[[], None], disarm: Callable[[], bool], when: str) -> bool:
        """Whether there was something to fail."""
        arm()
        done = self._cycle()
        happened = disarm()
        after = self._state() if done else None
        if after not in (None, HARD, self.switch.threaded):
            self.faults.append(f"{self.label}, {when}: {after}")
        self.came[{None: "errors", HARD: "without"}.get(after, "done")] += 1
        if after != self.switch.threaded:
            self._back(when)
        return happened

    def _back(self, when: str) -> None:
        """The mode was not forgotten."""
        done = self._cycle()
        after = self.switch.state() if done else None
        if after != self.switch.threaded:
            self.faults.append(f"{self.label}, after {when}: {after} not {self.switch.threaded}")

    def each_allocation(self, task: Task, whose: str) -> None:
        for nth in range(1, MOST_ALLOCATIONS):
            if not self.once(lambda: task.arm(nth), task.disarm, f"{whose} {nth}"):  # noqa: B023
                return
        self.faults.append(f"{self.label}: more than {MOST_ALLOCATIONS} {whose}")

    def in_kthreadd(self) -> None:
        self.each_allocation(Task(str(KTHREADD)), "of kthreadd")
        for number in range(ROUNDS):
            self.once(lambda: inject(times=-1), lambda: bool(inject(times=0)), f"round {number}")


def main() -> None:
    prepare()
    nic, task = Nic(sys.argv[1]), Task()
    switches = {kind: of_test(kind) for kind in KINDS} | dict([of_device(nic)])
    came: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    for name, switch in switches.items():
        came[f"{name}: first"], found = first_time(switch, task, f"{name}: first")
        faults += found
        switch.pin()
        for tried in trials(switch, name):
            tried.each_allocation(task)
            tried.in_kthreadd()
            came[tried.label] = tried.came
            faults += tried.faults
    for kind in KINDS:
        switches[kind].reset(1)
        again = Requested(kind, switches[kind])
        again.each_allocation(task, "allocations")
        again.in_kthreadd()
        switches[kind].reopen()
        came[again.label] = again.came
        faults += again.faults
    finish()
    for switch in switches.values():
        switch.reset(0)
    print(json.dumps({"operations": came, "faults": faults}))


if __name__ == "__main__":
    main()
