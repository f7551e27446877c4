# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 004: the seed's own figures, what the guest and the client tell, ratios, and the table."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from bench import seed004, tables
from bench.seed004 import CALLERS, WAYS, Seen
from bench.tools import build_tool

LATENCY = (757.0, 900.0, 3185.0, 4472.35)


def test_the_seeds_figures_are_whole() -> None:
    found = seed004.seed_rows()
    assert found.keys() == {(load, way) for load in ("netperf", "RPC") for way in WAYS}
    assert found["RPC", "off"].latency == LATENCY
    assert found["netperf", "rfs"].rate == 303_000 and found["netperf", "rfs"].latency == ()


def test_what_is_told() -> None:
    told = {"segments": 3000, "seconds": 6.0, "busy": [0.5, 0.25]}
    assert seed004.seen(told) == Seen(500.0, 0.75)
    client = {"transactions": 900, "seconds": 3.0, "p50": 1.0, "p90": 2.0, "p99": 3.0}
    assert seed004.seen(told, {**client, "deviation": 4.0}) == Seen(300.0, 0.75, (1, 2, 3, 4))


def test_ratios_are_of_rates() -> None:
    read = {"off": [Seen(100, 2)], "rps": [Seen(200, 2)], "rfs": [Seen(300, 2)]}
    found = {row.way: row for row in seed004.rows("netperf", read)}
    assert (found["rfs"].of_off.median, found["rfs"].of_rps.median) == (3.0, 1.5)
    assert found["rps"].latency == ()


def test_table() -> None:
    read = {way: [Seen(100.0 * n, 2, LATENCY)] for n, way in enumerate(WAYS, 1)}
    netperf = {way: [Seen(run.rate, run.busy) for run in runs] for way, runs in read.items()}
    shown = tables.steering_table([*seed004.rows("RPC", read), *seed004.rows("netperf", netperf)])
    lines = shown.splitlines()
    assert len(lines) == 2 + 2 * len(WAYS)
    # The seed: 223 of 103, and of 174.
    assert "3.00 (3.00..3.00; 2.17)" in lines[4] and "1.50 (1.50..1.50; 1.28)" in lines[4]
    assert "757 (757..757)" in lines[2] and "4472" not in lines[5]


@pytest.fixture(scope="module")
def rpc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tool("rpc", tmp_path_factory.mktemp("tools"))


def free_port() -> str:
    """One that nobody else on this machine has, a second run of these tests among them."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def test_rpc_answers_and_times(rpc: Path) -> None:
    """Over loopback. The server has left for a session of its own, so it is ended by its words."""
    port = free_port()
    subprocess.run([rpc, "--serve", "--port", port], check=True, timeout=30)
    try:
        words = ["--port", port, "--connections", "8", "--warm", "50", "--ms", "200"]
        done = subprocess.run([rpc, "--call", "127.0.0.1", *words], capture_output=True, text=True,
                              check=True, timeout=60)  # fmt: skip
    finally:
        subprocess.run(["pkill", "-f", f"{rpc} --serve --port {port}"], check=True)
    told = json.loads(done.stdout)
    assert told["transactions"] > CALLERS and told["seconds"] == 0.2
    assert 0 < told["p50"] <= told["p90"] <= told["p99"]


def test_rpc_refuses_what_it_does_not_understand(rpc: Path) -> None:
    beyond = ["--call", "192.0.2.1", "--port", "1", "--connections", "1", "--ms", "1"]
    for words in ([], ["--serve"], ["--call", "127.0.0.1", "--port", "1"], beyond):
        done = subprocess.run([rpc, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith("rpc: ")
