#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Let each allocation of the operations that set NAPIs fail, one at a time; print JSON.

Runs in the guest as root on a kernel with FAILSLAB and FAULT_INJECTION, beside napi_contract.py,
and imports nothing of rxlane: ``napi_alloc_failures.py INTERFACE``. Each operation is done with the
first allocation of this task failing (/proc/thread-self/fail-nth), then with the second, and so on
until none is left to fail; then often with the thread that creates kernel threads failing at random
(Documentation/fault-injection). After each the settings must be as before, where the operation was
answered with an error, or as wanted; either, where there was no memory for the answer. The outcome
is ``operations``, {operation: {what came of it: how often}}, and ``faults``, what was none of this.
"""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from napi_contract import A_ID, A_PID, SETTINGS, Netdev, attr, u32  # type: ignore[import-not-found]

# Before each: NAPIs without and with a thread, so that threads come, go, and change.
MODES = {"off": 0, "on": 1, "busy-poll": 2}
UNANSWERED = -1
FAILSLAB = Path("/sys/kernel/debug/failslab")
KTHREADD = 2
# Per cent of kthreadd's allocations, of which a thread needs some ten, and operations at that.
KTHREADD_FAILS, ROUNDS = 7, 60
MOST_ALLOCATIONS = 200
# From "off" these have the kernel make threads.
NEEDS_THREAD = ("threaded on", "threaded busy-poll", "device on", "device busy-poll", "all")

State = dict[str, int]


class Task:
    """This task's own fault injection; the file is held open, so that opening it cannot fail."""

    def __init__(self) -> None:
        self.file = os.open("/proc/thread-self/fail-nth", os.O_RDWR)

    def arm(self, nth: int) -> None:
        os.pwrite(self.file, str(nth).encode(), 0)

    def disarm(self) -> bool:
        """Whether the failure has happened."""
        left = int(os.pread(self.file, 32, 0))
        os.pwrite(self.file, b"0", 0)
        return left == 0


def failslab(**values: object) -> None:
    for name, value in values.items():
        (FAILSLAB / name.replace("_", "-")).write_text(str(value))


class Nic:
    def __init__(self, name: str) -> None:
        self.name, self.netdev = name, Netdev()
        self.index = socket.if_nametoindex(name)
        self.sysfs = os.open(f"/sys/class/net/{name}/threaded", os.O_WRONLY)
        self.napi = min(struct.unpack("I", napi[A_ID])[0] for napi in self.netdev.napis(self.index))

    def states(self) -> dict[int, State]:
        """{ID: settings}; ``pid`` is whether there is a thread."""
        found = {}
        for napi in self.netdev.napis(self.index):
            state = {name: struct.unpack("I", napi[kind])[0] for name, kind in SETTINGS.items()}
            found[struct.unpack("I", napi[A_ID])[0]] = {**state, "pid": int(A_PID in napi)}
        return found

    def set(self, napi: int, **values: int) -> int:
        """The errno of the answer, or UNANSWERED."""
        body = b"".join(attr(SETTINGS[name], u32(value)) for name, value in values.items())
        try:
            return int(self.netdev.napi_set(attr(A_ID, u32(napi)) + body)["errno"])
        except OSError:  # no memory for the request or for its acknowledgement
            return UNANSWERED

    def set_device(self, mode: int) -> int:
        try:
            os.pwrite(self.sysfs, str(mode).encode(), 0)
        except OSError as error:
            return error.errno or UNANSWERED
        return 0

    def reset(self, mode: int) -> None:
        for napi in self.states():
            if self.set(napi, defer=0, flush=0, suspend=0, threaded=mode):
                raise SystemExit(f"{self.name}: NAPI {napi} cannot be reset")


Operation = Callable[[], int]


def operations(nic: Nic) -> dict[str, tuple[Operation, Callable[[State], State], bool]]:
    """{name: (what to do, the settings it wants, whether for all NAPIs)}."""

    def one(values: State) -> tuple[Operation, Callable[[State], State], bool]:
        thread = {"pid": int(bool(values["threaded"]))} if "threaded" in values else {}
        return lambda: nic.set(nic.napi, **values), lambda old: {**old, **values, **thread}, False

    def device(mode: int) -> tuple[Operation, Callable[[State], State], bool]:
        new = {"threaded": mode, "pid": int(bool(mode))}
        return lambda: nic.set_device(mode), lambda old: {**old, **new}, True

    found = {f"threaded {name}": one({"threaded": mode}) for name, mode in MODES.items()}
    found |= {f"device {name}": device(mode) for name, mode in MODES.items()}
    found |= {name: one({name: 7}) for name in ("defer", "flush", "suspend")}
    return {**found, "all": one({"defer": 3, "flush": 9, "suspend": 11, "threaded": 1})}


class Trial:
    """One operation from one start; counts what came of it."""

    def __init__(self, nic: Nic, name: str, start: str) -> None:
        self.nic, self.start = nic, MODES[start]
        self.label = f"{name}, from {start}"
        self.act, self.wants, self.everywhere = operations(nic)[name]
        self.came = {"allocations": 0, "errors": 0, "done": 0, "unanswered": 0}
        self.faults: list[str] = []

    def look(self, before: dict[int, State], code: int, when: str) -> None:
        after = self.nic.states()
        wanted = {
            napi: self.wants(state) if self.everywhere or napi == self.nic.napi else state
            for napi, state in before.items()
        }
        right = {0: (wanted,), UNANSWERED: (before, wanted)}.get(code, (before,))
        if after not in right:
            self.faults.append(f"{self.label}, {when}: answered {code}, {after} not {right}")
        self.came[{0: "done", UNANSWERED: "unanswered"}.get(code, "errors")] += 1

    def each_allocation(self, task: Task) -> None:
        for nth in range(1, MOST_ALLOCATIONS):
            self.nic.reset(self.start)
            before = self.nic.states()
            task.arm(nth)
            code = self.act()
            happened = task.disarm()
            self.look(before, code, f"allocation {nth}")
            if not happened:
                self.came["allocations"] = nth - 1
                return
        self.faults.append(f"{self.label}: more than {MOST_ALLOCATIONS} allocations")

    def at_random(self) -> None:
        """With the creation of kernel threads, which another task does, failing at random."""
        for number in range(ROUNDS):
            self.nic.reset(self.start)
            before = self.nic.states()
            failslab(times=-1)
            code = self.act()
            failslab(times=0)
            self.look(before, code, f"round {number}")


def main() -> None:
    subprocess.run(["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"], check=False)
    failslab(verbose=0, ignore_gfp_wait="N", task_filter="Y", interval=1, times=0)
    failslab(probability=KTHREADD_FAILS)
    Path(f"/proc/{KTHREADD}/make-it-fail").write_text("1")
    nic, task = Nic(sys.argv[1]), Task()
    came: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    for name in operations(nic):
        for start in MODES:
            trial = Trial(nic, name, start)
            trial.each_allocation(task)
            if start == "off" and name in NEEDS_THREAD:
                trial.at_random()
            came[trial.label] = trial.came
            faults += trial.faults
    failslab(probability=0)
    nic.reset(0)
    print(json.dumps({"operations": came, "faults": faults}))


if __name__ == "__main__":
    main()
