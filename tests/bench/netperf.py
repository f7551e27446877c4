# SPDX-License-Identifier: GPL-2.0-or-later
"""netperf of the guest's Debian release on this machine, whatever release that is.

As a program, in a network namespace: ``netperf.py INSTANCES ARGV...`` runs so many at a time until
it is killed, or one of them fails.
"""

import signal
import subprocess
import sys
from pathlib import Path

from lab import apt
from lab.cache import built
from lab.progress import tool
from lab.rootfs import SUITE

PACKAGES = ("netperf", "libc6")


def argv() -> list[str]:
    """netperf with its own release's libraries: this machine's may be older."""
    versions = {name: _version(name) for name in PACKAGES}

    def unpack(out: Path) -> None:
        for name, version in versions.items():
            tool(["dpkg-deb", "-x", apt.download(name, version), out])

    folder = built("netperf", "_".join(versions.values()).replace(":", "%3a"), unpack)
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    loader = libraries / "ld-linux-x86-64.so.2"
    return [str(loader), "--library-path", str(libraries), str(folder / "usr/bin/netperf")]


def _version(name: str) -> str:
    return next(version for version, suite in apt.offered(name) if suite == SUITE)


def main(words: list[str]) -> int:
    instances: list[subprocess.Popen[bytes]] = []

    def end(*_: object) -> None:
        for one in instances:
            one.kill()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    for _ in range(int(words[0])):
        instances.append(
            subprocess.Popen(words[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )
    return max(one.wait() for one in instances)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
