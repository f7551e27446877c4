# SPDX-License-Identifier: GPL-2.0-or-later
"""The packages' life in one guest: install, apply, upgrade and back, remove, purge, nothing left.

They come from a signed apt repository. The guest is one of its own, since they leave it again.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaged import file_system, threads

from conftest import DEBS, KERNELS, OURS, READER, TREE, Host
from lab.machine import GuestSpec
from lab.vm import Guest

PACKAGES = ("python3-rxlane", "rxlane", "tuned-profiles-rxlane", "rxlane-kernel-patches")
NEXT = TREE / "build" / "debs-next"
NEXT_VERSION = "9999"
PROFILE = "net-low-latency"
REPOSITORY = TREE / "build" / "apt-test"
ON_GUEST = f"/mnt/share/{REPOSITORY.name}"
# The repository alone, from a file outside of /etc: what the guest came with stays as it is.
SOURCES = "/root/sources.d"
APT = ("-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={SOURCES}")


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


def apt(host: Host, *argv: str, check: bool = True) -> Any:
    return host.run("apt-get", "-y", "-q", *APT, *argv, timeout=600, check=check)


def install(host: Host, version: str, check: bool = True) -> Any:
    """All packages in this version, which may be lower than what is there."""
    wanted = (f"{name}={version}" for name in PACKAGES)
    return apt(host, "install", "--allow-downgrades", *wanted, check=check)


def check_versions(host: Host, version: str) -> None:
    assert installed(host) == dict.fromkeys(PACKAGES, f"installed {version}")


@pytest.fixture(scope="module")
def version(debs: list[Path]) -> str:
    found = {deb.name.split("_")[1] for deb in debs}
    assert len(found) == 1
    return found.pop()


@pytest.fixture(scope="module")
def repository(debs: list[Path]) -> Path:
    """The packages, and the same under a higher version to upgrade to."""
    build, sign = (str(TREE / "packaging" / name) for name in ("build-debs", "build-repo"))
    subprocess.run([build, "--version", NEXT_VERSION, "--output", str(NEXT)], check=True)
    place = ["--uri", f"file:{ON_GUEST}/", "--output", str(REPOSITORY)]
    subprocess.run([sign, *place, str(DEBS), str(NEXT)], check=True)
    return REPOSITORY


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What autopkgtest wants of the source package: its debian/."""
    tree: Path = tmp_path_factory.mktemp("source") / "rxlane-source"
    shutil.copytree(TREE / "packaging" / "debian", tree / "debian")
    return tree


@pytest.fixture(scope="module")
def bare(repository: Path, source: Path) -> Iterator[Host]:
    """A guest without our packages that knows the repository, irqbalance stopped as in others."""
    with Guest(KERNELS[OURS](), GuestSpec(cpus=4, queues=4, share=[repository, source])) as vm:
        vm.put(READER, "/root/reader.py")
        vm.run(["systemctl", "stop", "irqbalance"], timeout=60)
        vm.run(["install", "-D", "-t", SOURCES, f"{ON_GUEST}/rxlane.sources"])
        yield Host(OURS, vm)


def test_unsigned_packages_are_refused(bare: Host) -> None:
    """What was changed after it was signed is not believed, the repository as it is, is."""
    copy = "/root/changed"
    bare.run("cp", "-r", ON_GUEST, copy)
    bare.run("sh", "-c", f"rm {copy}/InRelease && echo >>{copy}/Packages && rm {copy}/Packages.xz")
    bare.run("sed", "-i", f"s|{ON_GUEST}|{copy}|", f"{SOURCES}/rxlane.sources")
    refused = apt(bare, "update", check=False)
    assert refused.rc != 0 and "not signed" in refused.stdout + refused.stderr
    bare.run("sed", "-i", f"s|{copy}|{ON_GUEST}|", f"{SOURCES}/rxlane.sources")
    bare.run("rm", "-r", copy)
    apt(bare, "update", "--error-on=any")


def test_life_of_the_packages(bare: Host, version: str) -> None:
    apt(bare, "update", "--error-on=any")
    files, settings = file_system(bare), bare.settings()

    install(bare, version)
    check_installed(bare)
    bare.run("tuned-adm", "profile", PROFILE)
    applied = bare.settings()
    running = threads(bare)
    assert applied != settings and running

    for other in (NEXT_VERSION, version, NEXT_VERSION):
        install(bare, other)
        check_versions(bare, other)
        assert bare.settings() == applied
        assert threads(bare) == running, f"the way to {other} restarted NAPI threads"

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


@pytest.mark.long
def test_upgrade_waits_for_the_confirmation(bare: Host, version: str) -> None:
    """None of the packages is upgraded while an apply waits to be confirmed."""
    settings = bare.settings()
    install(bare, version)
    bare.run("rxlane", "apply", "--confirm", "600", "-o", "threaded=on@1-", bare.vm.nic)
    applied = bare.settings()
    refused = install(bare, NEXT_VERSION, check=False)
    assert refused.rc != 0
    said = refused.stdout + refused.stderr
    for name in PACKAGES[:3]:
        assert f"{name}: an apply waits to be confirmed" in said
    assert bare.settings() == applied != settings
    states = installed(bare)
    assert {states[name] for name in PACKAGES[:3]} == {f"installed {version}"}

    bare.run("setsid", "--wait", "rxlane", "confirm")
    install(bare, NEXT_VERSION)
    check_versions(bare, NEXT_VERSION)
    assert bare.settings() == applied
    apt(bare, "purge", *PACKAGES)
    assert bare.settings() == settings


@pytest.mark.long
def test_autopkgtests(bare: Host, version: str) -> None:
    """The tests that Debian's own infrastructure runs, by its own tool, on installed packages."""
    settings = bare.settings()
    install(bare, version)
    tool = ("autopkgtest", "--no-built-binaries", "--ignore-restrictions=isolation-machine")
    ran = bare.run(*tool, "/mnt/share/rxlane-source", "--", "null", timeout=900, check=False)
    said = ran.stdout + ran.stderr
    assert ran.rc == 0, said
    for name in ("command", "profile", "kernel-patches"):
        assert re.search(rf"^{name} +PASS$", said, re.MULTILINE), said
    assert bare.settings() == settings
    apt(bare, "purge", *PACKAGES)


def test_removal_without_the_daemon(bare: Host, version: str) -> None:
    """TuneD dead and its rollback lost with it: the journal puts the settings back."""
    settings = bare.settings()
    install(bare, version)
    bare.run("tuned-adm", "profile", PROFILE)
    assert bare.settings() != settings
    bare.run("systemctl", "kill", "--signal=KILL", "tuned")
    bare.run("systemctl", "mask", "--runtime", "--now", "tuned", check=False)
    apt(bare, "purge", *PACKAGES)
    assert bare.settings() == settings
    bare.run("systemctl", "unmask", "--runtime", "tuned")


@pytest.mark.long
def test_removal_of_the_profiles_alone_leaves_what_was_applied(bare: Host, version: str) -> None:
    """TuneD was stopped, its files still name the profile, and the operator took over."""
    settings = bare.settings()
    install(bare, version)
    bare.run("tuned-adm", "profile", PROFILE)
    bare.run("systemctl", "stop", "tuned")
    try:
        assert bare.settings() == settings
        bare.run("rxlane", "apply", "-o", "threaded=on@1-", bare.vm.nic)
        applied = bare.settings()
        assert applied != settings
        apt(bare, "remove", PACKAGES[2])
        assert bare.settings() == applied
        apt(bare, "purge", *PACKAGES)
        assert bare.settings() == settings
    finally:
        bare.run("systemctl", "start", "tuned")
