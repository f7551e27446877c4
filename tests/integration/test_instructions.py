# SPDX-License-Identifier: GPL-2.0-or-later
"""Off costs nothing: instructions of one received packet on our 6.12 and on the unpatched one.

Counted, not timed: the guest's clocks advance by one nanosecond an instruction (QEMU's -icount), so
the same kernel gives the same figure whatever else this machine does.
"""

import json
import statistics
from pathlib import Path

import pytest

from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long
SCRIPT = Path(__file__).parent / "guest" / "rx_instructions.py"
AT_MOST = 1.01


def instructions(patched: bool) -> float:
    """The median round's instructions a packet, threading off."""
    with Guest(build(base="6.12", patched=patched), GuestSpec(icount=True, queues=1)) as vm:
        vm.put(SCRIPT, "/root/rx_instructions.py")
        rounds: list[float] = json.loads(
            vm.run(["python3", "/root/rx_instructions.py"], timeout=300).stdout
        )
        vm.check_splats()
    print(f"patched {patched}: {min(rounds):.0f} to {max(rounds):.0f} instructions a packet")
    return statistics.median(rounds)


def test_a_received_packet_costs_no_more_than_unpatched() -> None:
    stock, ours = instructions(patched=False), instructions(patched=True)
    print(f"stock {stock:.1f}, ours {ours:.1f}: x{ours / stock:.4f}")
    assert stock > 500, "fewer instructions than any receive path has: nothing was counted"
    assert ours / stock <= AT_MOST
