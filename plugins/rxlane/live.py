# SPDX-License-Identifier: GPL-2.0-or-later
"""`rxlane map --watch`: sample, wait, sample, show."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from rxlane import rates
from rxlane.items import CHEAP_ITEMS, SEPARATION_ITEMS
from rxlane.model import Link, Snapshot
from rxlane.rates import Sample
from rxlane.table import Style

INTERVAL = 1.0  # seconds
CLEAR = "\x1b[H\x1b[J"  # cursor home, erase to the end


@dataclass(frozen=True, slots=True)
class Wanted:
    """devices: names to show. count: intervals, 0 for no end. json: one object a line."""

    devices: Sequence[str]
    count: int = 0
    json: bool = False
    colour: bool = False
    unicode: bool = False


class Counting(Protocol):
    def sample(self, snapshot: Snapshot, links: Sequence[Link]) -> Sample: ...


Observe = Callable[[], Snapshot]


def watch(wanted: Wanted, out: TextIO) -> None:
    """Show this host until interrupted or, with a count, that many intervals."""
    from rxlane.counters import Counters
    from rxlane.kernel import Linux

    kernel, items = Linux(), CHEAP_ITEMS | {*SEPARATION_ITEMS}
    loop(wanted, out, lambda: kernel.observe(wanted.devices, items), Counters(), time.sleep)


def loop(
    wanted: Wanted,
    out: TextIO,
    observe: Observe,
    counters: Counting,
    sleep: Callable[[float], None],
) -> None:
    """Every interval is observed anew: modes, threads and devices change while one looks."""
    style = Style(wanted.colour, wanted.unicode)
    # On a terminal each interval takes the place of the one before.
    clear = CLEAR if out.isatty() and not wanted.json else ""
    snapshot = observe()
    before = counters.sample(snapshot, snapshot.links)
    shown = 0
    while not wanted.count or shown < wanted.count:
        sleep(INTERVAL)
        snapshot = observe()
        links = [link for link in snapshot.links if link.name in wanted.devices]
        after = counters.sample(snapshot, links)
        if wanted.json:
            text = json.dumps(rates.plain(snapshot, links, before, after)) + "\n"
        else:
            text = rates.screen(snapshot, links, before, after, style)
            text = clear + text if clear or not shown else f"\n{text}"
        out.write(text)
        out.flush()
        before, shown = after, shown + 1
