# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 002: a router of one NIC queue, with RPS and with helper threads on the same CPUs.

The host floods the guest's NIC, whose one interrupt is on CPU 0; all is routed to a dummy device,
so a packet costs what the protocol and the hand-over to another CPU do. Off, RPS and rx_threads
alternate in one boot, at a rate far below what the guest can do, at one in between, and flooded.
Not here: both directions at once, TCP.

Two host cores run all of the guest's CPUs: how a rate scales with CPUs does not show here, what the
hand-over costs does.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench import flood
from bench.flood import Bench
from bench.seed000 import in_turn
from bench.stats import Ratio, Summary, quotient, ratio, summary

CPUS = 4
FLOWS, SIZE = 100, 64
COUNTS = (1, 2, 4)
LOADS = {"low": 2_000, "middle": 10_000, "flood": 150_000}
WINDOW_MS = 3000
OUT = "fwd0"
NET, GATE, TARGET = "198.51.100.0/24", "198.51.100.1/24", "198.51.100.7"
SCRIPT = Path(__file__).parent / "tools" / "steered.py"
SEED = Path(__file__).with_suffix(".txt")
OF_RPS = 0.95  # at each load
IPIS = 20  # per 1,000 packets, flooded
Say = Callable[[str], None]


class Way(NamedTuple):
    """How flows are spread: off, rps or rx, over so many CPUs."""

    name: str
    cpus: int

    @property
    def label(self) -> str:
        return "off" if self.name == "off" else f"{self.name} {self.cpus}"

    @property
    def list(self) -> str:
        """Beside the CPU of the interrupt, as long as there are enough."""
        every = range(self.cpus) if self.cpus >= CPUS else range(1, self.cpus + 1)
        return ",".join(str(cpu) for cpu in every)


WAYS = (Way("off", 1), *(Way(name, count) for count in COUNTS for name in ("rps", "rx")))


@dataclass(frozen=True)
class Seen:
    """One window. Rates in packets a second; busy: CPUs' worth of time."""

    rate: float
    taken: float
    ipis: float
    busy: float
    batch: float
    wake: float


@dataclass(frozen=True)
class Row:
    """Runs of one way at one load; IPIs per 1,000 packets forwarded."""

    load: str
    way: Way
    rate: Summary
    ipis: Summary
    busy: Summary
    batch: Summary
    wake: Summary
    of_rps: Ratio | None
    ipis_of_rps: float | None

    @property
    def missed(self) -> list[str]:
        """What of the bars above does not hold of a row of helper threads."""
        found = []
        if self.of_rps is not None and self.of_rps.median < OF_RPS:
            found.append(f"{self.of_rps.median:.2f} of RPS's rate, not {OF_RPS:g}")
        if self.of_rps is not None and self.load == "flood" and self.ipis.median > IPIS:
            found.append(f"{self.ipis.median:.1f} IPIs per 1,000 packets, not {IPIS}")
        if self.load == "low" and self.ipis_of_rps is not None and self.ipis_of_rps > 1:
            found.append(f"{self.ipis_of_rps:.2f} times RPS's IPIs")
        return [f"002 {self.load} {self.way.label}: {one}" for one in found]


def seen(told: dict[str, Any]) -> Seen:
    """Of steered.py's JSON."""
    seconds, forwarded = told["seconds"], told["forwarded"]
    return Seen(
        rate=forwarded / seconds,
        taken=told["taken"] / seconds,
        ipis=quotient(1000 * told["ipis"], forwarded),
        busy=sum(told["busy"]),
        batch=quotient(told["packets"], told["batches"]) if told["batches"] else 0,
        wake=quotient(told["packets"], told["wakeups"]) if told["wakeups"] else 0,
    )


def rows(load: str, read: dict[Way, list[Seen]]) -> list[Row]:
    """The rows of one load, in the order of WAYS."""
    found = []
    for way, runs in read.items():
        beside = read.get(Way("rps", way.cpus), []) if way.name == "rx" else []
        found.append(
            Row(
                load,
                way,
                summary([run.rate for run in runs]),
                summary([run.ipis for run in runs]),
                summary([run.busy for run in runs]),
                summary([run.batch for run in runs]),
                summary([run.wake for run in runs]),
                ratio([r.rate for r in runs], [r.rate for r in beside]) if beside else None,
                quotient(
                    summary([run.ipis for run in runs]).median,
                    summary([run.ipis for run in beside]).median,
                )
                if beside
                else None,
            )
        )
    return found


def set_up(bench: Bench) -> None:
    guest = bench.guest
    guest.put(SCRIPT, f"{flood.REMOTE}/{SCRIPT.name}")
    for words in (
        f"ip link add {OUT} type dummy",
        f"ip link set {OUT} up",
        f"ip addr add {GATE} dev {OUT}",
        "sysctl -q -w net.ipv4.conf.all.forwarding=1",
    ):
        guest.run(words.split())
    bind = "for irq in $(ls $0); do echo 0 > /proc/irq/$irq/smp_affinity_list || :; done"
    guest.run(["sh", "-c", bind, f"/sys/class/net/{bench.nic}/device/../msi_irqs"])
    guest.host(["ip", "route", "replace", NET, "dev", bench.device, "scope", "link"])
    guest.host(
        ["ip", "neigh", "replace", TARGET, "lladdr", bench.mac, "dev", bench.device,
         "nud", "permanent"]
    )  # fmt: skip


def measure(bench: Bench, loads: Sequence[str], rounds: int, say: Say) -> list[Row]:
    """All ways in turn at each load."""
    set_up(bench)
    found: list[Row] = []
    for load in loads:

        def run(way: Way, load: str = load) -> Seen:
            argv = ["python3", f"{flood.REMOTE}/{SCRIPT.name}", bench.nic, OUT, way.name, way.list]
            with bench.flooding(FLOWS, SIZE, LOADS[load], to=TARGET):
                done = bench.guest.run([*argv, str(WINDOW_MS)], timeout=120)
            one = seen(json.loads(done.stdout))
            say(f"{load} {way.label}: {one.rate:.0f} of {one.taken:.0f} pps, {one.ipis:.1f} IPIs")
            return one

        found += rows(load, in_turn(WAYS, rounds, run))
    return found
