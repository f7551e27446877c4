# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: rx threads by the command and by the profile; RPS before them comes back.

What was done is read from sysfs, ps and taskset; what is left behind by the lab's reader. A kernel
without rx_threads is to say so, and nothing else.
"""

import json
from typing import Any

import pytest

from conftest import DEBIAN_612, OURS, Host, differing

pytestmark = pytest.mark.long

WORDS = ("-o", "rx_threads=2", "-o", "rx_thread_cpus=5,6", "-o", "rx_thread_nice=-5")
VARIABLES = "/etc/tuned/net-forwarding-variables.conf"
PROFILE = b"forwarding_rps=off\nforwarding_rx_threads=2\nforwarding_rx_thread_cpus=auto\n"
RPS = "06"  # CPUs 1 and 2


def count(host: Host) -> str:
    """How many rx threads the NIC has; empty where the kernel has none."""
    text: str = host.run("cat", f"/sys/class/net/{host.vm.nic}/rx_threads", check=False).stdout
    return text.strip()


def pid(host: Host, number: int) -> str:
    text: str = host.run("cat", f"/sys/class/net/{host.vm.nic}/rx_thread/{number}/pid").stdout
    return text.strip()


def steered(host: Host) -> list[int]:
    """The masks of RPS, queue by queue."""
    text = host.run("sh", "-c", f"cat /sys/class/net/{host.vm.nic}/queues/rx-*/rps_cpus").stdout
    return [int(line.replace(",", ""), 16) for line in text.split()]


def steer(host: Host, mask: str) -> None:
    files = f"/sys/class/net/{host.vm.nic}/queues/rx-*/rps_cpus"
    host.run("sh", "-c", f"for file in {files}; do echo {mask} > $file; done")


def mapped(host: Host) -> dict[str, Any]:
    shown = json.loads(host.run("rxlane", "map", "--json", host.vm.nic).stdout)
    found: dict[str, Any] = shown["devices"][0]["rx-threads"]
    return found


def said_to_lack_it(host: Host) -> bool:
    """On a kernel without: one line says so, and nothing is to change."""
    lacks = not count(host)
    assert lacks == (host.kernel != OURS), f"{host.kernel} {'lacks' if lacks else 'has'} it"
    if not lacks:
        return False
    plan = host.run("rxlane", "plan", *WORDS, host.vm.nic).stdout
    assert "rx-threads unsupported: kernel has no rx_threads" in plan
    assert plan.splitlines()[-1].startswith("0 to change")
    return True


@pytest.mark.kernels(OURS, DEBIAN_612)
def test_threads_with_their_cpus_and_class(guest: Host) -> None:
    if said_to_lack_it(guest):
        return
    before = guest.settings()
    guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
    try:
        assert count(guest) == "2"
        for number, cpu in ((0, "5"), (1, "6")):
            own = pid(guest, number)
            assert guest.run("cat", f"/proc/{own}/comm").stdout.startswith(f"rx{number}/")
            assert guest.run("taskset", "-cp", own).stdout.split()[-1] == cpu
            assert guest.run("ps", "-o", "ni=", "-p", own).stdout.strip() == "-5"
        guest.vm.ping()
        threads = mapped(guest)["threads"]
        assert [str(thread["pid"]) for thread in threads] == [pid(guest, n) for n in (0, 1)]
        assert sum(thread["packets"] for thread in threads) > 0
        assert all("reserved-cpu" not in thread for thread in threads)
        assert "thread PID" in " ".join(guest.run("rxlane", "map", guest.vm.nic).stdout.split())
        guest.run("rxlane", "verify")
        again = guest.run("rxlane", "apply", *WORDS, guest.vm.nic).stdout
        assert again.startswith("0 settings written"), again
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_drift_is_found_and_put_right(guest: Host) -> None:
    before = guest.settings()
    guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
    try:
        guest.run("sh", "-c", f"echo 1 > /sys/class/net/{guest.vm.nic}/rx_threads")
        guest.run("taskset", "-cp", "3", pid(guest, 0))
        said = guest.run("rxlane", "verify", check=False)
        assert said.rc != 0 and "rx-threads" in said.stdout and "rx-thread0" in said.stdout
        guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
        guest.run("rxlane", "verify")
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_rps_before_comes_back(guest: Host) -> None:
    """Each excludes the other in the kernel: the order of writing is the only one that works."""
    untouched = guest.settings()
    steer(guest, RPS)
    try:
        before = guest.settings()
        guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
        assert count(guest) == "2" and set(steered(guest)) == {0}
        guest.vm.ping()
        guest.run("rxlane", "rollback")
        assert count(guest) == "0" and set(steered(guest)) == {int(RPS, 16)}
        assert differing(before, guest.settings()) == {}
        guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
        guest.run("rxlane", "apply", "-o", "rps=3", guest.vm.nic)
        assert count(guest) == "0" and set(steered(guest)) == {1 << 3}
        guest.run("rxlane", "rollback")
        assert differing(before, guest.settings()) == {}
    finally:
        guest.run("rxlane", "rollback")
        steer(guest, "0")
    assert differing(untouched, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_the_profile_and_off(guest: Host) -> None:
    before, original = guest.settings(), guest.vm.read(VARIABLES)
    try:
        guest.vm.put(PROFILE, VARIABLES)
        guest.run("tuned-adm", "profile", "net-forwarding", timeout=180)
        assert count(guest) == "2"
        own = {guest.run("taskset", "-cp", pid(guest, n)).stdout.split()[-1] for n in (0, 1)}
        assert len(own) == 2, f"one CPU a thread: {own}"
        guest.vm.ping()
        guest.verify_by_tuned()
    finally:
        guest.vm.put(original, VARIABLES)
        guest.run("tuned-adm", "off", timeout=180)
    assert differing(before, guest.settings()) == {}
