# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: helper threads come and go under flood while everything else happens.

guest/rx_stress.py does it and says what counts; guest/rx_unload.py has the driver go, which is a
module there. With everything that finds faults in a kernel, nothing may get stuck, no queue fall
quiet, no thread or memory be left and no splat come.
"""

import re

import pytest
from stressing import Outcome, stress

from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

SCRIPT, BESIDE = "rx_stress.py", ("napi_stress.py",)
RESIZES, DISTURBANCES = 2000, 200
DISTURBERS = ("link", "bind", "namespace", "hotplug", "rps", "threaded", "scheduling", "read")
QUEUES = 2
# Packets a second of the flood. With more, the emulated debug kernel leaves programs no time: a
# helper thread that had all of a CPU to deliver them and was made a real-time one kept RTNL from
# others for longer than the hung-task limit.
RATES = {"6.12": 5_000, "7.2": 500}
# Of a driver whose NIC has one queue.
UNLOAD, REMOVALS, LESS = "rx_unload.py", 200, 50
CALM = ("link", "hotplug", "scheduling", "read")
# Seconds that an emulated debug kernel may take.
LIMIT_S = 3600
# What lockdep saw of the locks of queues: first whether it was taken with hard interrupts enabled
# (+), in them (-), both (?) or neither; see Documentation/locking/lockdep-design.rst.
QUEUE_LOCK = re.compile(r"^\S+ FD: +\d+ BD: +\d+ (\S)\S+: &q->lock$", re.MULTILINE)


def look_at_locks(vm: Guest) -> None:
    """8139too, for one, hands packets over with a lock held that its interrupt handler takes."""
    assert QUEUE_LOCK.findall(vm.read("/proc/lockdep").decode()) == ["."]


def check(vm: Guest, outcome: Outcome) -> None:
    """Nothing wrong, whatever was counted."""
    vm.check_leaks()
    look_at_locks(vm)
    vm.check_splats(hotplug=True)
    assert outcome["stuck"] == {} and outcome["faults"] == []


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_helper_threads_come_and_go(base: str) -> None:
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048)
    with Guest(build(base, "debug", patched=True), spec) as vm:
        outcome = stress(
            vm, SCRIPT, RESIZES, DISTURBANCES, LIMIT_S, beside=BESIDE, rate=RATES[base]
        )
        check(vm, outcome)
    counts = outcome["counts"]
    assert counts["resizes"] >= RESIZES
    assert min(counts[role] for role in DISTURBERS) >= DISTURBANCES


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_the_driver_is_removed(base: str) -> None:
    kernel = build(base, "debug", patched=True)
    with Guest(kernel, GuestSpec(cpus=2, queues=2, memory_mb=2048, e1000=True)) as vm:
        vm.put(kernel.module("e1000"), "/root/driver.ko")
        vm.run(["insmod", "/root/driver.ko"])
        beside, rate = (SCRIPT, *BESIDE), RATES[base]
        outcome = stress(vm, UNLOAD, REMOVALS, LESS, LIMIT_S, "e1000", beside=beside, rate=rate)
        check(vm, outcome)
    counts = outcome["counts"]
    assert counts["removals"] >= REMOVALS
    assert min(counts[role] for role in CALM) >= LESS
