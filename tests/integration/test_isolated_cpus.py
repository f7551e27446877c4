# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: CPUs that are kept free are not those that the kernel gives helper threads.

Neither those of nohz_full= nor those of isolcpus=, though on them least is in the way: the device's
interrupts are handled by one of the others.
"""

import pytest

from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

CPUS, NOHZ, ISOLATED = 4, 2, 3
THREADS = 3
KEPT_FREE = f"nohz_full={NOHZ} isolcpus=domain,{ISOLATED}"


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_helper_threads_leave_them_alone(base: str) -> None:
    spec = GuestSpec(cpus=CPUS, queues=1, extra_cmdline=KEPT_FREE)
    with Guest(build(base, "nohz", patched=True), spec) as vm:
        kept = {name: int(vm.read(f"/sys/devices/system/cpu/{name}")) for name in
                ("nohz_full", "isolated")}  # fmt: skip
        assert kept == {"nohz_full": NOHZ, "isolated": ISOLATED}
        folder = f"/sys/class/net/{vm.nic}"
        vm.put(str(THREADS).encode(), f"{folder}/rx_threads")
        threads = [f"{folder}/rx_thread/{number}" for number in range(THREADS)]
        chosen = {int(vm.read(f"{thread}/cpu")) for thread in threads}
        assert chosen == set(range(CPUS)) - {NOHZ, ISOLATED}
        vm.check_splats()
