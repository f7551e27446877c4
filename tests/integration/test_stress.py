# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-debug`: NAPIs switched 10,000 times to each mode under flood, amid everything else.

guest/napi_stress.py does it and says what counts. On our kernels, with everything that finds faults
in a kernel, nothing may get stuck, no queue fall quiet and no splat come; stock 7.2 gets stuck, and
so does, or worse, our 6.12 without any one of what mainline had to mend (undone.py).
"""

import pytest
from stressing import stress
from undone import UNDONE

from conftest import missing
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest, Splat

pytestmark = pytest.mark.long

SCRIPT = "napi_stress.py"
# Of our 6.12: 10,000 toggles to each mode and 500 acts of each disturber, in eight parts, each in a
# guest of its own, that nobody may have to wait for hours for. Of our 7.2, which has little of this
# that is not upstream's, one part.
PARTS = [*(("6.12", part) for part in range(1, 9)), ("7.2", 1)]
TOGGLES, DISTURBANCES = 1250, 63
DISTURBERS = ("link", "channels", "bind", "namespace", "hotplug")
MODES = ("off", "on", "busy-poll")
QUEUES = 2
# Seconds that an emulated debug kernel may take.
LIMIT_S = 5400
STOCK_LIMIT_S = 300
# Faults of the NAPIs of queues that are not there just now, which virtio_net keeps listed, and how
# they are told.
UNLISTED = {"unlisted-forgotten": "back after -L"}
# What a fault needs to be found.
FEW_TOGGLES, FEW_DISTURBANCES, FEW_LIMIT_S = 50, 10, 600


@pytest.mark.parametrize(("base", "part"), PARTS)
def test_toggles(base: str, part: int) -> None:
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048)
    with Guest(build(base, "debug", patched=True), spec) as vm:
        outcome = stress(vm, SCRIPT, TOGGLES, DISTURBANCES, LIMIT_S)
        vm.check_leaks()
        vm.check_splats(hotplug=True)
    counts = outcome["counts"]
    assert outcome["stuck"] == {} and outcome["faults"] == [] and outcome["probes"]
    assert min(counts[mode] for mode in MODES) >= TOGGLES
    assert min(counts[role] for role in DISTURBERS) >= DISTURBANCES


def test_stock_gets_stuck() -> None:
    with Guest(build("7.2", patched=False), GuestSpec(cpus=2, queues=QUEUES)) as vm:
        outcome = stress(vm, SCRIPT, TOGGLES, DISTURBANCES, STOCK_LIMIT_S)
    states = [line for state in outcome["stuck"].values() for line in state.splitlines()]
    assert any(line.startswith("D") for line in states), outcome


def test_nothing_is_found_by_igb_either(igb: str) -> None:
    """As the faults that are looked for with igb are, on the kernel without them.

    Quiet queues are not counted: igb hashes UDP by the addresses alone unless it is told otherwise
    (igb_setup_mrqc()), so that all of the flood comes in by one of them. Nor is memory: an igb that
    is unbound while it has fewer queues than before loses the vectors of the others, stock as ours
    (igb_free_q_vectors()).
    """
    if igb:
        missing(igb)
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048, igb=True)
    with Guest(build("6.12", "debug", patched=True), spec) as vm:
        outcome = stress(vm, SCRIPT, FEW_TOGGLES, FEW_DISTURBANCES, FEW_LIMIT_S, "igb")
        vm.check_splats(hotplug=True)
    others = [fault for fault in outcome["faults"] if not fault.endswith(" is quiet")]
    assert outcome["stuck"] == {} and others == []


@pytest.mark.parametrize("fault", UNDONE)
def test_a_fault_is_found(fault: str, igb: str) -> None:
    """What finds it is printed: the outcome, or a splat. A guest that is lost proves nothing."""
    kind = "igb" if fault in UNLISTED else "virtio"
    if kind == "igb" and igb:
        missing(igb)
    kernel = build("6.12", "debug", patched=True, edits=(UNDONE[fault],))
    spec = GuestSpec(cpus=2, queues=QUEUES, memory_mb=2048, igb=kind == "igb")
    try:
        with Guest(kernel, spec) as vm:
            outcome = stress(vm, SCRIPT, FEW_TOGGLES, FEW_DISTURBANCES, FEW_LIMIT_S, kind)
            found = outcome["stuck"] or outcome["faults"]
            vm.check_splats(hotplug=True)
    except Splat as error:
        found = str(error)
    print(f"{fault}: {found}")
    assert found and UNLISTED.get(fault, "") in str(found)
