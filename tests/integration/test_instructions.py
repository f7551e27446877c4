# SPDX-License-Identifier: GPL-2.0-or-later
"""Off costs nothing: instructions of a packet and of an interrupt, on our kernel and the unpatched.

Counted, not timed: the guest's clocks advance by one nanosecond an instruction (QEMU's -icount), so
the same kernel gives the same figure whatever else this machine does. The kernels have their static
keys as those of distributions do (flavour ``cost``).
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conftest import SCRIPTS, missing
from lab.kernel import build
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long
AT_MOST = 1.01
# So much depends on where Python has its objects that one process is not enough.
PROCESSES = 9

# What is done to an interrupt of virtio_net, whose place on the bus is to be filled in, in between.
SWITCHES = {
    "never": "true",
    "on": "echo 1 | tee /proc/irq/*/virtio*-input.0/threaded",
    "off": "echo 0 | tee /proc/irq/*/virtio*-input.0/threaded",
    "unbound": (
        "echo 1 | tee /proc/irq/*/virtio*-input.0/threaded && cd {0} &&"
        " basename {0} > driver/unbind && ! ls /proc/irq/*/virtio*-input.0"
    ),
}
# The key, which costs 0.1 to 0.3 %, follows a second later. Medians differ by less than ALIKE.
KEY_S, ALIKE = 3.0, 0.001


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


@contextmanager
def with_igb(base: str, patched: bool) -> Iterator[Guest]:
    with Guest(build(base, "cost", patched), GuestSpec(icount=True, queues=1, igb=True)) as vm:
        vm.put(SCRIPTS / "irq_instructions.py", "/root/irq_instructions.py")
        yield vm
        vm.check_splats()


def of_an_interrupt(vm: Guest, what: str) -> float:
    """The median process's instructions an interrupt of igb, which is not switched."""
    argv = ["python3", "/root/irq_instructions.py", vm.nic_of("igb")]
    processes = [json.loads(vm.run(argv, timeout=300).stdout) for _ in range(PROCESSES)]
    return median(processes, f"an interrupt, {what}")


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
    with with_igb(base, patched=False) as vm:
        stock = of_an_interrupt(vm, "stock")
    with with_igb(base, patched=True) as vm:
        ours = of_an_interrupt(vm, "ours")
    print(f"stock {stock:.1f}, ours {ours:.1f}: x{ours / stock:.4f}")
    assert stock > 500, "fewer instructions than any interrupt has: nothing was counted"
    assert ours / stock <= AT_MOST


@pytest.mark.parametrize("base", ["6.12", "7.2"])
def test_it_costs_that_again_when_none_is_switched_any_more(base: str, igb: str) -> None:
    """The static key, which one interrupt of any device turns on: it is off after the mode was
    switched off, and after the interrupt went away with its mode on.
    """
    if igb:
        missing(igb)
    found = {}
    with with_igb(base, patched=True) as vm:
        place = vm.run(["readlink", "-f", f"/sys/class/net/{vm.nic}/device"]).stdout.strip()
        for what, line in SWITCHES.items():
            vm.run(["sh", "-c", line.format(place)])
            time.sleep(KEY_S)
            found[what] = of_an_interrupt(vm, what)
    print({what: round(one / found["never"], 4) for what, one in found.items()})
    on = found.pop("on")
    assert on > max(found.values()), "the key was not seen"
    for what, one in found.items():
        assert one == pytest.approx(found["never"], rel=ALIKE), what
