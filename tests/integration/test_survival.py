# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NAPI of our 6.12 was told outlives every operation that its driver has: a matrix.

Defer, flush and suspend timeouts, threaded mode, ID, and CPUs, policy and nice value of the thread,
before and after each operation, on every driver of the lab. The matrix is printed (pytest -s) and
kept as build/survival.txt.
"""

import json
from collections.abc import Iterator

import pytest
from every_device import make_devices

from conftest import KERNELS, OURS, SCRIPTS, TREE, Host, missing
from lab.machine import GuestSpec
from lab.vm import Guest

TABLE = TREE / "build" / "survival.txt"
# What each driver of 6.12 implements. The others must say that they do not.
IMPLEMENTED = {
    "netdevsim": {"down, up", "MTU", "rings", "channels", "XDP"},
    "virtio": {"down, up", "MTU", "rings", "channels", "XDP"},
    "e1000e": {"down, up", "MTU", "rings", "restart"},
    "igb": {"down, up", "MTU", "rings", "restart", "channels", "XDP"},
    "vmxnet3": {"down, up", "MTU", "rings", "XDP"},
    "veth": {"down, up", "MTU", "channels", "XDP", "GRO off, on"},
}

Matrix = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def matrix(igb: str) -> Iterator[Matrix]:
    spec = GuestSpec(cpus=4, queues=4, e1000e=True, vmxnet3=True, igb=not igb)
    with Guest(KERNELS[OURS](), spec) as vm:
        host = Host(OURS, vm)
        host.run("systemctl", "stop", "irqbalance")
        for script in ("napi_contract.py", "napi_threads_kept.py", "napi_survives.py"):
            vm.put(SCRIPTS / script, f"/root/{script}")
        names = json.dumps(make_devices(host))
        found: Matrix = json.loads(
            host.run("python3", "/root/napi_survives.py", names, timeout=900).stdout
        )
        show(found)
        vm.check_splats()
        yield found


def show(found: Matrix) -> None:
    rows = [
        f"{kind:10} {operation:12} {what}"
        for kind, operations in found.items()
        for operation, what in operations.items()
    ]
    print("\n" + "\n".join(rows))
    TABLE.write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("kind", list(IMPLEMENTED))
def test_settings_outlive_every_operation(matrix: Matrix, igb: str, kind: str) -> None:
    if kind == "igb" and igb:
        missing(igb)
    done = {
        operation: what
        for operation, what in matrix[kind].items()
        if not what.startswith("not implemented")
    }
    assert {operation: what for operation, what in done.items() if what != "kept"} == {}
    assert done.keys() == IMPLEMENTED[kind]
