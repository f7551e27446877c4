# SPDX-License-Identifier: GPL-2.0-or-later
"""bench's tables `003` and `bases`, as far as they need no guest."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import bases, latency, latency_tables
from bench.bases import LIMIT, OURS, STOCK, BaseRow
from bench.latency import check
from bench.placement import set_short_slice
from bench.report import Report
from bench.rr import Load, Polling, Reading, Transport, Turn, TurnFailed, client_words, job, reading
from bench.seed003 import (
    HISTOGRAM_PAIR,
    P5,
    P50,
    Bar,
    Pair,
    Row,
    bars,
    grouped,
    parse,
    recv_times,
    seed_pairs,
    seed_times,
)
from bench.stats import turns
from bench.tables import plain
from lab.kernel import KernelImage

TURN = Turn(Polling.BUSY, Transport.XDP, Load(1000, 50))
PRINTED = {
    "sent": 10, "received": 9, "given_up": 0, "xdp": "driver", "recv_log2": [0, 0, 4],
    "rtt_ns": {"p5": 1000, "p50": 2000, "p95": 3000, "p99": 4000},
}  # fmt: skip


def one(scale: float) -> Reading:
    printed = {name: value * scale for name, value in (("p5", 1e5), ("p50", 2e5), ("p95", 3e5))}
    return Reading(**printed, p99=4e5 * scale, sent=100, received=99, recv_log2=(0, 0, 5),
                   attached="driver")  # fmt: skip


def row(transport: Transport, busy: float) -> Row:
    scales = {polling: 1.0 for polling in Polling} | {Polling.BUSY: busy}
    return Row(seed_pairs(quick=False)[3], transport,
               {polling: [one(scale)] * 3 for polling, scale in scales.items()})  # fmt: skip


def test_seed_is_whole() -> None:
    pairs = seed_pairs(quick=False)
    assert [pair.label for pair in pairs] == [
        "12K/0 µs", "125K/6 µs", "25K/38 µs", "32K/30 µs", "12K/78 µs",
    ]  # fmt: skip
    assert all(len(figures) == 4 for pair in pairs for figures in pair.seed.values())
    assert pairs[2].seed[Polling.INTERRUPTS] == (22300, 22800, 22800, 22800)
    assert pairs[0].seed[Polling.BUSY] == (12800, 13100, 13100, 13100)
    assert HISTOGRAM_PAIR in {(pair.rate, pair.delay_us) for pair in pairs}
    assert sum(seed_times().values()) == 138_199


def test_scaled_load_keeps_the_share_of_work() -> None:
    for pair in seed_pairs(quick=False):
        share = pair.load.delay_us / pair.load.period_us
        assert share == pytest.approx(pair.rate * pair.delay_us / 1e6, abs=0.001)


def test_malformed_seed_row() -> None:
    with pytest.raises(ValueError, match="3 figures, not 16"):
        parse("12000/0 1 2 3\n")


def test_reading() -> None:
    found = reading(TURN, PRINTED)
    assert found.percentiles == (1000, 2000, 3000, 4000)
    assert (found.sent, found.received, found.recv_log2) == (10, 9, (0, 0, 4))
    with pytest.raises(TurnFailed, match="none of 10"):
        reading(TURN, PRINTED | {"received": 0, "rtt_ns": {}})


def test_client_words() -> None:
    words = client_words(TURN, "eth0", "52:54:00:00:00:01")
    assert words[words.index("--ms") + 1] == "1300"
    assert words[words.index("--device") + 1] == "eth0"
    udp = dataclasses.replace(TURN, transport=Transport.UDP, polling=Polling.INLINE)
    words = client_words(udp, "eth0", "")
    assert "--device" not in words
    assert words[words.index("--wait") + 1] == "poll"


def test_slow_loads_are_measured_longer() -> None:
    assert Load(1000, 0).window_ms == 1000
    assert Load(25_000, 0).window_ms == 1500


def test_job_is_one_word_of_json() -> None:
    found = json.loads(job([TURN], "eth0", "52:54:00:00:00:01"))
    assert found["turns"][0]["threaded"] == 2
    assert found["polled_cpu"] != found["client_cpu"]


def test_runs_are_grouped_in_their_order() -> None:
    order = [Turn(polling, Transport.UDP, Load(1, 0)) for polling in turns([*Polling], 2)]
    readings = [one(number) for number in range(1, len(order) + 1)]
    read = grouped(order, readings)
    assert [item.p5 for item in read[Polling.INTERRUPTS]] == [1e5, 10e5]
    assert [item.p5 for item in read[Polling.BUSY]] == [5e5, 6e5]


def test_bars_are_geometric_means() -> None:
    rows = [row(Transport.XDP, 0.5), row(Transport.XDP, 2.0), row(Transport.UDP, 0.9)]
    found = {item.name.split()[0] + item.name.split()[1]: item for item in bars(rows)}
    assert found["AF_XDPp5"].value == pytest.approx(1.0)
    assert not found["AF_XDPp5"].holds
    assert found["UDPp50"].value == pytest.approx(0.9)
    assert found["UDPp50"].holds and not found["UDPp5"].holds


@pytest.mark.parametrize(("received", "holds"), [(90, True), (89, False), (1, False)])
@pytest.mark.parametrize("polling", [Polling.INTERRUPTS, Polling.BUSY])
def test_requests_have_to_be_answered(polling: Polling, received: int, holds: bool) -> None:
    """Of one pair, by one of the two ways that are compared; all others were."""
    rows = [row(transport, 0.5) for transport in Transport]
    rows[1].read[polling][:] = [dataclasses.replace(one(0.5), received=received)] * 3
    *ratios, last = bars(rows)
    assert len(ratios) == 4 and last.holds == holds


def test_missed_bar_is_reported() -> None:
    report = Report({})
    check(Bar("p5", 0.7, 0.8), "003", report)
    assert report.missed == []
    check(Bar("p5", 0.81, 0.8), "003", report)
    assert report.missed == ["003 p5: 0.81, not 0.8"]


def test_recv_times_come_from_the_seeds_row() -> None:
    assert recv_times([row(Transport.XDP, 1.0), row(Transport.UDP, 1.0)]) == {4: 15}


def test_text_tables() -> None:
    text = latency_tables.row_table([row(Transport.XDP, 0.5)])
    (busy,) = [line for line in text.splitlines() if "busy-poll" in line]
    assert "0.50 (0.50..0.50)" in busy and "12.9/13.1/13.1/13.1" in busy and "99.0%" in busy
    assert "NO" in latency_tables.bar_table([Bar("p5", 0.9, 0.8)])
    recv = latency_tables.recv_table({128: 1, 1024: 3}, seed_times())
    assert recv.splitlines()[2].split() == ["128..256", "1", "25.00%", "24073", "17.42%"]


def test_kernels_are_compared_by_p50() -> None:
    pair: Pair = seed_pairs(quick=False)[0]
    rows = [BaseRow(pair, Transport.XDP, {OURS: [one(1.0)], STOCK: [one(2.0)]}),
            BaseRow(pair, Transport.UDP, {OURS: [one(2.4)], STOCK: [one(1.0)]})]  # fmt: skip
    middle, all_answered = bases.bars(rows)
    assert middle.value == pytest.approx(1.2**0.5)
    assert middle.holds == (1.2**0.5 <= LIMIT)
    assert all_answered.holds
    rows[1].read[OURS][0] = dataclasses.replace(one(2.4), received=89)
    assert not bases.bars(rows)[1].holds
    assert "0.50 (0.50..0.50)" in latency_tables.base_table(rows)


def test_rows_as_json() -> None:
    found = json.loads(json.dumps(plain([row(Transport.XDP, 0.5)])))
    assert found[0]["transport"] == "xdp"
    assert found[0]["pair"]["rate"] == 32_000
    assert found[0]["read"]["busy"][0]["p5"] == 5e4


class FakeClient:
    """Answers every turn, busy-poll's in half the time; or none."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.guest = SimpleNamespace(folder=Path())

    def run(self, order: Sequence[Turn]) -> list[Reading]:
        if self.broken:
            raise TurnFailed("no NAPI of queue 0")
        return [one(0.5 if turn.polling is Polling.BUSY else 1.0) for turn in order]


def fake_clients(monkeypatch: pytest.MonkeyPatch, out: Path, *fakes: FakeClient) -> None:
    monkeypatch.setattr("bench.latency.clients", lambda *_: nullcontext(list(fakes)))
    monkeypatch.setattr("bench.bases.held", lambda _folder: nullcontext())
    monkeypatch.setattr("bench.latency.OUT", out)


KERNEL = KernelImage(Path("bzImage"), "6.12.0", "6.12", "fast", True)


def test_table_003(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    fake_clients(monkeypatch, tmp_path, FakeClient())
    report = Report({})
    latency.table_003(KERNEL, False, None, report)
    assert report.missed == report.skipped == []
    assert report.results["003"]["rounds"] == 9
    assert len(report.results["003"]["rows"]) == 10
    assert "0.500" in capsys.readouterr().out
    assert (tmp_path / "seed003.svg").exists()


def test_table_bases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_clients(monkeypatch, tmp_path, FakeClient(), FakeClient())
    report = Report({})
    latency.table_bases([KERNEL, KERNEL], False, None, report)
    assert report.missed == []
    assert report.results["bases"]["bars"][0]["value"] == pytest.approx(1.0)
    assert all(len(row["read"][OURS]) == 5 for row in report.results["bases"]["rows"])


def test_what_cannot_be_measured_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_clients(monkeypatch, tmp_path, FakeClient(broken=True))
    report = Report({})
    latency.table_003(KERNEL, False, None, report)
    assert report.skipped == ["003: no NAPI of queue 0"]
    assert report.results == {}


def test_short_slice_is_a_nice_level_too() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            set_short_slice(child.pid, 5)
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == 5
            assert os.sched_getscheduler(child.pid) == os.SCHED_OTHER
        finally:
            child.kill()
    with pytest.raises(OSError, match=f"thread {child.pid}: No such process"):
        set_short_slice(child.pid, 5)


def test_plot_is_written(tmp_path: Path) -> None:
    plots = pytest.importorskip("bench.plots")
    pytest.importorskip("matplotlib")
    rows = [row(transport, 0.5) for transport in Transport]
    assert rows[0].summary(Polling.BUSY, P5).median < rows[0].summary(Polling.BUSY, P50).median
    for path in plots.plot_003(rows, tmp_path / "seed003"):
        assert path.stat().st_size > 1000
