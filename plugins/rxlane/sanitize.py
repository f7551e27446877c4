# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole texts and hosts made fit for terminals and XML files. Pure.

A device may be called almost anything, with an ESC in it, and a recorded host says whatever its
file does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rxlane.errors import legible
from rxlane.model import Link, Snapshot


def lines(text: str) -> str:
    """Return the text with no control characters but the ends of its lines."""
    return "\n".join(legible(line) for line in text.split("\n"))


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
