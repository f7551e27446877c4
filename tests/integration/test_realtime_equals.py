# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: real-time threads that poll on one CPU do not keep RTNL from everybody.

Seed 003's script gives every thread of a device the same CPU and the same real-time priority. Where
one of them has the CPU for good, the NAPI of another can not be disabled: link down hangs, with
RTNL held. Threads of NAPIs have it as they busy poll, those of interrupts under flood.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from flooding import flooded
from stressing import prepared

from bench import rules
from conftest import SCRIPTS, STRESS
from lab.base import BASES
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

QUEUES = 2
# virtio_net has an interrupt for each direction of a queue.
THREADS = {"napi": QUEUES, "irq": 2 * QUEUES}
# Datagrams a second by threads: what an emulated CPU takes beside the polling, and all it can get.
RATES = {"napi": 5_000, "irq": 0}
# tc rules that make it more than one thread of an interrupt can take, so that none ever sleeps.
RULES = 1500
# Seconds for a step. Of each second the threads get as much as the scheduler has for real time.
PROMPT_S = 3.0
# (kind of NIC, whose threads, whether a process that never sleeps is there, too)
CASES = {
    "virtio": ("virtio", "napi", False),
    "vmxnet3": ("vmxnet3", "napi", False),
    "virtio, off beside a process": ("virtio", "napi", True),
    "virtio's interrupts": ("virtio", "irq", False),
    "virtio's interrupts, off beside a process": ("virtio", "irq", True),
}


@pytest.fixture(scope="module", params=BASES)
def machine(request: pytest.FixtureRequest) -> Iterator[Guest]:
    spec = GuestSpec(cpus=2, queues=QUEUES, vmxnet3=True)
    with Guest(build(request.param, patched=True), spec) as vm:
        prepared(vm)
        for script in (*STRESS, "irq_stress.py", "realtime_equals.py"):
            vm.put(SCRIPTS / script, f"/root/{script}")
        yield vm


@contextmanager
def dear(vm: Guest, device: str) -> Iterator[None]:
    """Packets of the device cost what the rules make them."""
    rules.load(vm, device, RULES)
    try:
        yield
    finally:
        rules.clear(vm, device)


@pytest.mark.parametrize("case", CASES)
def test_nothing_waits_for_long(machine: Guest, case: str) -> None:
    kind, threads, beside = CASES[case]
    device = machine.nic_of(kind)
    argv = ["python3", "/root/realtime_equals.py", device, threads]
    costs = dear(machine, device) if threads == "irq" else nullcontext()
    with costs, flooded(machine, kind, RATES[threads]):
        found = json.loads(machine.run([*argv, str(int(beside))], timeout=500).stdout)
    print(json.dumps(found))
    assert found["threads"] == THREADS[threads]
    steps = [(name, step.get("rc"), step.get("seconds", step)) for name, step in found["steps"]]
    late = [step for step in steps if step[1] != 0 or step[2] > PROMPT_S]
    assert late == [] and steps[-1][0] == "off"
    assert beside or min(found["received"]) > 0
    machine.check_splats()
