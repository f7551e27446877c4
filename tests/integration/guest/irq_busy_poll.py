#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A socket that busy polls beside an interrupt in threaded mode: who polls the NAPI; print JSON.

Runs in the guest as root, beside irq_stress.py and stress.py, and imports nothing of rxlane:
``irq_busy_poll.py INTERFACE``. All interrupts of the interface are in threaded mode. An
application receives what is flooded to it: ``plain`` without and ``busy`` with SO_BUSY_POLL, and
``after`` once it has closed the socket. Each holds the number of polls by tasks, {beginning of the
name: number}, how often the softirq of receiving was raised anywhere, and the packets that the
application received. ``switches`` are how often the mode changed while it busy polled, and after
how many of them it received something.
"""

import json
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from irq_stress import Interrupts  # type: ignore[import-not-found]
from stress import Nic  # type: ignore[import-not-found]

SO_BUSY_POLL, SO_PREFER_BUSY_POLL, SO_BUSY_POLL_BUDGET = 46, 69, 70
BUSY_POLL_US, BUDGET = 1000, 8
PORT, RECEIVE_S = 6000, 2.0
TRACE = Path("/sys/kernel/tracing/instances/irq_busy_poll")
SELF = "application"
# comm-PID of the task, which the trace tells before the CPU in brackets.
POLLED = re.compile(r"^\s*(.+)-(\d+)\s+\[\d+\].*napi_poll: ", re.M)
WORKED = re.compile(r"napi_poll: .* work (\d+) budget (\d+)")
RAISED = re.compile(r"softirq_raise: .*NET_RX")
# NET_RX_SOFTIRQ of include/linux/interrupt.h.
VECTOR = 3


def bound(busy: bool) -> socket.socket:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("0.0.0.0", PORT))
    # It is blocking calls that busy poll, where poll(2) is not told to by a sysctl.
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
    if busy:
        receiver.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, BUSY_POLL_US)
        receiver.setsockopt(socket.SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)
        receiver.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL_BUDGET, BUDGET)
    return receiver


def receive(receiver: socket.socket, seconds: float) -> int:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            receiver.recv(2048)
        except BlockingIOError:
            continue
        count += 1
    return count


def name_of(comm: str, pid: str, known: dict[str, str]) -> str:
    if pid not in known:
        try:
            known[pid] = Path("/proc", pid, "comm").read_text().strip()
        except OSError:
            known[pid] = comm
    return known[pid].partition("-")[0].partition("/")[0]


class Polls:
    """Polls of one interface, by tasks, and how often the softirq of receiving was raised.

    only: those polls alone of which this is true, in the words of a filter of events.
    """

    def __init__(self, name: str, only: str = "") -> None:
        subprocess.run(["mount", "-t", "tracefs", "none", "/sys/kernel/tracing"], check=False,
                       capture_output=True)  # fmt: skip
        TRACE.mkdir(exist_ok=True)
        words = [f'dev_name == "{name}"', *([only] if only else [])]
        (TRACE / "events/napi/napi_poll/filter").write_text(" && ".join(words))
        (TRACE / "events/napi/napi_poll/enable").write_text("1")
        (TRACE / "events/irq/softirq_raise/filter").write_text(f"vec == {VECTOR}")
        (TRACE / "events/irq/softirq_raise/enable").write_text("1")

    def start(self) -> None:
        (TRACE / "trace").write_text("")
        (TRACE / "tracing_on").write_text("1")

    def who(self) -> list[str]:
        """The tasks of all polls since start(), in their order."""
        known: dict[str, str] = {}
        trace = (TRACE / "trace").read_text()
        return [name_of(comm, pid, known) for comm, pid in POLLED.findall(trace)]

    def stop(self) -> dict[str, Any]:
        (TRACE / "tracing_on").write_text("0")
        trace = (TRACE / "trace").read_text()
        full = sum(work == budget for work, budget in WORKED.findall(trace))
        return {"polls": dict(Counter(self.who())), "full": full,
                "raised": len(RAISED.findall(trace))}  # fmt: skip

    def end(self) -> None:
        TRACE.rmdir()


def observed(polls: Polls, receiver: socket.socket | None) -> dict[str, Any]:
    polls.start()
    if receiver is None:
        time.sleep(RECEIVE_S)
        return {**polls.stop(), "received": 0}
    received = receive(receiver, RECEIVE_S)
    return {**polls.stop(), "received": received}


def switched_meanwhile(interrupts: Interrupts, receiver: socket.socket, times: int) -> int:
    """How often the application received something after each of so many switches."""
    lived = 0
    for number in range(times):
        for kind in interrupts.kinds:
            interrupts.file(kind).write_text(str(number % 2))
        lived += bool(receive(receiver, 0.1))
    return lived


def main() -> None:
    nic = Nic(sys.argv[1])
    interrupts = Interrupts(nic)
    polls = Polls(nic.name())
    Path("/proc/self/comm").write_text(SELF)
    for kind in interrupts.kinds:
        interrupts.file(kind).write_text("1")
    seen: dict[str, Any] = {}
    with bound(busy=False) as receiver:
        seen["plain"] = observed(polls, receiver)
    with bound(busy=True) as receiver:
        receive(receiver, 0.2)  # the socket learns of its NAPI by the first packet
        seen["busy"] = observed(polls, receiver)
        seen["switches"] = [20, switched_meanwhile(interrupts, receiver, 20)]
    for kind in interrupts.kinds:
        interrupts.file(kind).write_text("1")
    time.sleep(0.2)
    seen["after"] = observed(polls, None)
    for kind in interrupts.kinds:
        interrupts.file(kind).write_text("0")
    polls.end()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
