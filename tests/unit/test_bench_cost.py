# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of costs: what is compared, and what is said when it cannot be measured."""

from __future__ import annotations

import subprocess
import time
from argparse import Namespace
from pathlib import Path

import pytest

from bench import cost, peers
from bench.cost import Lacking, Report, Run, Space, quotient
from bench.peers import NoPeer
from lab import apt
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


def test_peers_that_cannot_run_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(*_: object) -> Path:
        raise NoPeer("no mirror is reached")

    monkeypatch.setattr(peers, "tuned", none)
    monkeypatch.setattr(peers, "netutils", none)
    report, args = Report(), Namespace(rounds=1)
    cost.tuned(report, args, tmp_path, tmp_path, "2.25.1-1")
    cost.netutils(report, args, tmp_path)
    assert report.skipped == [
        "tuned-2.25.1-1: no mirror is reached",
        "netutils-linux 2.7.11: no mirror is reached",
    ]
    assert report.figures == {} and report.missed == report.lines == []


def test_a_bar_without_a_figure_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of system calls where there is no strace."""
    report = Report(skipped=["system calls: no strace here"])
    monkeypatch.setattr(cost, "measure", lambda _args: report)
    monkeypatch.setattr(cost, "OUT", tmp_path / "cost.json")
    monkeypatch.delenv("RXLANE_STRICT", raising=False)
    assert cost.main([]) == 0
    assert "SKIPPED system calls: no strace here" in capsys.readouterr().out
    monkeypatch.setenv("RXLANE_STRICT", "1")
    assert cost.main([]) == 3
    report.missed.append("undo: 0.9, not 0.8")
    assert cost.main([]) == 1


def test_packages_that_nobody_offers_are_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(package: str, *_: object) -> str:
        raise apt.NoPackage(f"no release that apt reaches offers {package}")

    monkeypatch.setattr(apt, "choose", nothing)
    with pytest.raises(NoPeer, match="offers tuned"):
        peers.tuned("2.25.1-1")


def test_tuned_runs_with_an_etc_of_its_own(tmp_path: Path) -> None:
    script = peers._script(Path("/opt/a root"), tmp_path)
    assert f"upperdir={tmp_path}/etc" in script and "mount -t tmpfs none /run" in script
    last = script.splitlines()[-1]
    assert last.startswith("exec /usr/bin/python3 '/opt/a root/usr/sbin/tuned' --no-dbus")


def test_a_tuned_that_ends_early_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("Traceback\nModuleNotFoundError: dbus\n")
    own = subprocess.Popen(["true"])
    own.wait()
    with pytest.raises(NoPeer, match="ModuleNotFoundError: dbus"):
        peers._wait(own, tmp_path, time.monotonic())
