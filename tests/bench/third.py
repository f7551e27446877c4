# SPDX-License-Identifier: GPL-2.0-or-later
"""The seed's third column: the hypervisor's NAPI threaded as well as the guest's.

A QEMU tap has no NAPI of its own, so the flood enters through a veth pair whose inner end has
GRO, hence a NAPI, and redirects all it receives to the tap:

    udpflood -> rxin ~ rxmid [NAPI, GRO] -> mirred -> tap -> QEMU -> guest

All of it lies in the lab's namespace and runs on the host's own, stock kernel; what this column
says is said of that kernel, whatever kernel the guest runs.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.flood import GUEST_ADDRESS, Bench, Mode
from bench.seed000 import SeedRow
from bench.stats import Ratio, Summary, ratio, summary, turns
from lab.vm import CommandFailed

OUTER, INNER = "rxin", "rxmid"
HOST_ADDRESS = "10.77.0.1"
HELPER = Path(__file__).with_name("hostlink.py")
Say = Callable[[str], None]

# (label, guest's mode, host's veth NAPI threaded)
COLUMNS = (
    ("softirq everywhere", Mode.SOFTIRQ, False),
    ("guest threaded", Mode.THREADED, False),
    ("guest and host threaded", Mode.THREADED, True),
)


class HostLacks(Exception):
    """The host's kernel cannot carry the third column; the message says what it lacks."""


@dataclass(frozen=True)
class ThirdRow:
    """Packets a second at the application, one summary a column; gains over the first column."""

    seed: SeedRow
    columns: tuple[Summary, ...]
    guest_gain: Ratio
    both_gain: Ratio


def attempt(bench: Bench, what: str, argv: list[str]) -> None:
    try:
        bench.guest.host(argv)
    except CommandFailed as error:
        raise HostLacks(f"{what} ({os.uname().release}): {error}") from error


@contextmanager
def veth_path(bench: Bench) -> Iterator[None]:
    """Leads the flood over the veth pair; the direct way is restored at the end."""
    host = bench.guest.host
    attempt(
        bench, "the host's kernel has no veth",
        ["ip", "link", "add", OUTER, "type", "veth", "peer", "name", INNER],
    )  # fmt: skip
    try:
        helper = [sys.executable, str(HELPER)]
        attempt(bench, "veth takes no GRO", [*helper, "gro", INNER])
        attempt(bench, "no ingress qdisc", ["tc", "qdisc", "add", "dev", INNER, "clsact"])
        attempt(
            bench, "no tc redirect",
            ["tc", "filter", "add", "dev", INNER, "ingress", "protocol", "ip", "u32",
             "match", "u32", "0", "0", "action", "mirred", "egress", "redirect",
             "dev", bench.device],
        )  # fmt: skip
        for end in (OUTER, INNER):
            host(["ip", "link", "set", end, "up"])
        host(["ip", "route", "add", f"{GUEST_ADDRESS}/32", "dev", OUTER, "src", HOST_ADDRESS])
        bench.pin_neighbour(OUTER)
        attempt(bench, "no threaded NAPI", [*helper, "threaded", INNER, "1"])
        attempt(bench, "no threaded NAPI", [*helper, "threaded", INNER, "0"])
        yield
    finally:
        host(["ip", "link", "del", OUTER])


def set_host(bench: Bench, threaded: bool) -> None:
    argv = [sys.executable, str(HELPER), "threaded", INNER, str(int(threaded))]
    bench.guest.host(argv)


def third_row(bench: Bench, row: SeedRow, rounds: int) -> ThirdRow:
    read: dict[str, list[float]] = {label: [] for label, _, _ in COLUMNS}
    set_host(bench, threaded=False)
    rate = bench.full_rate(row.flows, row.size)
    for label, mode, threaded in turns(COLUMNS, rounds):
        bench.set_mode(mode)
        set_host(bench, threaded)
        read[label].append(bench.flood(row.flows, row.size, rate).carried)
    vanilla, guest, both = (read[label] for label, _, _ in COLUMNS)
    return ThirdRow(
        row,
        (summary(vanilla), summary(guest), summary(both)),
        ratio(guest, vanilla),
        ratio(both, vanilla),
    )


def measure(bench: Bench, rows: list[SeedRow], rounds: int, say: Say) -> list[ThirdRow]:
    """The rows that fit the MTU, the flood entering by the veth pair. HostLacks."""
    done = []
    with veth_path(bench):
        for row in (row for row in rows if row.fits):
            done.append(third_row(bench, row, rounds))
            say(
                f"{row.size}/{row.flows}: guest threaded {done[-1].guest_gain.median:.1f}, "
                f"both {done[-1].both_gain.median:.1f} times softirq"
            )
    return done
