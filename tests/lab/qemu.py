# SPDX-License-Identifier: GPL-2.0-or-later
"""The QEMU a guest runs in: the machine's own, or a newer one unpacked into the cache.

Debian 12's QEMU 7.2 has no igb. Its backports carry one that has; apt says which packages that
needs beyond those installed, and they are unpacked beside the machine, never installed on it.
"""

import os
import platform
import re
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab import apt
from lab.cache import built, digest
from lab.progress import StepFailed, say, step, tool

SYSTEM = "qemu-system-x86_64"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Where the packages' firmware lies; a -L replaces QEMU's own list of folders.
FIRMWARE = ("usr/share/qemu", "usr/share/seabios")
# The emulated CPUs share what tells of the machine's memory, and while they start one can find it
# half made: QEMU's issue 1921. Where it is not noticed QEMU reads what is not there.
RACE = re.compile(r"^.*iotlb_to_section.*Assertion.*$", re.MULTILINE)


@dataclass(frozen=True)
class Qemu:
    """How to start it: the first words of the command line, and variables beside the usual."""

    argv: tuple[str, ...] = (SYSTEM,)
    variables: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        return {**os.environ, **dict(self.variables)}

    def knows(self, device: str) -> bool:
        """Whether it can emulate ``device``: it then prints the device's options."""
        done = subprocess.run(
            [*self.argv, "-device", f"{device},help"],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.startswith(f"{device} options:")


def ended_itself(said: str, code: int | None) -> str:
    """How QEMU failed where that is its race of emulated CPUs, as far as can be told; else empty.

    ``said`` are its words, ``code`` is what it ended with, as subprocess has it.
    """
    if found := RACE.search(said):
        return found[0].strip()
    return "QEMU read memory that is not its own" if code == -signal.SIGSEGV else ""


def resolved(simulation: str) -> list[tuple[str, str]]:
    """[(package, version)] that `apt-get --simulate install` would install."""
    rows = re.findall(r"^Inst (\S+) (?:\[\S*\] )?\((\S+) ", simulation, re.MULTILINE)
    return [(name.split(":")[0], version) for name, version in rows]


def newer_packages() -> list[tuple[str, str]]:
    """What the backports' QEMU needs here beyond the packages already installed."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    shown = tool(
        ["apt-get", "-q", "--simulate", "--no-install-recommends",
         "-o", "Dir::State::status=/var/lib/dpkg/status",
         "-o", f"APT::Default-Release={release}-backports", "install", "qemu-system-x86"],
        env=apt.state(),
    )  # fmt: skip
    return resolved(shown)


def unpacked(packages: list[tuple[str, str]]) -> Qemu:
    """QEMU out of these packages, unpacked into the cache."""
    debs = [apt.download(package, version) for package, version in packages]

    def make(out: Path) -> None:
        with step(f"unpacking {', '.join(' '.join(pair) for pair in packages)}"):
            for deb in debs:
                tool(["dpkg-deb", "-x", deb, out])

    root = built("qemu", digest(deb.name for deb in debs), make)
    words = [str(root / "usr/bin" / SYSTEM)]
    for folder in FIRMWARE:
        words += ["-L", str(root / folder)]
    variables = {
        "LD_LIBRARY_PATH": str(root / LIBRARIES),
        "QEMU_MODULE_DIR": str(root / LIBRARIES / "qemu"),
    }
    return Qemu(tuple(words), tuple(variables.items()))


def having(devices: Iterable[str]) -> Qemu:
    """A QEMU that emulates all of ``devices``; StepFailed when none can be had."""
    own = Qemu()
    missing = [device for device in devices if not own.knows(device)]
    if not missing:
        return own
    say(f"this machine's QEMU has no {', '.join(missing)}; taking a newer one from the backports")
    newer = unpacked(newer_packages())
    if lost := [device for device in missing if not newer.knows(device)]:
        raise StepFailed(f"the backports' QEMU has no {', '.join(lost)} either")
    return newer
