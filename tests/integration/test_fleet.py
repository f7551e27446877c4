# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: planning alone, for a fleet of recorded hosts and for ever more queues.

Hosts are recordings as text, as `rxlane record` writes them, each another one. CPU time of this
process is counted, so that other work on the machine adds little; best of several.
"""

import gc
import json
import math
import os
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rxlane import codec, policy
from rxlane.decide import decide
from rxlane.model import Snapshot
from rxlane.sections import Policy
from unit import synthetic

pytestmark = pytest.mark.long

# How many hosts; less for a quick look.
HOSTS = int(os.environ.get("RXLANE_FLEET", "10000"))
QUEUES = 128
READINGS = 3  # a plan may cost so many times the reading of its snapshot
EXPONENT = 1.1
GROWTH = 4 << 10  # KB that the second half of the fleet may add to the memory
SIZES = (8, 64, 512, 4096)
ASKED = {
    "napi": {"threaded": "on", "management_queues": "1", "thread_cpus": "auto",
             "defer_hard_irqs": "100", "gro_flush_timeout": "15000"},
    "irq_layout": {"irq_cpus": "auto"},
    "flow_steering": {"rps": "auto", "rfs": "auto", "xps": "auto"},
}  # fmt: skip


def asked() -> Policy:
    return policy.parse(policy.Given(kind, kind, (), options) for kind, options in ASKED.items())


def recipe(queues: int, chance: random.Random) -> dict[str, Any]:
    """A server of two nodes with so many queues on one NIC or several, no two alike."""
    smt, cores = chance.choice((1, 2)), chance.randrange(8, 49)
    group = {"count": cores * smt, "smt": smt}
    cpus = 2 * cores * smt
    nics = chance.choice((1, 2, 4))
    return {
        "kernel": chance.choice(("timers", "threaded", "busy-poll")),
        "cpus": [group, {**group, "node": 1, "package": 1}],
        "isolated": chance.choice(("", f"{cpus - 4}-{cpus - 1}")),
        "offline": str(chance.randrange(1, cpus - 4)) if chance.randrange(4) == 0 else "",
        "links": [
            {"name": f"eth{n}", "driver": "mlx5_core", "rx": queues // nics,
             "node": chance.randrange(2), "irq": 40 + 8192 * n,
             "irq_cpus": chance.choice(("all", "each"))}
            for n in range(nics)
        ],
    }  # fmt: skip


@pytest.fixture(autouse=True)
def one_shot() -> Iterator[None]:
    """The command collects no garbage: it ends."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the NAPI ids and interrupts of thousands of queues on one device."""
    monkeypatch.setattr(synthetic, "NAPIS_A_LINK", 8192)
    monkeypatch.setattr(synthetic, "IRQS_A_LINK", 8192)


def costs(text: str, wanted: Policy) -> tuple[float, float]:
    """Seconds of CPU time for reading the host and for planning it, as the command does both."""
    gc.collect()
    start = time.process_time()
    host = codec.loads(Snapshot, text, "host")
    read = time.process_time()
    assert decide(host, wanted).changes
    return read - start, time.process_time() - read


def recorded(queues: int, seed: int) -> str:
    return json.dumps(codec.to_plain(synthetic.snapshot(recipe(queues, random.Random(seed)))))


def fleet(wanted: Policy) -> Iterator[tuple[float, float, int]]:
    """Plan every host; yield the costs and the memory in use, in KB."""
    for seed in range(HOSTS):
        yield *costs(recorded(QUEUES, seed), wanted), memory()


def memory() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize() // 1024


@pytest.mark.usefixtures("roomy")
def test_a_fleet_in_one_run() -> None:
    reading = planning = 0.0
    used: list[int] = []
    for read, plan, now in fleet(asked()):
        reading, planning = reading + read, planning + plan
        used.append(now)
    half = len(used) // 2
    first, second = max(used[:half]), max(used[half:])
    print(f"{HOSTS} hosts of {QUEUES} queues: read {reading:.0f} s, planned {planning:.0f} s,"
          f" memory {first} KB in the first half, {second} KB in the second")  # fmt: skip
    assert second - first <= GROWTH
    assert planning <= READINGS * reading


@pytest.mark.usefixtures("roomy")
def test_cost_grows_linearly() -> None:
    wanted, best = asked(), []
    for queues in SIZES:
        text = recorded(queues, 1)
        found = [costs(text, wanted) for _ in range(5)]
        read, plan = min(r for r, _ in found), min(p for _, p in found)
        best.append(plan)
        print(f"{queues} queues: read {read * 1e3:.1f} ms, planned {plan * 1e3:.1f} ms")
    # From 64 on as well: what a plan costs without any queue hides growth in few of them.
    for queues, plan in list(zip(SIZES, best, strict=True))[:2]:
        assert math.log(best[-1] / plan) / math.log(SIZES[-1] / queues) <= EXPONENT
