# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: interrupts switched 20,000 times under flood while everything else happens.

guest/irq_stress.py does it, for each driver, and says what counts. On our 6.12, with everything
that finds faults in a kernel, nothing may get stuck, no queue be quiet for a second of traffic, no
thread be left and no splat come. Beside it, with interrupts of the series' test module: writes that
race free_irq() 10,000 times.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_deadlock_72 import flooded
from test_irq_threaded import MODULE, SELFTESTS, check

from conftest import MANAGERS, STRESS, missing
from lab.kernel import build
from lab.selftests import selftests
from lab.vm import Guest, GuestSpec

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parent / "guest"
SWITCHES, DISTURBANCES = 20_000, 200
DISTURBERS = ("affinity", "scheduling", "link", "bind", "hotplug")
# Without a packet for so long, in seconds of traffic, a queue is dead.
MOST_QUIET_S = 1.0
# Seconds, and packets a second of the flood: what an emulated debug kernel takes beside the rest.
LIMIT_S, RATE = 7200, 20_000

Outcome = dict[str, Any]


@pytest.fixture(scope="module")
def machine(igb: str) -> Iterator[Guest]:
    spec = GuestSpec(
        cpus=2, queues=2, memory_mb=2048, e1000e=True, igb=not igb, share=[selftests("6.12")]
    )
    with Guest(build("6.12", "debug", patched=True), spec) as vm:
        for script in (*STRESS, "irq_stress.py"):
            vm.put(SCRIPTS / script, f"/root/{script}")
        yield vm


def stress(vm: Guest, kind: str, switches: int, disturbances: int, seconds: int) -> Outcome:
    """The outcome of irq_stress.py, its seed included; other managers of links are stopped."""
    vm.run(["systemctl", "stop", *MANAGERS])
    seed = random.randrange(1 << 30)
    words = [str(number) for number in (switches, disturbances, seconds, seed)]
    argv = ["python3", "/root/irq_stress.py", vm.nic_of(kind), *words]
    with flooded(vm, kind, RATE, milliseconds=(seconds + 600) * 1000):
        outcome: Outcome = json.loads(vm.run(argv, timeout=seconds + 600).stdout)
    print(json.dumps({"seed": seed, **outcome}, indent=1))
    return outcome


def test_writes_race_free_irq(machine: Guest) -> None:
    argv = ["env", "CYCLES=10000", f"{SELFTESTS}/threaded.sh"]
    check(machine.run(argv, timeout=3600, check=False).stdout, MODULE)
    machine.check_splats()


@pytest.mark.parametrize("kind", ["virtio", "e1000e", "igb"])
def test_twenty_thousand_switches(machine: Guest, kind: str, igb: str) -> None:
    if kind == "igb" and igb:
        missing(igb)
    outcome = stress(machine, kind, SWITCHES, DISTURBANCES, LIMIT_S)
    machine.check_splats()
    counts = outcome["counts"]
    assert outcome["stuck"] == {} and outcome["faults"] == []
    assert outcome["quiet_s"] < MOST_QUIET_S
    assert counts["switches"] >= SWITCHES
    assert min(counts[role] for role in DISTURBERS) >= DISTURBANCES
