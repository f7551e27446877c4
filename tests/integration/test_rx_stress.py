# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: helper threads come and go under flood while everything else happens.

guest/rx_stress.py does it and says what counts. With everything that finds faults in a kernel,
nothing may get stuck, no queue fall quiet, no thread or memory be left and no splat come.
"""

import pytest
from stressing import stress

from lab.kernel import build
from lab.vm import Guest, GuestSpec

pytestmark = pytest.mark.long

SCRIPT, BESIDE = "rx_stress.py", ("napi_stress.py",)
RESIZES, DISTURBANCES = 2000, 200
DISTURBERS = ("link", "bind", "namespace", "hotplug", "rps", "threaded", "scheduling", "read")
QUEUES = 2
# Seconds that an emulated debug kernel may take.
LIMIT_S = 3600


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_helper_threads_come_and_go(base: str) -> None:
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048)
    with Guest(build(base, "debug", patched=True), spec) as vm:
        outcome = stress(vm, SCRIPT, RESIZES, DISTURBANCES, LIMIT_S, beside=BESIDE)
        vm.check_splats()
    counts = outcome["counts"]
    assert outcome["stuck"] == {} and outcome["faults"] == []
    assert counts["resizes"] >= RESIZES
    assert min(counts[role] for role in DISTURBERS) >= DISTURBANCES
