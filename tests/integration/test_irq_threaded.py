# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts that users switch to threaded mode: what comes of it, by the selftests of the series.

On our 6.12; with `make check-long` on our 7.2, too.

Kinds of interrupts that refuse, and what is kept of the thread, are tried with the interrupts of
the series' test module; that NAPIs are polled by the threads of interrupts, and that mode and
policy are there after the link was down, with the devices of the lab. All at the same time, since
they wait most of it.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_deadlock_72 import flooded
from test_upstream import results

from conftest import STRESS, missing
from lab.kernel import build
from lab.rootfs import NICS
from lab.selftests import selftests
from lab.vm import Guest, GuestSpec

SCRIPTS = Path(__file__).parent / "guest"
SELFTESTS = "/mnt/share/ksrc/tools/testing/selftests/irq"
KINDS = ("virtio", "e1000e", "igb")
# Fewer than they do by themselves: test_irq_stress.py does more.
ROUNDS = {"ROUNDS": 10, "CYCLES": 200, "SWITCHES": 4}
MODULE = {"refused", "values", "capability", "switch", "kept", "affinity", "late", "under_fire",
          "free_race"}  # fmt: skip
DEVICE = {"hard", "threaded", "switches", "down_up", "napi_thread"}
# Datagrams a second to the application that busy polls.
RATE = 5_000

Seen = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """The guest, and {test or device: what its selftest printed}."""

    vm: Guest
    printed: dict[str, str]


def run_all(vm: Guest, tests: dict[str, str]) -> dict[str, str]:
    """Runs the commands at the same time; what each printed."""
    setting = " ".join(f"{name}={value}" for name, value in ROUNDS.items())
    starts = [f"({setting} {line} > /run/{name}.tap 2>&1) &" for name, line in tests.items()]
    vm.run(["sh", "-c", "\n".join([f"cd {SELFTESTS}", *starts, "wait"])], timeout=600)
    return {name: vm.read(f"/run/{name}.tap").decode() for name in tests}


@pytest.fixture(scope="module", params=["6.12", pytest.param("7.2", marks=pytest.mark.long)])
def machine(request: pytest.FixtureRequest, igb: str) -> Iterator[Machine]:
    base = request.param
    spec = GuestSpec(cpus=2, queues=2, e1000e=True, igb=not igb, share=[selftests(base)])
    with Guest(build(base, patched=True), spec) as vm:
        tests = {"module": "./threaded.sh"}
        for kind in KINDS if not igb else KINDS[:-1]:
            peer = NICS[kind][1].replace(".2/24", ".1")
            tests[kind] = shlex.join(["./netdev.sh", vm.nic_of(kind), peer])
        yield Machine(vm, run_all(vm, tests))
        vm.check_splats()


def check(printed: str, cases: set[str]) -> None:
    found = results(printed)
    assert set(found) == cases, printed
    assert set(found.values()) == {"ok"}, printed


def test_of_the_module(machine: Machine) -> None:
    check(machine.printed["module"], MODULE)


@pytest.mark.parametrize("kind", KINDS)
def test_of_the_devices(machine: Machine, kind: str, igb: str) -> None:
    if kind == "igb" and igb:
        missing(igb)
    check(machine.printed[kind], DEVICE)


def test_a_socket_busy_polls_beside_it(machine: Machine) -> None:
    vm = machine.vm
    for script in (*STRESS, "irq_stress.py", "irq_busy_poll.py"):
        vm.put(SCRIPTS / script, f"/root/{script}")
    with flooded(vm, "virtio", RATE):
        argv = ["python3", "/root/irq_busy_poll.py", vm.nic]
        seen: Seen = json.loads(vm.run(argv, timeout=120).stdout)
    print(seen)
    vm.check_splats()
    assert set(seen["plain"]["polls"]) == {"irq"}
    assert seen["busy"]["polls"].keys() - {"irq"} == {"application"}
    assert seen["plain"]["received"] and seen["busy"]["received"]
    switches, survived = seen["switches"]
    assert survived == switches, "the application received nothing after a switch"
    assert set(seen["after"]["polls"]) == {"irq"}
