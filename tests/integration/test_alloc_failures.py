# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: whatever allocation fails, setting a NAPI is done whole or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.kernel import build
from lab.vm import Guest, GuestSpec

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parent / "guest"
FROM_OFF = ("threaded on", "threaded busy-poll", "device on", "device busy-poll", "all")

Outcome = dict[str, Any]


def outcome(vm: Guest) -> Outcome:
    for script in ("napi_contract.py", "napi_alloc_failures.py"):
        vm.put(SCRIPTS / script, f"/root/{script}")
    done = vm.run(["python3", "/root/napi_alloc_failures.py", vm.nic], timeout=1200)
    found: Outcome = json.loads(done.stdout)
    return found


def test_done_whole_or_not_at_all() -> None:
    with Guest(build("6.12", "debug", patched=True), GuestSpec(cpus=2, queues=2)) as vm:
        found = outcome(vm)
        vm.check_splats()
    print(json.dumps(found, indent=1))
    assert found["faults"] == []
    came = found["operations"]
    assert all(of_it["done"] for of_it in came.values())
    assert all(of_it["allocations"] for label, of_it in came.items() if "device" not in label)
    # That it was tried: threads were not to be had, and operations answered so.
    assert all(came[f"{name}, from off"]["errors"] for name in FROM_OFF)
