# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: which CPU processes packets: with RPS any, with RFS the application's own.

The figures of "rfs: Receive Flow Steering" (netdev, April 2010) as shares: 64 flows from the host
to applications that are bound to the guest's eight CPUs, over one queue.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import DEBS, KERNELS, OURS, Host
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parent / "guest" / "flows.py"
FLOWS, PORT, CPUS, SECONDS = 64, 7000, 8, 8
# 64 flows over eight CPUs by their hash: in less than one run of 10,000 more than 20 of them are on
# their application's CPU, more than 23 on any one, or all on fewer than seven.
MOST_HERE, MOST_ON_ONE, FEWEST_CPUS = 20 / FLOWS, 23 / FLOWS, 7
SLACK = 1.5 / FLOWS  # applications start one after another, so flows do not have equal packets
RATE = 800  # packets a second of all flows together: an emulated guest takes in every one
# Bound to the ports that the guest's sockets are connected to, one for each flow.
SENDER = f"""
import socket, time
socks = []
for n in range({FLOWS}):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("10.77.0.1", 20000 + n))
    socks.append(one)
end = time.monotonic() + {SECONDS + 6}
number, due = 0, time.monotonic()
while time.monotonic() < end:
    number += 1
    for n, one in enumerate(socks):
        try:
            one.sendto(number.to_bytes(8, "big") + bytes(56), ("10.77.0.2", {PORT} + n))
        except ConnectionRefusedError:
            pass  # nobody has bound the port yet, or any more
        due += 1 / {RATE}
        time.sleep(max(0.0, due - time.monotonic()))
"""
WAYS = {
    "RPS": ("rps=0-7", "rfs=off"),
    "RFS": ("rps=0-7", "rfs=auto"),
}


@pytest.fixture(scope="module")
def host(debs: list[Path]) -> Iterator[Host]:
    spec = GuestSpec(cpus=CPUS, memory_mb=1024, queues=1, share=[DEBS])
    with Guest(KERNELS[OURS](), spec) as vm:
        found = Host(OURS, vm)
        found.run("systemctl", "stop", "irqbalance")
        files = [f"/mnt/share/debs/{deb.name}" for deb in debs]
        found.run("apt-get", "install", "-y", *files, timeout=300)
        vm.put(SCRIPT, "/root/flows.py")
        yield found
        vm.check_splats()


def received(host: Host, options: tuple[str, ...]) -> dict[str, Any]:
    """What the applications saw while the host sent; the layout goes afterwards."""
    words = [f"--option={option}" for option in options]
    host.run("rxlane", "apply", *words, host.vm.nic)
    inside = ["ip", "netns", "exec", host.vm.netns, sys.executable, "-c", SENDER]
    sender = subprocess.Popen(inside)
    try:
        argv = ("python3", "/root/flows.py", "10.77.0.1", str(PORT), str(FLOWS), str(SECONDS))
        found: dict[str, Any] = json.loads(host.run(*argv, timeout=120).stdout)
    finally:
        sender.kill()
        sender.wait()
        host.run("rxlane", "rollback")
    return found


def test_share_on_the_applications_cpu(host: Host) -> None:
    shares, on = {}, {}
    for name, options in WAYS.items():
        found = received(host, options)
        shares[name] = found["here"] / found["packets"]
        on[name] = {cpu: count / found["packets"] for cpu, count in found["on"].items()}
        print(f"\n{name}: {found['packets']} packets of {FLOWS} flows, {shares[name]:.1%} on the"
              f" application's CPU, {found['late']} late, {found['lost']} lost,"
              f" by CPU {on[name]}")  # fmt: skip
        assert found["cpus"] == CPUS
        assert found["packets"] >= RATE * SECONDS / 4
        assert found["late"] == 0, "a flow was delivered out of order"
    assert shares["RFS"] >= 0.95
    assert shares["RPS"] <= MOST_HERE + SLACK
    assert max(on["RPS"].values()) <= MOST_ON_ONE + SLACK
    assert len(on["RPS"]) >= FEWEST_CPUS
