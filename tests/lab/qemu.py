# SPDX-License-Identifier: GPL-2.0-or-later
"""The QEMU a guest runs in: the machine's own, or a newer one unpacked into the cache.

Debian 12's QEMU 7.2 has no igb, and far more often than later ones its emulated CPUs execute what
the guest's kernel has replaced. Its backports carry one that is better; apt says which packages
that needs beyond those installed, and they are unpacked beside the machine, never installed on it.
"""

import functools
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
# The oldest major version seen to be much better with a kernel that patches itself. An emulated CPU
# can meet an int3 that is gone already ("Oops: int3", which ends the guest). A Debian guest of 8
# CPUs that switched two static keys all the time did so within 200 switches in all of three runs of
# 7.2; of eight runs of 10.0.2 four went on for 1,440 to 4,200 switches, until they were ended.
STEADIER = 10
# The emulated CPUs share what tells of the machine's memory, and while that changes, as they start
# or a card comes or goes, one can find it half made: QEMU's issue 1921. Where it is not noticed,
# QEMU reads what is not there.
RACE = re.compile(r"^.*iotlb_to_section.*Assertion.*$", re.MULTILINE)


@dataclass(frozen=True)
class Qemu:
    """How to start it: the first words of the command line, and variables beside the usual."""

    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        return {**os.environ, **dict(self.variables)}

    def says(self, *words: str) -> str:
        """What it prints to ``words``."""
        done = subprocess.run(
            [*self.argv, *words],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def knows(self, device: str) -> bool:
        """Whether it can emulate ``device``: it then prints the device's options."""
        return self.says("-device", f"{device},help").startswith(f"{device} options:")

    @property
    def version(self) -> int:
        """The major one."""
        return major(self.says("--version"))

    def lacks(self, devices: Iterable[str], emulated: bool) -> list[str]:
        """What is wrong with it for a guest with ``devices``, whose CPUs it is to emulate."""
        lost = [f"has no {device}" for device in devices if not self.knows(device)]
        if emulated and (version := self.version) < STEADIER:
            lost.append(f"is {version}, whose emulated CPUs race more")
        return lost


def major(said: str) -> int:
    """The major version of the QEMU that says this of its version. StepFailed."""
    found = re.search(r"version (\d+)\.", said)
    if found is None:
        raise StepFailed(f"QEMU's version is not in {said!r}")
    return int(found[1])


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


@functools.cache
def newer() -> Qemu:
    """That of the backports."""
    return unpacked(newer_packages())


@functools.cache
def having(devices: tuple[str, ...], emulated: bool = False) -> Qemu:
    """A QEMU for a guest with ``devices``; StepFailed when none can be had.

    emulated: it emulates the guest's CPUs as well, which not every one does as it should.
    """
    own = Qemu((SYSTEM,))
    if not (lost := own.lacks(devices, emulated)):
        return own
    say(f"this machine's QEMU {', '.join(lost)}; taking a newer one from the backports")
    better = newer()
    if lost := better.lacks(devices, emulated):
        raise StepFailed(f"the backports' QEMU {', '.join(lost)}, either")
    return better
