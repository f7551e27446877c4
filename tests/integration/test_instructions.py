# SPDX-License-Identifier: GPL-2.0-or-later
"""Off costs nothing: instructions of a packet and of an interrupt, on our kernel and the unpatched.

Counted, not timed: the guest's clocks advance by one nanosecond an instruction (QEMU's -icount), so
the same kernel gives the same figure whatever else this machine does. The kernels have their static
keys as those of distributions do (flavour ``cost``).
"""

import json
import statistics

import pytest

from conftest import SCRIPTS, missing
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long
AT_MOST = 1.01
# So much depends on where Python has its objects that one process is not enough.
PROCESSES = 9


def median(rounds: list[float], what: str) -> float:
    print(f"{what}: {min(rounds):.1f} to {max(rounds):.1f} instructions")
    return statistics.median(rounds)


def of_a_packet(base: str, patched: bool) -> float:
    """The median round's instructions a packet, threading off."""
    with Guest(build(base, "cost", patched), GuestSpec(icount=True, queues=1)) as vm:
        vm.put(SCRIPTS / "rx_instructions.py", "/root/rx_instructions.py")
        done = vm.run(["python3", "/root/rx_instructions.py"], timeout=300)
        vm.check_splats()
    return median(json.loads(done.stdout), f"a packet, patched {patched}")


def of_an_interrupt(base: str, patched: bool) -> float:
    """The median process's instructions an interrupt, none being switched."""
    with Guest(build(base, "cost", patched), GuestSpec(icount=True, queues=1, igb=True)) as vm:
        vm.put(SCRIPTS / "irq_instructions.py", "/root/irq_instructions.py")
        argv = ["python3", "/root/irq_instructions.py", vm.nic_of("igb")]
        processes = [json.loads(vm.run(argv, timeout=300).stdout) for _ in range(PROCESSES)]
        vm.check_splats()
    return median(processes, f"an interrupt, patched {patched}")


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_a_received_packet_costs_no_more_than_unpatched(base: str) -> None:
    stock, ours = of_a_packet(base, patched=False), of_a_packet(base, patched=True)
    print(f"stock {stock:.1f}, ours {ours:.1f}: x{ours / stock:.4f}")
    assert stock > 500, "fewer instructions than any receive path has: nothing was counted"
    assert ours / stock <= AT_MOST


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_an_interrupt_costs_no_more_than_unpatched(base: str, igb: str) -> None:
    """With the poll that it brings about, which finds nothing."""
    if igb:
        missing(igb)
    stock, ours = of_an_interrupt(base, patched=False), of_an_interrupt(base, patched=True)
    print(f"stock {stock:.1f}, ours {ours:.1f}: x{ours / stock:.4f}")
    assert stock > 500, "fewer instructions than any interrupt has: nothing was counted"
    assert ours / stock <= AT_MOST
