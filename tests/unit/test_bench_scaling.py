# SPDX-License-Identifier: GPL-2.0-or-later
"""Instructions a packet: which CPU's, and how many times the packets that leaves room for."""

import struct
from pathlib import Path

import pytest

from bench import tables
from bench.scaling import Spent, rows, spent
from bench.seed002 import WAYS
from lab import counted


def test_the_busiest_cpu_and_all() -> None:
    # 2 s at 1,000 packets a second.
    assert spent([0, 10, 0], [6_000_000, 2_000_010, 0], 2.0, 1000) == Spent(3000, 4000)


def test_half_the_instructions_are_twice_the_packets() -> None:
    read = {way: [Spent(8000 / way.cpus, 8000)] * 3 for way in WAYS}
    found = {row.way: row for row in rows("one", "rules", read)}
    assert [found[way].scales for way in WAYS] == [way.cpus for way in WAYS]
    text = tables.scaling_table(list(found.values()))
    assert "one, rules, rx 4" in text and "\u00d74.00" in text


@pytest.mark.parametrize(("major", "version"), [(7, 1), (8, 1), (10, 2)])
def test_the_interface_of_plugins(major: int, version: int) -> None:
    assert counted.interface(major) == version


def test_counts_are_read_by_cpu(tmp_path: Path) -> None:
    (tmp_path / counted.COUNTS).write_bytes(struct.pack("=4Q", 1, 2, 3, 4))
    assert counted.read(tmp_path, 3) == [1, 2, 3]
