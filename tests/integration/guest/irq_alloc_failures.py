#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Let each allocation of switching interrupts to threaded mode fail, one at a time; print JSON.

Runs in the guest as root on a kernel with TEST_IRQ_THREADED, beside failing.py and stress.py, and
imports nothing of rxlane: ``irq_alloc_failures.py INTERFACE``. After each the mode must be as
before, where the write failed, or as written, and so must be where the handler runs, and whether
there is a thread. The outcome is ``operations``, {operation: {what came of it: how often}}, and
``faults``, what was none of this.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from failing import Task, Trial, finish, prepare  # type: ignore[import-not-found]
from irq_stress import Interrupts  # type: ignore[import-not-found]
from stress import Nic, tasks_named  # type: ignore[import-not-found]

TEST = Path("/sys/kernel/debug/irq_threaded")
# Kinds of interrupts of the test module that can be switched.
KINDS = ("threadable", "normal")
# A handler that was called in vain for so long, in seconds, is lost.
HANDLED_S = 10.0

# (what the file reads, whether there is a thread, where the handler runs)
State = tuple[int, bool, str]


class Switch:
    """The file of one interrupt, held open, and how to tell where its handler runs."""

    def __init__(self, path: Path, runs_in: Callable[[], str]) -> None:
        self.path, self.runs_in = path, runs_in
        self.file = os.open(path, os.O_WRONLY)

    def write(self, value: int) -> int:
        """0 or the errno."""
        try:
            # Files of interrupts have no position to write at.
            os.write(self.file, str(value).encode())
        except OSError as error:
            return int(error.errno or 0)
        return 0

    def state(self) -> State:
        number = self.path.parent.parent.name
        return (
            int(self.path.read_text()),
            bool(tasks_named(f"irq/{number}-")),
            self.runs_in(),
        )

    def reset(self, value: int) -> None:
        if code := self.write(value):
            raise SystemExit(f"{self.path}: cannot be reset to {value}: {os.strerror(code)}")


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
    return Switch(path, lambda: handled_in(kind))


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
    where = {0: "hard", 1: "thread"}

    def trial(value: int) -> Trial:
        def wanted(before: State) -> State:
            return (value, bool(value), where[value] if before[2] else "")

        return Trial(
            f"{name}: {value}, from {1 - value}", lambda: switch.reset(1 - value), switch.state,
            lambda: switch.write(value), wanted,
        )  # fmt: skip

    return [trial(1), trial(0)]


def main() -> None:
    prepare()
    interrupts, task = Interrupts(Nic(sys.argv[1])), Task()
    switches = {kind: of_test(kind) for kind in KINDS}
    # Where the handler of a device runs is not told; that it is polled is seen elsewhere.
    switches |= {kind: Switch(interrupts.file(kind), lambda: "") for kind in interrupts.kinds[:1]}
    came: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    for name, switch in switches.items():
        came[f"{name}: first"], found = first_time(switch, task, f"{name}: first")
        faults += found
        for tried in trials(switch, name):
            tried.each_allocation(task)
            tried.in_kthreadd()
            came[tried.label] = tried.came
            faults += tried.faults
    finish()
    for switch in switches.values():
        switch.reset(0)
    print(json.dumps({"operations": came, "faults": faults}))


if __name__ == "__main__":
    main()
