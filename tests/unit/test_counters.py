# SPDX-License-Identifier: GPL-2.0-or-later
"""Counters of packets, interrupts and CPU time: read from netlink, drivers and files."""

from __future__ import annotations

import ctypes
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from rxlane import uapi as u
from rxlane.host import counters
from rxlane.netlink import pack_attr, pack_u32
from rxlane.samples import Counts
from rxlane.sysfs import Sysfs
from rxlane.wire import gstats, netdev
from unit.filetree import tree
from unit.sampled import host


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("rx0_packets", 0),
        ("rx_queue_12_packets", 12),
        ("rx-3.packets", 3),
        ("rx-3.rx_packets", 3),
        ("queue_5_rx_cnt", 5),
        ("rx_packets[7]", 7),
        ("[2]: rx_ucast_packets", 2),
        ("rx0_xdp_packets", None),
        ("rx_packets", None),
        ("tx0_packets", None),
        ("rx0_packets_phy", None),
    ],
)
def test_names_of_drivers_counters(name: str, queue: int | None) -> None:
    assert gstats.packets_of([(name, 9)]) == ({} if queue is None else {queue: 9})


def qstats(ifindex: int, kind: int, queue: int, packets: int | None) -> bytes:
    body = struct.pack("=BBH", u.NETDEV_CMD_QSTATS_GET, 1, 0)
    body += pack_u32(u.NETDEV_A_QSTATS_IFINDEX, ifindex)
    body += pack_u32(u.NETDEV_A_QSTATS_QUEUE_TYPE, kind)
    body += pack_u32(u.NETDEV_A_QSTATS_QUEUE_ID, queue)
    if packets is not None:
        body += pack_attr(u.NETDEV_A_QSTATS_RX_PACKETS, struct.pack("=Q", packets))
    return body


def test_qstats() -> None:
    assert netdev.parse_qstats(qstats(4, 0, 2, 1 << 40)) == ((4, 2), 1 << 40)
    assert netdev.parse_qstats(qstats(4, 1, 2, 9)) is None
    assert netdev.parse_qstats(qstats(4, 0, 2, None)) is None


class Counted(counters.Counters):
    """Counters of a tree of files and given answers of netdev and driver."""

    def __init__(self, sysfs: Sysfs, netdev: dict[tuple[int, int], int], driver: dict[int, int]):
        self._sysfs, self._ticks = sysfs, 100
        self._netdev = _Answers(netdev)  # type: ignore[assignment]
        self._driver = _Answers(driver)  # type: ignore[assignment]


class _Answers:
    def __init__(self, answer: dict[Any, int]) -> None:
        self._answer = answer

    def received(self, *_: str) -> dict[Any, int]:
        return self._answer


def test_sources_and_files(tmp_path: Path) -> None:
    stat = "2000 (napi/eth0-(8) 1) S " + "0 " * 10 + "150 50 " + "0 " * 30
    files = {
        "sys/class/net/eth0/statistics/rx_packets": "77\n",
        "proc/interrupts": "     CPU0 CPU1\n 40:  3  4  PCI-MSI 1-edge  x 9\nNMI: 8 8 y\n",
        "proc/2000/stat": stat,
    }
    sysfs, start = tree(tmp_path, files), host(rx=1)
    found = Counted(sysfs, {(2, 0): 5, (9, 0): 6}, {0: 8}).sample(start, start.links)
    assert found.counts[2] == Counts({0: 5}, 77, "netdev")
    assert found.interrupts == {40: 7} and found.seconds == {2000: 2.0}
    assert abs(found.clock - time.time()) < 60
    found = Counted(sysfs, {(9, 0): 6}, {0: 8}).sample(start, start.links)
    assert found.counts[2] == Counts({0: 8}, 77, "driver")
    found = Counted(sysfs, {}, {}).sample(start, start.links)
    assert found.counts[2] == Counts({0: 77}, 77, "device")
    several = host(rx=2)
    found = Counted(sysfs, {}, {}).sample(several, several.links)
    assert found.counts[2] == Counts({}, 77, None)


def test_counters_that_became_others_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of none where there are not as many as it is asked for."""
    count = [2]

    def ask(_: gstats.Driver, device: str, request: bytes, room: int = 0) -> bytes:
        command, number = struct.unpack_from("=II", request)
        if command == u.ETHTOOL_GSSET_INFO:
            return struct.pack("=IIQI", command, 0, 1, 2)
        if command == u.ETHTOOL_GSTRINGS:
            return request[:12] + b"".join(
                f"rx{n}_packets".encode().ljust(32, b"\0") for n in (0, 1)
            )
        head = struct.pack("=II", command, number if count[0] == number else 0)
        return head + struct.pack("=2Q", *((7, 8) if count[0] == number else (0, 0)))

    monkeypatch.setattr(gstats.Driver, "ask", ask)
    driver = gstats.Driver()
    assert driver.received("eth0") == {0: 7, 1: 8} == driver.received("eth0")
    count[0] = 0
    assert driver.received("eth0") == {}
    driver.close()


def test_a_kernel_that_writes_all_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number it was asked for, as it did for long: other memory is not to have it."""
    counts = iter((2, 40_000, 40_000, 2, 40_000))

    def ioctl(_: object, command: int, ifreq: bytes) -> None:
        (at,) = struct.unpack_from("16xP", ifreq)
        (asked,) = struct.unpack("=I", ctypes.string_at(at, 4))
        count = next(counts)
        answer = {
            u.ETHTOOL_GSSET_INFO: struct.pack("=IIQI", asked, 0, 1, count),
            u.ETHTOOL_GSTRINGS: struct.pack("=III", asked, 1, count) + b"x" * 32 * count,
            u.ETHTOOL_GSTATS: struct.pack("=II", asked, count) + b"x" * 8 * count,
        }[asked]
        ctypes.memmove(at, answer, len(answer))

    monkeypatch.setattr("rxlane.wire.ioctl.fcntl.ioctl", ioctl)
    driver = gstats.Driver()
    assert driver.received("eth0") == {}
    driver._names["eth0", 2] = ["rx0_packets", "rx1_packets"]
    assert driver.received("eth0") == {} and len(driver._roomy) > 32 * 40_000
    driver.close()


def test_the_ioctl_on_this_host() -> None:
    """Every host has lo, whose driver counts nothing; a device that is not there is no error."""
    driver = gstats.Driver()
    assert driver.received("lo") == {} and driver.received("no-such-dev") == {}
    driver.close()
