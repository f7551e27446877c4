# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's pure parts: variables file, what a kernel lacks, comparison, closing words."""

import pytest

from bench.gain import Gain, Target
from bench.stats import Ratio, Summary
from demo_story import CPUS, differing, dormant, lacks, variables
from demo_text import Outcome, closing
from lab.paths import TREE

SHIPPED = TREE / "tuned-profiles" / "net-low-latency" / "net-low-latency-variables.conf"


def test_differences_are_named_with_both_values() -> None:
    found = differing({"eth0/mtu": "1500", "eth0/threaded": "0"}, {"eth0/threaded": "1", "new": 1})
    assert found == ["eth0/mtu: '1500' -> None", "eth0/threaded: '0' -> '1'", "new: None -> 1"]


def test_only_a_thread_as_the_kernel_made_it_may_sleep_on() -> None:
    fresh = {"policy": "other", "priority": 0, "nice": 0, "affinity": list(range(CPUS))}
    off = {"eth0/threaded": "0"}
    assert dormant(off, off | {"eth0/napi-0/thread": fresh}) == off
    pinned = off | {"eth0/napi-0/thread": fresh | {"affinity": [3]}}
    assert dormant(off, pinned) == pinned
    polling = {"eth0/threaded": "1", "eth0/napi-0/thread": fresh}
    assert dormant(off, polling) == polling


def test_variables_become_options() -> None:
    assert variables("# rx_a=1\nrx_threaded=on\nrx_thread_priority=\n") == {"threaded": "on"}
    assert int(variables(SHIPPED.read_text())["management_queues"]) >= 0


def test_each_lack_is_said_once() -> None:
    def skip(device: str, queue: int, kind: str) -> dict[str, object]:
        return {"device": device, "queue": queue, "item": "threaded", "kind": kind, "reason": "r"}

    skips = [skip("eth0", 1, "unsupported"), skip("eth0", 2, "unsupported"),
             skip("eth1", 0, "unsupported"), skip("eth2", 0, "left-alone")]  # fmt: skip
    found = lacks({"skips": skips, "warnings": ["w", "w"]}, ["n"])
    assert found == ["n", "threaded: r (eth0, eth1)", "w"]


def test_closing(capsys: pytest.CaptureFixture[str]) -> None:
    off, on = Summary(0.08, 0.05, 0.1, 3), Summary(0.8, 0.7, 0.9, 3)
    gain = Gain(Target(6100, 2, 5), off, on, Ratio(10.0, 8.0, 12.0))
    closing([Outcome("6.12 (fast, patched)", 812, 24, gain, [], 90.0)], 100.0)
    said = capsys.readouterr().out
    assert "×10.0 (runs 8.0..12.0)" in said
    assert "24 of 812 settings differed" in said
    assert "lacks: nothing" in said
    assert "Total: 100 s" in said
