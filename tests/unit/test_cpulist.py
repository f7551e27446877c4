# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import cpulist


@given(st.sets(st.integers(0, cpulist.HIGHEST), max_size=60))
def test_render_and_parse_are_inverse(numbers: set[int]) -> None:
    assert cpulist.parse(cpulist.render(numbers)) == tuple(sorted(numbers))


@given(st.text(alphabet="0123456789,-:/ ax", max_size=20))
def test_any_text_gives_numbers_or_one_error(text: str) -> None:
    try:
        numbers = cpulist.parse(text)
    except cpulist.ListError:
        return
    assert all(0 <= n <= cpulist.HIGHEST for n in numbers)
    assert cpulist.parse(cpulist.render(numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,0-1", (0, 1, 8)),
        ("0-7:2/4", (0, 1, 4, 5)),
        (" 2 , 4 ", (2, 4)),
    ],
)
def test_kernel_list_format(text: str, numbers: tuple[int, ...]) -> None:
    assert cpulist.parse(text) == numbers


@pytest.mark.parametrize(
    "text", ["3-1", "a", "1,,2", "1-", "-1", "0x3", "0-99999999999", "1-4:0/2", "1-4:3/2", "٣"]
)
def test_malformed_lists(text: str) -> None:
    with pytest.raises(cpulist.ListError):
        cpulist.parse(text)


def test_spans() -> None:
    assert cpulist.parse_spans("4-") == (4, None)
    assert cpulist.parse_spans("2") == (2, 2)
    assert cpulist.parse_spans("0-3") == (0, 3)
    for grouped in ("0-7:2/4", "0-7:1/8", "0-7:8/8"):
        with pytest.raises(cpulist.ListError, match="takes no groups"):
            cpulist.parse_spans(grouped)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", ()),
        ("f", (0, 1, 2, 3)),
        ("00000001,00000000", (32,)),
        ("1,80000001", (0, 31, 32)),
        ("00000000,0000000C", (2, 3)),
    ],
)
def test_masks(text: str, numbers: tuple[int, ...]) -> None:
    assert cpulist.parse_mask(text) == numbers


@given(st.sets(st.integers(0, 700)))
def test_a_mask_is_read_as_it_was_written(numbers: set[int]) -> None:
    text = cpulist.render_mask(numbers)
    assert cpulist.parse_mask(text) == tuple(sorted(numbers))
    assert all(len(group) == 8 for group in text.split(",")[1:]) and not text.startswith(",")


@pytest.mark.parametrize("text", ["", "0x3", ",1", "g", "123456789", "1,,2", "(null)"])
def test_malformed_masks(text: str) -> None:
    with pytest.raises(cpulist.ListError):
        cpulist.parse_mask(text)
