# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 004: a server behind one NIC queue, with RPS and RFS and without either.

500 netperf TCP_RR of one byte, and an RPC test with 100 connections that works more for each
answer, as the seed had them; the clients run on the host. The three ways alternate in one boot of a
guest with the seed's eight CPUs. Two host cores run them all: a CPU that waits for another costs
no throughput here, what its interrupts cost does.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import netperf
from bench.flood import GUEST_ADDRESS, REMOTE, Bench
from bench.seed000 import in_turn
from bench.stats import Ratio, Summary, ratio, summary
from lab.qga import Completed
from lab.vm import CommandFailed

CPUS = 8
WAYS = ("off", "rps", "rfs")
NETPERFS, CALLERS = 500, 100
NETPERF_PORT, RPC_PORT = 12866, 7100
WINDOW_MS = 6000
LONGEST_S = 600
# The control connection of each netperf is one, too.
CONNECTIONS = {"netperf": 2 * NETPERFS, "RPC": CALLERS}
TOOLS = Path(__file__).parent / "tools"
SCRIPTS = ("steered.py", "served.py")
SEED = Path(__file__).with_suffix(".txt")
LATENCIES = ("p50", "p90", "p99", "deviation")
Say = Callable[[str], None]


@dataclass(frozen=True)
class SeedRow:
    """What the seed measured: transactions a second, CPU use in per cent, latencies in µs."""

    load: str
    way: str
    rate: float
    busy: float
    latency: tuple[float, ...] = ()


@dataclass(frozen=True)
class Seen:
    """One window: transactions a second, CPUs' worth of time, latencies in µs of LATENCIES."""

    rate: float
    busy: float
    latency: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """Runs of one way under one load; the ratios are those of rates."""

    load: str
    way: str
    rate: Summary
    busy: Summary
    latency: tuple[Summary, ...]
    of_off: Ratio
    of_rps: Ratio


def seed_rows() -> dict[tuple[str, str], SeedRow]:
    """By load and way. ValueError when a line is malformed."""
    found = {}
    for line in SEED.read_text().splitlines():
        if line and not line.startswith("#"):
            load, way, *numbers = line.split()
            rate, busy, *latency = (float(number) for number in numbers)
            found[load, way] = SeedRow(load, way, rate, busy, tuple(latency))
    return found


def seen(told: dict[str, Any], latencies: dict[str, float] | None = None) -> Seen:
    """Of served.py's JSON and, of the RPC test, rpc's."""
    spent = sum(told["busy"])
    if latencies is None:
        return Seen(told["segments"] / told["seconds"], spent)
    rate = latencies["transactions"] / latencies["seconds"]
    return Seen(rate, spent, tuple(latencies[name] for name in LATENCIES))


def rows(load: str, read: dict[str, list[Seen]]) -> list[Row]:
    """The rows of one load, in the order of WAYS."""

    def rates(way: str) -> list[float]:
        return [run.rate for run in read[way]]

    return [
        Row(
            load,
            way,
            summary(rates(way)),
            summary([run.busy for run in runs]),
            tuple(summary(list(one)) for one in zip(*(run.latency for run in runs), strict=True)),
            ratio(rates(way), rates("off")),
            ratio(rates(way), rates("rps")),
        )
        for way, runs in read.items()
    ]


def set_up(bench: Bench) -> None:
    guest = bench.guest
    for script in SCRIPTS:
        guest.put(TOOLS / script, f"{REMOTE}/{script}")
    guest.put(bench.built["rpc"], f"{REMOTE}/rpc", mode=0o755)
    guest.run([f"{REMOTE}/rpc", "--serve", "--port", str(RPC_PORT)])
    guest.run(["netserver", "-4", "-p", str(NETPERF_PORT)])
    guest.bind_interrupts(0)


def window(bench: Bench, load: str, way: str) -> dict[str, Any]:
    words = (way, str(CONNECTIONS[load]), str(WINDOW_MS), bench.nic)
    done = bench.guest.run(["python3", f"{REMOTE}/served.py", *words], timeout=400)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@contextmanager
def netperfs(bench: Bench) -> Iterator[None]:
    """So many at work as long as the block takes. CommandFailed if they ended."""
    argv = [sys.executable, str(Path(netperf.__file__)), str(NETPERFS), *netperf.argv()]
    argv += ["-4", "-H", GUEST_ADDRESS, "-p", str(NETPERF_PORT), "-t", "TCP_RR"]
    argv += ["-l", str(LONGEST_S), "-P", "0", "--", "-r", "1,1"]
    clients = bench.guest.popen(argv)
    try:
        yield
        if clients.poll() is not None:
            raise CommandFailed(Completed(tuple(argv), clients.returncode, *clients.communicate()))
    finally:
        clients.terminate()
        clients.communicate()
        idle(bench)


def idle(bench: Bench) -> None:
    """Once the connections of the load before are gone."""
    end = time.monotonic() + LONGEST_S
    asking = ["sh", "-c", f"ss -Htn state established sport = :{NETPERF_PORT} | wc -l"]
    while int(bench.guest.run(asking).stdout) and time.monotonic() < end:
        time.sleep(0.5)


def called(bench: Bench, way: str) -> Seen:
    """The client's window begins when all connections are there, and so does ours."""
    argv = [str(bench.built["rpc"]), "--call", GUEST_ADDRESS, "--port", str(RPC_PORT)]
    argv += ["--connections", str(CALLERS), "--warm", "3000", "--ms", str(WINDOW_MS)]
    client = bench.guest.popen(argv)
    try:
        told = window(bench, "RPC", way)
        out, err = client.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(Completed(tuple(argv), 124, "", str(late))) from late
    finally:
        client.kill()
        client.wait()
    if client.returncode:
        raise CommandFailed(Completed(tuple(argv), client.returncode, out, err))
    return seen(told, json.loads(out))


def measure(bench: Bench, rounds: int, say: Say) -> list[Row]:
    """Both loads, each way in turn. CommandFailed."""
    set_up(bench)

    def exchanged(way: str) -> Seen:
        with netperfs(bench):
            return told_of("netperf", way, seen(window(bench, "netperf", way)))

    def told_of(load: str, way: str, one: Seen) -> Seen:
        say(f"{load}, {way}: {one.rate:.0f} transactions a second, {one.busy:.2f} CPUs busy")
        return one

    found = rows("RPC", in_turn(WAYS, rounds, lambda way: told_of("RPC", way, called(bench, way))))
    return found + rows("netperf", in_turn(WAYS, rounds, exchanged))
