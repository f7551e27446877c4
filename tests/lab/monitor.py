# SPDX-License-Identifier: GPL-2.0-or-later
"""Words with QEMU's monitor (QMP), whose socket is SOCKET in the folder of the guest."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOCKET = "qmp"
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


def ask(folder: Path, command: str, **arguments: object) -> Any:
    """What the monitor of the guest in ``folder`` returns to ``command``. MonitorRefused."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(ANSWER_S)
        monitor.connect(str(folder / SOCKET))
        with monitor.makefile("rw") as talk:
            talk.readline()  # the greeting
            found = None
            for word, given in (("qmp_capabilities", {}), (command, arguments)):
                talk.write(json.dumps({"execute": word, "arguments": given}) + "\n")
                talk.flush()
                found = answer(iter(talk.readline, ""), word)
            return found


def ask_human(folder: Path, command: str, cpu: int) -> str:
    """What the monitor for people shows of a virtual CPU. MonitorRefused."""
    said = ask(folder, "human-monitor-command", **{"command-line": command, "cpu-index": cpu})
    return str(said).replace("\r", "")


def virtual_cpus(folder: Path) -> list[int]:
    """Host thread ids of the virtual CPUs, by their number."""
    cpus = sorted(ask(folder, "query-cpus-fast"), key=lambda cpu: int(cpu["cpu-index"]))
    return [int(cpu["thread-id"]) for cpu in cpus]


def host_seconds(folder: Path) -> list[float]:
    """Of the host's CPU time, what each virtual CPU has had so far, by its number."""
    tick = os.sysconf("SC_CLK_TCK")
    tasks = [Path(f"/proc/{thread}/task/{thread}") for thread in virtual_cpus(folder)]
    # proc_pid_stat(5): a name in brackets, then from the third field on, utime the 14th.
    fields = [(task / "stat").read_text().rpartition(")")[2].split() for task in tasks]
    return [(int(row[14 - 3]) + int(row[15 - 3])) / tick for row in fields]


def on_reset(folder: Path, boots: bool) -> None:
    """Has a reset boot the guest again, or end QEMU, as it does for a guest that panics."""
    ask(folder, "set-action", reboot="reset" if boots else "shutdown")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The machine stands still, its clocks too, and takes none of the host's CPU time."""
    ask(folder, "stop")
    try:
        yield
    finally:
        ask(folder, "cont")
