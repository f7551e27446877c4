# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: NAPIs switched 10,000 times under flood while everything else happens.

guest/napi_stress.py does it and says what counts. On our 6.12, with everything that finds faults
in a kernel, nothing may get stuck, no queue fall quiet and no splat come; stock 7.2 gets stuck, and
so does, or worse, our kernel without any one of what mainline had to mend (undone.py).
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from test_deadlock_72 import flooded
from undone import UNDONE

from conftest import MANAGERS, STRESS
from lab.kernel import build
from lab.vm import Guest, GuestLost, GuestSpec, Splat

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parent / "guest"
TOGGLES, DISTURBANCES = 10_000, 500
DISTURBERS = ("link", "channels", "bind", "namespace", "hotplug")
MODES = ("off", "on", "busy-poll")
# Each of the three modes in at least this part of the toggles.
LEAST = 0.1
QUEUES = 2
# Seconds, and packets a second of the flood: what an emulated debug kernel takes beside the rest.
LIMIT_S, RATE = 7200, 20_000
STOCK_LIMIT_S = 300
# What a fault needs to be found.
FEW_TOGGLES, FEW_DISTURBANCES, FEW_LIMIT_S = 200, 10, 600

Outcome = dict[str, Any]


def stress(vm: Guest, toggles: int, disturbances: int, seconds: int) -> Outcome:
    """The outcome of napi_stress.py, its seed included; other managers of links are stopped."""
    for script in (*STRESS, "napi_stress.py"):
        vm.put(SCRIPTS / script, f"/root/{script}")
    vm.run(["systemctl", "stop", *MANAGERS])
    seed = random.randrange(1 << 30)
    words = [str(number) for number in (toggles, disturbances, seconds, seed)]
    argv = ["python3", "/root/napi_stress.py", vm.nic, *words]
    with flooded(vm, "virtio", RATE, milliseconds=(seconds + 600) * 1000):
        outcome: Outcome = json.loads(vm.run(argv, timeout=seconds + 600).stdout)
    print(json.dumps({"seed": seed, **outcome}, indent=1))
    return outcome


def test_ten_thousand_toggles() -> None:
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048)
    with Guest(build("6.12", "debug", patched=True), spec) as vm:
        outcome = stress(vm, TOGGLES, DISTURBANCES, LIMIT_S)
        vm.check_splats()
    counts = outcome["counts"]
    assert outcome["stuck"] == {} and outcome["faults"] == [] and outcome["probes"]
    assert sum(counts[mode] for mode in MODES) >= TOGGLES
    assert min(counts[mode] for mode in MODES) >= LEAST * TOGGLES
    assert min(counts[role] for role in DISTURBERS) >= DISTURBANCES


def test_stock_gets_stuck() -> None:
    with Guest(build("7.2", patched=False), GuestSpec(cpus=2, queues=QUEUES)) as vm:
        outcome = stress(vm, TOGGLES, DISTURBANCES, STOCK_LIMIT_S)
    states = [line for state in outcome["stuck"].values() for line in state.splitlines()]
    assert any(line.startswith("D") for line in states), outcome


@pytest.mark.parametrize("fault", UNDONE)
def test_a_fault_is_found(fault: str) -> None:
    """What finds it is printed: the outcome, a splat, or a guest that answers no more."""
    kernel = build("6.12", "debug", patched=True, edits=(UNDONE[fault],))
    try:
        with Guest(kernel, GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048)) as vm:
            outcome = stress(vm, FEW_TOGGLES, FEW_DISTURBANCES, FEW_LIMIT_S)
            found = outcome["stuck"] or outcome["faults"]
            vm.check_splats()
    except (Splat, GuestLost) as error:
        found = str(error)
    print(f"{fault}: {found}")
    assert found
