# SPDX-License-Identifier: GPL-2.0-or-later
"""How values stand in the cells of a table for the terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from rxlane import cpulist
from rxlane.items import REALTIME
from rxlane.model import Thread

LISTED = 36  # characters of a list among words

# The end of a text that was cut within a number or a range: what is left of it is another one.
_PART = re.compile(r"[0-9]*-?[0-9]*$", re.ASCII)


def cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def number(value: float | None) -> str:
    """Return a count with its thousands marked, `-` where nobody counts."""
    return "-" if value is None else f"{value:,.0f}"


def policy_text(thread: Thread | None) -> str:
    """`fifo/50` for a priority, `other/-5` for a nice level, the bare class without either."""
    if thread is None:
        return "-"
    level = thread.priority if thread.policy in REALTIME else thread.nice
    return f"{thread.policy}/{level}" if level else thread.policy


def cut(text: str, width: int, sign: str = "+") -> str:
    """Return the text, or what of it fits and the sign; no number or range of a list is cut."""
    if len(text) <= width:
        return text
    most = max(0, width - len(sign))
    kept = text[:most] if text[most] in ", " else _PART.sub("", text[:most])
    return f"{kept.rstrip(', ')}{sign}"


def fit(text: str, width: int) -> str:
    """Pad to width; a list that is cut ends with `+`, so that it is not taken for whole."""
    return cut(text, width).ljust(width)


def short_list(numbers: Iterable[int], width: int) -> str:
    """Return the list, cut with `+` where it is longer than width."""
    return cut(cell(cpulist.render(numbers)), width)


def aligned(rows: Sequence[tuple[str, ...]], right: Collection[int]) -> list[str]:
    """Return the rows as lines. right: columns that stand to the right, as numbers do."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        " ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
