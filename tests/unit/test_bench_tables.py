# SPDX-License-Identifier: GPL-2.0-or-later
"""bench's pure parts around the measuring: the seed's table, readings, curves, tables, JSON."""

import json
import math
from pathlib import Path

import pytest

from bench import goodput, seed001, tables
from bench.flood import Mode, Reading, reading, steady
from bench.goodput import Curve, Point, loads
from bench.placement import NoRoom, autogroup_nice, shared_out
from bench.scheduling import POLICIES, Shares
from bench.seed000 import FloodRow, Row, SeedRow, SpareRow, in_turn, rows_of, seed_rows
from bench.seed001 import IrqRow
from bench.stats import Ratio, Summary
from bench.third import ThirdRow

SEED = SeedRow(64, 25, 320.0, 586.0, 746.0)


def flat(value: float) -> Summary:
    return Summary(value, value * 0.9, value * 1.1, 3)


def flood_row(gain: float) -> FloodRow:
    return FloodRow(SEED, flat(10_000.0), flat(10_000.0 * gain), Ratio(gain, gain, gain), 4e5)


def test_seed_table_is_whole() -> None:
    rows = seed_rows(quick=False)
    assert {row.size for row in rows} == {1, 64, 256, 1438, 4096, 64000}
    assert {row.flows for row in rows} == {1, 25, 50, 100, 200}
    assert len(rows) == 30
    assert {row.size for row in rows if row.fits} == {1, 64, 256, 1438}


@pytest.mark.parametrize(("size", "flows", "guest", "both"), [
    (1, 1, "+21%", "+37%"), (64, 25, "+83%", "+133%"), (256, 200, "+253%", "+327%"),
])  # fmt: skip
def test_seed_deltas(size: int, flows: int, guest: str, both: str) -> None:
    """Recomputed from the seed's packet counts; where its own column differs, theirs is off."""
    row = next(r for r in seed_rows(quick=False) if (r.size, r.flows) == (size, flows))
    assert (tables.delta(row.gain), tables.delta(row.gain_both)) == (guest, both)


def test_quick_rows_keep_both_kinds() -> None:
    rows = seed_rows(quick=True)
    assert {row.fits for row in rows} == {True, False}
    assert len(rows) == 9


def test_malformed_seed_row() -> None:
    with pytest.raises(ValueError):
        rows_of("64/25 320 586\n", SeedRow)


def test_steady_leaves_the_ramp_out() -> None:
    assert steady([0, 0, 0, 10, 30], 100) == 200.0
    with pytest.raises(ValueError, match="ramp"):
        steady([1, 2, 3], 100)


def test_reading() -> None:
    flood = {"sent": 4000, "seconds": 2.0}
    found = reading(flood, {"received": [0] * 3 + [50] * 7, "step_ms": 100})
    assert found == Reading(2000.0, 500.0, 0.0, 4000)
    assert found.share == 0.25


def test_rounds_take_turns() -> None:
    seen: list[Mode] = []

    def run(mode: Mode) -> Reading:
        seen.append(mode)
        return Reading(1.0, float(len(seen)), 0.0, 1)

    read = in_turn((Mode.SOFTIRQ, Mode.THREADED), 2, run)
    assert seen == [Mode.SOFTIRQ, Mode.THREADED, Mode.THREADED, Mode.SOFTIRQ]
    assert [one.carried for one in read[Mode.SOFTIRQ]] == [1.0, 4.0]


def test_curve_is_judged_by_load_below_the_peak() -> None:
    points = (Point(10_000, 10_000.0, flat(9_900.0)), Point(400_000, 400_000.0, flat(50_000.0)),
              Point(80_000, 80_000.0, flat(60_000.0)))  # fmt: skip
    curve = Curve(Mode.NICE10, points)
    assert curve.peak == 60_000.0
    assert curve.worst == pytest.approx(50 / 60)
    assert curve.of_ideal(points[0]) == pytest.approx(0.99)


def test_loads_end_with_the_full_flood() -> None:
    assert loads(240_000, quick=False)[-3:] == [160_000, 200_000, 240_000]
    assert loads(150_000, quick=True) == [10_000, 40_000, 80_000, 150_000]


def test_flood_table_marks_the_row_that_misses() -> None:
    text = tables.flood_table([flood_row(3.5), flood_row(2.5)])
    assert [line.split()[-1] for line in text.splitlines()[2:]] == ["yes", "NO"]
    assert "+83%" in text and "×3.5" in text


def irq_row(gain: float, of_napi: float | None, cpus: int = 1) -> IrqRow:
    hard, threaded = flat(1000.0), flat(1000.0 * gain)
    napi = Ratio(of_napi, of_napi, of_napi) if of_napi else None
    return IrqRow(
        Row(64, 25, 711.0, 932.0), cpus, 2e5, hard, threaded, Ratio(gain, gain, gain),
        flat(1000.0) if napi else None, napi,
    )  # fmt: skip


def test_seed_001_is_whole() -> None:
    rows = seed001.seed_rows(quick=False)
    assert {row.size for row in rows} == {1, 64, 256, 1400}
    assert {row.flows for row in rows} == {1, 25, 50, 100, 200}
    assert len(rows) == 20 and all(row.fits for row in rows)
    loss = next(row for row in rows if (row.size, row.flows) == (256, 1))
    assert tables.delta(loss.gain) == "-27%"
    assert loss in seed001.seed_rows(quick=True)


@pytest.mark.parametrize(("gain", "of_napi", "verdict"), [
    (3.5, 1.0, "yes"), (2.5, 1.0, "NO"), (3.5, 0.8, "NO"), (0.5, None, "+31%"),
])  # fmt: skip
def test_what_is_demanded_of_interrupt_threads(
    gain: float, of_napi: float | None, verdict: str
) -> None:
    *_, last = tables.irq_table([irq_row(gain, of_napi)]).splitlines()
    assert last.split()[-1] == verdict


def test_of_two_cpus_nothing_is_demanded() -> None:
    *_, last = tables.irq_table([irq_row(1.0, 0.5, seed001.SEED_CPUS)]).splitlines()
    assert last.split()[-1] == "0.50"


def test_tables_of_the_other_kinds() -> None:
    spare = SpareRow(SEED, 5e3, flat(0.2), flat(0.4), Ratio(2.0, 2.0, 2.0), 0.99, 1.0)
    assert "20% (18%..22%)" in tables.spare_table([spare])
    columns = (flat(1e4), flat(4e4), flat(5e4))
    third = ThirdRow(SEED, columns, Ratio(4.0, 3.0, 5.0), Ratio(5.0, 4.0, 6.0))
    assert "×5.0 (4.0..6.0)" in tables.third_table([third])
    curve = Curve(Mode.SOFTIRQ, (Point(400_000, 4e5, flat(5e4)),))
    *_, last = tables.goodput_table([curve]).splitlines()
    assert last.split()[:2] == ["400", "50.0"]


def test_infinite_ratio_in_text_and_json() -> None:
    row = FloodRow(SEED, flat(0.0), flat(1.0), Ratio(math.inf, math.inf, math.inf), 4e5)
    assert "softirq 0" in tables.flood_table([row])
    assert not row.holds, "many times nothing"
    found = json.loads(json.dumps(tables.plain({"rows": [row], "mode": Mode.NICE10})))
    assert found["rows"][0]["gain"]["median"] is None
    assert found["mode"] == "nice10"
    assert found["rows"][0]["seed"]["flows"] == 25


def test_each_virtual_cpu_has_a_host_cpu() -> None:
    assert shared_out([0, 1], [41]) == ({41: 0}, [1])
    assert shared_out([2, 4, 6], [41, 42]) == ({41: 2, 42: 4}, [6])
    assert shared_out([0, 1], [41, 42]) == ({41: 0, 42: 1}, [0, 1])
    with pytest.raises(NoRoom, match="3 virtual CPUs on 2 host CPUs"):
        shared_out([0, 1], [41, 42, 43])


def test_session_level() -> None:
    assert autogroup_nice("/autogroup-16 nice -15\n") == -15


def test_plots_are_written(tmp_path: Path) -> None:
    plots = pytest.importorskip("bench.plots")
    pytest.importorskip("matplotlib")
    points = (Point(1000, 1e3, flat(1e3)), Point(400_000, 4e5, flat(5e4)))
    curves = [Curve(mode, points) for mode in goodput.MODES]
    assert goodput.gain(curves) == 1.0
    trip = goodput.Trip(Mode.NICE10, True, flat(200.0), flat(900.0), 3)
    assert "200 (" in tables.trip_table([trip]) and "endless" in tables.trip_table([trip])
    for path in plots.plot_goodput(curves, "1 × 64 bytes", tmp_path / "goodput"):
        assert path.stat().st_size > 1000
    for path in plots.plot_001([irq_row(3.0, 1.0)], 1, tmp_path / "seed001"):
        assert path.stat().st_size > 1000
    rows = [Shares(policy, flat(0.4), flat(0.5), flat(9e3)) for policy in POLICIES]
    for path in plots.plot_scheduling(rows, tmp_path / "scheduling"):
        assert path.stat().st_size > 1000


def test_shares_of_the_scheduler() -> None:
    """The kernel's own weights of nice -10, 0 and 10 are 9548, 1024 and 110."""
    expected = {policy.label: policy.expected for policy in POLICIES}
    assert expected.pop("softirq") is None
    for mode in ("threaded", "threaded interrupt"):
        assert expected[f"{mode}, nice -10"] == pytest.approx(9548 / (9548 + 1024), abs=0.002)
        assert expected[f"{mode}, nice 0"] == 0.5
        assert expected[f"{mode}, nice 10"] == pytest.approx(110 / (110 + 1024), abs=0.002)
        assert expected[f"{mode}, SCHED_DEADLINE 3 of 10 ms"] == pytest.approx(0.3)


def test_scheduling_table() -> None:
    softirq, *threads = POLICIES
    rows = [Shares(softirq, flat(0.0), flat(0.5), None)]
    rows += [Shares(policy, flat(0.4), flat(0.5), flat(2e6)) for policy in threads]
    _head, _rule, without, first, *_ = tables.scheduling_table(rows).splitlines()
    assert without.split() == ["softirq", "none", "50%", "(45%..55%)"]
    assert (
        "40% (36%..44%)" in first and "90%" in first and first.endswith("2000.0 (1800.0..2200.0)")
    )
