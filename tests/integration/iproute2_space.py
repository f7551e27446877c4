# SPDX-License-Identifier: GPL-2.0-or-later
"""A network namespace of the host with veth pairs that have NAPIs, for the tests of ``ip``."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.paths import TREE

MODES = ("off", "on", "busy-poll")

# Both run in the namespace. The first reads every NAPI by tests/lab/reader.py, which packs and
# unpacks the messages on its own; the second switches GRO on, which gives a veth its NAPIs.
READ = """
import json, socket, reader
family = reader.netdev_family()
print(json.dumps({name: reader.napis(name, family) for _, name in socket.if_nameindex()}))
"""
GRO = """
import ctypes, fcntl, socket, struct, sys
SIOCETHTOOL, ETHTOOL_SGRO = 0x8946, 0x2C
for name in sys.argv[1:]:
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_SGRO, 1))
    request = struct.pack("16sQ16x", name.encode(), ctypes.addressof(value))
    fcntl.ioctl(socket.socket(), SIOCETHTOOL, request)
"""

Napi = dict[str, int]
Done = subprocess.CompletedProcess[str]


# iproute2 6.1 itself leaves answers of the kernel unfreed; all else that ASan finds counts.
ENV = {**os.environ, "LC_ALL": "C", "ASAN_OPTIONS": "detect_leaks=0"}


def run(argv: list[str | Path], env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    return subprocess.run(
        argv, env={**ENV, **(env or {})}, input=stdin,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def checked(argv: list[str | Path]) -> str:
    done = run(argv)
    if done.returncode:
        raise RuntimeError(f"{argv} ended with {done.returncode}: {done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Space:
    """One namespace, and the tool tested in it."""

    name: str
    ip: Path

    def __call__(self, *words: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
        """The tested ip with ``-n`` of this namespace."""
        return run([self.ip, "-n", self.name, *words], env, stdin)

    def inside(self, *argv: str | Path, env: Mapping[str, str] | None = None) -> Done:
        """Any command in the namespace with a sysfs of its own."""
        return run(["ip", "netns", "exec", self.name, *argv], env)

    def set(self, *words: str) -> None:
        done = self("link", "set", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (words, done)

    def show(self, device: str) -> dict[str, Any]:
        """What ``ip -j -d -d link`` says of one device."""
        found: list[dict[str, Any]] = json.loads(
            self("-j", "-d", "-d", "link", "show", "dev", device).stdout
        )
        return found[0]

    def napis(self) -> dict[str, list[Napi]]:
        """What the kernel says of every device's NAPIs, in ascending ID."""
        path = {"PYTHONPATH": str(TREE / "tests" / "lab")}
        done = self.inside(sys.executable, "-c", READ, env=path)
        found: dict[str, list[Napi]] = json.loads(done.stdout)
        return found

    def modes(self, device: str) -> list[str]:
        return [MODES[napi["threaded"]] for napi in self.napis()[device]]

    def sysfs(self, device: str) -> str:
        return self.inside("cat", f"/sys/class/net/{device}/threaded").stdout.strip()

    def pair(self, device: str, peer: str, queues: int, *words: str) -> None:
        """A veth pair with NAPIs, up; ``words`` are further ones for the device."""
        count = str(queues)
        checked(["ip", "-n", self.name, "link", "add", device, *words, "numrxqueues", count,
                 "numtxqueues", count, "type", "veth", "peer", "name", peer])  # fmt: skip
        self.inside(sys.executable, "-c", GRO, device, peer)
        for name in (device, peer):
            checked(["ip", "-n", self.name, "link", "set", name, "up"])


@contextmanager
def space(name: str, ip: Path) -> Iterator[Space]:
    checked(["ip", "netns", "add", name])
    try:
        yield Space(name, ip)
    finally:
        checked(["ip", "netns", "delete", name])
