#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Let each allocation of the operations that set NAPIs fail, one at a time; print JSON.

Runs in the guest as root, beside napi_contract.py and failing.py, which tells how, and imports
nothing of rxlane: ``napi_alloc_failures.py INTERFACE``. After each the settings must be as before,
where the operation was answered with an error, or as wanted; either, where there was no memory for
the answer. Threads are also made for NAPIs that never had one, of a netdevsim that is new each
time. The outcome is ``operations``, {operation: {what came of it: how often}}, and ``faults``, what
was none of this.
"""

import errno
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from failing import UNANSWERED, Task, Trial, finish, prepare  # type: ignore[import-not-found]
from napi_contract import A_ID, A_PID, SETTINGS, Netdev, attr, u32  # type: ignore[import-not-found]

# Before each: NAPIs without and with a thread, so that threads come, go, and change.
BUSY_POLL = 2
MODES = {"off": 0, "on": 1, "busy-poll": BUSY_POLL}
# From "off" these have the kernel make threads.
NEEDS_THREAD = ("threaded on", "threaded busy-poll", "device on", "device busy-poll", "all")

BUS, NUMBER, QUEUES = Path("/sys/bus/netdevsim"), 78, 2

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

    def takes(self, mode: int) -> bool:
        """Whether the whole device does: mainline knows busy-poll for single NAPIs only."""
        return self.set_device(mode) != errno.EOPNOTSUPP

    def reset(self, mode: int) -> None:
        for napi in self.states():
            if self.set(napi, defer=0, flush=0, suspend=0, threaded=mode):
                raise SystemExit(f"{self.name}: NAPI {napi} cannot be reset")


class NewNic(Nic):
    """A netdevsim, made anew for each trial."""

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, mode: int) -> None:
        if (BUS / "devices" / f"netdevsim{NUMBER}").exists():
            os.close(self.sysfs)
            self.netdev.sock.close()
            (BUS / "del_device").write_text(str(NUMBER))
        (BUS / "new_device").write_text(f"{NUMBER} 1 {QUEUES}")
        name = os.listdir(BUS / "devices" / f"netdevsim{NUMBER}" / "net")[0]
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        super().__init__(name)


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


def trial(nic: Nic, name: str, start: str, mode: int) -> Trial:
    act, wants, everywhere = operations(nic)[name]

    def wanted(before: dict[int, State]) -> dict[int, State]:
        return {
            napi: wants(state) if everywhere or napi == nic.napi else state
            for napi, state in before.items()
        }

    return Trial(f"{name}, {start}", lambda: nic.reset(mode), nic.states, act, wanted)


def main() -> None:
    prepare()
    nic, new, task = Nic(sys.argv[1]), NewNic(), Task()
    names = list(operations(nic))
    if not nic.takes(BUSY_POLL):
        names.remove("device busy-poll")
    came: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    for name in names:
        for start, mode in MODES.items():
            tried = trial(nic, name, f"from {start}", mode)
            tried.each_allocation(task)
            if start == "off" and name in NEEDS_THREAD:
                tried.in_kthreadd()
            came[tried.label] = tried.came
            faults += tried.faults
    for name in NEEDS_THREAD:
        if name in names:
            tried = trial(new, name, "the first", 0)
            tried.each_allocation(task)
            came[tried.label] = tried.came
            faults += tried.faults
    finish()
    nic.reset(0)
    print(json.dumps({"operations": came, "faults": faults}))


if __name__ == "__main__":
    main()
