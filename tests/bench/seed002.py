# SPDX-License-Identifier: GPL-2.0-or-later
"""Seed 002: a router of one NIC queue, with RPS and with helper threads on the same CPUs.

The host floods the guest's NIC, whose one interrupt is on CPU 0. In one direction all is routed to
a dummy device, so a packet costs what the protocol and the hand-over to another CPU do; in both,
two NICs are flooded and each sends what the other received; TCP comes in by one and leaves by the
other. Off, RPS and rx_threads alternate in one boot, at a rate far below what the guest can do, at
one in between, flooded, and flooded with a list of rules to pass.

Two host cores run all of the guest's CPUs: how a rate scales with CPUs does not show here, what the
hand-over costs does.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bench import flood, rules, tcp
from bench.flood import Bench
from bench.seed000 import in_turn
from bench.stats import Ratio, Summary, quotient, ratio, summary
from lab.rootfs import NICS
from lab.vm import Guest

CPUS = 4
FLOWS, SIZE = 100, 64
COUNTS = (1, 2, 4)
DIRECTIONS = ("one", "both")
WINDOW_MS = 3000
DUMMY, NOBODY = "fwd0", "02:00:00:00:00:07"
SCRIPT = Path(__file__).parent / "tools" / "steered.py"
SEED = Path(__file__).with_suffix(".txt")
OF_RPS = 0.95  # at each load
IPIS = 20  # per 1,000 packets, where the threads are full
STREAMS = (1, 8)
# A stream's rate goes up and down by a fifth from run to run, for reasons of its own.
TCP_TURNS = 4
RULES = 1000
Say = Callable[[str], None]
Load = Callable[[], AbstractContextManager[list[tuple[str, str]]]]


class NothingArrived(Exception):
    """The flood did not reach the guest, or nothing of it left again; the message says which."""


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


class Offered(NamedTuple):
    """Messages a second, and the tc rules that each has to pass."""

    rate: int
    rules: int = 0


# Routing alone costs so little that not the CPUs beside the interrupt's are full, but that one; in
# the last load they are.
LOADS = {
    "low": Offered(2_000),
    "middle": Offered(10_000),
    "flood": Offered(330_000),
    "rules": Offered(150_000, RULES),
}


class Line(NamedTuple):
    """What comes in by one device of the guest, for ``target``, and leaves by another."""

    dev: str
    out: str
    tap: str
    mac: str
    target: str

    @property
    def net(self) -> str:
        return self.target.rpartition(".")[0] + ".0/24"


@dataclass(frozen=True)
class Seen:
    """One window. Rates in packets, and bits, a second; busy: CPUs' worth of time."""

    rate: float
    bits: float
    taken: float
    ipis: float
    busy: float
    batch: float
    wake: float


@dataclass(frozen=True)
class Row:
    """Runs of one way at one load; IPIs per 1,000 packets forwarded."""

    direction: str
    load: str
    way: Way
    rate: Summary
    bits: Summary
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
        if self.of_rps is not None and self.load == "rules" and self.ipis.median > IPIS:
            found.append(f"{self.ipis.median:.1f} IPIs per 1,000 packets, not {IPIS}")
        if self.load == "low" and self.ipis_of_rps is not None and self.ipis_of_rps > 1:
            found.append(f"{self.ipis_of_rps:.2f} times RPS's IPIs")
        return [f"002 {self.direction}, {self.load}, {self.way.label}: {one}" for one in found]


def seen(told: dict[str, Any]) -> Seen:
    """Of steered.py's JSON. NothingArrived."""
    seconds, forwarded = told["seconds"], told["forwarded"]
    if not forwarded:
        raise NothingArrived(f"{told['taken']} packets arrived, none of them was forwarded")
    return Seen(
        rate=forwarded / seconds,
        bits=8 * told["bytes"] / seconds,
        taken=told["taken"] / seconds,
        ipis=quotient(1000 * told["ipis"], forwarded),
        busy=sum(told["busy"]),
        batch=quotient(told["packets"], told["batches"]) if told["batches"] else 0,
        wake=quotient(told["packets"], told["wakeups"]) if told["wakeups"] else 0,
    )


def rows(direction: str, load: str, read: dict[Way, list[Seen]]) -> list[Row]:
    """The rows of one direction and load, in the order of WAYS."""
    found = []
    for way, runs in read.items():
        beside = read.get(Way("rps", way.cpus), []) if way.name == "rx" else []
        found.append(
            Row(
                direction,
                load,
                way,
                summary([run.rate for run in runs]),
                summary([run.bits for run in runs]),
                summary([run.ipis for run in runs]),
                summary([run.busy for run in runs]),
                summary([run.batch for run in runs]),
                summary([run.wake for run in runs]),
                ratio([r.bits for r in runs], [r.bits for r in beside]) if beside else None,
                quotient(
                    summary([run.ipis for run in runs]).median,
                    summary([run.ipis for run in beside]).median,
                )
                if beside
                else None,
            )
        )
    return found


def lines(bench: Bench, both: bool) -> list[Line]:
    """Of the flood in one direction, or in both."""
    nic, other = bench.nic, bench.guest.nic_of("e1000e")
    there = Line(nic, other if both else DUMMY, bench.device, bench.mac, "10.78.0.7")
    back = Line(other, nic, "t-e1000e", NICS["e1000e"][0], "10.78.1.7")
    return [there, back] if both else [there]


def lead(guest: Guest, line: Line) -> None:
    """Host and guest each send on what is for the target; whoever gets it at last drops it."""
    guest.host(["ip", "route", "replace", line.net, "dev", line.tap, "scope", "link"])
    guest.host(["ip", "neigh", "replace", line.target, "lladdr", line.mac, "dev", line.tap,
                "nud", "permanent"])  # fmt: skip
    guest.run(["ip", "route", "replace", line.net, "dev", line.out, "scope", "link"])
    guest.run(["ip", "neigh", "replace", line.target, "lladdr", NOBODY, "dev", line.out, "nud",
               "permanent"])  # fmt: skip


def set_up(bench: Bench) -> None:
    guest = bench.guest
    guest.put(SCRIPT, f"{flood.REMOTE}/{SCRIPT.name}")
    guest.run(["ip", "link", "add", DUMMY, "type", "dummy"])
    guest.run(["ip", "link", "set", DUMMY, "up"])
    guest.run(["sysctl", "-q", "-w", "net.ipv4.conf.all.forwarding=1"])
    guest.host(["tc", "qdisc", "replace", "dev", "t-e1000e", "root", "noqueue"])
    guest.bind_interrupts(0)


def window(bench: Bench, way: Way, wanted: Sequence[tuple[str, str]]) -> Seen:
    """Of what is under way over these pairs of devices, in and out. NothingArrived."""
    argv = ["python3", f"{flood.REMOTE}/{SCRIPT.name}", way.name, way.list, str(WINDOW_MS)]
    done = bench.guest.run([*argv, *(":".join(pair) for pair in wanted)], timeout=120)
    return seen(json.loads(done.stdout))


@contextmanager
def flooded(bench: Bench, wanted: Sequence[Line], rate: int) -> Iterator[list[tuple[str, str]]]:
    """``rate`` messages a second over all of the lines together; their pairs of devices."""
    with ExitStack() as floods:
        for line in wanted:
            each = rate // len(wanted)
            floods.enter_context(bench.flooding(FLOWS, SIZE, each, to=line.target))
        yield [(line.dev, line.out) for line in wanted]


@contextmanager
def ruled(guest: Guest, wanted: Sequence[Line], count: int) -> Iterator[None]:
    """So many rules on what each line comes in by."""
    for line in wanted if count else ():
        rules.load(guest, line.dev, count)
    yield
    for line in wanted if count else ():
        rules.clear(guest, line.dev)


@contextmanager
def streaming(bench: Bench, far: str, count: int) -> Iterator[list[tuple[str, str]]]:
    """TCP there; what comes back are the acknowledgements."""
    there = bench.nic, bench.guest.nic_of("e1000e")
    with tcp.streams(bench, far, count):
        yield [there, there[::-1]]


def in_turns(
    bench: Bench, direction: str, load: str, under: Load, rounds: int, say: Say
) -> list[Row]:
    """All ways, each under a load of its own that ``under`` makes."""

    def run(way: Way) -> Seen:
        with under() as pairs:
            one = window(bench, way, pairs)
        say(f"{direction}, {load}, {way.label}: {one.rate:.0f} of {one.taken:.0f} pps, "
            f"{one.bits / 1e6:.1f} Mbit/s, {one.ipis:.1f} IPIs")  # fmt: skip
        return one

    return rows(direction, load, in_turn(WAYS, rounds, run))


def measure(bench: Bench, quick: bool, rounds: int, say: Say) -> list[Row]:
    """Messages in one direction and in both, then TCP. NothingArrived, CommandFailed."""
    set_up(bench)
    found: list[Row] = []
    for direction, load in product(DIRECTIONS, ["flood", "rules"] if quick else LOADS):
        wanted = lines(bench, both=direction == "both")
        for line in wanted:
            lead(bench.guest, line)
        offered = LOADS[load]
        with ruled(bench.guest, wanted, offered.rules):
            under = partial(flooded, bench, wanted, offered.rate)
            found += in_turns(bench, direction, load, under, rounds, say)
    with tcp.far_end(bench) as far:
        tcp.reach(bench)
        for count in STREAMS:
            under = partial(streaming, bench, far, count)
            found += in_turns(bench, "TCP", f"{count} streams", under, TCP_TURNS * rounds, say)
    return found
