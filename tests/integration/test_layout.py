# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts and flow steering in a guest: profiles net-forwarding and net-vm-host, and off again.

What a profile did is read from /proc and /sys; what it left behind by the lab's reader. Every
command costs a second without KVM, so files are read many at a time.
"""

import json
import time
from collections import Counter

import pytest
from profiled import Sections, laid_out, profile

from conftest import OURS, TUNED_LOG, Host, differing
from rxlane.deciding.niceness import IN_GUEST

# Seconds until irqbalance has opened its socket, at most: one plan takes five on a busy machine.
SETTLE = 60.0


def in_use(host: Host) -> None:
    """Traffic passes and TuneD finds everything as wanted."""
    host.vm.ping()
    host.verify_by_tuned()


def files(host: Host, *paths: str) -> list[str]:
    """The one line of each file."""
    lines: list[str] = host.run("cat", *paths).stdout.splitlines()
    assert len(lines) == len(paths)
    return lines


def irqs(host: Host) -> list[int]:
    """Every interrupt that a receive queue of any device has."""
    shown = json.loads(host.run("rxlane", "map", "--json").stdout)
    found = {lane["irq"] for one in shown["devices"] for lane in one["lanes"] if "irq" in lane}
    return sorted(found)


def placed(host: Host) -> list[str]:
    return files(host, *(f"/proc/irq/{n}/smp_affinity_list" for n in irqs(host)))


def steered(host: Host, queues: str, name: str) -> list[str]:
    """A file of each queue of the virtio NIC."""
    base = f"/sys/class/net/{host.vm.nic}/queues"
    return files(host, *(f"{base}/{queues}-{n}/{name}" for n in range(4)))


@pytest.mark.kernels(OURS)
def test_forwarding(guest: Host) -> None:
    """IRQs apart, RPS beside them; RFS and XPS by variable, with tables sized by the queues."""
    given = {"forwarding_rfs": "auto", "forwarding_xps": "rxqs"}
    with profile(guest, "net-forwarding", **given) as before:
        cpus = placed(guest)
        share = Counter(cpus).values()
        assert len(cpus) >= 4 and len(share) == min(len(cpus), 8), f"devices share CPUs: {cpus}"
        assert max(share) - min(share) <= 1, f"not even: {cpus}"
        masks = [int(mask, 16) for mask in steered(guest, "rx", "rps_cpus")]
        assert all(masks) and sum(m.bit_count() for m in masks) == sum(masks).bit_count()
        core = "/proc/sys/net/core"
        backlog, entries = files(
            guest, f"{core}/netdev_max_backlog", f"{core}/rps_sock_flow_entries"
        )
        assert backlog == "4096" and int(entries) >= 32768
        assert steered(guest, "rx", "rps_flow_cnt") == [str(int(entries) // 4)] * 4
        assert [int(m, 16) for m in steered(guest, "tx", "xps_rxqs")] == [1, 2, 4, 8]
        in_use(guest)
    assert differing(before, guest.settings()) == {}


def wanted(host: Host) -> dict[tuple[str, int, str], str]:
    """What a plan for every device gives each setting."""
    options = ("threaded=on@1-", "thread_cpus=auto", "irq_cpus=auto", "rps=auto", "xps=auto")
    words = [word for option in options for word in ("-o", option)]
    plan = json.loads(host.run("rxlane", "plan", "--json", *words, timeout=60).stdout)
    rows = (*plan["changes"], *plan["holds"])
    return {(r["device"], r["queue"], r["setting"]): str(r["after"]) for r in rows}


def cpus_of(value: str) -> set[int]:
    """The CPUs of a list; none of a value that is no list."""
    found: set[int] = set()
    for part in value.split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            found.update(range(int(low), int(high or low) + 1))
    return found


@pytest.mark.kernels(OURS)
def test_a_cpu_less_moves_its_lanes_alone(guest: Host) -> None:
    """sysfs keeps of an offline CPU only its node, yet what other CPUs have stays there."""
    online, before = "/sys/devices/system/cpu/cpu5/online", wanted(guest)
    guest.vm.put(b"0", online)
    try:
        after = wanted(guest)
    finally:
        guest.vm.put(b"1", online)
    had = {key for key, value in before.items() if "cpus" in key[2] and 5 in cpus_of(value)}
    assert had and {key for key in before if after[key] != before[key]} == had
    assert wanted(guest) == before


@pytest.mark.kernels(OURS)
def test_an_original_keeps_the_cpu_that_was_offline(guest: Host) -> None:
    """sched_getaffinity() leaves such a CPU out; once it is back the thread may run there again."""
    nic, online = guest.vm.nic, "/sys/devices/system/cpu/cpu5/online"
    options = ("-o", "threaded=on", "-o", "thread_cpus=1")
    guest.vm.put(b"1", f"/sys/class/net/{nic}/threaded")
    pid = str(guest.lanes(nic)[0]["pid"])
    try:
        guest.run("taskset", "-pc", "4-5", pid)
        guest.vm.put(b"0", online)
        guest.run("rxlane", "apply", *options, nic)
        assert allowed(guest, pid) == "1"
        guest.run("rxlane", "rollback")
    finally:
        guest.vm.put(b"1", online)
        kept = allowed(guest, pid)
        guest.vm.put(b"0", f"/sys/class/net/{nic}/threaded")
    assert kept == "4-5"


def allowed(host: Host, pid: str) -> str:
    status = host.run("cat", f"/proc/{pid}/status").stdout
    return str(status.split("Cpus_allowed_list:")[1].split()[0])


def seed_003(nic: str) -> Sections:
    return {
        "main": {"include": "net-low-latency"},
        "napi": {
            "devices": nic, "threaded": "busy-poll@1", "thread_policy": "fifo",
            "thread_priority": "50", "thread_nice": "",
        },
    }  # fmt: skip


@pytest.mark.kernels(OURS)
def test_realtime_busy_polling(guest: Host) -> None:
    """As seed 003's script has it, on one queue of a device that has more."""
    before = guest.settings()
    with laid_out(guest, seed_003(guest.vm.nic)):
        lanes = guest.lanes(guest.vm.nic)
        modes = [lane["mode"] for lane in lanes]
        log = guest.run("tail", "-n", "20", TUNED_LOG).stdout
        assert modes == ["off", "busy-poll", "off", "off"], log
        pid = str(lanes[1]["pid"])
        said = guest.run("chrt", "-p", pid).stdout
        assert "SCHED_FIFO" in said and "priority: 50" in said
        cpu = allowed(guest, pid)
        assert cpu.isdecimal() and cpu != "0"
        assert files(guest, "/proc/sys/net/core/busy_read") == ["0"]
        in_use(guest)
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_vm_host(guest: Host) -> None:
    """Threads may move among the host's CPUs, interrupts stay off vCPUs'; drift is found."""
    given = {
        "vm_host_cpus": "2-3",
        "vm_host_spread": "all",
        "vm_host_irq_cpus": "2-3",
        "vm_host_rps": "off",
    }
    with profile(guest, "net-vm-host", **given) as before:
        lanes = guest.lanes(guest.vm.nic)
        assert len(lanes) == 4
        for lane in lanes:
            assert allowed(guest, str(lane["pid"])) == "2-3"
        assert "SCHED_OTHER" in guest.run("chrt", "-p", str(lanes[0]["pid"])).stdout
        nice = guest.run("ps", "-o", "ni=", "-p", str(lanes[0]["pid"])).stdout
        assert int(nice) == IN_GUEST, "this is a virtual machine"
        assert set(placed(guest)) == {"2", "3"}
        in_use(guest)
        # Nothing tells TuneD's thread of this, so it is there to be found.
        guest.run("taskset", "-cp", "0", str(lanes[1]["pid"]))
        done = guest.run("rxlane", "verify", check=False)
        assert done.rc == 1 and f"{guest.vm.nic}/rx1/thread-cpus: expected" in done.stdout
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_a_running_irqbalance_is_told(guest: Host) -> None:
    unit = ("systemd-run", "--quiet", "--unit=balance", "-p", "RuntimeDirectory=irqbalance")
    guest.run(*unit, "irqbalance", "--foreground", timeout=60)
    try:
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            planned = guest.run("rxlane", "plan", "-o", "irq_cpus=auto", guest.vm.nic).stdout
            if "irqbalance runs" in planned:
                return
        pytest.fail(f"no word of irqbalance after {SETTLE} s: {planned}")
    finally:
        guest.run("systemctl", "stop", "balance", timeout=60)
