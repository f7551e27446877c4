# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: helper threads come and go under flood while everything else happens.

guest/rx_stress.py does it and says what counts. With everything that finds faults in a kernel,
nothing may get stuck, no queue fall quiet, no thread or memory be left and no splat come.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from test_deadlock_72 import flooded

from conftest import MANAGERS, STRESS
from lab.kernel import build
from lab.vm import Guest, GuestSpec

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parent / "guest"
RESIZES, DISTURBANCES = 2000, 200
DISTURBERS = ("link", "bind", "namespace", "hotplug", "rps", "threaded", "scheduling", "read")
QUEUES = 2
# Seconds, and packets a second of the flood: what an emulated debug kernel takes beside the rest.
LIMIT_S, RATE = 3600, 20_000

Outcome = dict[str, Any]


def stress(vm: Guest, resizes: int, disturbances: int, seconds: int) -> Outcome:
    """The outcome of rx_stress.py, its seed included; other managers of links are stopped."""
    for script in (*STRESS, "napi_stress.py", "rx_stress.py"):
        vm.put(SCRIPTS / script, f"/root/{script}")
    vm.run(["systemctl", "stop", *MANAGERS])
    seed = random.randrange(1, 1 << 30)
    words = [str(number) for number in (resizes, disturbances, seconds, seed)]
    argv = ["python3", "/root/rx_stress.py", vm.nic, *words]
    with flooded(vm, "virtio", RATE, milliseconds=(seconds + 600) * 1000):
        outcome: Outcome = json.loads(vm.run(argv, timeout=seconds + 600).stdout)
    print(json.dumps({"seed": seed, **outcome}, indent=1))
    return outcome


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_helper_threads_come_and_go(base: str) -> None:
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048)
    with Guest(build(base, "debug", patched=True), spec) as vm:
        outcome = stress(vm, RESIZES, DISTURBANCES, LIMIT_S)
        vm.check_splats()
    counts = outcome["counts"]
    assert outcome["stuck"] == {} and outcome["faults"] == []
    assert counts["resizes"] >= RESIZES
    assert min(counts[role] for role in DISTURBERS) >= DISTURBANCES
