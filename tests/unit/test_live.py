# SPDX-License-Identifier: GPL-2.0-or-later
"""`map --watch`: which devices are shown, for how long, and on what terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import pytest

from rxlane import cli
from rxlane.command import live
from rxlane.model import Link, Snapshot
from rxlane.samples import Counts, Sample
from rxlane.showing import rates
from unit import synthetic
from unit.commands import Captured, root_of_a_host, run
from unit.sampled import host, sample


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
