# SPDX-License-Identifier: GPL-2.0-or-later
"""Configurations: what a fragment asks for, what of it was lost, and a reason for every group."""

import re

import pytest

from lab.kernel import BASE_FLAVOURS, FLAVOURS, code_of, fragments, not_held, wanted_options
from lab.paths import KCONFIG


def test_wanted_options() -> None:
    text = '# a reason\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C="x=y"\n'
    assert wanted_options(text) == {"CONFIG_A": "y", "CONFIG_B": "n", "CONFIG_C": '"x=y"'}


def test_an_option_that_was_dropped_is_named() -> None:
    wanted = {"CONFIG_A": "y", "CONFIG_B": "n", "CONFIG_C": "y"}
    assert not_held(wanted, "CONFIG_A=y\n# CONFIG_C is not set\n") == ["CONFIG_C=y"]


def test_the_message_of_a_patch_is_not_its_code() -> None:
    code = b"\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    assert code_of(b"Subject: one\n\nWhy.\n---\n" + code) == code
    assert code_of(b"Subject: two\n\nBecause.\n---\n" + code) == code


def test_a_patch_without_a_message_is_all_code() -> None:
    assert code_of(b"diff --git a/x b/x\n") == b"diff --git a/x b/x\n"


def test_every_group_has_a_reason() -> None:
    for path in KCONFIG.iterdir():
        for group in path.read_text().split("\n\n"):
            first = group.strip().splitlines()[0]
            assert re.match(r"# [A-Z].*[a-z]", first), f"{path.name}: {first}"


def test_unknown_flavour_is_refused() -> None:
    with pytest.raises(ValueError, match="7.2 has no flavour 'none'"):
        fragments("7.2", "none", patched=False)


@pytest.mark.parametrize("base", BASE_FLAVOURS)
def test_options_of_the_series_are_for_kernels_with_it(base: str) -> None:
    ours = KCONFIG / "ours"
    assert ours in fragments(base, "debug", patched=True)
    assert ours not in fragments(base, "debug", patched=False)


def test_flavours_exist() -> None:
    assert {name for names in BASE_FLAVOURS.values() for name in names} == set(FLAVOURS)
    for parts in FLAVOURS.values():
        for part in parts:
            assert (KCONFIG / part).exists()


def test_what_a_flavour_has_for_one_base_alone() -> None:
    names = {base: [part.name for part in fragments(base, "rt", False)] for base in BASE_FLAVOURS}
    assert names == {"6.12": ["fast", "rt"], "7.2": ["fast", "rt", "rt-7.2"]}
