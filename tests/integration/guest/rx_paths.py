#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What else handles received packets, with helper threads on; prints JSON {way: what came by it}.

Runs in the guest as root, beside napi_contract.py and napi_survives.py: ``rx_paths.py DEV ADDRESS
PEER``, where ADDRESS, with its prefix length, is the interface's own. On each way but DROPS, where
all is lost, PEER has to answer ECHOES requests; ``answered`` is how many did, ``threads`` how many
packets the helper threads delivered meanwhile, and ``seen`` how many the filter on this way
counted, where there is one.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from napi_survives import (  # type: ignore[import-not-found]
    XDP_DROP,
    XDP_PASS,
    set_xdp,
    xdp_program,
)

ECHOES = 20
BOND = "bond7"
DROPS = "generic XDP that drops"
XDP_FLAGS_SKB_MODE = 1 << 1  # generic: include/uapi/linux/if_link.h
Way = Callable[[str, str], AbstractContextManager[None]]


def tool(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@contextmanager
def plain(_device: str, _address: str) -> Iterator[None]:
    yield


@contextmanager
def without_gro(device: str, _address: str) -> Iterator[None]:
    tool("ethtool", "-K", device, "gro", "off")
    yield
    tool("ethtool", "-K", device, "gro", "on")


@contextmanager
def generic_xdp(device: str, _address: str, verdict: int = XDP_PASS) -> Iterator[None]:
    """A program between driver and stack, with one verdict about everything."""
    with xdp_program(verdict) as program:
        for step, descriptor in (("on", program), ("off", -1)):
            code = set_xdp(device, descriptor, XDP_FLAGS_SKB_MODE)
            if code:
                raise SystemExit(f"{device}: generic XDP {step}: errno {code}")
            if step == "on":
                yield


@contextmanager
def tc_ingress(device: str, _address: str) -> Iterator[None]:
    """A filter that counts ICMP and passes it on."""
    tool("tc", "qdisc", "add", "dev", device, "clsact")
    tool(*f"tc filter add dev {device} ingress protocol ip u32 match ip protocol 1 0xff "
         "action ok".split())  # fmt: skip
    yield
    tool("tc", "qdisc", "del", "dev", device, "clsact")


@contextmanager
def bonded(device: str, address: str) -> Iterator[None]:
    """The interface as the only one of a bond, which has the address."""
    tool("ip", "link", "add", BOND, "type", "bond", "mode", "active-backup", "miimon", "100")
    for words in (
        f"address del {address} dev {device}",
        f"link set {device} down",
        f"link set {device} master {BOND}",
        f"link set {BOND} up",
        f"address replace {address} dev {BOND}",
    ):
        tool("ip", *words.split())
    yield
    tool("ip", "link", "del", BOND)
    tool("ip", "link", "set", device, "up")
    tool("ip", "address", "replace", address, "dev", device)


WAYS: dict[str, Way] = {
    "plain": plain,
    "without GRO": without_gro,
    "generic XDP": generic_xdp,
    DROPS: partial(generic_xdp, verdict=XDP_DROP),
    "tc ingress": tc_ingress,
    "bond": bonded,
}


def delivered(device: str) -> int:
    threads = Path(f"/sys/class/net/{device}/rx_thread")
    return sum(int(file.read_text()) for file in threads.glob("*/packets"))


def counted(device: str) -> int:
    """Packets that the action of a filter has seen."""
    shown = tool("tc", "-s", "filter", "show", "dev", device, "ingress")
    return sum(int(number) for number in re.findall(r"Sent \d+ bytes (\d+) pkt", shown))


def answered(peer: str, patience: int = 10) -> int:
    """Seconds to wait for an answer; the first may take its time: the link has just come up."""
    first = ["ping", "-q", "-c", "1", "-w", str(6 * patience), peer]
    subprocess.run(first, capture_output=True, check=False)
    argv = ["ping", "-q", "-c", str(ECHOES), "-i", "0.05", "-W", str(patience), peer]
    shown = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+) received", shown)
    return int(found[1]) if found else 0


def main() -> int:
    device, address, peer = sys.argv[1:]
    came = {}
    for name, way in WAYS.items():
        with way(device, address):
            before = delivered(device)
            came[name] = {
                "echoes": ECHOES,
                "answered": answered(peer, 1) if name == DROPS else answered(peer),
                "threads": delivered(device) - before,
                "seen": counted(device),
            }
    json.dump(came, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
