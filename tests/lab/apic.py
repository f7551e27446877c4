# SPDX-License-Identifier: GPL-2.0-or-later
"""The timers of a guest's CPUs, as QEMU shows them of their local APICs."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from lab import monitor
from lab.monitor import MonitorRefused

LVTT = re.compile(r"^LVTT\s.*\(vec (\d+)\)", re.MULTILINE)
COUNT = re.compile(r"initial_count = (\d+) current_count = (\d+)")
REQUESTED = re.compile(r"^IRR\s+(.*)", re.MULTILINE)
IN_SERVICE = re.compile(r"^ISR\s+(.*)", re.MULTILINE)
# How often Watch looks, and how many times in a row what it saw counts.
LOOK_S, LOOKS = 10.0, 3


@dataclass(frozen=True)
class Timer:
    """That of a CPU; ``left`` when its interrupt is in service and requested once more.

    The kernel ends the interrupt before anything else that it does in it. On a CPU that is idle
    the emulation has lost it then, or its end, and with it every later one.
    """

    cpu: int
    left: bool
    told: str

    def __str__(self) -> str:
        return f"CPU {self.cpu}'s timer{self.told}"


def timers(folder: Path, count: int) -> list[Timer]:
    """Those of the ``count`` CPUs of the guest in ``folder``. MonitorRefused."""
    return [timer(cpu, monitor.ask_human(folder, "info lapic", cpu)) for cpu in range(count)]


def timer(cpu: int, apic: str) -> Timer:
    """By what QEMU shows of the CPU's APIC.

    One that has run down, on a CPU that is idle, with no interrupt requested or in service: its
    interrupt was lost, or the kernel forgot to set it once more.
    """
    row, count = LVTT.search(apic), COUNT.search(apic)
    requested, in_service = REQUESTED.search(apic), IN_SERVICE.search(apic)
    if not (row and count and requested and in_service):
        return Timer(cpu, False, " is not shown")
    masked = " (masked)" if "masked" in row[0] else ""
    left = row[1] in requested[1].split() and row[1] in in_service[1].split()
    told = (
        f"{masked}: {count[2]} of {count[1]} left, "
        f"requested {requested[1].strip()}, in service {in_service[1].strip()}"
    )
    return Timer(cpu, left, told)


class Watch:
    """Looks after the timers of a guest that boots."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._seen = dict.fromkeys(range(count), 0)
        self._next = time.monotonic() + LOOK_S

    def lost(self) -> Timer | None:
        """One that was ``left`` whenever looked at, LOOKS times in a row; asks now and then."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + LOOK_S
        try:
            found = timers(self._folder, self._count)
        except (OSError, MonitorRefused):
            return None  # it does not listen yet, or has ended, which its process tells
        for one in found:
            self._seen[one.cpu] = self._seen[one.cpu] + 1 if one.left else 0
        return next((one for one in found if self._seen[one.cpu] >= LOOKS), None)
