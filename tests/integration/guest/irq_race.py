#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch an interrupt of the test module while it is freed, requested and comes in; print JSON.

Runs in the guest as root: ``irq_race.py WRITES``. One process frees and requests the interrupt
without end, with pauses of all lengths up to PAUSE_S, another one has it come in. This one opens
the file and writes 1 and 0 until the interrupt goes away below it. A write counts when the file was
open by then: ``taken`` are those that switched, ``refused`` those that came too late, and
``freed`` says how often the interrupt was. What it is in the end is ``mode``, after a write of 0,
``handled`` is whether it still comes in, and ``overlaps`` how often its handler ran twice at once.
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


def free_often(freed: "Synchronized[int]") -> None:
    while True:
        (DEBUG / "cycle").write_text("1")
        freed.value += 1
        time.sleep(random.uniform(0, PAUSE_S))


def come_in() -> None:
    while True:
        (DEBUG / "fire").write_text(str(AT_ONCE))


def write_until_gone(path: Path, values: int, wanted: int) -> list[int]:
    """The errno of each write to the file opened once, 0 for those taken; the last one fails."""
    try:
        file = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return []
    outcomes: list[int] = []
    try:
        while len(outcomes) < wanted and (not outcomes or outcomes[-1] == 0):
            try:
                os.write(file, str((values + len(outcomes)) % 2).encode())
                outcomes.append(0)
            except OSError as error:
                outcomes.append(error.errno or -1)
    finally:
        os.close(file)
    return outcomes


def race(path: Path, wanted: int) -> list[int]:
    outcomes: list[int] = []
    while len(outcomes) < wanted:
        outcomes += write_until_gone(path, len(outcomes), wanted - len(outcomes))
    return outcomes


def main() -> None:
    path = Path("/proc/irq", str(count("irq")), f"test-threaded-{KIND}", "threaded")
    freed: Synchronized[int] = mp.Value("L", 0)
    others = [mp.Process(target=free_often, args=(freed,)), mp.Process(target=come_in)]
    for process in others:
        process.start()
    outcomes = race(path, int(sys.argv[1]))
    for process in others:
        process.terminate()
        process.join()
    path.write_text("0")
    before = count("hard")
    (DEBUG / "fire").write_text("1")
    print(json.dumps({
        "taken": outcomes.count(0),
        "refused": outcomes.count(LATE),
        "others": sorted({code for code in outcomes} - {0, LATE}),
        "freed": freed.value,
        "mode": int(path.read_text()),
        "handled": count("hard") - before == 1,
        "overlaps": count("overlap"),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
