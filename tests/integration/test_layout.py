# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts and flow steering in a guest: profiles net-forwarding and net-vm-host, and off again.

What a profile did is read from /proc and /sys; what it left behind by the lab's reader.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from test_profile import differing, not_restored

from conftest import DEBIAN_612, OURS, Host, Settings

SETTLE = 10.0  # seconds for irqbalance to open its socket, in a guest without KVM


@contextmanager
def profile(host: Host, name: str, **variables: str) -> Iterator[Settings]:
    """The profile is on with these variables inside, and off after; yields what was before."""
    before, path = host.settings(), f"/etc/tuned/{name}-variables.conf"
    original = host.vm.read(path)
    text = "".join(f"{key}={value}\n" for key, value in variables.items())
    try:
        if variables:
            host.vm.put(text.encode(), path)
        host.run("tuned-adm", "profile", name, timeout=180)
        yield before
    finally:
        host.vm.put(original, path)
        host.run("tuned-adm", "off", timeout=180)


def in_use(host: Host) -> None:
    """Traffic passes and TuneD finds everything as wanted."""
    host.vm.host(["ping", "-q", "-c", "20", "-i", "0.05", "-W", "10", "10.77.0.2"])
    assert "succeeded" in host.run("tuned-adm", "verify", timeout=180).stdout.lower()


def devices(host: Host) -> list[dict[str, Any]]:
    shown = json.loads(host.run("rxlane", "map", "--json").stdout)
    found: list[dict[str, Any]] = shown["devices"]
    return found


def irq_cpus(host: Host) -> dict[int, str]:
    """{IRQ: CPU list} of every interrupt that a receive queue has, as /proc says."""
    irqs = {lane["irq"] for one in devices(host) for lane in one["lanes"] if "irq" in lane}
    return {n: host.run("cat", f"/proc/irq/{n}/smp_affinity_list").stdout.strip() for n in irqs}


def sysfs(host: Host, name: str) -> str:
    return str(host.run("cat", f"/sys/class/net/{host.vm.nic}/queues/{name}").stdout.strip())


@pytest.mark.kernels(OURS, DEBIAN_612)
def test_forwarding(guest: Host) -> None:
    with profile(guest, "net-forwarding") as before:
        placed = irq_cpus(guest)
        assert len(placed) >= 4 and "0" not in placed.values()
        assert len(set(placed.values())) == min(len(placed), 7), f"devices share CPUs: {placed}"
        masks = [int(sysfs(guest, f"rx-{n}/rps_cpus"), 16) for n in range(4)]
        assert all(masks) and sum(m.bit_count() for m in masks) == sum(masks).bit_count()
        backlog = guest.run("sysctl", "-n", "net.core.netdev_max_backlog").stdout.strip()
        assert backlog == "4096"
        in_use(guest)
    assert not_restored(guest, before) == {}


@pytest.mark.kernels(OURS)
def test_forwarding_for_services_of_the_host(guest: Host) -> None:
    """RFS and XPS by variable: tables sized by the queues, and gone with the profile."""
    with profile(guest, "net-forwarding", forwarding_rfs="auto", forwarding_xps="rxqs") as before:
        entries = guest.run("sysctl", "-n", "net.core.rps_sock_flow_entries").stdout.strip()
        flows = int(sysfs(guest, "rx-3/rps_flow_cnt"))
        assert int(entries) >= 32768 and flows == int(entries) // 4
        assert int(sysfs(guest, "tx-2/xps_rxqs"), 16) == 1 << 2
        in_use(guest)
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_vm_host(guest: Host) -> None:
    """Threads may move among the host's CPUs; interrupts stay off those of vCPUs."""
    given = {
        "vm_host_cpus": "2-3",
        "vm_host_spread": "all",
        "vm_host_irq_cpus": "2-3",
        "vm_host_rps": "off",
    }
    with profile(guest, "net-vm-host", **given) as before:
        pids = [lane["pid"] for lane in guest.lanes(guest.vm.nic)]
        assert len(pids) == 4
        for pid in pids:
            assert guest.run("taskset", "-cp", str(pid)).stdout.split()[-1] in ("2,3", "2-3")
            assert "SCHED_OTHER" in guest.run("chrt", "-p", str(pid)).stdout
        assert set(irq_cpus(guest).values()) == {"2", "3"}
        in_use(guest)
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_drift_of_an_interrupt_is_found(guest: Host) -> None:
    before = guest.settings()
    guest.run("rxlane", "apply", "-o", "irq_cpus=auto", "-o", "rps=1-3", guest.vm.nic)
    try:
        irq = guest.lanes(guest.vm.nic)[1]["irq"]
        guest.vm.put(b"0", f"/proc/irq/{irq}/smp_affinity_list")
        done = guest.run("rxlane", "verify", check=False)
        assert done.rc == 1 and "rx1/irq-cpus: expected" in done.stdout
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_a_running_irqbalance_is_told(guest: Host) -> None:
    guest.run("systemctl", "start", "irqbalance", timeout=60)
    try:
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            planned = guest.run("rxlane", "plan", "-o", "irq_cpus=auto", guest.vm.nic).stdout
            if "irqbalance runs" in planned:
                return
        pytest.fail(f"no word of irqbalance after {SETTLE} s: {planned}")
    finally:
        guest.run("systemctl", "stop", "irqbalance", timeout=60)
