#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Let each allocation of changing the number of helper threads fail, one at a time; print JSON.

Runs in the guest as root, beside failing.py, which tells how, and imports nothing of rxlane:
``rx_alloc_failures.py INTERFACE``. After each the threads, their names and what sysfs shows of them
must be as before, where the write failed, or as written. The outcome is ``operations``, {operation:
{what came of it: how often}}, and ``faults``, what was none of this.
"""

import json
import os
import sys
from pathlib import Path

from failing import UNANSWERED, Task, Trial, finish, prepare  # type: ignore[import-not-found]
from stress import tasks_named  # type: ignore[import-not-found]

# From how many threads to how many, on two CPUs.
CHANGES = ((0, 1), (0, 2), (1, 2), (2, 1), (2, 0), (1, 0))

# (what the file reads, names of the threads, names of their directories)
State = tuple[int, tuple[str, ...], tuple[str, ...]]


class Device:
    """The file of one device, held open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path("/sys/class/net", name)
        self.file = os.open(self.folder / "rx_threads", os.O_WRONLY)

    def write(self, count: int) -> int:
        """0 or the errno."""
        try:
            os.pwrite(self.file, str(count).encode(), 0)
        except OSError as error:
            return error.errno or int(UNANSWERED)
        return 0

    def reset(self, count: int) -> None:
        if code := self.write(count):
            raise SystemExit(f"{self.name}: {count} threads: {os.strerror(code)}")

    def state(self) -> State:
        threads = self.folder / "rx_thread"
        own = sorted(os.listdir(threads)) if threads.exists() else []
        count = int((self.folder / "rx_threads").read_text())
        return count, tuple(sorted(tasks_named("rx"))), tuple(own)

    def wanted(self, count: int) -> State:
        numbers = range(count)
        names = tuple(f"rx{number}/{self.name}"[:15] for number in numbers)
        return count, names, tuple(str(number) for number in numbers)


def trial(device: Device, before: int, after: int) -> Trial:
    return Trial(
        f"{after}, from {before}", lambda: device.reset(before), device.state,
        lambda: device.write(after), lambda _: device.wanted(after),
    )  # fmt: skip


def main() -> None:
    prepare()
    device, task = Device(sys.argv[1]), Task()
    came: dict[str, dict[str, int]] = {}
    faults: list[str] = []
    for before, after in CHANGES:
        tried = trial(device, before, after)
        tried.each_allocation(task)
        if after > before:
            tried.in_kthreadd()
        came[tried.label] = tried.came
        faults += tried.faults
    finish()
    device.reset(0)
    print(json.dumps({"operations": came, "faults": faults}))


if __name__ == "__main__":
    main()
