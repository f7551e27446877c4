# SPDX-License-Identifier: GPL-2.0-or-later
"""`map --watch`: counters read, rates between two samples, what is shown of them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import pytest

from rxlane import cli
from rxlane import uapi as u
from rxlane.command import live
from rxlane.host import counters
from rxlane.model import Link, Snapshot
from rxlane.netlink import pack_attr, pack_u32
from rxlane.samples import Counts, Sample
from rxlane.showing import rates, table
from rxlane.showing.marks import Place, places
from rxlane.showing.rates import Rate
from rxlane.sysfs import Sysfs
from rxlane.wire import gstats, netdev
from unit import synthetic
from unit.commands import Captured, root_of_a_host, run
from unit.filetree import tree


def host(**link: Any) -> Snapshot:
    row = {"name": "eth0", "rx": 2, "mode": "busy-poll", "sched": "fifo:50", **link}
    return synthetic.snapshot({"cpus": [{"count": 4}], "links": [{"thread_cpus": "each", **row}]})


def sample(at: float, *queues: int, irq: int = 0, cpu: float = 0.0, total: int = 0) -> Sample:
    counted = Counts(dict(enumerate(queues)), total, "netdev")
    return Sample(at, {2: counted}, {40: irq}, {synthetic.FIRST_PID: cpu})


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
    last = Sample(1.0, {2: counted}, {40: 10**7}, {synthetic.FIRST_PID: 1.0})
    none = Counts({0: 0}, 0, "driver")
    first = Sample(0.0, {2: none}, {40: 0}, {synthetic.FIRST_PID: 0.0})
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


class Pages(io.StringIO):
    """What was written, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[str] = []

    def write(self, text: str) -> int:
        self.pages.append(text)
        return len(text)


class Ticking:
    """A host whose eth0 receives ten packets on queue 0 every second.

    changes: the links from that second on.
    """

    def __init__(self, changes: Mapping[int, Sequence[Link]] = MappingProxyType({})) -> None:
        self.seconds = 0
        self.start = host()
        self.changes = changes
        self.asked: list[set[str]] = []

    def names(self) -> Mapping[int, str]:
        return {link.ifindex: link.name for link in self._links()}

    def observe(self, names: Collection[str]) -> Snapshot:
        self.asked.append({*names})
        links = tuple(link for link in self._links() if link.name in names)
        return replace(self.start, links=links)

    def _links(self) -> Sequence[Link]:
        past = [at for at in self.changes if at <= self.seconds]
        return self.changes[max(past)] if past else self.start.links

    def sample(self, snapshot: Snapshot, links: Sequence[Link]) -> Sample:
        return sample(float(self.seconds), 10 * self.seconds, 0)

    def sleep(self, seconds: float) -> None:
        self.seconds += round(seconds)


def watched(out: io.StringIO, **wanted: Any) -> str:
    ticking = Ticking()
    live.loop(live.Wanted(ticking.start.links, **wanted), out, ticking, ticking.sleep)
    return out.getvalue()


ETH0 = host().links[0]
OTHER = replace(ETH0, name="eth1", ifindex=3)


def changed(
    changes: Mapping[int, Sequence[Link]], wanted: live.Wanted
) -> tuple[Sequence[str], list[str]]:
    """Return what ended the watch, and the text of each interval."""
    out, ticking = Pages(), Ticking(changes)
    ended = live.loop(wanted, out, ticking, ticking.sleep)
    return ended, [text.strip("\n") for text in out.pages]


def test_a_device_that_is_renamed_is_the_same() -> None:
    renamed = replace(ETH0, name="lan0")
    ended, (first, second) = changed({2: [renamed]}, live.Wanted([ETH0], count=2))
    assert ended == () and first.startswith("eth0: ") and second.startswith("lan0: ")
    assert "rx0   busy-poll 0   fifo/50        10" in second
    assert first.splitlines()[1:] == second.splitlines()[1:]


def test_a_device_that_is_down_has_a_line() -> None:
    down = replace(ETH0, up=False)
    ended, shown = changed({1: [down], 3: [ETH0]}, live.Wanted([ETH0], count=3))
    assert ended == () and shown[:2] == ["eth0: down"] * 2 and "busy-poll" in shown[2]
    _, (both,) = changed({0: [ETH0, replace(OTHER, up=False)]}, live.Wanted([ETH0, OTHER], count=1))
    assert both.startswith("eth1: down\n\neth0: 0 packets/s")


def test_a_device_that_is_gone_has_a_line_and_the_last_ends_it() -> None:
    wanted = live.Wanted([ETH0, OTHER])
    ended, shown = changed({0: [ETH0, OTHER], 2: [OTHER], 4: []}, wanted)
    assert ended == ["eth0", "eth1"]
    assert ["eth0: gone" in text for text in shown] == [False, True, True, True]
    assert shown[3] == "eth0: gone\neth1: gone"


def test_a_device_that_comes_back_under_its_name() -> None:
    """As after its driver was loaded again; one that is watched already is nobody else's."""
    again = replace(ETH0, ifindex=9)
    wanted = live.Wanted([ETH0, OTHER], count=3)
    _, shown = changed({0: [ETH0, OTHER], 2: [OTHER], 3: [OTHER, again]}, wanted)
    assert ["eth0: gone" in text for text in shown] == [False, True, False]
    _, shown = changed({0: [ETH0, OTHER], 2: [replace(OTHER, name="eth0")]}, wanted)
    assert shown[1].startswith("eth0: gone\n\neth0: ")


def test_a_rename_while_one_looks_makes_no_device_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = iter([{2: "old0"}])
    names = Ticking.names
    monkeypatch.setattr(Ticking, "names", lambda host: next(stale, None) or names(host))
    _, shown = changed({}, live.Wanted([ETH0], count=1))
    assert shown[0].startswith("eth0: ") and "gone" not in shown[0]


def test_renames_without_end_are_looked_at_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map goes on, and the device has passed for gone."""
    ticking, late = Ticking({0: [ETH0, OTHER]}), 2 * live.LOOKS
    stale = iter([{2: f"old{n}", 3: "eth1"} for n in range(late)])
    names = ticking.names
    monkeypatch.setattr(ticking, "names", lambda: next(stale, None) or names())
    out = Pages()
    live.loop(live.Wanted([ETH0, OTHER], count=3), out, ticking, ticking.sleep)
    assert len(ticking.asked) == late + 2
    assert [f"old{late - 1}: gone" in text for text in out.pages] == [True, False, False]


def test_without_names_devices_come_and_go() -> None:
    def others(snapshot: Snapshot) -> Sequence[Link]:
        return [link for link in snapshot.links if link.name != "lo"]

    lo = replace(ETH0, name="lo", ifindex=1)
    changes = {0: [lo, ETH0], 2: [lo, ETH0, OTHER], 3: [lo, OTHER], 5: [lo]}
    ended, shown = changed(changes, live.Wanted([ETH0], others, 6))
    assert ended == () and "lo:" not in "".join(shown)
    assert ["eth1: " in text for text in shown] == [False, True, True, True, True, False]
    assert ["eth0: gone" in text for text in shown] == [False, False, True, False, False, False]
    assert shown[4:] == ["eth1: gone", "no device is left to show"]


def test_without_names_what_is_not_shown_is_looked_at_once() -> None:
    """A host may have thousands of them."""
    lo = replace(ETH0, name="lo", ifindex=1, physical=False)
    ticking = Ticking({0: [lo, ETH0], 2: [lo, ETH0, OTHER]})
    wanted = live.Wanted([ETH0], lambda snapshot: [li for li in snapshot.links if li.physical], 2)
    live.loop(wanted, io.StringIO(), ticking, ticking.sleep)
    assert ticking.asked == [{"lo", "eth0"}, {"eth0"}, {"eth0", "eth1"}]


def test_the_loop() -> None:
    rows = [json.loads(line) for line in watched(io.StringIO(), count=3, json=True).splitlines()]
    assert [row["lanes"][0]["packets-per-second"] for row in rows] == [10.0] * 3
    assert rows[0]["lanes"][1] == {
        "device": "eth0",
        "queue": 1,
        "mode": "busy-poll",
        "packets-per-second": 0.0,
    }
    text = watched(io.StringIO(), count=2)
    assert text.count("packets/s") == 4 and "\x1b" not in text
    assert watched(io.StringIO(), count=2, redraw=True).count(live.CLEAR) == 2


def test_devices_for_programs() -> None:
    """Totals also where no queue is counted, and devices that have no lanes to show."""
    row = {"rx": 2, "mode": "on"}
    links = [{"name": "eth0", **row}, {"name": "eth1", **row, "up": False}]
    links += [{"name": "eth3", **row}]
    start = synthetic.snapshot({"cpus": [{"count": 4}], "links": links})
    start = replace(start, links=(*start.links[:2], replace(start.links[2], carrier=False)))
    first, last = (
        Sample(at, {2: Counts({}, total, None)}, {}, {}, clock=1764203693.12345)
        for at, total in ((5.0, 100), (7.0, 4100))
    )
    found = rates.plain(start, start.links, first, last, ["eth2"])
    assert (found["time"], found["seconds"]) == (1764203693.123, 2.0)
    assert found["devices"] == [
        {"name": "eth0", "ifindex": 2, "state": "up", "packets-per-second": 2000.0},
        {"name": "eth1", "ifindex": 3, "state": "down"},
        {"name": "eth3", "ifindex": 4, "state": "no carrier"},
        {"name": "eth2", "state": "gone"},
    ]
    assert "packets-per-second" not in found["lanes"][0]
    assert "\neth3: no carrier, - packets/s" in rates.screen(start, start.links, first, last)
    (one,) = rates.plain(host(), host().links, sample(0.0), sample(1.0, total=7))["devices"]
    assert (one["packets-per-second"], one["queues-counted-by"]) == (7.0, "netdev")


def test_programs_are_told_of_devices_that_are_gone() -> None:
    ended, (_, last) = changed({2: []}, live.Wanted([ETH0], json=True))
    assert ended == ["eth0"] and json.loads(last)["lanes"] == []
    assert json.loads(last)["devices"] == [{"name": "eth0", "state": "gone"}]


@pytest.mark.parametrize(
    ("columns", "lines", "unicode", "shown"),
    [
        (80, 5, True, ["eth0: ", "queue ", "rx0 ", "rx1 "]),
        (80, 4, True, ["eth0: ", "queue ", "\u2026 2 more lines: a taller window shows the rest"]),
        (80, 4, False, ["eth0: ", "queue ", "... 2 more lines: a taller window shows the rest"]),
        (
            42,
            8,
            True,
            ["eth0: ", "queue ", "rx0 ", "\u2026 1 more line: "],
        ),
        (14, 2, True, ["\u2026 4 more lines"]),
        (14, 1, True, ["\u2026 4 more lines"]),
    ],
)
def test_no_more_is_shown_than_a_terminal_has_room_for(
    columns: int, lines: int, unicode: bool, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([os.terminal_size((80, 24)), os.terminal_size((columns, lines))])
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: next(sizes))
    wanted = live.Wanted([ETH0], count=2, redraw=True, colour=True, unicode=unicode)
    _, (first, second) = changed({}, wanted)
    assert first.startswith(live.CLEAR) and len(first.splitlines()) == 4
    assert second.startswith(live.CLEAR)
    found = re.sub(r"\x1b\[[0-9;]*[mHJK]", "", second).splitlines()
    assert len(found) == len(shown)
    assert all(map(str.startswith, found, shown)) and found[-1][:4] == shown[-1][:4]


def test_devices_that_found_no_room_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((80, 8)))
    wanted = live.Wanted([ETH0, OTHER], count=1)
    whole = changed({0: [ETH0, OTHER]}, wanted)[1][0]
    _, (cut,) = changed({0: [ETH0, OTHER]}, replace(wanted, redraw=True))
    more = "... 3 more lines: name devices to see the rest"
    assert cut.removeprefix(live.CLEAR).splitlines() == [*whole.splitlines()[:6], more]


@pytest.mark.parametrize(
    ("term", "argv", "redraw"),
    [
        ("xterm", (), True),
        ("dumb", ("--color", "always"), False),
        ("", (), False),
        (None, (), False),
        ("xterm", ("--json",), False),
    ],
)
def test_only_a_terminal_that_knows_escape_codes_is_drawn_anew(
    term: str | None, argv: tuple[str, ...], redraw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_of_a_host(monkeypatch)
    asked: list[live.Wanted] = []
    monkeypatch.setattr(live, "watch", lambda wanted, _: asked.append(wanted))
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    for out, expected in ((Terminal(), redraw), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", out)
        assert cli.main(("map", "--watch=1", *argv)) == 0
        assert asked.pop().redraw == expected


def test_the_command_fails_when_all_that_were_named_are_gone(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_of_a_host(monkeypatch)
    asked: list[live.Wanted] = []

    def watch(wanted: live.Wanted, _: TextIO) -> Sequence[str]:
        asked.append(wanted)
        return ["eth0", "lan1"] if wanted.others is None else ()

    monkeypatch.setattr(live, "watch", watch)
    said = "rxlane: eth0, lan1: gone, and no other device was named to watch\n"
    assert run(capsys, "map", "eth0", "--watch") == (1, "", said)
    assert [link.name for link in asked[0].links] == ["eth0"]
    assert run(capsys, "map", "--watch=1") == (0, "", "") and asked[1].others is not None


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
