# SPDX-License-Identifier: GPL-2.0-or-later
"""bench's load tools over loopback: bounded in time and count, honest about what arrived."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.tools import NAMES, ToolBuildFailed, build_tool, build_tools

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_tools(tmp_path_factory.mktemp("tools"))


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in argv]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)


def printed(*argv: str | Path) -> dict[str, Any]:
    done = run(*argv)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_flood_reaches_the_sink(built: dict[str, Path], tmp_path: Path) -> None:
    port, result = str(free_port()), tmp_path / "result"
    started = run(built["udpsink"], "--port", port, "--flows", "1", "--ms", "300", "--spin",
                  "--result", result)  # fmt: skip
    assert started.returncode == 0, started.stderr
    sent = printed(built["udpflood"], "--to", "127.0.0.1", "--port", port, "--flows", "1",
                   "--size", "32", "--rate", "2000", "--ms", "400")  # fmt: skip
    sink = printed(built["udpsink"], "--await", result, "--wait", "20")
    assert 0 < sum(sink["received"]) <= sent["sent"]
    assert sink["bytes"] == 32 * sum(sink["received"])
    assert len(sink["received"]) == len(sink["spun"]) == 3


def test_flood_is_bounded_by_count(built: dict[str, Path]) -> None:
    sent = printed(built["udpflood"], "--to", "127.0.0.1", "--port", str(free_port()),
                   "--flows", "1", "--size", "1", "--max-packets", "100",
                   "--ms", "5000")  # fmt: skip
    assert sent["sent"] == 100
    assert sent["seconds"] < 5


@pytest.mark.parametrize(("option", "value", "words"), [
    ("--to", "192.0.2.1", "neither loopback nor a private address"),
    ("--to", "localhost", "not an IPv4 address"),
    ("--size", "65508", "not a number from 1 to 65507"),
    ("--size", "", "not a number"),
    ("--flows", "0", "not a number from 1"),
    ("--ms", "1e3", "not a number"),
])  # fmt: skip
def test_flood_refuses(built: dict[str, Path], option: str, value: str, words: str) -> None:
    given = {"--to": "127.0.0.1", "--port": "9", "--flows": "1", "--size": "1", "--ms": "1"}
    argv = [word for pair in (given | {option: value}).items() for word in pair]
    done = run(built["udpflood"], *argv)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_echo_and_its_losses(built: dict[str, Path], tmp_path: Path) -> None:
    port, pid = str(free_port()), tmp_path / "pid"
    client = (str(built["udpecho"]), "--to", "127.0.0.1", "--port", port)
    assert printed(*client, "--timeout-ms", "200", "--count", "2")["lost"] == 2
    assert run(built["udpecho"], "--serve", "--port", port, "--background", pid).returncode == 0
    try:
        answered = printed(*client, "--count", "50")
    finally:
        run("kill", pid.read_text().strip())
    assert answered["answered"] == 50
    assert 0 < answered["rtt_ns"]["p5"] <= answered["rtt_ns"]["p99"]


@pytest.fixture
def echo(built: dict[str, Path], tmp_path: Path) -> Iterator[str]:
    """Port of an echo that runs."""
    port, pid = str(free_port()), tmp_path / "pid"
    assert run(built["udpecho"], "--serve", "--port", port, "--background", pid).returncode == 0
    yield port
    run("kill", pid.read_text().strip())


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="SO_BUSY_POLL takes CAP_NET_ADMIN")


@pytest.mark.parametrize("wait", ["block", pytest.param("poller", marks=needs_root)])
def test_open_loop(built: dict[str, Path], echo: str, wait: str) -> None:
    found = printed(built["openrr"], "--to", "127.0.0.1", "--port", echo, "--period-us", "2000",
                    "--ms", "300", "--warm-ms", "100", "--wait", wait)  # fmt: skip
    # Those of the first 100 ms are not counted, unless it was late with them: 150 in all.
    assert 50 <= found["sent"] <= 150 and found["received"] <= found["sent"]
    rtt = [found["rtt_ns"][name] for name in ("p5", "p50", "p95", "p99")]
    assert 0 < rtt[0] and rtt == sorted(rtt)
    assert found["recv_log2"] == []


def test_open_loop_works_after_an_answer(built: dict[str, Path], echo: str) -> None:
    """Requests every 2 ms and 8 ms of work each: answers wait, their round trips grow."""
    found = printed(built["openrr"], "--to", "127.0.0.1", "--port", echo, "--period-us", "2000",
                    "--ms", "200", "--delay-us", "8000")  # fmt: skip
    assert found["sent"] == 100
    assert found["received"] <= (200 + 300) / 8 + 1
    assert found["rtt_ns"]["p50"] > 8_000_000


@needs_root
def test_open_loop_times_recvfrom(built: dict[str, Path], echo: str) -> None:
    found = printed(built["openrr"], "--to", "127.0.0.1", "--port", echo, "--period-us", "2000",
                    "--ms", "200", "--wait", "poll")  # fmt: skip
    assert sum(found["recv_log2"]) >= found["received"] > 0


@pytest.mark.parametrize(("words", "message"), [
    (["--device", "lo"], "usage"),
    (["--device", "lo", "--peer-mac", "52:54"], "not a MAC address"),
    (["--wait", "spin"], "none of block, poll, poller"),
    (["--warm-ms", "100"], "usage"),
    (["--sender-fifo", "99"], "not a number from 1 to 90"),
])  # fmt: skip
def test_open_loop_refuses(built: dict[str, Path], words: list[str], message: str) -> None:
    done = run(built["openrr"], "--to", "127.0.0.1", "--port", "9", "--period-us", "1000",
               "--ms", "100", *words)  # fmt: skip
    assert done.returncode in (1, 2)
    assert message in done.stderr


def test_second_build_is_no_build(built: dict[str, Path]) -> None:
    folder = built["udpflood"].parent
    before = {name: (folder / name).stat().st_mtime_ns for name in NAMES}
    assert build_tools(folder) == built
    assert {name: (folder / name).stat().st_mtime_ns for name in NAMES} == before


def test_other_words_for_the_compiler_build_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.c").write_text("int main(void) { return CODE; }\n")
    monkeypatch.setattr("bench.tools.SOURCES", tmp_path)
    for code in (3, 4):
        monkeypatch.setattr("bench.tools.FLAGS", (f"-DCODE={code}",))
        assert run(build_tool("one", tmp_path)).returncode == code


def test_broken_source_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.c").write_text("int main(void) { return undeclared; }\n")
    (tmp_path / "common.h").write_text("")
    monkeypatch.setattr("bench.tools.SOURCES", tmp_path)
    with pytest.raises(ToolBuildFailed, match="undeclared"):
        build_tool("broken", tmp_path)
