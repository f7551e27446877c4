# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole texts and hosts made fit for terminals and XML files, and recordings fit to hand on.

Pure. A device may be called almost anything, with an ESC in it, and a recorded host says whatever
its file does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from rxlane.errors import legible
from rxlane.model import Link, Snapshot

# NamePolicy=mac of systemd.link(5), by the kind of the device.
_ADDRESS = re.compile(r"(?<![0-9a-z])(?:en|wl|ww|sl|ib)x[0-9a-f]{12}(?![0-9a-z])")
# A task's name of 15 letters that ends within such a name, whose interface need not be here.
_CUT = re.compile(r'"(?=[^"]{15}")([^"]*[^0-9a-z"](?:en|wl|ww|sl|ib)x)([0-9a-f]{3,11})"')
WHOLE, LEAST = 15, 6  # letters of such a name, and those that tell something of an address


def lines(text: str) -> str:
    """Return the text with no control characters but the ends of its lines."""
    return "\n".join(legible(line) for line in text.split("\n"))


def without_addresses(text: str) -> str:
    """Return a recording without the hardware addresses that systemd makes names of.

    Interfaces on USB are called enx8cae4cdd1234, and their threads begin so as far as a task's name
    goes: each gets a number in its place.
    """
    names = sorted(set(_ADDRESS.findall(text)))
    others = {name: f"{name[:3]}{number + 1:012x}" for number, name in enumerate(names)}
    # Whole names first, for another may begin as one does.
    for length in range(WHOLE, LEAST - 1, -1):
        for name, other in others.items():
            cut = rf"(?<![0-9a-z]){name[:length]}(?![0-9a-z])"
            text = re.sub(cut, other[:length], text)
    return _CUT.sub(lambda found: f'"{found[1]}{"0" * len(found[2])}"', text)


def host(snapshot: Snapshot, links: Iterable[Link]) -> tuple[Snapshot, list[Link]]:
    """Return the host and some of its devices with names that can be shown."""
    own = {id(link): _link(link) for link in snapshot.links}
    shown = replace(
        snapshot,
        links=tuple(own.values()),
        sessions=_all(snapshot.sessions),
        notes=_all(snapshot.notes),
    )
    return shown, [own.get(id(link)) or _link(link) for link in links]


def _link(link: Link) -> Link:
    return link if link.name.isprintable() else replace(link, name=legible(link.name))


def _all(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(legible(text) for text in texts)
