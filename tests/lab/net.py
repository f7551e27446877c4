# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's own network namespace with the taps of one guest; nothing leaves it."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from lab.progress import tool
from lab.rootfs import NICS


@dataclass(frozen=True)
class Tap:
    """One tap: its name in the namespace, the guest NIC's MAC, its queues."""

    nic: str
    name: str
    mac: str
    queues: int


def peer_of(kind: str) -> str:
    """This machine's address on the net of a kind of NICS, without the length of its prefix."""
    return NICS[kind][1].replace(".2/24", ".1")


class Network:
    """A network namespace named after the guest; ``taps`` are made with it and go with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.taps: list[Tap] = []

    def create(self, nics: Sequence[tuple[str, int]]) -> None:
        """``nics``: (kind of NICS, queues). The host side of each net gets its .1 address."""
        tool(["ip", "netns", "add", self.name])
        self._ip("link", "set", "lo", "up")
        for kind, queues in nics:
            tap = Tap(kind, f"t-{kind}", NICS[kind][0], queues)
            many = ["multi_queue"] if queues > 1 else []
            self._ip("tuntap", "add", tap.name, "mode", "tap", *many)
            self._ip("address", "add", f"{peer_of(kind)}/24", "dev", tap.name)
            self._ip("link", "set", tap.name, "up")
            self.taps.append(tap)

    def delete(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The words that run ``argv`` in the namespace, for as long as who starts them lives.

        A test that is killed has no chance to end its guest, which would take the CPUs of others.
        """
        return ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.name, *argv]

    def _ip(self, *words: str) -> None:
        tool(["ip", "-netns", self.name, *words])
