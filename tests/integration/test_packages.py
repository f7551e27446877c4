# SPDX-License-Identifier: GPL-2.0-or-later
"""The packages' life in one guest: install, apply, upgrade, remove, purge, and nothing left.

The guest is one of its own, since the packages leave it again.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import DEBS, KERNELS, OURS, READER, TREE, Host
from lab.vm import Guest, GuestSpec

PACKAGES = ("python3-rxlane", "rxlane", "tuned-profiles-rxlane", "rxlane-kernel-patches")
NEXT = TREE / "build" / "debs-next"
NEXT_VERSION = "9999"
PROFILE = "net-low-latency"

# What changes with any package or any TuneD profile, none of it ours: dpkg's and apt's own books,
# caches, logs, run-time folders, and the three files in which TuneD notes the active profile.
FOREIGN = (
    *("/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/var/tmp", "/tmp", "/root"),
    *("/var/lib/systemd", "/etc/tuned/active_profile", "/etc/tuned/profile_mode"),
    "/etc/tuned/post_loaded_profile",
)


def installed(host: Host) -> dict[str, str]:
    """Version of each of our packages that dpkg knows, be it only its configuration files."""
    query = host.run(
        "dpkg-query",
        "-W",
        "-f",
        "${Package} ${db:Status-Status} ${Version}\n",
        *PACKAGES,
        check=False,
    )
    rows = [line.split() for line in query.stdout.splitlines()]
    # Until the purge of the others dpkg still lists one that has left nothing as not-installed.
    return {row[0]: " ".join(row[1:]) for row in rows if row[1] != "not-installed"}


def file_system(host: Host) -> set[str]:
    """A line a file of the guest: type, mode, owner, size and target; sums of what is in /etc."""
    prune: list[str] = []
    for path in FOREIGN:
        prune += ["-path", path, "-o"]
    looks = ["-type", "d", "-printf", "%p %M %U:%G\n", "-o", "-printf", "%p %M %U:%G %s %l\n"]
    found = host.run("find", "/", "-xdev", "(", *prune[:-1], ")", "-prune", "-o", *looks)
    etc = host.run(
        "find",
        "/etc",
        "-xdev",
        "(",
        *prune[:-1],
        ")",
        "-prune",
        "-o",
        "-type",
        "f",
        "-exec",
        "sha256sum",
        "{}",
        "+",
    )
    return {*found.stdout.splitlines(), *etc.stdout.splitlines()}


def threads(host: Host) -> dict[str, str]:
    """Name by PID of the NAPI threads: a thread that was started anew has another PID."""
    rows = [
        line.split(None, 1) for line in host.run("ps", "-e", "-o", "pid=,comm=").stdout.split("\n")
    ]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[1].startswith("napi/")}


def apt(host: Host, *argv: str) -> None:
    host.run("apt-get", "-y", "-q", *argv, timeout=600)


def install(host: Host, folder: Path) -> None:
    names = sorted(deb.name for deb in folder.glob("*.deb"))
    apt(host, "install", *(f"/mnt/share/{folder.name}/{name}" for name in names))


@pytest.fixture(scope="module")
def next_debs() -> Path:
    """The same packages under a higher version, to upgrade to."""
    program = str(TREE / "packaging" / "build-debs")
    subprocess.run([program, "--version", NEXT_VERSION, "--output", str(NEXT)], check=True)
    return NEXT


@pytest.fixture(scope="module")
def bare(debs: list[Path], next_debs: Path) -> Iterator[Host]:
    """A guest without our packages, irqbalance stopped as in the other guests."""
    with Guest(KERNELS[OURS](), GuestSpec(cpus=4, queues=4, share=[DEBS, next_debs])) as vm:
        vm.put(READER, "/root/reader.py")
        vm.run(["systemctl", "stop", "irqbalance"], timeout=60)
        yield Host(OURS, vm)


def test_life_of_the_packages(bare: Host) -> None:
    files, settings = file_system(bare), bare.settings()

    install(bare, DEBS)
    check_installed(bare)
    bare.run("tuned-adm", "profile", PROFILE)
    applied = bare.settings()
    running = threads(bare)
    assert applied != settings and running

    install(bare, NEXT)
    assert set(installed(bare).values()) == {f"installed {NEXT_VERSION}"}
    assert bare.settings() == applied
    assert threads(bare) == running, "the upgrade restarted NAPI threads"

    apt(bare, "remove", *PACKAGES)
    assert bare.settings() == settings
    assert threads(bare) == {}
    assert PROFILE not in bare.run("tuned-adm", "active", check=False).stdout
    assert PROFILE not in bare.run("tuned-adm", "list").stdout
    # The administrator's choices outlive a removal; the journal has been used up.
    assert installed(bare) == {PACKAGES[2]: f"config-files {NEXT_VERSION}"} | {
        PACKAGES[1]: f"config-files {NEXT_VERSION}"
    }
    bare.run("test", "-e", f"/etc/tuned/{PROFILE}-variables.conf")

    # apt cannot locate those that have left nothing.
    apt(bare, "purge", *installed(bare))
    assert installed(bare) == {}
    assert sorted(file_system(bare) ^ files) == []
    bare.vm.check_splats()


def check_installed(host: Host) -> None:
    """The packages are whole, TuneD lists the profile, and the journal's folder is root's alone."""
    assert set(installed(host)) == set(PACKAGES)
    assert host.run("dpkg", "--verify", *PACKAGES).stdout == ""
    assert f"- {PROFILE}" in host.run("tuned-adm", "list").stdout
    assert host.run("stat", "-c", "%a %U", "/var/lib/rxlane").stdout.split() == ["700", "root"]
    assert json.loads(host.run("rxlane", "map", "--json").stdout)["devices"]


def test_removal_without_the_daemon(bare: Host) -> None:
    """TuneD dead and its rollback lost with it: the journal puts the settings back."""
    settings = bare.settings()
    install(bare, DEBS)
    bare.run("tuned-adm", "profile", PROFILE)
    assert bare.settings() != settings
    bare.run("systemctl", "kill", "--signal=KILL", "tuned")
    bare.run("systemctl", "mask", "--runtime", "--now", "tuned", check=False)
    apt(bare, "purge", *PACKAGES)
    assert bare.settings() == settings
    bare.run("systemctl", "unmask", "--runtime", "tuned")
