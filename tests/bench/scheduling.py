# SPDX-License-Identifier: GPL-2.0-or-later
"""Who gets the CPU: a thread that polls under full flood, or a CPU hog of nice 0 beside it, on one
CPU; and how long such a thread waits for the CPU, beside the same hog, under LIGHT load.

Seed 000 promises that NAPI polling in a thread is the scheduler's to share out, seed 001 the same
of an interrupt's thread. What the scheduler makes of each policy follows from its own rules and
stands beside what was measured:

* nice: shares as the weights of the two, which are 1.25 times apart for each step of nice;
* SCHED_FIFO: all but what the fair server keeps for others, 50 ms of each second, or all that
  polling takes;
* SCHED_DEADLINE: the runtime over the period.

Under light load the thread sleeps between packets, and what it waits for is its turn after the hog.
Softirq mode has no thread to look at: what the hog is left with tells of it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import flood
from bench.flood import Bench, Mode
from bench.seed000 import in_turn
from bench.stats import Summary, summary

FLOWS, SIZE = 25, 64
LIGHT = 1000  # messages a second
SCRIPT = Path(__file__).parent / "tools" / "cpu_shares.py"
WINDOW_MS = 3000
STEP = 1.25  # weight of a nice level over that of the next (kernel/sched/core.c)
FAIR_SERVER = 0.05
PERIOD_MS = 10
Say = Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    """Of the thread that polls; ``value``: a nice value, a priority or ms of each PERIOD_MS."""

    name: str
    value: int
    mode: Mode = Mode.THREADED

    @property
    def label(self) -> str:
        if self.mode is Mode.SOFTIRQ:
            return "softirq"
        unit = {"other": "nice", "fifo": "SCHED_FIFO", "deadline": "SCHED_DEADLINE"}[self.name]
        period = f" of {PERIOD_MS} ms" if self.name == "deadline" else ""
        return f"{self.mode.label}, {unit} {self.value}{period}"

    @property
    def expected(self) -> float | None:
        """Share of the thread, should it always have something to poll."""
        if self.mode is Mode.SOFTIRQ:
            return None
        if self.name == "deadline":
            return self.value / PERIOD_MS
        if self.name == "fifo":
            return 1 - FAIR_SERVER
        weight = STEP**-self.value
        return weight / (weight + 1)


THREADS = (("other", -10), ("other", 0), ("other", 10), ("fifo", 50), ("deadline", 3))
POLICIES = (
    Policy("other", 0, Mode.SOFTIRQ),
    *(Policy(*own, mode) for mode in (Mode.THREADED, Mode.IRQ) for own in THREADS),
)


@dataclass(frozen=True)
class Shares:
    """Runs of one policy: parts of one CPU under full flood, and under light load nanoseconds that
    the thread waits for the CPU, the mean over its turns; None without a thread.
    """

    policy: Policy
    thread: Summary
    hog: Summary
    wait: Summary | None


def measure(bench: Bench, rounds: int, say: Say) -> list[Shares]:
    """All policies; those of interrupts' threads where the kernel can switch to them."""
    bench.guest.put(SCRIPT, f"{flood.REMOTE}/{SCRIPT.name}")
    switched = bool(bench.irq_files())
    policies = [p for p in POLICIES if p.mode is not Mode.IRQ or switched]
    full = bench.full_rate(FLOWS, SIZE)

    def beside_a_hog(policy: Policy, rate: int) -> dict[str, float]:
        pids = bench.threads(policy.mode)
        argv = ["python3", f"{flood.REMOTE}/{SCRIPT.name}", policy.name, str(policy.value)]
        with bench.flooding(FLOWS, SIZE, rate):
            done = bench.guest.run([*argv, str(WINDOW_MS), *pids])
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def run(policy: Policy) -> tuple[float, float, float | None]:
        bench.set_mode(policy.mode)
        shares = beside_a_hog(policy, full)
        text = f"{policy.label}: thread {shares['thread']:.2f}, hog {shares['hog']:.2f}"
        if policy.mode is Mode.SOFTIRQ:
            say(text)
            return shares["thread"], shares["hog"], None
        light = beside_a_hog(policy, LIGHT)
        say(f"{text}; waits {light['wait'] / 1000:.0f} µs in {light['turns']:.0f} turns a second")
        return shares["thread"], shares["hog"], light["wait"]

    read = in_turn(policies, rounds, run)
    return [_shares(policy, read[policy]) for policy in policies]


def _shares(policy: Policy, runs: list[tuple[float, float, float | None]]) -> Shares:
    waits = [wait for _, _, wait in runs if wait is not None]
    return Shares(
        policy, summary([thread for thread, _, _ in runs]), summary([hog for _, hog, _ in runs]),
        summary(waits) if waits else None,
    )  # fmt: skip
