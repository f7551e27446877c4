# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: a NAPI's thread while a cpuset partition takes its CPU.

The partition has the scheduler move the thread, which goes back: it was pinned there on purpose,
and may be one that polls without end on a CPU that was isolated for it. It is there when the CPU
has been given back, too, with all that it was given.
"""

import json
from typing import Any

import pytest

from conftest import SCRIPTS
from lab.base import BASES
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

BATCH, POLLER = [3, 0, -7], [1, 50, 0]


@pytest.fixture(scope="module", params=BASES)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    with Guest(build(request.param, patched=True), GuestSpec(cpus=3, queues=2)) as vm:
        for script in ("napi_contract.py", "napi_threads_kept.py", "partition_kept.py"):
            vm.put(SCRIPTS / script, f"/root/{script}")
        done = vm.run(["python3", "/root/partition_kept.py", vm.nic], timeout=600)
        vm.check_splats()
    found: dict[str, Any] = json.loads(done.stdout)
    return {"base": request.param, **found}


def test_thread_is_on_its_cpu(seen: dict[str, Any]) -> None:
    found = seen["seen"]
    assert len(found) == 11
    expected = {when: [*(POLLER if "poller" in when else BATCH), [seen["cpu"]]] for when in found}
    assert found == expected


def test_what_users_ask_for_meanwhile_stands(seen: dict[str, Any]) -> None:
    assert seen["overridden"] == 0


def test_cpus_go_while_a_thread_waits_for_its_own(seen: dict[str, Any]) -> None:
    assert seen["hotplug"] == {"waits": True, "gone": True}
