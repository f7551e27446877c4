# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: what showing NAPIs adds to `ip link` on a thousand devices.

Counted, not timed: a tenth more is less than what a busy machine adds, so `ip` runs where clocks
advance by one nanosecond an instruction (QEMU's -icount). The kernel's part is in it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import iproute2_tool as tool
import pytest

from conftest import MANAGERS
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parent / "guest" / "ip_cost.py"
DEVICES = 1000
# What showing NAPIs may cost, as a ratio of the unpatched.
MOST = 1.10


@pytest.fixture
def counting() -> Iterator[Guest]:
    spec = GuestSpec(icount=True, queues=1, memory_mb=1024)
    with Guest(build("6.12", patched=True), spec) as vm:
        vm.run(["systemctl", "stop", *MANAGERS, "tuned"])
        vm.put(SCRIPT, "/root/ip_cost.py")
        yield vm


@pytest.mark.parametrize("version", tool.SUITES)
def test_a_tenth_more_at_most(counting: Guest, version: str) -> None:
    for flavour in ("stock", "gcc"):
        counting.put(tool.ip(version, flavour), f"/root/ip-{flavour}", 0o755)
    argv = ["python3", "/root/ip_cost.py", str(DEVICES), "/root/ip-stock", "/root/ip-gcc"]
    cost = json.loads(counting.run(argv, timeout=600).stdout)
    ratios = {}
    for what, (shown, stock, patched) in cost.items():
        napis = int(what.split()[0])
        # The guest's own NIC may have one more.
        assert shown in (napis, napis + 1), what
        ratios[what] = round(patched / stock, 3)
    print(ratios)
    assert max(ratios.values()) <= MOST, ratios
    counting.check_splats()
