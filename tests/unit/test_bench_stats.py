# SPDX-License-Identifier: GPL-2.0-or-later
"""bench.stats: medians, ratios, taking turns, and the search for the rate just carried."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.flood import FLOOD_RATES, Bench, Mode, Reading
from bench.stats import just_carried, of_ideal, quotient, ratio, summary, turns


def test_summary() -> None:
    found = summary([30.0, 10.0, 20.0])
    assert (found.median, found.low, found.high, found.runs) == (20.0, 10.0, 30.0, 3)


def test_summary_of_nothing() -> None:
    with pytest.raises(ValueError, match="no runs"):
        summary([])


def test_ratio_is_of_medians_and_its_range_of_neighbours() -> None:
    found = ratio([30.0, 40.0, 60.0], [10.0, 10.0, 30.0])
    assert (found.median, found.low, found.high) == (4.0, 2.0, 4.0)


def test_ratio_needs_pairs() -> None:
    with pytest.raises(ValueError, match="paired"):
        ratio([1.0], [1.0, 2.0])


def test_starved_denominator() -> None:
    assert quotient(5.0, 0.0) == math.inf
    assert quotient(0.0, 0.0) == 1.0


@given(st.lists(st.integers(), min_size=1, max_size=5, unique=True), st.integers(1, 9))
def test_turns_are_fair(modes: list[int], rounds: int) -> None:
    order = turns(modes, rounds)
    assert all(order.count(mode) == rounds for mode in modes)
    assert order[: len(modes)] == modes
    assert order[len(modes) : 2 * len(modes)] == (modes[::-1] if rounds > 1 else [])


@given(st.floats(5, 1e6))
def test_just_carried_finds_the_border(capacity: float) -> None:
    rate = just_carried(lambda offered: min(1.0, capacity / offered), 2000.0, steps=6)
    assert 0.97 * capacity <= rate <= 1.03 * capacity


def test_just_carried_gives_up() -> None:
    with pytest.raises(ValueError, match="not even"):
        just_carried(lambda offered: 0.0, 2000.0)
    with pytest.raises(ValueError, match="every rate"):
        just_carried(lambda offered: 1.0, 2000.0)


def test_of_ideal_below_and_beyond_the_peak() -> None:
    assert of_ideal(9_000.0, 10_000.0, 50_000.0) == pytest.approx(0.9)
    assert of_ideal(25_000.0, 400_000.0, 50_000.0) == pytest.approx(0.5)


class Saturable(Bench):
    """A guest that takes in at most ``most`` a second."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.inside = 0
        self.modes: list[Mode] = []
        self.unfilled = []

    def set_mode(self, mode: Mode) -> None:
        self.modes.append(mode)

    def taken_in(self) -> int:
        return self.inside

    def flood(self, flows: int, size: int, rate: float = 0, **kept: object) -> Reading:
        self.inside += round(min(rate, self.most))
        return Reading(rate, 1.0, 0.0, round(rate))


@pytest.mark.parametrize(("most", "full"), [(190_000, 240_000), (100_000, 150_000)])
def test_full_flood_is_the_lowest_that_is_not_taken_in(most: int, full: int) -> None:
    guest = Saturable(most)
    assert guest.full_rate(25, 64) == full
    assert guest.modes == [Mode.SOFTIRQ] and guest.unfilled == []


def test_a_guest_that_takes_in_all_gets_the_highest_rate() -> None:
    guest = Saturable(1_000_000)
    assert guest.full_rate(25, 64) == FLOOD_RATES[-1]
    assert len(guest.unfilled) == 1 and guest.unfilled[0].startswith("25 flows × 64 bytes: ")
