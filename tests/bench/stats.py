# SPDX-License-Identifier: GPL-2.0-or-later
"""Medians, ratios and their spread, and the order in which modes take turns. Pure.

The host is shared and its load drifts, so no figure stands alone: the modes that are compared
take turns within one boot, and what is reported is the ratio of their medians with the range of
the ratios of neighbouring runs beside it.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """Runs of one mode, in the unit of the values."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Ratio:
    """Mode B over mode A; ``low`` and ``high`` are the extremes of the pairwise ratios."""

    median: float
    low: float
    high: float


def summary(values: Sequence[float]) -> Summary:
    """Median and range of at least one run. ValueError when there is none."""
    if not values:
        raise ValueError("no runs to summarise")
    return Summary(statistics.median(values), min(values), max(values), len(values))


def quotient(over: float, under: float) -> float:
    """over / under; a starved denominator of 0 gives infinity, and nothing over nothing is 1."""
    if under:
        return over / under
    return math.inf if over else 1.0


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Ratio of the medians; run i of one mode is the neighbour in time of run i of the other."""
    if len(over) != len(under):
        raise ValueError(f"{len(over)} runs cannot be paired with {len(under)}")
    pairs = [quotient(b, a) for b, a in zip(over, under, strict=True)]
    middle = quotient(summary(over).median, summary(under).median)
    return Ratio(middle, min(pairs), max(pairs))


def turns(modes: Sequence[T], rounds: int) -> list[T]:
    """Each mode once a round, every second round backwards, so a drift favours none."""
    order: list[T] = []
    for number in range(rounds):
        order += modes if number % 2 == 0 else reversed(modes)
    return order


def just_carried(
    carried: Callable[[float], float], start: float, *, enough: float = 0.98, steps: int = 4
) -> float:
    """Highest offered rate of which the share ``enough`` arrives, to within a few per cent.

    ``carried(rate)`` offers that rate and returns the share that arrived. The rate is halved
    from ``start`` until it is carried or doubled until it is not, then bisected ``steps`` times
    on a logarithmic scale. ValueError when 30 halvings or doublings find no border.
    """
    low, high = start, start
    if carried(start) >= enough:
        for _ in range(30):
            low, high = high, high * 2
            if carried(high) < enough:
                break
        else:
            raise ValueError(f"every rate up to {high:.0f} is carried")
    else:
        for _ in range(30):
            low, high = low / 2, low
            if carried(low) >= enough:
                break
        else:
            raise ValueError(f"not even {low:g} a second is carried")
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if carried(middle) >= enough:
            low = middle
        else:
            high = middle
    return low


def of_ideal(goodput: float, offered: float, peak: float) -> float:
    """Goodput over the most it could be: the curve's own peak, or the load when that is less."""
    return goodput / min(offered, peak)
