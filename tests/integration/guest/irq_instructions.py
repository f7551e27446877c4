#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What one interrupt of a NIC costs; prints it in nanoseconds as JSON.

Runs in a guest of one CPU whose clocks count instructions, as root, and imports nothing of rxlane:
``irq_instructions.py INTERFACE``, an igb. Software may have this device raise the interrupt of a
queue; it comes before the next instruction, has the NAPI polled in softirq, which finds nothing,
and is enabled again. The same number of writes that raise none is taken off.
"""

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

# Extended interrupt cause set, and mask clear, of igb/e1000_regs.h; the bit of vector 1, which is
# the receive queue's. To clear nothing does nothing.
EICS, EIMC, QUEUE = 0x01520, 0x01528, 1 << 1
# A round is shorter than the time between two clock ticks, so there are such without.
ROUNDS, WRITES = 200, 100
# Passes of a loop until the next: at its fastest the device puts an interrupt off for 4 us.
SPINS = 80


def registers(interface: str) -> memoryview:
    """Those of the device, in words of 32 bits."""
    descriptor = os.open(f"/sys/class/net/{interface}/device/resource0", os.O_RDWR | os.O_SYNC)
    size = os.fstat(descriptor).st_size
    return memoryview(mmap.mmap(descriptor, size)).cast("I")


def took(device: memoryview, register: int, value: int) -> int:
    began = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    for _ in range(WRITES):
        device[register // 4] = value
        for _ in range(SPINS):
            pass
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - began


def came(interface: str) -> tuple[int, int]:
    """How many interrupts the CPU has counted: of the device's queue, and of the CPU's timer."""
    rows = [row.split() for row in Path("/proc/interrupts").read_text().splitlines()[1:]]
    of_queue = sum(int(row[1]) for row in rows if row[-1] == f"{interface}-rx-0")
    return of_queue, sum(int(row[1]) for row in rows if row[0] == "LOC:")


def undisturbed(interface: str, device: memoryview, register: int, value: int) -> tuple[int, int]:
    """(interrupts of the queue, nanoseconds) of a round in which no clock tick came."""
    while True:
        before = came(interface)
        spent = took(device, register, value)
        after = came(interface)
        if after[1] == before[1]:
            return after[0] - before[0], spent


def middle(spent: Iterable[int]) -> float:
    """The mean of the middle half: other processes run in some rounds."""
    inner = sorted(spent)
    return statistics.fmean(inner[len(inner) // 4 : -(len(inner) // 4)])


def main() -> int:
    interface = sys.argv[1]
    # Or interrupts are put off and gathered.
    subprocess.run(["ethtool", "-C", interface, "rx-usecs", "0"], check=True)
    device = registers(interface)
    raising, blank = [], []
    for _ in range(ROUNDS):
        raising.append(undisturbed(interface, device, EICS, QUEUE))
        blank.append(undisturbed(interface, device, EIMC, 0))
    # QEMU's device raises each of them twice.
    usual = statistics.mode(counted for counted, _spent in raising)
    if usual < WRITES:
        raise SystemExit(f"{interface}: {usual} interrupts came of {WRITES} writes")
    with_all = middle(spent for counted, spent in raising if counted == usual)
    with_none = middle(spent for counted, spent in blank if counted == 0)
    json.dump((with_all - with_none) / usual, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
