# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-packages`: the RPMs' life in a guest: install, apply, upgrade, erase, nothing left.

The guest is Debian, so rpm does not know what its packages depend on, and Python and TuneD are led
to the folders of RHEL's. What runs are the packages' own scripts, on systemd, udev and TuneD.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaged import file_system, threads

from conftest import KERNELS, OURS, READER, TREE, Host
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

RPMS, NEXT = TREE / "build" / "rpms", TREE / "build" / "rpms-next"
NEXT_DIST = ".next"
NAMES = ("python3-rxlane", "rxlane", "tuned-profiles-rxlane", "rxlane-kernel-patches")
# Those with a part in an apply that waits to be confirmed.
WAITING = NAMES[:3]
SITE = "/usr/lib/python3.12/site-packages"
LED = "/usr/lib/python3/dist-packages"
FOLDERS = ("plugins", "profiles/functions")  # of TuneD, with files of ours
PRESETS = "/usr/lib/systemd/system-preset"
PROFILE = "net-low-latency"
RPM = ("rpm", "--nodeps", "--nosignature")


def rpm(host: Host, *words: str, check: bool = True) -> Any:
    return host.run(*RPM, *words, timeout=600, check=check)


def packages(folder: Path) -> list[str]:
    """Where the guest has them."""
    found = [next(folder.glob(f"{name}-[0-9]*.noarch.rpm")) for name in NAMES]
    return [f"/mnt/share/{folder.name}/{path.name}" for path in found]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    build = [str(TREE / "packaging" / "build-rpms"), "--dist", NEXT_DIST, "--output", str(NEXT)]
    subprocess.run(build, check=True)
    with Guest(KERNELS[OURS](), GuestSpec(cpus=4, queues=4, share=[RPMS, NEXT])) as vm:
        vm.put(READER, "/root/reader.py")
        vm.run(["systemctl", "stop", "irqbalance"], timeout=60)
        vm.put(f"{SITE}\n".encode(), f"{LED}/as-on-rhel.pth")
        vm.run(["mkdir", "-p", *(f"{SITE}/tuned/{folder}" for folder in FOLDERS)])
        # As Fedora's and RHEL's release packages have it.
        vm.put(b"disable *\n", f"{PRESETS}/99-default-disable.preset")
        vm.run(["rpm", "--initdb"])
        yield Host(OURS, vm)
        vm.check_splats()


def lead_tuned(host: Host) -> None:
    """TuneD looks for plugins and functions where it was installed itself."""
    for folder in FOLDERS:
        host.run("sh", "-c", f"ln -sf {SITE}/tuned/{folder}/*.py {LED}/tuned/{folder}/")
    host.run("systemctl", "restart", "tuned", timeout=180)


def let_go(host: Host) -> None:
    """Without that, and what Python compiled: RHEL's packages have it among their files."""
    host.run("find", *(f"{LED}/tuned/{folder}" for folder in FOLDERS), "-type", "l", "-delete")
    host.run("find", SITE, "-name", "__pycache__", "-prune", "-exec", "rm", "-r", "{}", "+")


def test_life_of_the_packages(host: Host) -> None:
    files, settings = file_system(host), host.settings()
    rpm(host, "-i", *packages(RPMS))
    lead_tuned(host)
    assert host.run("stat", "-c", "%a %U", "/var/lib/rxlane").stdout.split() == ["700", "root"]
    assert host.run("systemctl", "is-enabled", "rxlane-boot").stdout.strip() == "enabled"
    host.run("tuned-adm", "profile", PROFILE, timeout=180)
    applied, running = host.settings(), threads(host)
    assert applied != settings and running

    for folder, words in ((NEXT, ()), (RPMS, ("--oldpackage",))):
        rpm(host, "-U", *words, *packages(folder))
        assert host.settings() == applied
        assert threads(host) == running, f"the way to {folder.name} restarted NAPI threads"

    let_go(host)
    rpm(host, "-e", *reversed(NAMES))
    assert host.settings() == settings and threads(host) == {}
    assert PROFILE not in host.run("tuned-adm", "active", check=False).stdout
    left = sorted(_but_foreign(file_system(host)) ^ _but_foreign(files))
    assert left == [], "\n".join(left)


def _but_foreign(lines: set[str]) -> set[str]:
    """Without what Python compiled meanwhile, rpm's books, and a folder that RHEL itself has."""
    foreign = ("__pycache__", "/var/lib/rpm", "/usr/share/licenses ")
    return {line for line in lines if not any(word in line for word in foreign)}


def test_upgrade_waits_for_the_confirmation(host: Host) -> None:
    settings = host.settings()
    rpm(host, "-i", *packages(RPMS))
    host.run("rxlane", "apply", "--confirm", "600", "-o", "threaded=on@1-", host.vm.nic)
    applied = host.settings()
    refused = rpm(host, "-U", *packages(NEXT), check=False)
    assert refused.rc != 0
    said = refused.stdout + refused.stderr
    assert said.count("an apply waits to be confirmed") == len(WAITING), said
    assert host.settings() == applied != settings
    assert NEXT_DIST not in host.run("rpm", "-q", *WAITING).stdout
    host.run("setsid", "--wait", "rxlane", "confirm")
    # The patches, which have no part in it, are upgraded already.
    rpm(host, "-U", "--replacepkgs", *packages(NEXT))
    assert host.settings() == applied
    gone = rpm(host, "-e", *reversed(NAMES))
    assert host.settings() == settings, gone.stdout + gone.stderr
