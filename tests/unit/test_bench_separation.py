# SPDX-License-Identifier: GPL-2.0-or-later
"""The pure parts of the table of seed 002."""

import runpy
from typing import Any

import pytest

from bench import tables
from bench.seed002 import SCRIPT, WAYS, NothingArrived, Seen, Way, rows, seen

TOLD: dict[str, Any] = {"forwarded": 4000, "taken": 5000, "bytes": 256000, "ipis": 40,
                        "busy": [1.0, 0.5], "packets": 4000, "batches": 100, "wakeups": 20,
                        "seconds": 2.0}  # fmt: skip


INTERRUPTS = """           CPU0       CPU1
 24:        900          0   PCI-MSIX-0000:00:02.0   1-edge      virtio0-input.0
RES:          3          4   Rescheduling interrupts
CAL:         10          0   Function call interrupts
TLB:        100        100   TLB shootdowns
"""


def test_ipis_are_those_of_two_rows() -> None:
    assert runpy.run_path(str(SCRIPT))["ipis"](INTERRUPTS) == 17


@pytest.mark.parametrize("row", ["RES:", "CAL:"])
def test_without_a_row_no_ipis_are_counted(row: str) -> None:
    with pytest.raises(LookupError, match=f"/proc/interrupts has no row {row}"):
        runpy.run_path(str(SCRIPT))["ipis"](INTERRUPTS.replace(row, "XYZ:"))


def test_what_a_window_tells() -> None:
    assert seen(TOLD) == Seen(
        rate=2000, bits=1024000, taken=2500, ipis=10, busy=1.5, batch=40, wake=200
    )


def test_without_threads_there_are_no_batches() -> None:
    one = seen(TOLD | {"packets": 0, "batches": 0, "wakeups": 0})
    assert (one.batch, one.wake) == (0, 0)


def test_nothing_forwarded_is_no_row() -> None:
    with pytest.raises(NothingArrived, match="5000 packets arrived, none of them was forwarded"):
        seen(TOLD | {"forwarded": 0})


@pytest.mark.parametrize(
    ("way", "cpus"), [(Way("rx", 1), "1"), (Way("rps", 2), "1,2"), (Way("rx", 4), "0,1,2,3")]
)
def test_the_interrupts_cpu_is_spared_while_there_are_others(way: Way, cpus: str) -> None:
    assert way.list == cpus


def run(rate: float, ipis: float) -> Seen:
    return Seen(rate, 512 * rate, rate, ipis, 1.0, 32, 100)


@pytest.mark.parametrize(
    ("load", "rate", "ipis", "words"),
    [
        ("rules", 950, 20, []),
        ("flood", 949, 20, ["0.95 of RPS's rate, not 0.95"]),
        ("rules", 1000, 20.1, ["20.1 IPIs per 1,000 packets, not 20"]),
        ("flood", 1000, 20.1, []),
        ("low", 1000, 900, []),
        ("low", 1000, 1100, ["1.10 times RPS's IPIs"]),
    ],
)
def test_what_misses_its_bar(load: str, rate: float, ipis: float, words: list[str]) -> None:
    read = {Way("rps", 2): [run(1000, 1000)], Way("rx", 2): [run(rate, ipis)]}
    of_rps, of_threads = rows("one", load, read)
    assert of_rps.missed == []
    assert of_threads.missed == [f"002 one, {load}, rx 2: {one}" for one in words]


def test_the_table_has_a_line_for_each_way() -> None:
    read = {way: [run(1000, 10)] for way in WAYS}
    text = tables.forwarding_table(rows("one", "flood", read))
    assert [line.split("  ")[0] for line in text.splitlines()[2:]] == [
        f"one, flood, {way.label}" for way in WAYS
    ]
