# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of costs: what is compared, and what is said when it cannot be measured."""

from __future__ import annotations

from argparse import Namespace

import pytest

from bench import cost
from bench.cost import Lacking, Report, Run, Space, quotient
from rxlane.model import Capabilities


def test_a_bar_that_is_not_met_is_told() -> None:
    report = Report()
    report.figure("undo", 0.7, 0.8)
    report.figure("apply", 1.25, 0.8)
    report.figure("memory", 39_000, None, " KB")
    assert report.lines == ["undo: 0.7 (bar 0.8)", "apply: 1.25 (bar 0.8)", "memory: 3.9e+04 KB"]
    assert report.missed == ["apply: 1.25, not 0.8"]
    assert report.figures["apply"] == 1.25


def test_multiples_are_of_the_same_round() -> None:
    """A round that all programs found slow counts like the others."""
    rounds = [{"a": Run(2 * n, 0, 0), "b": Run(n, 0, 0)} for n in (1.0, 7.0, 3.0)]
    assert quotient(rounds, "a", "b") == 2


@pytest.mark.parametrize(("devices", "names"), [(1, ["va0"]), (4, ["va0", "vb0", "va1", "vb1"])])
def test_devices_of_a_namespace(devices: int, names: list[str]) -> None:
    assert Space(devices).names() == names


def test_what_is_lacking_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Old:
        def capabilities(self) -> Capabilities:
            return Capabilities(netdev=True)

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cost, "Netdev", Old)
    monkeypatch.delenv("RXLANE_STRICT", raising=False)
    assert cost.main([]) == 0
    assert "SKIPPED cost: this machine's kernel" in capsys.readouterr().out
    monkeypatch.setenv("RXLANE_STRICT", "1")
    assert cost.main([]) == 3
    with pytest.raises(Lacking):
        cost.measure(Namespace())
