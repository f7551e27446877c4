# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: a NAPI's thread while a cpuset partition takes its CPU.

The partition moves the thread. One that starts meanwhile is an ordinary one on 7.2; on 6.12 the
kernel puts it on its CPU before it runs. Once the CPU is given back, the thread is there again with
all that it was given.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.base import BASES
from lab.kernel import build
from lab.vm import Guest, GuestSpec

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parent / "guest"
BATCH, ORDINARY = [3, 0, -7], [0, 0, 0]


@pytest.fixture(scope="module", params=BASES)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    with Guest(build(request.param, patched=True), GuestSpec(cpus=2, queues=2)) as vm:
        for script in ("napi_contract.py", "napi_threads_kept.py", "partition_kept.py"):
            vm.put(SCRIPTS / script, f"/root/{script}")
        done = vm.run(["python3", "/root/partition_kept.py", vm.nic], timeout=600)
        vm.check_splats()
    found: dict[str, Any] = json.loads(done.stdout)
    return {"base": request.param, **found}


def test_thread_is_back_when_the_cpu_is(seen: dict[str, Any]) -> None:
    expected = [*BATCH, [seen["cpu"]]]
    back = {when: found for when, found in seen["seen"].items() if not when.endswith("isolated")}
    del back["isolated, off, on"]
    assert {when: found for when, found in back.items() if found != expected} == {}
    assert len(back) == 4


def test_partition_moves_the_thread(seen: dict[str, Any]) -> None:
    cpu, at = seen["cpu"], seen["seen"]
    for when in ("isolated", "off, on, isolated"):
        assert at[when][:3] == BATCH
        assert cpu not in at[when][3]


def test_thread_that_starts_in_a_partition(seen: dict[str, Any]) -> None:
    cpu, found = seen["cpu"], seen["seen"]["isolated, off, on"]
    if seen["base"] == "6.12":
        assert found == [*BATCH, [cpu]]
    else:
        assert found[:3] == ORDINARY
        assert cpu not in found[3]
