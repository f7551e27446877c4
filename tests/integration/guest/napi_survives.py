#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does what a NAPI was told outlive each operation of its driver? Prints one JSON object.

Runs in the guest as root, beside napi_contract.py and napi_threads_kept.py, and imports nothing of
rxlane. Argument: a JSON object {type of device: interface}. The outcome is {type: {operation: what
became of the settings}}: "kept", "not implemented: ..." with the driver's words, or what differs.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from napi_contract import (  # type: ignore[import-not-found]
    A_DEFER,
    A_FLUSH,
    A_ID,
    A_PID,
    A_SUSPEND,
    A_THREADED,
    SETTINGS,
    Netdev,
    attr,
    u32,
)
from napi_threads_kept import OFF, scheduling_of  # type: ignore[import-not-found]

EOPNOTSUPP = 95
ON, BUSY_POLL, MODES = 1, 2, 3  # threaded: include/uapi/linux/netdev.h
SYS_BPF, BPF_PROG_LOAD, BPF_PROG_TYPE_XDP = 321, 5, 6
RTM_SETLINK, NLM_F_REQUEST, NLM_F_ACK = 19, 1, 4
IFLA_XDP, IFLA_XDP_FD, IFLA_XDP_FLAGS, NLA_F_NESTED = 43, 1, 3, 1 << 15
XDP_FLAGS_DRV_MODE = 1 << 2
XDP_DROP, XDP_PASS = 1, 2  # include/uapi/linux/bpf.h

Settings = dict[int, dict[str, object]]


class NotImplementedByDriver(Exception):
    """The driver refused the operation as one that it does not have."""


def settings(device: str) -> Settings:
    """{NAPI ID: its settings and how its thread is scheduled} of an interface that is up."""
    found: Settings = {}
    for napi in Netdev().napis(socket.if_nametoindex(device)):
        number = {name: int.from_bytes(napi[kind], "little") for name, kind in SETTINGS.items()}
        thread = scheduling_of(struct.unpack("I", napi[A_PID])[0]) if A_PID in napi else None
        found[struct.unpack("I", napi[A_ID])[0]] = {**number, "thread": thread}
    return dict(sorted(found.items()))


def give(device: str, first: int) -> None:
    """Another value of each setting to each NAPI; each thread is SCHED_BATCH and pinned.

    first: the mode of the first; the others have the three in turn.
    """
    netdev, cpus = Netdev(), os.cpu_count() or 1
    for n, napi in enumerate(settings(device)):
        mode = (n + first) % MODES
        values = {A_DEFER: 3 + n, A_FLUSH: 20000 + n, A_SUSPEND: 10**7 + n, A_THREADED: mode}
        body = b"".join(attr(kind, u32(value)) for kind, value in values.items())
        answer = netdev.napi_set(attr(A_ID, u32(napi)) + body)
        if answer["errno"]:
            raise SystemExit(f"{device}: NAPI {napi} was answered {answer}")
    for n, napi in enumerate(netdev.napis(socket.if_nametoindex(device))):
        if A_PID in napi:
            pid = struct.unpack("I", napi[A_PID])[0]
            os.sched_setaffinity(pid, {n % cpus})
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, pid, -5)


def take_back(device: str) -> None:
    """Defaults, threads' scheduling included, for every NAPI that there is."""
    netdev, cpus = Netdev(), range(os.cpu_count() or 1)
    for napi in netdev.napis(socket.if_nametoindex(device)):
        if A_PID in napi:
            pid = struct.unpack("I", napi[A_PID])[0]
            os.setpriority(os.PRIO_PROCESS, pid, 0)
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(pid, cpus)
        zeros = b"".join(attr(kind, u32(OFF)) for kind in SETTINGS.values())
        netdev.napi_set(attr(A_ID, napi[A_ID]) + zeros)


def command(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "not supported" in done.stderr:
        raise NotImplementedByDriver(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr}")


def down_up(device: str) -> Iterator[None]:
    command("ip", "link", "set", device, "down")
    command("ip", "link", "set", device, "up")
    yield


def mtu(device: str) -> Iterator[None]:
    command("ip", "link", "set", device, "mtu", "1400")
    yield
    command("ip", "link", "set", device, "mtu", "1500")
    yield


def rings(device: str) -> Iterator[None]:
    # virtio_net takes the size of its rings (256) or less, the others a multiple of 8.
    command("ethtool", "-G", device, "rx", "128")
    yield
    command("ethtool", "-G", device, "rx", "256")
    yield


def restart(device: str) -> Iterator[None]:
    command("ethtool", "-r", device)
    yield


def gro(device: str) -> Iterator[None]:
    """veth has NAPIs with GRO only: there is nothing to look at until it is on again."""
    command("ethtool", "-K", device, "gro", "off")
    command("ethtool", "-K", device, "gro", "on")
    yield


def channels(device: str, *kinds: str) -> Iterator[None]:
    """Fewer and all again: those that stay, and those that come back."""
    queues = len([name for name in os.listdir(f"/sys/class/net/{device}/queues") if "rx" in name])
    for count in (queues // 2, queues):
        command("ethtool", "-L", device, *(word for kind in kinds for word in (kind, str(count))))
        yield


@contextmanager
def xdp_program(verdict: int = XDP_PASS) -> Iterator[int]:
    """A file descriptor of a program that has this verdict about every packet."""
    # mov r0, verdict; exit
    words = struct.pack("<BBhi", 0xB7, 0, 0, verdict) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    code, licence = ctypes.create_string_buffer(words), ctypes.create_string_buffer(b"GPL")
    head = (BPF_PROG_TYPE_XDP, 2, ctypes.addressof(code), ctypes.addressof(licence))
    request = ctypes.create_string_buffer(struct.pack("<IIQQ", *head), 120)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(SYS_BPF, BPF_PROG_LOAD, request, len(request))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "bpf(BPF_PROG_LOAD)")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def set_xdp(device: str, descriptor: int, flags: int = XDP_FLAGS_DRV_MODE) -> int:
    """The errno of attaching a program, or of detaching the one there is with -1."""
    program = attr(IFLA_XDP_FD, struct.pack("i", descriptor))
    program += attr(IFLA_XDP_FLAGS, u32(flags))
    link = struct.pack("BxHiII", 0, 0, socket.if_nametoindex(device), 0, 0)
    body = link + attr(IFLA_XDP | NLA_F_NESTED, program)
    head = struct.pack("IHHII", 16 + len(body), RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        route.send(head + body)
        return -int(struct.unpack_from("i", route.recv(1 << 16), 16)[0])


def xdp(device: str) -> Iterator[None]:
    """Attached to the driver, which then makes other rings, and detached."""
    with xdp_program() as program:
        for descriptor in (program, -1):
            code = set_xdp(device, descriptor)
            if code == EOPNOTSUPP:
                raise NotImplementedByDriver(os.strerror(code))
            if code:
                raise SystemExit(f"{device}: XDP program {descriptor}: {os.strerror(code)}")
            yield


Operation = Callable[[str], Iterator[None]]


def combined(device: str) -> Iterator[None]:
    return channels(device, "combined")


def rx_and_tx(device: str) -> Iterator[None]:
    return channels(device, "rx", "tx")


def operations(kind: str) -> dict[str, Operation]:
    common: dict[str, Operation] = {"down, up": down_up, "MTU": mtu, "rings": rings}
    common |= {"restart": restart, "XDP": xdp}
    if kind == "veth":
        return {**common, "channels": rx_and_tx, "GRO off, on": gro}
    return {**common, "channels": combined}


def outcome(device: str, operation: Operation) -> str:
    """What became of the settings with each of the threaded modes at the first NAPI, which is the
    only one of some devices.
    """
    found = (once(device, operation, mode) for mode in (ON, BUSY_POLL))
    return next((one for one in found if one != "kept"), "kept")


def once(device: str, operation: Operation, first: int) -> str:
    """They are as given again for the operation that follows."""
    give(device, first)
    before = settings(device)
    try:
        for _step in operation(device):
            after = settings(device)
            lost = {napi: now for napi, now in after.items() if now != before.get(napi)}
            if lost or not after:
                return f"had {before}, has {lost or 'no NAPI'}"
    except NotImplementedByDriver as refused:
        return f"not implemented: {refused}"
    return "kept" if after.keys() == before.keys() else f"had {before}, has {after}"


def main() -> int:
    seen: dict[str, dict[str, str]] = {}
    for kind, device in json.loads(sys.argv[1]).items():
        seen[kind] = {name: outcome(device, op) for name, op in operations(kind).items()}
        take_back(device)
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
