# SPDX-License-Identifier: GPL-2.0-or-later
"""The command, run in this process on a simulated host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rxlane import cli, kernel
from unit import simhost
from unit.simhost import SimHost

Captured = pytest.CaptureFixture[str]


def root_of_a_host(monkeypatch: pytest.MonkeyPatch) -> SimHost:
    """Has the command find a simulated host, be root there, and take no priority."""
    simulated = SimHost(simhost.snapshot())
    monkeypatch.setattr(kernel, "Linux", lambda brief=False: simulated)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.setpriority", lambda *_: None)  # or the tests would have it
    return simulated


def run(capsys: Captured, *argv: str) -> tuple[int, str, str]:
    try:
        status = cli.main(argv)
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def state(tmp_path: Path) -> Sequence[str]:
    return ("--state", str(tmp_path / "state"))
