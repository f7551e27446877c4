#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Let each allocation of the operations that set NAPIs fail, one at a time; print JSON.

Runs in the guest as root, beside napi_contract.py and failing.py, which tells how, and imports
nothing of rxlane: ``napi_alloc_failures.py INTERFACE``. After each the settings must be as before,
where the operation was answered with an error, or as wanted; either, where there was no memory for
the answer. The outcome is ``operations``, {operation: {what came of it: how often}}, and
``faults``, what was none of this.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Callable

from failing import UNANSWERED, Task, Trial, finish, prepare  # type: ignore[import-not-found]
from napi_contract import A_ID, A_PID, SETTINGS, Netdev, attr, u32  # type: ignore[import-not-found]

# Before each: NAPIs without and with a thread, so that threads come, go, and change.
MODES = {"off": 0, "on": 1, "busy-poll": 2}
# From "off" these have the kernel make threads.
NEEDS_THREAD = ("threaded on", "threaded busy-poll", "device on", "device busy-poll", "all")

State = dict[str, int]


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
            return int(UNANSWERED)

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


def trial(nic: Nic, name: str, start: str) -> Trial:
    act, wants, everywhere = operations(nic)[name]

    def wanted(before: dict[int, State]) -> dict[int, State]:
        return {
            napi: wants(state) if everywhere or napi == nic.napi else state
            for napi, state in before.items()
        }

    return Trial(f"{name}, from {start}", lambda: nic.reset(MODES[start]), nic.states, act, wanted)


def main() -> None:
    prepare()
    nic, task = Nic(sys.argv[1]), Task()
    came: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    for name in operations(nic):
        for start in MODES:
            tried = trial(nic, name, start)
            tried.each_allocation(task)
            if start == "off" and name in NEEDS_THREAD:
                tried.at_random()
            came[tried.label] = tried.came
            faults += tried.faults
    finish()
    nic.reset(0)
    print(json.dumps({"operations": came, "faults": faults}))


if __name__ == "__main__":
    main()
