# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: whatever allocation fails, settings are done whole or not at all.

Those of NAPIs, the number of helper threads, and the switching of interrupts to threaded mode.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from flooding import flooded

from conftest import MANAGERS, SCRIPTS, STRESS
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

# What makes threads; of 7.2 a device knows no busy-poll.
MAKE_THREADS = {
    "6.12": ("threaded on", "threaded busy-poll", "device on", "device busy-poll", "all"),
    "7.2": ("threaded on", "threaded busy-poll", "device on", "all"),
}

# Packets a second, to see who polls.
RATE = 500

Outcome = dict[str, Any]


def outcome(vm: Guest, script: str, *beside: str) -> Outcome:
    for name in ("failing.py", *beside, script):
        vm.put(SCRIPTS / name, f"/root/{name}")
    done = vm.run(["python3", f"/root/{script}", vm.nic], timeout=1200)
    found: Outcome = json.loads(done.stdout)
    vm.check_splats()
    print(json.dumps(found, indent=1))
    return found


@pytest.fixture(scope="module", params=MAKE_THREADS)
def machine(request: pytest.FixtureRequest) -> Iterator[Guest]:
    with Guest(build(request.param, "debug", patched=True), GuestSpec(cpus=2, queues=2)) as vm:
        yield vm
        vm.check_leaks()


def test_napis_are_set_whole_or_not_at_all(machine: Guest) -> None:
    machine.run(["systemctl", "stop", *MANAGERS])
    found = outcome(machine, "napi_alloc_failures.py", "napi_contract.py")
    assert found["faults"] == []
    came = found["operations"]
    assert all(of_it["done"] for of_it in came.values())
    assert all(of_it["allocations"] for label, of_it in came.items() if "device" not in label)
    # That it was tried: threads were not to be had, and operations answered so.
    for name in MAKE_THREADS[machine.kernel.base]:
        assert came[f"{name}, from off"]["errors"] and came[f"{name}, the first"]["errors"]


def test_helper_threads_are_had_whole_or_not_at_all(machine: Guest) -> None:
    found = outcome(machine, "rx_alloc_failures.py", *STRESS)
    assert found["faults"] == []
    came = found["operations"]
    assert len(came) == 6 and all(of_it["done"] for of_it in came.values())
    # That it was tried: fewer threads need memory, too, for the file's text and the new table.
    assert all(of_it["errors"] for of_it in came.values())


def test_interrupts_are_switched_whole_or_not_at_all(machine: Guest) -> None:
    beside = (*STRESS, "irq_stress.py", "irq_busy_poll.py")
    with flooded(machine, "virtio", RATE):
        found = outcome(machine, "irq_alloc_failures.py", *beside)
    assert found["faults"] == []
    came = found["operations"]
    assert len(came) == 3 * len(("first", "1", "0")) + len(("threadable", "normal"))
    assert all(of_it["done"] for of_it in came.values())
    # That it was tried: the switch on needs memory, the switch off none.
    assert {label for label, of_it in came.items() if of_it["errors"]} == {
        label for label in came if not label.endswith(": 0, from 1")
    }
    assert all(of_it["of kthreadd"] for label, of_it in came.items() if ": 1" in label)
    again = [of_it for label, of_it in came.items() if "requested" in label]
    assert all(of_it["without"] for of_it in again)
