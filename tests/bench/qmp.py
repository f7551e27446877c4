# SPDX-License-Identifier: GPL-2.0-or-later
"""Two words with QEMU's monitor: which host threads are virtual CPUs, and hold the machine."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ANSWER_S = 30


class MonitorRefused(Exception):
    """QEMU's monitor answered with an error or not at all."""


def answer(lines: Iterator[str], command: str) -> Any:
    """What the monitor returned, events that come between left out. MonitorRefused."""
    for line in lines:
        said = json.loads(line)
        if "return" in said:
            return said["return"]
        if "error" in said:
            raise MonitorRefused(f"{command}: {said['error']['desc']}")
    raise MonitorRefused(f"{command}: QEMU has ended")


def ask(folder: Path, command: str) -> Any:
    """What the monitor of the guest in ``folder`` returns to ``command``."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(ANSWER_S)
        monitor.connect(str(folder / "qmp"))
        with monitor.makefile("rw") as talk:
            talk.readline()  # the greeting
            found = None
            for word in ("qmp_capabilities", command):
                talk.write(json.dumps({"execute": word}) + "\n")
                talk.flush()
                found = answer(iter(talk.readline, ""), word)
            return found


def virtual_cpus(folder: Path) -> list[int]:
    """Host thread ids of the virtual CPUs, by their number."""
    cpus = sorted(ask(folder, "query-cpus-fast"), key=lambda cpu: int(cpu["cpu-index"]))
    return [int(cpu["thread-id"]) for cpu in cpus]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The machine stands still, its clocks too, and takes none of the host's CPU time."""
    ask(folder, "stop")
    try:
        yield
    finally:
        ask(folder, "cont")
