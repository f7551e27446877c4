# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: TuneD 2.25 and 2.27 run the profiles, also beside their own; 2.20 refuses.

TuneD 2.25, which is in Debian 13, is what all other guest tests run on as well.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import DEBS, KERNELS, OURS, READER, TUNED_LOG, Host, differing
from lab import apt
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

OWN, NEW, OLD = "2.25", "2.27.0-1", "2.20.0-1"
PROFILES = ("net-low-latency", "net-forwarding", "net-vm-host")
# TuneD's own profiles with [net], [irq], [scheduler] or [sysctl], which set other things.
BESIDE = ("latency-performance net-low-latency", "throughput-performance net-forwarding",
          "virtual-host net-vm-host")  # fmt: skip
OURS_ONLY = """[main]
summary=one section of each of rxlane's plugins
[napi]
threaded=on
[irq_layout]
irq_cpus=auto
[flow_steering]
rps=auto
"""


@pytest.fixture(scope="module", params=[OWN, NEW])
def host(request: pytest.FixtureRequest, debs: list[Path]) -> Iterator[Host]:
    """A guest with Debian 13's TuneD or the newest that Debian has, and the older one at hand."""
    tuned = [apt.download("tuned", apt.choose("tuned", version)) for version in (NEW, OLD)]
    spec = GuestSpec(cpus=4, memory_mb=1024, queues=4, e1000e=True, share=[DEBS, *tuned])
    with Guest(KERNELS[OURS](), spec) as vm:
        vm.put(READER, "/root/reader.py")
        found = Host(OURS, vm)
        found.run("systemctl", "stop", "irqbalance")
        if request.param == NEW:
            first = f"/mnt/share/{tuned[0].name}"
            found.run("apt-get", "install", "-y", "-o", "Dpkg::Options::=--force-confold", first,
                      timeout=300)  # fmt: skip
        files = [f"/mnt/share/debs/{deb.name}" for deb in debs]
        found.run("apt-get", "install", "-y", *files, timeout=300)
        found.run("systemctl", "restart", "tuned.service", timeout=180)
        yield found
        vm.check_splats()


def adm(host: Host, *words: str) -> str:
    said = host.run("tuned-adm", *words, timeout=180, check=False)
    assert said.rc == 0, said.stdout + said.stderr + host.run("tail", "-n", "40", TUNED_LOG).stdout
    text: str = said.stdout
    return text


def not_verified(host: Host, *profiles: str) -> set[str]:
    """Applies them; what TuneD's verification finds wrong, in its own words."""
    adm(host, "profile", *profiles)
    host.run("sh", "-c", f": > {TUNED_LOG}")
    said = host.run("tuned-adm", "verify", timeout=180, check=False)
    found = set(re.findall(r"(\S+ verify: failed.*)$", host.run("cat", TUNED_LOG).stdout, re.M))
    assert (said.rc == 0) == (not found), said.stdout + said.stderr
    return found


def test_it_is_the_one_meant(host: Host, request: pytest.FixtureRequest) -> None:
    found = host.run("dpkg-query", "-W", "-f", "${Version}", "tuned").stdout
    assert found.startswith(request.node.callspec.params["host"])


@pytest.mark.parametrize("profile", PROFILES + BESIDE)
def test_applied_verified_and_off(host: Host, profile: str) -> None:
    before = host.settings()
    *beside, mine = profile.split()
    try:
        # In a guest TuneD's own profiles do not find all that they set.
        theirs = not_verified(host, *beside) if beside else set()
        assert not_verified(host, *beside, mine) - theirs == set()
        assert differing(before, host.settings())
        host.vm.ping()
    finally:
        host.run("tuned-adm", "off", timeout=180)
    left = differing(before, host.settings())
    # What TuneD's own profiles leave behind is not this test's: ours set what is of lanes.
    of_lanes = {key: value for key, value in left.items() if not key.startswith("sysctl/kernel")}
    assert of_lanes == {}


def test_a_killed_daemon_brings_the_originals_back(host: Host) -> None:
    before = host.settings()
    adm(host, "profile", "net-low-latency")
    host.run("systemctl", "kill", "--signal=KILL", "tuned.service")
    host.run("systemctl", "restart", "tuned.service", timeout=180)
    adm(host, "off")
    assert differing(before, host.settings()) == {}


def test_the_role_is_recommended(host: Host) -> None:
    without = adm(host, "recommend")
    assert without.strip() not in PROFILES
    for profile in PROFILES:
        host.run("sh", "-c", f"echo {profile} > /etc/rxlane/role")
        assert adm(host, "recommend").strip() == profile
    host.run("rm", "/etc/rxlane/role")
    assert adm(host, "recommend") == without


def test_the_older_one_says_so_in_one_line(host: Host) -> None:
    """apt would not have both; dpkg is told to. It must be the last test of this guest."""
    before = host.settings()
    old = next(Path(p) for p in host.run("sh", "-c", "ls /mnt/share/tuned_2.20*").stdout.split())
    host.run("systemctl", "stop", "tuned.service")
    host.run("dpkg", "--force-depends", "--force-downgrade", "--force-confnew", "-i", str(old),
             timeout=300)  # fmt: skip
    host.run("mkdir", "-p", "/etc/tuned/lanes")
    host.vm.put(OURS_ONLY.encode(), "/etc/tuned/lanes/tuned.conf")
    host.run("sh", "-c", f": > {TUNED_LOG}")
    host.run("systemctl", "restart", "tuned.service", timeout=180)
    host.run("tuned-adm", "profile", "lanes", timeout=180, check=False)
    lines = host.run("cat", TUNED_LOG).stdout.splitlines()
    told = [line for line in lines if "need TuneD 2.25 or newer" in line]
    assert len(told) == 1, "\n".join(lines)
    assert not [line for line in lines if "Traceback" in line], "\n".join(lines)
    assert differing(before, host.settings()) == {}
