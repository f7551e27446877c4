# SPDX-License-Identifier: GPL-2.0-or-later
"""What the profile leaves an application: work done under a UDP flood, before and after.

The application is pinned to the CPU that takes the flood's interrupts, where a scheduler, RFS or
an administrator may well have put it, and has work of its own. In softirq mode the poll loop takes
that CPU from it. Queue and CPU are observed, not computed: a few packets are sent and
/proc/interrupts tells where they arrived.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bench.flood import (
    BATCH,
    FLOOD_RATE,
    GUEST_ADDRESS,
    LEAD_MS,
    REMOTE,
    RESULT,
    Bench,
    steady,
)
from bench.stats import Ratio, Summary, ratio, summary, turns

FIRST_PORT = 6100
TRIES = 24  # a flow lands on one of the laid-out queues with each try at worst evens
PROBE_RATE = 1000
PROBE_MS = 600
WINDOW_MS = 2000
SIZE = 64
ROUNDS = 3
SETTLE_STEPS = 6  # the sender starts after the window has begun

Interrupts = Counter[tuple[int, int]]  # (queue, CPU) -> interrupts taken


class NoLane(Exception):
    """No flow was found that arrives on a laid-out queue."""


@dataclass(frozen=True)
class Target:
    """A flow by its port (source and destination alike), its queue and that queue's CPU."""

    port: int
    queue: int
    cpu: int


@dataclass(frozen=True)
class Gain:
    """Rounds of work a second under flood with the profile off and on.

    No share of an idle CPU is made of them: on a busy host the idle mark, taken at another
    moment, came out below what was done under flood.
    """

    target: Target
    off: Summary
    on: Summary
    ratio: Ratio


def interrupts(table: str, device: str) -> Interrupts:
    """From /proc/interrupts: the rows that virtio_net names ``device-input.Q``."""
    head, *rows = table.splitlines()
    cpus = [int(word.removeprefix("CPU")) for word in head.split()]
    found: Interrupts = Counter()
    for row in rows:
        name = re.search(rf"\b{re.escape(device)}-input\.(\d+)$", row.strip())
        if name:
            counts = row.split()[1 : 1 + len(cpus)]
            for cpu, count in zip(cpus, counts, strict=True):
                found[int(name[1]), cpu] += int(count)
    return found


class Gauge:
    """Finds the flow on a booted guest and floods it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        link = bench.guest.run(["readlink", f"/sys/class/net/{bench.nic}/device"]).stdout
        self.device = link.strip().rsplit("/", 1)[-1]

    def _interrupts(self) -> Interrupts:
        return interrupts(self.bench.guest.read("/proc/interrupts").decode(), self.device)

    def _sender(self, target: Target, rate: int, window_ms: int) -> list[str]:
        return [
            str(self.bench.built["udpflood"]), "--to", GUEST_ADDRESS, "--port", str(target.port),
            "--from-port", str(target.port), "--flows", "1", "--size", str(SIZE),
            "--rate", str(rate), "--batch", str(BATCH), "--ms", str(window_ms + LEAD_MS),
        ]  # fmt: skip

    def _probe(self, port: int) -> None:
        """A few packets to a process that reads them: an unread port would answer by ICMP."""
        guest = self.bench.guest
        guest.run([f"{REMOTE}/udpsink", "--port", str(port), "--flows", "1",
                   "--ms", str(PROBE_MS), "--result", RESULT])  # fmt: skip
        guest.host(self._sender(Target(port, 0, 0), PROBE_RATE, PROBE_MS))
        self.bench.read_sink()

    def _arrival(self, port: int) -> Target | None:
        """Where the flow of this port arrives now; None if nobody was interrupted for it."""
        before = self._interrupts()
        self._probe(port)
        taken = self._interrupts() - before
        if not taken:
            return None
        (queue, cpu), _ = taken.most_common(1)[0]
        return Target(port, queue, cpu)

    def find(self, managed: int) -> Target:
        """A flow that arrives on a queue above the ``managed`` lowest. Raises NoLane."""
        for port in range(FIRST_PORT, FIRST_PORT + TRIES):
            target = self._arrival(port)
            if target is not None and target.queue >= managed:
                return target
        raise NoLane(f"none of {TRIES} flows arrived on a queue from {managed} up")

    def work(self, target: Target) -> float:
        """Rounds a second of the application's own work while the flood lasts."""
        guest = self.bench.guest
        guest.run(
            [f"{REMOTE}/udpsink", "--port", str(target.port), "--flows", "1", "--deaf", "--work",
             "--cpu", str(target.cpu), "--ms", str(WINDOW_MS), "--result", RESULT]
        )  # fmt: skip
        guest.host(self._sender(target, FLOOD_RATE, WINDOW_MS))
        sink = self.bench.read_sink()
        return steady(sink["spun"], sink["step_ms"], SETTLE_STEPS)

    def measure(self, target: Target, switch: Callable[[bool], None], rounds: int = ROUNDS) -> Gain:
        """``switch(on)`` turns the profile on or off; both take turns.

        The application stays on the CPU that took the interrupts when the profile was off.
        """
        read: dict[bool, list[float]] = {False: [], True: []}
        for on in turns([False, True], rounds):
            switch(on)
            if not on:
                # Of the CPUs that the interrupt got back the kernel may have chosen another one.
                target = self._arrival(target.port) or target
            read[on].append(self.work(target))
        return Gain(
            target, summary(read[False]), summary(read[True]), ratio(read[True], read[False])
        )
