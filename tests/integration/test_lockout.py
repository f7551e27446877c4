# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: an operator who locks himself out is let in again by `apply --confirm`.

Twenty ways of laying out the very NIC that ssh comes in by, most of them hostile to it. Each is
applied with a timeout and confirmed by nobody; after the timeout and five seconds at most, a new
login by ssh must have come through.
"""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import DEBS, KERNELS, OURS, READER, Host, differing
from lab import apt
from lab.machine import GuestSpec
from lab.rootfs import SUITE
from lab.vm import Guest

pytestmark = pytest.mark.long

TIMEOUT, GRACE = 10, 5  # seconds
SERVER = ("dropbear-bin", "libtomcrypt1", "libtommath1")
ADDRESS = "10.77.0.2"
CPU = "5"  # where hogs run
NS = 1_000_000_000


@dataclass(frozen=True)
class Way:
    """options: of apply. hogs: classes of endless loops on CPU, beside it. then: a command."""

    options: dict[str, object]
    hogs: tuple[str, ...] = ()
    then: str = ""


def way(*hogs: str, then: str = "", **options: Any) -> Way:
    return Way(options, hogs, then)


NEVER: dict[str, Any] = {"defer_hard_irqs": 2**31 - 1, "gro_flush_timeout": NS}
ON_CPU: dict[str, Any] = {"threaded": "on", "thread_cpus": CPU}
KILL = "systemctl kill --signal=KILL 'rxlane-confirm-*'"
WAYS = {
    "threads that wake once a second": way(threaded="on", **NEVER),
    "softirq that polls once a second": way(threaded="off", **NEVER),
    "the waiting process killed": way(threaded="on", then=KILL, **NEVER),
    "interrupts suspended for a second": way(irq_suspend_timeout=NS, threaded="on"),
    "busy pollers": way(threaded="busy-poll", thread_cpus="auto"),
    "real-time pollers": way(
        threaded="busy-poll@1-", thread_cpus="auto", thread_policy="fifo", thread_priority=49
    ),  # not all four: with CPU 0 left alone there are three cores
    "threads of the idle class beside hogs": way("other", "other", thread_policy="idle", **ON_CPU),
    "threads of the least weight beside hogs": way("other", "other", thread_nice=19, **ON_CPU),
    "threads under a real-time hog": way("fifo", **ON_CPU),
    "interrupts under a real-time hog": way("fifo", irq_cpus=CPU, threaded="off"),
    "interrupts and threads under a real-time hog": way("fifo", irq_cpus=CPU, **ON_CPU),
    "RPS to a CPU with a real-time hog": way("fifo", rps=CPU),
    "RFS and sending by the receiving queue": way("other", rfs="auto", rps=CPU, xps="rxqs"),
    "helper threads under a real-time hog": way(
        "fifo", rx_threads=1, rx_thread_cpus=CPU, rps="off", rfs="off"
    ),
    "kernel workers under a real-time hog": way("fifo", workqueue_cpus=CPU, irq_cpus=CPU),
    "one pair of queues": way(channels=1),
    "one pair of queues that polls once a second": way(channels=1, threaded="on", **NEVER),
    "the smallest rings": way(ring_rx=32, ring_tx=32, threaded="on", **NEVER),
    "coalescing of a second": way(rx_usecs=1_000_000, tx_usecs=1_000_000, rx_frames=250),
    "everything at once": way(
        "fifo", "other", channels=2, rps=CPU, rfs="auto", workqueue_cpus=CPU, irq_cpus=CPU,
        **ON_CPU, **NEVER,
    ),
}  # fmt: skip


@dataclass
class Door:
    """The guest, the key to it, and by way whether a login failed before the timeout."""

    host: Host
    key: Path
    shut: dict[str, bool] = field(default_factory=dict)

    def knock(self, patience: float) -> bool:
        """Log in anew by ssh; False when that took too long."""
        argv = [
            "ssh", "-F", "none", "-i", str(self.key), "-o", "BatchMode=yes",
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", f"ConnectTimeout={max(1, int(patience))}", f"root@{ADDRESS}", "true",
        ]  # fmt: skip
        inside = ["ip", "netns", "exec", self.host.vm.netns, *argv]
        try:
            done = subprocess.run(inside, capture_output=True, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@pytest.fixture(scope="module")
def door(debs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    key = tmp_path_factory.mktemp("ssh") / "key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(argv, check=True)
    server = [
        apt.download(name, next(v for v, suite in apt.offered(name) if suite == SUITE))
        for name in SERVER
    ]
    spec = GuestSpec(cpus=8, sockets=2, threads=2, memory_mb=1024, queues=4, share=[DEBS, *server])
    with Guest(KERNELS[OURS](), spec) as vm:
        host = Host(OURS, vm)
        vm.put(READER, "/root/reader.py")
        host.run("systemctl", "stop", "irqbalance")
        files = [f"/mnt/share/debs/{deb.name}" for deb in debs]
        files += [f"/mnt/share/{deb.name}" for deb in server]
        host.run("apt-get", "install", "-y", *files, timeout=300)
        host.run("mkdir", "-p", "-m", "700", "/root/.ssh", "/etc/dropbear")
        vm.put(key.with_suffix(".pub"), "/root/.ssh/authorized_keys", 0o600)
        host.run("systemd-run", "--quiet", "--unit=door", "dropbear", "-F", "-R", "-s")
        opened = Door(host, key)
        end = time.monotonic() + 60
        while not opened.knock(10):
            assert time.monotonic() < end, host.run("journalctl", "-u", "door").stdout
        yield opened
        vm.check_splats()
        if opened.shut.keys() == WAYS.keys():
            assert any(opened.shut.values()), "no way shut ssh, so none has shown anything"


@pytest.mark.parametrize("name", WAYS)
def test_ssh_is_back(door: Door, name: str) -> None:
    host, chosen = door.host, WAYS[name]
    before = host.settings()
    words = [f"--option={option}={value}" for option, value in chosen.options.items()]
    said = host.run("rxlane", "apply", "--confirm", str(TIMEOUT), *words, host.vm.nic)
    applied = time.monotonic()
    try:
        for number, policy in enumerate(chosen.hogs):
            chrt = ["chrt", "--fifo", "50"] if policy == "fifo" else []
            loop = ["taskset", "-c", CPU, *chrt, "sh", "-c", "while :; do :; done"]
            host.run("systemd-run", "--quiet", f"--unit=hog{number}", *loop)
        if chosen.then:
            host.run("sh", "-c", chosen.then)
        door.shut[name] = shut = not door.knock(2)
        time.sleep(max(0.0, applied + TIMEOUT - time.monotonic()))
        while not (back := door.knock(2)) and time.monotonic() < applied + 6 * TIMEOUT:
            time.sleep(0.1)
        took = time.monotonic() - applied
    finally:
        for number in range(len(chosen.hogs)):
            host.run("systemctl", "stop", f"hog{number}")
    print(f"\n{name}: {said.stdout.splitlines()[0]}; ssh {'shut' if shut else 'slow or open'},"
          f" back after {took:.1f} s")  # fmt: skip
    assert back and took <= TIMEOUT + GRACE
    after = host.settings()
    assert differing(before, after) == {}
