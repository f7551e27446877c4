#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch an interrupt of the test module while it is freed, requested and comes in; print JSON.

Runs in the guest as root: ``irq_race.py WRITES``. One process frees and requests the interrupt
without end, with pauses of all lengths up to PAUSE_S, another one has it come in. This one opens
the file, reads it, and writes the other value and this one in turn until the interrupt goes away
below it. A write counts when the file was open by then: ``taken`` are those that switched,
``refused`` those that came too late. ``freed`` says how often the interrupt was, and ``met`` are
the writes of both kinds while it was being freed and requested. What it is in the end is ``mode``,
after a write of 0, ``handled`` is whether it still comes in, and ``overlaps`` how often its handler
ran twice at once.
"""

import errno
import json
import multiprocessing as mp
import os
import random
import sys
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

KIND = "threadable"
DEBUG = Path("/sys/kernel/debug/irq_threaded", KIND)
PAUSE_S, AT_ONCE = 0.02, 100
# Of a write to the file of an interrupt that is being freed, or was.
LATE = errno.EIO


def count(name: str) -> int:
    return int((DEBUG / name).read_text())


def free_often(turns: "Synchronized[int]") -> None:
    """Odd while it is freed and requested."""
    while True:
        turns.value += 1
        (DEBUG / "cycle").write_text("1")
        turns.value += 1
        time.sleep(random.uniform(0, PAUSE_S))


def come_in() -> None:
    while True:
        (DEBUG / "fire").write_text(str(AT_ONCE))


class Writer:
    """The errno of each write, 0 for those taken, and how many met the other process."""

    def __init__(self, path: Path, turns: "Synchronized[int]") -> None:
        self.path, self.turns = path, turns
        self.outcomes: list[int] = []
        self.met = 0

    def _write(self, file: int, value: int) -> int:
        before = self.turns.value
        try:
            os.write(file, str(value).encode())
        except OSError as error:
            return error.errno or -1
        finally:
            self.met += before % 2 == 1 or self.turns.value != before
        return 0

    def until_gone(self, wanted: int) -> None:
        """Writes to the file opened once; the last one fails, or there are enough."""
        try:
            file = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            value = int(os.read(file, 16))
        except OSError:
            os.close(file)
            return
        code = 0
        while code == 0 and len(self.outcomes) < wanted:
            value = 1 - value
            code = self._write(file, value)
            self.outcomes.append(code)
        os.close(file)


def main() -> None:
    path = Path("/proc/irq", str(count("irq")), f"test-threaded-{KIND}", "threaded")
    turns: Synchronized[int] = mp.Value("L", 0)
    others = [mp.Process(target=free_often, args=(turns,)), mp.Process(target=come_in)]
    for process in others:
        process.start()
    writer, wanted = Writer(path, turns), int(sys.argv[1])
    while len(writer.outcomes) < wanted:
        writer.until_gone(wanted)
    for process in others:
        process.terminate()
        process.join()
    path.write_text("0")
    before = count("hard")
    (DEBUG / "fire").write_text("1")
    outcomes = writer.outcomes
    print(json.dumps({
        "taken": outcomes.count(0),
        "refused": outcomes.count(LATE),
        "others": sorted({code for code in outcomes} - {0, LATE}),
        "freed": turns.value // 2,
        "met": writer.met,
        "mode": int(path.read_text()),
        "handled": count("hard") - before == 1,
        "overlaps": count("overlap"),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
