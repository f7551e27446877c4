# SPDX-License-Identifier: GPL-2.0-or-later
"""`map --watch`: counters read, rates between two samples, what is shown of them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rxlane import counters, gstats, live, netdev, rates, table
from rxlane import uapi as u
from rxlane.marks import Place, places
from rxlane.model import Link, Snapshot
from rxlane.netlink import pack_attr, pack_u32
from rxlane.rates import Counts, Rate, Sample
from rxlane.sysfs import Sysfs
from unit import synthetic
from unit.commands import Captured, run
from unit.filetree import tree


def host(**link: Any) -> Snapshot:
    row = {"name": "eth0", "rx": 2, "mode": "busy-poll", "sched": "fifo:50", **link}
    return synthetic.snapshot({"cpus": [{"count": 4}], "links": [{"thread_cpus": "each", **row}]})


def sample(at: float, *queues: int, irq: int = 0, cpu: float = 0.0, total: int = 0) -> Sample:
    counted = Counts(dict(enumerate(queues)), total, "netdev")
    return Sample(at, {"eth0": counted}, {40: irq}, {synthetic.FIRST_PID: cpu})


def gains(start: Snapshot, first: Sample, second: Sample) -> Iterator[Rate]:
    (link,) = start.links
    return rates.rates(link, rates.by_link(start)[link.ifindex], first, second)


def test_rates_between_two_samples() -> None:
    start = host()
    first, second = sample(10.0, 100, 7), sample(12.0, 2100, 7, irq=50, cpu=1.0, total=2000)
    one, two = gains(start, first, second)
    assert (one.packets, one.interrupts, one.cpu) == (1000.0, 25.0, 0.5)
    assert (two.packets, two.interrupts, two.cpu) == (0.0, None, None)


def test_counters_that_began_anew_or_are_new_give_no_rate() -> None:
    start = host()
    first, second = sample(1.0, 100), sample(2.0, 5, 9)
    one, two = gains(start, first, second)
    assert one.packets is None and two.packets is None
    assert next(gains(start, first, first)).packets is None


def test_queues_of_one_napi_are_counted_together() -> None:
    start = host(queues_a_napi=2)
    (one,) = gains(start, sample(0.0, 0, 0), sample(1.0, 30, 12))
    assert one.packets == 42


def test_the_screen() -> None:
    start = host()
    text = rates.screen(
        start, start.links, sample(0, 0, 0), sample(1, 1234567, 9, irq=5, cpu=0.98, total=1234576)
    )
    assert text.splitlines() == [
        "eth0: 1,234,576 packets/s, counted by queue (netdev)",
        "queue mode      CPU policy  packets/s interrupts/s thread CPU",
        "rx0   busy-poll 0   fifo/50 1,234,567            5  98% ##########",
        "rx1   busy-poll 1   fifo/50         9            - -",
    ]
    style = table.Style(True, True)
    styled = rates.screen(start, start.links, sample(0, 0), sample(1, 1, cpu=0.5), style)
    assert "\x1b[35mbusy-poll\x1b[0m" in styled and "\u2588" * 5 in styled and "#" not in styled


def test_the_screen_fits_80_columns() -> None:
    cpus = [{"count": 512}]
    row = {"name": "enp193s0f0np0", "mode": "busy-poll", "sched": "other:-20", "rx": 1}
    start = synthetic.snapshot({"cpus": cpus, "links": [row]})
    scattered = replace(start.threads[0], cpus=tuple(range(0, 512, 2)))
    start = replace(start, threads=(scattered,))
    counted = Counts({0: 999_999_999}, 999_999_999, "driver")
    last = Sample(1.0, {"enp193s0f0np0": counted}, {40: 10**7}, {synthetic.FIRST_PID: 1.0})
    none = Counts({0: 0}, 0, "driver")
    first = Sample(0.0, {"enp193s0f0np0": none}, {40: 0}, {synthetic.FIRST_PID: 0.0})
    text = rates.screen(start, start.links, first, last)
    assert max(map(len, text.splitlines())) <= 80 and "100% ##########" in text


def test_lanes_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each device: 256 of them with 8 queues took more than a second."""
    calls = []

    def counted(snapshot: Snapshot) -> list[Place]:
        calls.append(snapshot)
        return places(snapshot)

    monkeypatch.setattr(rates, "places", counted)
    row = {"rx": 2, "mode": "on"}
    links = [{"name": "eth0", **row}, {"name": "eth1", **row}]
    start = synthetic.snapshot({"cpus": [{"count": 4}], "links": links})
    text = rates.screen(start, start.links, sample(0, 0), sample(1, 5))
    assert text.count("rx1 ") == 2 and len(calls) == 1
    assert len(rates.plain(start, start.links, sample(0, 0), sample(1, 5))["lanes"]) == 4
    assert len(calls) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Ticking:
    """A host that receives ten packets on queue 0 every second."""

    def __init__(self) -> None:
        self.seconds = 0
        self.start = host()

    def observe(self) -> Snapshot:
        return self.start

    def sample(self, snapshot: Snapshot, links: Sequence[Link]) -> Sample:
        return sample(float(self.seconds), 10 * self.seconds, 0)

    def sleep(self, seconds: float) -> None:
        self.seconds += round(seconds)


def watched(out: io.StringIO, **wanted: Any) -> str:
    ticking = Ticking()
    live.loop(live.Wanted(["eth0"], **wanted), out, ticking.observe, ticking, ticking.sleep)
    return out.getvalue()


def test_the_loop() -> None:
    rows = [json.loads(line) for line in watched(io.StringIO(), count=3, json=True).splitlines()]
    assert [row["lanes"][0]["packets"] for row in rows] == [10.0] * 3
    assert rows[0]["lanes"][1] == {
        "device": "eth0",
        "queue": 1,
        "mode": "busy-poll",
        "packets": 0.0,
    }
    text = watched(io.StringIO(), count=2)
    assert text.count("packets/s") == 4 and "\x1b" not in text
    assert watched(Terminal(), count=2).count(live.CLEAR) == 2


def test_watch_is_of_the_running_host(capsys: Captured, tmp_path: Path) -> None:
    for more in (("--snapshot", "x"), ("--svg", "x")):
        status, out, err = run(capsys, "map", "--watch", "1", *more)
        assert (status, out) == (2, "") and "running host" in err
    status, _, err = run(capsys, "map", "--watch", "-1")
    assert status == 2 and len(err.splitlines()) == 1


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
    assert found.counts["eth0"] == Counts({0: 5}, 77, "netdev")
    assert found.interrupts == {40: 7} and found.seconds == {2000: 2.0}
    found = Counted(sysfs, {(9, 0): 6}, {0: 8}).sample(start, start.links)
    assert found.counts["eth0"] == Counts({0: 8}, 77, "driver")
    found = Counted(sysfs, {}, {}).sample(start, start.links)
    assert found.counts["eth0"] == Counts({0: 77}, 77, "device")
    several = host(rx=2)
    found = Counted(sysfs, {}, {}).sample(several, several.links)
    assert found.counts["eth0"] == Counts({}, 77, None)


def test_counters_that_became_others_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of none where there are not as many as it is asked for."""
    count = [2]

    def ask(_: gstats.Driver, device: str, request: bytes) -> bytes:
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


def test_the_ioctl_on_this_host() -> None:
    """Every host has lo, whose driver counts nothing; a device that is not there is no error."""
    driver = gstats.Driver()
    assert driver.received("lo") == {} and driver.received("no-such-dev") == {}
    driver.close()
