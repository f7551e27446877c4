# SPDX-License-Identifier: GPL-2.0-or-later
"""Links are deleted while threads poll their NAPIs under flood: nothing waits, nothing is left."""

import json

import pytest

from conftest import SCRIPTS, STRESS, our_bases, our_kernel
from lab.machine import GuestSpec
from lab.vm import Guest

SCRIPT, ROUNDS = "napi_deleted.py", 3
QUEUES, PACKETS = 2, 500
# Seconds; a debug kernel that is emulated takes half of it for a deletion when all is well.
PROMPT_S = 10.0


@pytest.mark.parametrize("base", our_bases())
def test_links_go_with_their_threads(base: str) -> None:
    with Guest(our_kernel(base), GuestSpec(cpus=3)) as vm:
        for name in (*STRESS, SCRIPT):
            vm.put(SCRIPTS / name, f"/root/{name}")
        done = vm.run(["python3", f"/root/{SCRIPT}", str(ROUNDS)], timeout=900)
        vm.check_splats()
    seen = json.loads(done.stdout)
    print(json.dumps(seen, indent=1))
    for way, found in seen.items():
        assert found["threads"] == QUEUES and found["packets"] >= PACKETS, way
        assert found["sending"] and found["looks"] >= ROUNDS, way
        assert found["deleted"] < PROMPT_S and found["bystander"] < PROMPT_S, way
        assert found["left"] == [], way
