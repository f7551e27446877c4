# SPDX-License-Identifier: GPL-2.0-or-later
"""A device's rx threads as rows for the terminal: what they did so far, or between two looks. Pure.

CPU is the thread's own, or that which the kernel reserved, marked with `*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rxlane.model import Handled, Helper, Link
from rxlane.showing.cells import aligned, cell, number, policy_text, short_list

HEADINGS = ("thread", "PID", "CPU", "policy", "flows", "backlog", "dropped", "packets")
RATE_HEADINGS = (*HEADINGS[:6], "dropped/s", "packets/s")
RIGHT = (4, 5, 6, 7)
MOST = 11  # characters of a CPU list

Key = tuple[int, int]  # index of the device and number of the thread
NOTHING = Handled()


def table(link: Link) -> list[str]:
    """Return the device's rx threads with their counters since it was made; none without any."""
    rows = (_row(h, h.handled or NOTHING) for h in link.helpers)
    return _lines(HEADINGS, rows)


def rate_table(
    link: Link, before: Mapping[Key, Handled], after: Mapping[Key, Handled], seconds: float
) -> list[str]:
    """Return the same with packets and drops of a second between two samples."""
    rows = []
    for helper in link.helpers:
        key = (link.ifindex, helper.number)
        last = after.get(key, NOTHING)
        gains = gained(before.get(key, NOTHING), last, seconds)
        rows.append((*_row(helper, last)[:6], *(number(gain) for gain in gains)))
    return _lines(RATE_HEADINGS, rows)


def gained(first: Handled, last: Handled, seconds: float) -> tuple[float | None, float | None]:
    """Return packets dropped and handled in a second; None where nobody counts, or anew."""
    pairs = ((first.dropped, last.dropped), (first.packets, last.packets))
    dropped, packets = (
        None if a is None or b is None or b < a or seconds <= 0 else (b - a) / seconds
        for a, b in pairs
    )
    return dropped, packets


def _row(helper: Helper, done: Handled) -> tuple[str, ...]:
    thread = helper.thread
    cpus = "-" if thread is None else short_list(thread.cpus, MOST)
    return (
        f"rx{helper.number}",
        cell(None if thread is None else thread.pid),
        cpus if helper.reserved is None else f"{helper.reserved}*",
        policy_text(thread),
        number(done.flows),
        number(done.backlog),
        number(done.dropped),
        number(done.packets),
    )


def _lines(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    found = list(rows)
    if not found:
        return []
    return [f"  {line}" for line in aligned([headings, *found], RIGHT)]
