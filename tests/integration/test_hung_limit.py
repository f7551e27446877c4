# SPDX-License-Identifier: GPL-2.0-or-later
"""The debug kernels' hung-task limit is at least five times the unpatched kernel's worst wait.

A limit below what a sound kernel needs under emulation would blame the series for slowness. The
unpatched debug kernel therefore runs with a fifth of the limit, looked at every second, while a
NIC is toggled under traffic: not one report may come.
"""

import re

import pytest

from lab.kernel import build
from lab.machine import GuestSpec
from lab.paths import KCONFIG
from lab.vm import Guest

pytestmark = pytest.mark.long
CONFIG = KCONFIG / "debug"
FACTOR, ROUNDS = 5, 25


def limit() -> int:
    """Seconds, from the configuration of the debug kernels."""
    found = re.search(r"^CONFIG_DEFAULT_HUNG_TASK_TIMEOUT=(\d+)$", CONFIG.read_text(), re.M)
    assert found, f"{CONFIG} sets no hung-task limit"
    return int(found[1])


def toggle(vm: Guest, mode: str) -> None:
    vm.put(mode.encode(), f"/sys/class/net/{vm.nic}/threaded")
    vm.ping()
    vm.run(["ip", "link", "set", vm.nic, "down"])
    vm.run(["ip", "link", "set", vm.nic, "up"])


def test_unpatched_worst_wait_is_a_fifth_of_the_limit() -> None:
    seconds = limit() // FACTOR
    words = (
        f"sysctl.kernel.hung_task_timeout_secs={seconds} "
        "sysctl.kernel.hung_task_check_interval_secs=1 sysctl.kernel.hung_task_warnings=-1"
    )
    spec = GuestSpec(cpus=2, queues=2, e1000e=True, extra_cmdline=words)
    with Guest(build(base="6.12", flavour="debug", patched=False), spec) as vm:
        in_force = vm.read("/proc/sys/kernel/hung_task_timeout_secs").decode().strip()
        assert in_force == str(seconds)
        for round_ in range(ROUNDS):
            toggle(vm, str(round_ % 2))
        vm.check_splats()
