# SPDX-License-Identifier: GPL-2.0-or-later
"""Recorded hosts come out of their own /sys and /proc files as they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.goldens import HOSTS, load, names
from unit.recorded import TREE, again, unpack

WITH_TREE = [name for name in names() if (HOSTS / name / TREE).exists()]


def test_there_are_trees() -> None:
    assert len(WITH_TREE) >= 6


@pytest.mark.parametrize("name", WITH_TREE)
def test_the_tree_gives_the_snapshot(name: str, tmp_path: Path) -> None:
    host, _ = load(name)
    read = again(host, unpack(HOSTS / name / TREE, tmp_path))
    assert read.topology == host.topology
    assert read.links == host.links
    assert read == host
