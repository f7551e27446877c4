# SPDX-License-Identifier: GPL-2.0-or-later
"""python -m lab record: guests of many shapes, each written down as a fixture host.

A fixture is what `rxlane record` writes, and beside it the guest's own /sys and /proc files as
sys.tar.xz (lab.collect), from which a unit test reads the same snapshot again.
"""

import lzma
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from lab import kernel
from lab.machine import GuestSpec
from lab.paths import TREE
from lab.vm import CommandFailed, Guest

HOSTS = TREE / "tests" / "unit" / "hosts"
COLLECT = Path(__file__).parent / "collect.py"
LIBRARY = TREE / "plugins" / "rxlane"
PYTHON = ["env", "PYTHONPATH=/mnt/share", "PYTHONDONTWRITEBYTECODE=1", "python3"]
RXLANE = [*PYTHON, "-m", "rxlane"]
TRIES = 6


@dataclass(frozen=True)
class Shape:
    """A guest, and what is done in it before it is written down; {nic} is its virtio NIC."""

    base: str
    spec: GuestSpec
    patched: bool = True
    first: tuple[tuple[str, ...], ...] = ()


def _sh(line: str) -> tuple[str, ...]:
    return ("sh", "-ec", line)


TWO_NODES = GuestSpec(cpus=8, sockets=2, cores=2, threads=2, numa=2, memory_mb=2048)
SHAPES = {
    "recorded-1cpu-6.12-virtio-e1000e": Shape("6.12", GuestSpec(cpus=1, e1000e=True)),
    "recorded-2cpu-7.2-stock-virtual-and-down": Shape(
        "7.2",
        GuestSpec(cpus=2, e1000e=True),
        patched=False,
        first=(
            _sh("ip link add veth0 numrxqueues 2 numtxqueues 2 type veth peer name veth1"),
            _sh("ip link set veth0 up; ip link set veth1 up"),
            _sh("ip link set $(ls -d /sys/bus/pci/drivers/e1000e/*/net/* | xargs basename) down"),
        ),
    ),
    "recorded-8cpu-7.2-2node-three-nics": Shape(
        "7.2", replace(TWO_NODES, e1000e=True, vmxnet3=True)
    ),
    "recorded-8cpu-6.12-isolated-and-offline": Shape(
        "6.12",
        replace(
            TWO_NODES, queues=8, extra_cmdline="isolcpus=managed_irq,domain,4-7 irqaffinity=0-3"
        ),
        first=(_sh("echo 0 > /sys/devices/system/cpu/cpu3/online"),),
    ),
    "recorded-4cpu-6.12-igb": Shape("6.12", GuestSpec(cpus=4, igb=True)),
    "recorded-4cpu-6.12-laid-out": Shape(
        "6.12",
        GuestSpec(cpus=4),
        first=(
            (*RXLANE, "apply", "{nic}", "--state", "/run/rxlane")
            + tuple(
                f"--option={option}"
                for option in (
                    "threaded=on@2,busy-poll@3",
                    "thread_cpus=2-3",
                    "thread_policy=fifo",
                    "thread_priority=40",
                    "defer_hard_irqs=100",
                    "gro_flush_timeout=15000",
                    "irq_cpus=auto",
                    "rps=0-1",
                    "rfs=auto",
                )
            ),
        ),
    ),
}


def record(name: str) -> None:
    """Boot the shape of this name and write its snapshot and its /sys tree."""
    shape = SHAPES[name]
    spec = replace(shape.spec, share=[LIBRARY, COLLECT])
    with Guest(kernel.build(shape.base, "fast", shape.patched), spec) as guest:
        for argv in shape.first:
            guest.run([word.replace("{nic}", guest.nic) for word in argv])
        snapshot, tree = at_rest(guest)
        guest.check_splats()
    folder = HOSTS / name
    folder.mkdir(exist_ok=True)
    (folder / "snapshot.json").write_text(snapshot)
    (folder / "sys.tar.xz").write_bytes(lzma.compress(tree, preset=9))


def tree_of(guest: Guest) -> bytes:
    guest.run([*PYTHON, "/mnt/share/collect.py", "/run/sys.tar"])
    return guest.read("/run/sys.tar")


def at_rest(guest: Guest) -> tuple[str, bytes]:
    """The snapshot and a tree that was the same before and after it: irqbalance moves interrupts.

    Raises CommandFailed when they never agree.
    """
    tree = tree_of(guest)
    for _ in range(TRIES):
        done = guest.run([*RXLANE, "record"])
        before, tree = tree, tree_of(guest)
        if tree == before:
            return done.stdout, tree
    raise CommandFailed(replace(done, stderr=f"/sys changed in each of {TRIES} tries"))


def record_all(names: Iterable[str]) -> None:
    """Record the shapes of these names, all when there are none; ValueError for an unknown one."""
    wanted = list(names) or list(SHAPES)
    for name in wanted:
        if name not in SHAPES:
            raise ValueError(f"no shape {name!r}: there are {', '.join(SHAPES)}")
    for name in wanted:
        record(name)
