# SPDX-License-Identifier: GPL-2.0-or-later
"""KVM where a probe boot shows that it works, software emulation everywhere else."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from lab.cache import locked, replaced
from lab.paths import cache
from lab.progress import say
from lab.qemu import SYSTEM

PROBE_S = 10.0


def boots_with_kvm(bzimage: Path) -> bool:
    """True when the kernel's first words reach the serial port under KVM within PROBE_S."""
    with tempfile.TemporaryDirectory() as scratch:
        console = Path(scratch) / "console"
        argv = [SYSTEM, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-display",
                "none", "-no-reboot", "-kernel", str(bzimage), "-serial", f"file:{console}",
                "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"]  # fmt: skip
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as qemu:
            end = time.monotonic() + PROBE_S
            seen = False
            while not seen and qemu.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
                seen = _spoke(console)
            qemu.kill()
        return seen or _spoke(console)


def _spoke(console: Path) -> bool:
    return console.exists() and b"Linux version" in console.read_bytes()


def kvm_works(bzimage: Path) -> bool:
    """The probe's answer, kept for as long as this machine stays booted."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = cache("kvm") / boot
    # Two probes at once would take the other's time.
    with locked(known.with_suffix(".lock")):
        if not known.exists():
            replaced(known, "yes" if boots_with_kvm(bzimage) else "no")
    return known.read_text() == "yes"


def choose(bzimage: Path) -> str:
    """ "kvm" or "tcg". RXLANE_ACCEL=tcg asks for emulation, =kvm insists on KVM."""
    asked = os.environ.get("RXLANE_ACCEL", "auto")
    if asked not in ("auto", "kvm", "tcg"):
        raise ValueError(f"RXLANE_ACCEL={asked}: auto, kvm or tcg")
    if asked == "tcg":
        return "tcg"
    if kvm_works(bzimage):
        return "kvm"
    if asked == "kvm":
        raise ValueError("RXLANE_ACCEL=kvm, but no guest boots with KVM on this machine")
    say("KVM does not work here; software emulation does the job")
    return "tcg"
