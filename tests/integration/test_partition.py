# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: a NAPI's thread while a cpuset partition takes its CPU.

The partition has the scheduler move the thread, which goes back: it was pinned there on purpose,
and may be one that polls without end on a CPU that was isolated for it. It is there when the CPU
has been given back, too, with all that it was given.
"""

import json
from typing import Any

import pytest
from flooding import flooded

from bench import rules
from conftest import SCRIPTS
from lab.base import BASES
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

BATCH, POLLER = [3, 0, -7], [1, 50, 0]


# Datagrams a second, for two queues, and the rules that leave an emulated CPU some 2,500 packets a
# second; what a thread that always finds work has of its CPU, beside whatever else the host does.
RATE, RULES, LEAST_SHARE = 9_000, 12_000, 0.5


def run(vm: Guest, *words: str) -> dict[str, Any]:
    done = vm.run(["python3", "/root/partition_kept.py", vm.nic, *words], timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module", params=BASES)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    with Guest(build(request.param, patched=True), GuestSpec(cpus=3, queues=2)) as vm:
        for script in ("napi_contract.py", "napi_threads_kept.py", "partition_kept.py"):
            vm.put(SCRIPTS / script, f"/root/{script}")
        found = run(vm)
        rules.load(vm, vm.nic, RULES)
        with flooded(vm, "virtio", RATE):
            found["flooded"] = run(vm, "flooded")
        vm.check_splats()
    return found


def test_thread_is_on_its_cpu(seen: dict[str, Any]) -> None:
    found = seen["seen"]
    assert len(found) == 11
    expected = {when: [*(POLLER if "poller" in when else BATCH), [seen["cpu"]]] for when in found}
    assert found == expected


def test_what_users_ask_for_meanwhile_stands(seen: dict[str, Any]) -> None:
    assert seen["overridden"] == 0


def test_cpus_go_while_a_thread_waits_for_its_own(seen: dict[str, Any]) -> None:
    assert seen["hotplug"] == {"waits": True, "gone": True}


def test_thread_that_always_finds_work_goes_back(seen: dict[str, Any]) -> None:
    found = seen["flooded"]
    assert found["share"] > LEAST_SHARE, found
    assert found["isolated"] == [*BATCH, [found["cpu"]]], found
