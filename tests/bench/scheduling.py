# SPDX-License-Identifier: GPL-2.0-or-later
"""Who gets the CPU: a NAPI thread under full flood, or a CPU hog of nice 0 beside it, on one CPU.

Seed 000 promises that NAPI polling in a thread is the scheduler's to share out. What the scheduler
makes of each policy follows from its own rules and stands beside what was measured:

* nice: shares as the weights of the two, which are 1.25 times apart for each step of nice;
* SCHED_FIFO: all but what the fair server keeps for others, 50 ms of each second, or all that
  polling takes;
* SCHED_DEADLINE: the runtime over the period.

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
SCRIPT = Path(__file__).parent / "tools" / "cpu_shares.py"
WINDOW_MS = 3000
STEP = 1.25  # weight of a nice level over that of the next (kernel/sched/core.c)
FAIR_SERVER = 0.05
PERIOD_MS = 10
Say = Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    """Of the NAPI thread; ``value`` is a nice value, a priority or ms of each PERIOD_MS."""

    name: str
    value: int
    mode: Mode = Mode.THREADED

    @property
    def label(self) -> str:
        if self.mode is Mode.SOFTIRQ:
            return "softirq"
        unit = {"other": "nice", "fifo": "SCHED_FIFO", "deadline": "SCHED_DEADLINE"}[self.name]
        return f"{unit} {self.value}" + (f" of {PERIOD_MS} ms" if self.name == "deadline" else "")

    @property
    def expected(self) -> float | None:
        """Share of the NAPI thread, should it always have something to poll."""
        if self.mode is Mode.SOFTIRQ:
            return None
        if self.name == "deadline":
            return self.value / PERIOD_MS
        if self.name == "fifo":
            return 1 - FAIR_SERVER
        weight = STEP**-self.value
        return weight / (weight + 1)


POLICIES = (
    Policy("other", 0, Mode.SOFTIRQ),
    Policy("other", -10),
    Policy("other", 0),
    Policy("other", 10),
    Policy("fifo", 50),
    Policy("deadline", 3),
)


@dataclass(frozen=True)
class Shares:
    """Of one CPU, runs of one policy."""

    policy: Policy
    napi: Summary
    hog: Summary


def measure(bench: Bench, rounds: int, say: Say) -> list[Shares]:
    bench.guest.put(SCRIPT, f"{flood.REMOTE}/{SCRIPT.name}")
    rate = bench.full_rate(FLOWS, SIZE)

    def run(policy: Policy) -> tuple[float, float]:
        bench.set_mode(policy.mode)
        pids = bench.napi_threads()
        argv = ["python3", f"{flood.REMOTE}/{SCRIPT.name}", policy.name, str(policy.value)]
        with bench.flooding(FLOWS, SIZE, rate):
            done = bench.guest.run([*argv, str(WINDOW_MS), *pids])
        shares = json.loads(done.stdout)
        say(f"{policy.label}: NAPI {shares['napi']:.2f}, hog {shares['hog']:.2f}")
        return shares["napi"], shares["hog"]

    read = in_turn(POLICIES, rounds, run)
    return [
        Shares(policy, summary([napi for napi, _ in read[policy]]),
               summary([hog for _, hog in read[policy]]))
        for policy in POLICIES
    ]  # fmt: skip
