# SPDX-License-Identifier: GPL-2.0-or-later
"""`rxlane map --watch`: sample, wait, sample, show."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from os import terminal_size
from typing import Protocol, TextIO

from rxlane.errors import counted
from rxlane.items import CHEAP_ITEMS, SEPARATION_ITEMS
from rxlane.model import Link, Snapshot
from rxlane.samples import Sample
from rxlane.showing import rates
from rxlane.showing.table import Style

INTERVAL = 1.0  # seconds
# Looks in a row at devices of which one is renamed or removed meanwhile each time.
LOOKS = 5
# Erase what is below the first line, then that one, with the cursor at home. Not all at once, which
# terminals such as tmux take for a screen to be kept in the scrollback.
CLEAR = "\x1b[2H\x1b[J\x1b[H\x1b[K"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Wanted:
    """links: what to show. others: which of a host's links to show as well once they are there,
    None where links were named. count: intervals, 0 for no end. json: one object a line.
    redraw: each interval takes the place of the one before, on a terminal.
    """

    links: Sequence[Link]
    others: Callable[[Snapshot], Sequence[Link]] | None = None
    count: int = 0
    json: bool = False
    colour: bool = False
    unicode: bool = False
    redraw: bool = False


class Host(Protocol):
    """What is watched; tests put another in place of the running one."""

    def names(self) -> Mapping[int, str]:
        """Return what all devices are called now, by index."""
        ...

    def observe(self, names: Collection[str]) -> Snapshot: ...

    def sample(self, snapshot: Snapshot, links: Sequence[Link]) -> Sample: ...


class _Running:
    """The host that this process runs on."""

    _items = CHEAP_ITEMS | {*SEPARATION_ITEMS}

    def __init__(self) -> None:
        from rxlane.host.counters import Counters
        from rxlane.kernel import Linux

        self._kernel, self._counters = Linux(), Counters()

    def names(self) -> Mapping[int, str]:
        from rxlane.wire import rtnetlink

        return rtnetlink.names()

    def observe(self, names: Collection[str]) -> Snapshot:
        return self._kernel.observe(names, self._items)

    def sample(self, snapshot: Snapshot, links: Sequence[Link]) -> Sample:
        return self._counters.sample(snapshot, links)


@dataclass(frozen=True, slots=True)
class _Look:
    """links: of the snapshot, those that are watched. gone: last names of those it has no more."""

    snapshot: Snapshot
    links: Sequence[Link]
    gone: Sequence[str]


class _Watched:
    """The devices that are watched, by index: one that is renamed is the same."""

    def __init__(self, wanted: Wanted, host: Host) -> None:
        self._others, self._host = wanted.others, host
        self._names = {link.ifindex: link.name for link in wanted.links}
        # Those that were looked at and are none to watch: a host may have thousands.
        self._passed: set[int] = set()

    def look(self) -> _Look:
        names, snapshot = self._observe()
        found = {link.ifindex: link for link in snapshot.links}
        if self._others is not None:
            names |= {link.ifindex: link.name for link in self._others(snapshot)}
            self._passed |= found.keys() - names.keys()
        gone = [name for index, name in names.items() if index not in found]
        # Where none was named, devices come and go, and it is said once of each that it went.
        keep = names if self._others is None else names.keys() & found.keys()
        self._names = {index: name for index, name in names.items() if index in keep}
        return _Look(snapshot, [found[index] for index in names if index in found], gone)

    def _observe(self) -> tuple[dict[int, str], Snapshot]:
        """Return the names of who is watched, and a snapshot that has all of these that exist.

        Where devices come and go faster than one can look, those that it missed pass for gone.
        """
        for _ in range(LOOKS):
            present = self._host.names()
            names = _followed(self._names, present)
            known = present.keys() & names.keys()
            new = present.keys() - self._passed if self._others is not None else known
            snapshot = self._host.observe({present[index] for index in known | new})
            # Else one was renamed or removed meanwhile.
            if {link.ifindex for link in snapshot.links}.issuperset(known):
                break
        return names, snapshot


def _followed(names: Mapping[int, str], present: Mapping[int, str]) -> dict[int, str]:
    """Return what these devices are called at present; one that is gone may be back under its name,
    as a driver that is loaded again has it.
    """
    called = {name: index for index, name in present.items()}
    found = {}
    for index, name in names.items():
        again = called.get(name, index)
        now = index if index in present or again in names else again
        found[now] = present.get(now, name)
    return found


def watch(wanted: Wanted, out: TextIO) -> Sequence[str]:
    """Show this host until interrupted or, with a count, that many intervals.

    Return what ended it before: the names of the devices where all that were named are gone.
    """
    return loop(wanted, out, _Running(), time.sleep)


def loop(wanted: Wanted, out: TextIO, host: Host, sleep: Callable[[float], None]) -> Sequence[str]:
    """Every interval is observed anew: modes, threads and devices change while one looks."""
    watched = _Watched(wanted, host)
    first = watched.look()
    before = host.sample(first.snapshot, first.links)
    shown = 0
    while not wanted.count or shown < wanted.count:
        sleep(INTERVAL)
        now = watched.look()
        after = host.sample(now.snapshot, now.links)
        out.write(_page(wanted, now, before, after, not shown))
        out.flush()
        before, shown = after, shown + 1
        if wanted.others is None and not now.links:
            return now.gone
    return ()


def _page(wanted: Wanted, now: _Look, before: Sample, after: Sample, first: bool) -> str:
    """Return the text of one interval."""
    if wanted.json:
        return json.dumps(rates.plain(now.snapshot, now.links, before, after, now.gone)) + "\n"
    style = Style(wanted.colour, wanted.unicode)
    text = rates.screen(now.snapshot, now.links, before, after, style, now.gone)
    if not wanted.redraw:
        return text if first else f"\n{text}"
    several = len(now.links) + len(now.gone) > 1
    remedy = "name devices to see the rest" if several else "a taller window shows the rest"
    # The size is asked each time: windows change theirs.
    return CLEAR + _fitted(text, shutil.get_terminal_size(), wanted.unicode, remedy)


def _fitted(text: str, size: terminal_size, unicode: bool, remedy: str) -> str:
    """Return what fits a terminal, whose last row the cursor has, with a line on what does not."""
    lines = text.splitlines()
    rows = [max(1, -(-len(_COLOUR.sub("", line)) // size.columns)) for line in lines]
    room = max(1, size.lines - 1)
    if sum(rows) <= room:
        return text
    kept = 0
    while sum(rows[: kept + 1]) < room:
        kept += 1
    left = len(lines) - kept
    dots = "\u2026" if unicode else "..."
    more = f"{dots} {counted(left, 'more line')}: {remedy}"
    return "".join(f"{line}\n" for line in [*lines[:kept], more[: size.columns]])
