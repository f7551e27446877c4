# SPDX-License-Identifier: GPL-2.0-or-later
"""Every device type of the lab in one guest: lanes, threads, verify, rollback, and traffic.

A guest of its own, because igb needs a newer QEMU than Debian 12's and few CPUs boot fast. The
settings are read once; after each rollback they must equal that one reading again, so that no
device's test can hide what another's left behind.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agreement import disagreements
from every_device import IGB_PAIRED, NETDEVSIM, QUEUES, make_devices

from conftest import (
    DEBS,
    KERNELS,
    OURS,
    READER,
    TREE,
    UNBALANCED,
    Host,
    Settings,
    differing,
    install,
    missing,
)
from lab.machine import GuestSpec
from lab.rootfs import NICS
from lab.vm import Guest

CPUS = 4
WALK = TREE / "tests" / "integration" / "guest" / "tools_agree.py"
MANY = 64
# Words of `ethtool -L` for fewer channels and for as many as before, where the driver takes them.
CHANNELS = {
    "virtio": (f"combined {QUEUES // 2}", f"combined {QUEUES}"),
    "igb": (f"combined {IGB_PAIRED // 2}", f"combined {IGB_PAIRED}"),
    "veth": (f"rx {QUEUES // 2} tx {QUEUES // 2}", f"rx {QUEUES} tx {QUEUES}"),
    "netdevsim": (f"combined {QUEUES // 2}", f"combined {QUEUES}"),
    "netdevsim-64": (f"combined {MANY // 2}", f"combined {MANY}"),
}


@dataclass(frozen=True)
class Expected:
    """What a driver's lanes look like: RX queues, where their NAPIs and IRQs are known from."""

    queues: int
    napi_source: str
    irq_source: str


DEVICES = {
    "virtio": Expected(QUEUES, "netdev", "netdev"),
    "e1000e": Expected(1, "netdev", "netdev"),
    "vmxnet3": Expected(CPUS, "netdev", "netdev"),
    "igb": Expected(IGB_PAIRED, "netdev", "netdev"),
    "veth": Expected(QUEUES, "order", "unknown"),
    "netdevsim": Expected(QUEUES, "netdev", "unknown"),
}


# How an interrupt is named, by device and queue; virtio's by the device on its own bus.
ACTIONS = {
    "virtio": "-input.{1}",
    "e1000e": "{0}-rx-{1}",
    "vmxnet3": "{0}-rxtx-{1}",
    "igb": "{0}-TxRx-{1}",
}


@dataclass(frozen=True)
class Machine:
    """The guest, its devices' names by type, and its settings and lanes before anything."""

    host: Host
    names: dict[str, str]
    before: Settings
    lanes: dict[str, list[dict[str, Any]]]

    def run(self, *argv: str) -> str:
        printed: str = self.host.run(*argv).stdout
        return printed


def interrupts(host: Host) -> dict[int, str]:
    """{IRQ: its line} of /proc/interrupts."""
    found = re.findall(r"^ *(\d+):(.*)$", host.run("cat", "/proc/interrupts").stdout, re.M)
    return {int(number): line for number, line in found}


@pytest.fixture(scope="module")
def machine(debs: list[Path], tool_debs: list[Path], igb: str) -> Iterator[Machine]:
    spec = GuestSpec(
        cpus=CPUS, queues=QUEUES, e1000e=True, vmxnet3=True, igb=not igb, share=[DEBS, *tool_debs],
        extra_cmdline=UNBALANCED,
    )  # fmt: skip
    with Guest(KERNELS[OURS](), spec) as vm:
        host = Host(OURS, vm)
        vm.put(READER, "/root/reader.py")
        install(host, debs, tool_debs)
        names = make_devices(host)
        shown = json.loads(host.run("rxlane", "map", "--json").stdout)
        lanes = {link["name"]: link["lanes"] for link in shown["devices"]}
        yield Machine(host, names, host.settings(), lanes)


@pytest.fixture(params=list(DEVICES))
def device(request: pytest.FixtureRequest, machine: Machine, igb: str) -> str:
    kind: str = request.param
    if kind == "igb" and igb:
        missing(igb)
    return kind


@pytest.fixture(autouse=True)
def no_splat(machine: Machine) -> Iterator[None]:
    yield
    machine.host.vm.check_splats()


def values(lanes: list[dict[str, Any]], key: str) -> list[Any]:
    return [lane.get(key) for lane in lanes]


def wakeups(machine: Machine, pids: list[int]) -> int:
    """How often these threads have gone to sleep, so far."""
    status = machine.run("cat", *(f"/proc/{pid}/status" for pid in pids))
    return sum(int(n) for n in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.M))


def check_lanes(machine: Machine, kind: str, lanes: list[dict[str, Any]]) -> None:
    """One lane a receive queue, each with a NAPI and an IRQ of its own, in softirq mode."""
    expected, name = DEVICES[kind], machine.names[kind]
    assert values(lanes, "queue") == list(range(expected.queues))
    assert len(set(values(lanes, "napi-id")) - {None}) == expected.queues
    assert set(values(lanes, "napi-source")) == {expected.napi_source}
    assert set(values(lanes, "mode")) == {"off"} and set(values(lanes, "pid")) == {None}
    assert set(values(lanes, "irq-source")) == {expected.irq_source}
    if expected.irq_source == "unknown":
        return
    irqs, lines = values(lanes, "irq"), interrupts(machine.host)
    assert len(set(irqs)) == expected.queues
    assert set(irqs) <= lines.keys(), "an IRQ that /proc/interrupts does not have"
    action = ACTIONS[kind]
    for queue, irq in enumerate(irqs):
        assert lines[irq].endswith(action.format(name, queue)), "the IRQ of another queue"


def check_threads(machine: Machine, kind: str) -> None:
    """Every lane has a NAPI thread, the same for rxlane and for the lab's reader."""
    name = machine.names[kind]
    lanes = machine.host.lanes(name)
    pids = values(lanes, "pid")
    assert set(values(lanes, "mode")) == {"on"}
    assert None not in pids and len(set(pids)) == DEVICES[kind].queues
    comms = machine.run("cat", *(f"/proc/{pid}/comm" for pid in pids)).splitlines()
    assert all(comm.startswith(f"napi/{name}-") for comm in comms), comms
    if kind not in NICS:
        return
    woken = wakeups(machine, pids)
    machine.host.vm.ping(kind)
    assert wakeups(machine, pids) >= woken + 20, "the packets were not polled by these threads"


def test_threads_come_and_go(machine: Machine, device: str) -> None:
    name = machine.names[device]
    check_lanes(machine, device, machine.lanes[name])
    machine.run("rxlane", "apply", "-o", "threaded=on", name)
    try:
        check_threads(machine, device)
        assert "0 of" not in machine.run("rxlane", "verify")
    finally:
        machine.run("rxlane", "rollback")
    assert differing(machine.before, machine.host.settings()) == {}


def test_lanes_are_found_again(machine: Machine, device: str) -> None:
    """With links to NAPIs and interrupts that drivers make anew."""
    name = machine.names[device]
    machine.run("ip", "link", "set", name, "down")
    machine.run("ip", "link", "set", name, "up")
    check_lanes(machine, device, machine.host.lanes(name))
    for channels in CHANNELS.get(device, ()):
        machine.run("ethtool", "-L", name, *channels.split())
    check_lanes(machine, device, machine.host.lanes(name))
    assert differing(machine.before, machine.host.settings()) == {}


def walk(machine: Machine, kind: str, name: str) -> list[str]:
    """What the tools disagree on in any step of guest/tools_agree.py, and the commands that failed.

    On the way the device is set down and up, loses channels, is renamed and changes its namespace.
    """
    argv = ("python3", "/root/tools_agree.py", "walk", name, *CHANNELS.get(kind, ()))
    machine.host.vm.put(WALK, "/root/tools_agree.py")
    steps = json.loads(machine.host.run(*argv, timeout=400).stdout)
    found = []
    for step in steps:
        failed = [f"{ran['argv']}: {ran['stderr']}" for ran in step["ran"] if ran["rc"] != 0]
        found += [f"{step['step']}: {fault}" for fault in failed + disagreements(step)]
    return found


def test_ethtool_and_ip_agree(machine: Machine, device: str) -> None:
    assert walk(machine, device, machine.names[device]) == []
    assert differing(machine.before, machine.host.settings()) == {}


def test_ethtool_and_ip_agree_on_64_queues(machine: Machine) -> None:
    machine.host.vm.put(f"64 1 {MANY}".encode(), f"{NETDEVSIM}/new_device")
    machine.run("udevadm", "settle")
    try:
        name = machine.run("ls", f"{NETDEVSIM}/devices/netdevsim64/net").strip()
        machine.run("ip", "link", "set", name, "up")
        assert walk(machine, "netdevsim-64", name) == []
    finally:
        machine.host.vm.put(b"64", f"{NETDEVSIM}/del_device")
