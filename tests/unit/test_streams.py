# SPDX-License-Identifier: GPL-2.0-or-later
"""Output that is closed, full or read by nobody: one line where it can be said, no traceback."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

import rxlane
from rxlane import cli, codec, kernel, linkd, streams, watch
from rxlane.apply import Applied
from unit import simhost
from unit.simhost import SimHost

FULL = "rxlane: standard output: No space left on device\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("streams") / "host.json"
    file.write_text(codec.dumps(simhost.snapshot()))
    return str(file)


def run(redirection: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell does, with its output buffered."""
    known = {"PYTHONPATH": str(Path(rxlane.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    script = f'"$0" -m rxlane "$@" {redirection}'
    argv = ("bash", "-o", "pipefail", "-c", script, sys.executable, *argv)
    return subprocess.run(argv, env=known, capture_output=True, text=True)


COMMANDS = [("map",), ("map", "--json"), ("map", "--svg", "-"), ("plan", "-o", "threaded=on")]


@pytest.mark.parametrize("argv", COMMANDS)
def test_what_is_shown(recorded: str, argv: tuple[str, ...]) -> None:
    for redirection, expected in (
        (">/dev/full", (1, FULL)),
        (">&-", (0, "")),
        ("| true", (0, "")),
    ):
        found = run(redirection, *argv, "--snapshot", recorded)
        assert (found.returncode, found.stderr) == expected, redirection


@pytest.mark.parametrize("argv", [("--help",), ("--version",), ("map", "--help")])
def test_help(argv: tuple[str, ...]) -> None:
    found = run(">/dev/full", *argv)
    assert (found.returncode, found.stderr) == (1, FULL)
    for redirection in (">&-", "| true"):
        found = run(redirection, *argv)
        assert (found.returncode, found.stderr) == (0, ""), redirection


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2> >(true)"])
def test_an_error_that_cannot_be_told(redirection: str) -> None:
    found = run(redirection, "map", "--snapshot", "/nonexistent")
    assert (found.returncode, found.stdout, found.stderr) == (2, "", "")


def test_standard_input_that_is_closed() -> None:
    found = run("<&-", "map", "--snapshot", "-")
    assert found.returncode == 2 and found.stderr.startswith("rxlane: -: no JSON")
    assert len(found.stderr.splitlines()) == 1


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_log_that_nobody_reads_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Broken())
    cli._log("error", "something")
    linkd.log("error", "something")


def test_a_layout_is_kept_though_nobody_reads_that_it_was_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = list[bool]()

    def keep(*arguments: object) -> None:
        begun = arguments[-1]
        assert callable(begun)
        begun(Applied.nothing())
        kept.append(True)

    monkeypatch.setattr(kernel, "Linux", lambda brief=False: SimHost(simhost.snapshot()))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(watch, "watch", keep)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.stdout", Broken())
    assert cli.main(["watch", "-o", "threaded=on", "--state", str(tmp_path)]) == 0
    assert kept


def test_only_what_is_of_no_file_is_of_standard_output() -> None:
    assert streams.problem(OSError(28, "No space left on device")) == FULL[8:-1]
    assert streams.problem(OSError(28, "No space left on device", b"/x")) == f"/x{FULL[23:-1]}"
    assert streams.problem(OSError(24, "Too many open files")) == "Too many open files"
    assert streams.problem(OSError("timed out")) == "timed out"
