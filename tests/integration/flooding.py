# SPDX-License-Identifier: GPL-2.0-or-later
"""Datagrams to a NIC of the guest for as long as a test needs."""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.tools import build_tool
from lab.rootfs import NICS
from lab.vm import Guest

# How long at most, in milliseconds.
FLOOD_MS = 1_800_000


@contextmanager
def flooded(
    vm: Guest, kind: str, rate: int, milliseconds: int = FLOOD_MS, size: int = 64
) -> Iterator[None]:
    """``rate`` datagrams of ``size`` bytes a second to a NIC of the guest."""
    mac, address = NICS[kind]
    address = address.removesuffix("/24")
    peer = {"to": address, "port": 6000, "flows": 25, "size": size, "rate": rate,
            "ms": milliseconds}  # fmt: skip
    words = [word for name, value in peer.items() for word in (f"--{name}", str(value))]
    tap = f"t-{kind}"
    vm.host(["ip", "neigh", "replace", address, "lladdr", mac, "dev", tap, "nud", "permanent"])
    sender = vm.popen([str(build_tool("udpflood")), *words])
    try:
        yield
        assert sender.poll() is None, f"the flood ended before: {sender.communicate()}"
    finally:
        sender.kill()
        sender.communicate()
