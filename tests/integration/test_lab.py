# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab itself: the guest is the machine it claims to be, and its failures are told apart."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import KERNELS, OURS, Host
from lab import apic, hung, monitor
from lab.machine import GuestSpec
from lab.net import Network
from lab.vm import ANEW, CommandFailed, Guest, GuestLost, Splat

# Starts the command that it is given, tells its process ID, and waits.
STARTER = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as command:
    print(command.pid, flush=True)
"""


@pytest.mark.kernels(OURS)
def test_topology(guest: Host) -> None:
    rows = json.loads(guest.run("lscpu", "--json", "--extended=CPU,NODE,SOCKET,CORE").stdout)
    cpus = rows["cpus"]
    assert len(cpus) == 8
    assert {row["node"] for row in cpus} == {0, 1}
    assert {row["socket"] for row in cpus} == {0, 1}
    assert len({row["core"] for row in cpus}) == 4


@pytest.mark.kernels(OURS)
def test_devices(guest: Host) -> None:
    drivers = {
        guest.run(
            "basename", guest.run("readlink", f"/sys/class/net/{name}/device/driver").stdout.strip()
        ).stdout.strip(): name
        for name in guest.run("ls", "/sys/class/net").stdout.split()
        if guest.run("test", "-e", f"/sys/class/net/{name}/device", check=False).rc == 0
    }
    assert {"virtio_net", "e1000e", "vmxnet3"} <= set(drivers)
    queues = guest.run("ls", f"/sys/class/net/{drivers['virtio_net']}/queues").stdout.split()
    assert sorted(queues) == sorted(f"{kind}-{n}" for kind in ("rx", "tx") for n in range(4))


@pytest.mark.kernels(OURS)
def test_traffic_reaches_the_guest(guest: Host) -> None:
    guest.vm.ping(count=3)


@pytest.mark.kernels(OURS)
def test_failed_command_is_not_a_lost_guest(guest: Host) -> None:
    with pytest.raises(CommandFailed):
        guest.run("false")
    assert guest.run("true").rc == 0


def test_lost_guest_and_splat_are_told_apart() -> None:
    """A guest of its own: it is made to report a splat, then, as a silent one is, to panic."""
    with pytest.raises(GuestLost), Guest(KERNELS[OURS](), GuestSpec(cpus=2)) as vm:
        vm.run(["dd", "of=/dev/kmsg", "if=/etc/hostname", "status=none"])
        vm.check_splats()
        vm.put(b"BUG: unable to handle: written by the test\n", "/root/splat")
        vm.run(["dd", "of=/dev/kmsg", "if=/root/splat", "status=none"])
        with pytest.raises(Splat):
            vm.check_splats()
        timers = [str(timer) for timer in apic.timers(vm.folder, 2)]
        hung.ask(vm.folder)
        vm.run(["sleep", "60"])
    assert all(re.search(r"'s timer.*: \d+ of \d+ left, requested ", line) for line in timers)
    told = hung.doing(vm.console_text())
    assert [line.partition(",")[0] for line in told[:2]] == ["CPU 0", "CPU 1"]
    assert told[2].startswith("systemd(S): ")
    assert "qemu-ga(" in told[-1]


class Raced(Guest):
    """A guest whose first boot ends as it does where QEMU's emulated CPUs race.

    With the words of an int3 that was gone, or with a reset before any word.
    """

    def __init__(self, how: str) -> None:
        super().__init__(KERNELS[OURS](), GuestSpec(cpus=2, share=[Path(__file__)]))
        self.accel, self.boots, self.how = "tcg", 0, how

    def _wait_for_boot(self, cuts: int = 0) -> None:
        super()._wait_for_boot(cuts)
        self.boots += 1
        if self.boots == 1:
            getattr(self, self.how)()
            raise self._lost("QEMU ended at boot")

    def int3(self) -> None:
        self._end()
        with self.console.open("a") as console:
            console.write("[    2.2] Oops: int3: 0000 [#1] PREEMPT SMP PTI\n")

    def reset(self) -> None:
        monitor.ask(self.folder, "system_reset")
        assert self._qemu is not None
        self._qemu.wait(60)


@pytest.mark.parametrize("how", ["int3", pytest.param("reset", marks=pytest.mark.long)])
def test_a_boot_lost_to_the_emulation_is_done_anew(how: str) -> None:
    """The second boot has all of the guest's disks again."""
    raced = Raced(how)
    with raced as vm:
        assert raced.boots == 2
        assert vm.read(f"/mnt/share/{Path(__file__).name}") == Path(__file__).read_bytes()
        vm.check_splats()
    # Told of it the run must be, but of none that was made up.
    assert how in ANEW.pop()


def until(cmdline: Path, wanted: bytes) -> bool:
    """Whether a process gets these words within 10 s; none once it has ended."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if (cmdline.read_bytes() if cmdline.exists() else b"") == wanted:
            return True
        time.sleep(0.05)
    return False


def test_a_killed_test_leaves_nothing_running() -> None:
    network = Network("rxlane-killed")
    network.create([])
    try:
        words = [sys.executable, "-c", STARTER, *network.inside(["sleep", "60"])]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as starter:
            assert starter.stdout is not None
            cmdline = Path("/proc", starter.stdout.readline().strip(), "cmdline")
            assert until(cmdline, b"sleep\x0060\0")
            starter.kill()
        assert until(cmdline, b"")
    finally:
        network.delete()
