# SPDX-License-Identifier: GPL-2.0-or-later
"""The one place that reads and writes number lists: CPU lists and queue lists.

CPU lists follow the kernel's list format (bitmap_parselist() in lib/bitmap-str.c):
`0-3,8`, with the group form `0-31:2/8` (the first 2 of every 8). Queue lists are the same plus an
open end, `4-`. Masks are hexadecimal in groups of 32 bits, `1,0000000f`, as sysfs prints them
(bitmap_parse() in lib/bitmap-str.c).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

# Beyond any CONFIG_NR_CPUS (8192 on x86) and any queue count; it keeps `0-4000000000` cheap.
HIGHEST = 65535
# Texts and lists that are remembered: thousands of queues share a few.
MEMORY = 1024

_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10})/(\d{1,10}))?)?", re.ASCII)
_OPEN = re.compile(r"(\d{1,10})-", re.ASCII)


class ListError(ValueError):
    """The text is no list; the message says which part is wrong."""


@lru_cache(MEMORY)
def parse(text: str) -> tuple[int, ...]:
    """Return the numbers of a CPU list, ascending and unique; empty text gives an empty tuple."""
    numbers: set[int] = set()
    if not text.strip():
        return ()
    for part in text.strip().split(","):
        numbers.update(_parse_range(part.strip()))
    return tuple(sorted(numbers))


def _parse_range(part: str) -> Iterable[int]:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ListError(f"'{part[:20]}' is no number or range")
    low = _number(match[1])
    high = low if match[2] is None else _number(match[2])
    if high < low:
        raise ListError(f"range '{part}' runs backwards")
    span = range(low, high + 1)
    if match[3] is None:
        return span
    used, group = int(match[3]), int(match[4])
    if not 0 < used <= group:
        raise ListError(f"group '{part}' needs 1 <= used <= group size")
    return (n for n in span if (n - low) % group < used)


def _number(digits: str) -> int:
    number = int(digits)
    if number > HIGHEST:
        raise ListError(f"{number} is above {HIGHEST}")
    return number


def render(numbers: Iterable[int]) -> str:
    """Return the shortest plain list, as the kernel prints it: `0-3,8`."""
    return _render(numbers if isinstance(numbers, tuple) else tuple(numbers))


def named(what: str, numbers: Collection[int]) -> str:
    """Return the list behind the word for one of them, as `CPU 3` or `CPUs 0-3,8`."""
    return f"{what}{'s' if len(numbers) > 1 else ''} {render(numbers)}"


@lru_cache(MEMORY)
def _render(numbers: tuple[int, ...]) -> str:
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        low, high = ordered[start], ordered[end]
        parts.append(str(low) if low == high else f"{low}-{high}")
        start = end + 1
    return ",".join(parts)


_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8})*", re.ASCII | re.I)


@lru_cache(MEMORY)
def parse_mask(text: str) -> tuple[int, ...]:
    """Return the numbers of a hexadecimal mask, ascending."""
    if _MASK.fullmatch(text.strip()) is None:
        raise ListError(f"'{text[:20]}' is no mask")
    first, *rest = text.strip().split(",")
    bits = int(first + "".join(group.zfill(8) for group in rest), 16)
    return tuple(n for n in range(bits.bit_length()) if bits >> n & 1)


def render_mask(numbers: Iterable[int]) -> str:
    """Return the mask that the kernel takes; 0 for none."""
    digits = f"{sum(1 << n for n in set(numbers)):x}"
    if len(digits) > 8:
        digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[i : i + 8] for i in range(0, len(digits), 8))


Span = tuple[int, int | None]


def parse_spans(part: str) -> Span:
    """Return (first, last) of one queue range; last is None for an open end such as `4-`."""
    match = _OPEN.fullmatch(part)
    if match is not None:
        return _number(match[1]), None
    if ":" in part:
        raise ListError(f"'{part[:20]}': a queue list takes no groups")
    numbers = tuple(_parse_range(part))
    return numbers[0], numbers[-1]
