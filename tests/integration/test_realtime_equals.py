# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: real-time threads that busy poll on one CPU do not keep RTNL from everybody.

Seed 003's script gives every thread of a device the same CPU and the same real-time priority. Where
one of them has the CPU for good, the NAPI of another can not be disabled: link down hangs, with
RTNL held.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_deadlock_72 import flooded, prepared

from lab.base import BASES
from lab.kernel import build
from lab.vm import Guest, GuestSpec

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parent / "guest" / "realtime_equals.py"
QUEUES = 2
# Datagrams a second: what an emulated CPU takes beside the polling.
RATE = 5_000
# Seconds for a step. Of each second the threads get as much as the scheduler has for real time.
PROMPT_S = 3.0
# (kind of NIC, whether a process that never sleeps is there, too)
CASES = {
    "virtio": ("virtio", False),
    "vmxnet3": ("vmxnet3", False),
    "virtio, off beside a process": ("virtio", True),
}


@pytest.fixture(scope="module", params=BASES)
def machine(request: pytest.FixtureRequest) -> Iterator[Guest]:
    spec = GuestSpec(cpus=2, queues=QUEUES, vmxnet3=True)
    with Guest(build(request.param, patched=True), spec) as vm:
        prepared(vm).put(SCRIPT, f"/root/{SCRIPT.name}")
        yield vm


@pytest.mark.parametrize("case", CASES)
def test_nothing_waits_for_long(machine: Guest, case: str) -> None:
    kind, beside = CASES[case]
    argv = ["python3", f"/root/{SCRIPT.name}", machine.nic_of(kind), str(int(beside))]
    with flooded(machine, kind, RATE):
        found = json.loads(machine.run(argv, timeout=500).stdout)
    print(json.dumps(found))
    assert found["threads"] == QUEUES
    steps = [(name, step.get("rc"), step.get("seconds", step)) for name, step in found["steps"]]
    late = [step for step in steps if step[1] != 0 or step[2] > PROMPT_S]
    assert late == [] and steps[-1][0] == "off"
    assert beside or found["received"] > 0
    machine.check_splats()
