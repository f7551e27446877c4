# SPDX-License-Identifier: GPL-2.0-or-later
"""Output that is closed, full or read by nobody: one line where it can be said, no traceback."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

import rxlane
from rxlane import cli, codec, streams
from rxlane.apply import Applied
from rxlane.command import act
from rxlane.keeping import watch
from rxlane.linkfiles import linkd
from unit import simhost
from unit.commands import root_of_a_host
from unit.simhost import SimHost

FULL = "rxlane: standard output: No space left on device\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("streams") / "host.json"
    file.write_text(codec.dumps(simhost.snapshot()))
    return str(file)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimHost:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return root_of_a_host(monkeypatch)


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
    act._log("error", "something")
    linkd.log("error", "something")


@pytest.mark.usefixtures("host")
def test_a_layout_is_kept_though_nobody_reads_that_it_was_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = list[bool]()

    def keep(*arguments: object) -> None:
        begun = arguments[-1]
        assert callable(begun)
        begun(Applied.nothing())
        kept.append(True)

    monkeypatch.setattr(watch, "watch", keep)
    monkeypatch.setattr("sys.stdout", Broken())
    assert cli.main(["watch", "-o", "threaded=on", "--state", str(tmp_path)]) == 0
    assert kept


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("stdout", "said"), [(Full, FULL), (Broken, "")])
def test_what_was_done_is_done_though_nobody_can_be_told(
    host: SimHost,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    stdout: type[io.StringIO],
    said: str,
) -> None:
    before = simhost.settings(host)
    monkeypatch.setattr("sys.stdout", stdout())
    kept = ("--state", str(tmp_path))
    assert cli.main(["apply", "-o", "threaded=on", "eth0", *kept]) == 0
    assert simhost.settings(host) != before
    assert cli.main(["rollback", *kept]) == 0
    assert simhost.settings(host) == before
    assert capsys.readouterr().err == 2 * said


def test_who_reads_a_part_of_a_verification_gets_its_status(
    host: SimHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = ("--state", str(tmp_path))
    assert cli.main(["apply", "-o", "defer_hard_irqs=7", "eth0", *kept]) == 0
    monkeypatch.setattr("sys.stdout", Broken())
    assert cli.main(["verify", *kept]) == 0
    host.write_napi(host.links["eth0"].napis[0].napi_id, {"defer-hard-irqs": 9})
    assert cli.main(["verify", *kept]) == 1


def test_a_closed_standard_error_takes_any_character() -> None:
    code = "from rxlane import streams; streams.open_missing(); streams.say(chr(0x4E2D))"
    script = f'exec "$0" -X utf8=0 -c "{code}" 2>&-'
    environment = {"PYTHONPATH": str(Path(rxlane.__file__).parents[1]), "LC_ALL": "C"}
    assert subprocess.run(["sh", "-c", script, sys.executable], env=environment).returncode == 0


def test_only_what_is_of_no_file_is_of_standard_output() -> None:
    assert streams.problem(OSError(28, "No space left on device")) == FULL[8:-1]
    assert streams.problem(OSError(28, "No space left on device", b"/x")) == f"/x{FULL[23:-1]}"
    assert streams.problem(OSError(24, "Too many open files")) == "Too many open files"
    assert streams.problem(OSError("timed out")) == "timed out"
