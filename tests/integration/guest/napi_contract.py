#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Ask the running kernel what it answers to NETDEV_CMD_NAPI_SET; print one JSON object.

Stand-alone: runs in the guest, imports nothing of rxlane, needs root and netdevsim. Argument: an
interface whose driver keeps its NAPIs while it is down, which it is taken.
An answer holds ``errno`` (positive, 0 is success), ``msg``, ``offs``
(byte offset of the offending attribute in the request) and ``miss`` (missing attribute's type).
Numbers: include/uapi/linux/{netlink,genetlink,netdev}.h.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NETLINK_GENERIC, SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 16, 270, 10, 11
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_CAPPED, NLM_F_ACK_TLVS = 1, 4, 0x300, 0x100, 0x200
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
NAPI_GET, QSTATS_GET, NAPI_SET = 11, 12, 14
A_IFINDEX, A_ID, A_IRQ, A_PID, A_DEFER, A_FLUSH, A_SUSPEND, A_THREADED = range(1, 9)
Q_IFINDEX, Q_TYPE, Q_ID, Q_SCOPE, Q_RX_PACKETS = 1, 2, 3, 4, 8
SCOPE_QUEUE, TYPE_RX = 1, 0
# The attributes of a NAPI: number and largest value that is taken (of the type, if no other is).
U32_MAX = (1 << 32) - 1
ATTRIBUTES = {
    "ifindex": (A_IFINDEX, 0x7FFFFFFF),
    "id": (A_ID, U32_MAX - 1),
    "irq": (A_IRQ, U32_MAX - 1),
    "pid": (A_PID, U32_MAX - 1),
    "defer-hard-irqs": (A_DEFER, 0x7FFFFFFF),
    "gro-flush-timeout": (A_FLUSH, U32_MAX),
    "irq-suspend-timeout": (A_SUSPEND, U32_MAX),
    "threaded": (A_THREADED, 2),
}
# What may be set of a NAPI.
SETTINGS = {"defer": A_DEFER, "flush": A_FLUSH, "suspend": A_SUSPEND, "threaded": A_THREADED}
UNKNOWN_ID = 0x7FFFFFF0
CLONE_NEWNET = 0x40000000
HDR = 20  # struct nlmsghdr and struct genlmsghdr together

Answer = dict[str, int | str | None]


def attr(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("HH", size, kind) + payload + b"\0" * (-size % 4)


def attrs(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        found[kind & 0x3FFF] = data[4:size]
        data = data[(size + 3) & ~3 :]
    return found


class Netdev:
    """One generic netlink socket, bound to the network namespace it was opened in."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self.sock.bind((0, 0))
        self.sock.settimeout(10)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            self.sock.setsockopt(SOL_NETLINK, option, 1)
        reply = self._ask(
            GENL_ID_CTRL, CTRL_CMD_GETFAMILY, attr(CTRL_ATTR_FAMILY_NAME, b"netdev\0"), 0
        )
        self.family = struct.unpack("H", attrs(reply[0][HDR:])[CTRL_ATTR_FAMILY_ID])[0]

    def _ask(self, family: int, command: int, body: bytes, flags: int) -> list[bytes]:
        head = struct.pack(
            "IHHIIBBH", HDR + len(body), family, NLM_F_REQUEST | flags, 1, 0, command, 1, 0
        )
        self.sock.send(head + body)
        messages: list[bytes] = []
        while True:
            data = self.sock.recv(1 << 17)
            while data:
                size, kind = struct.unpack_from("IH", data)
                messages.append(data[:size])
                if kind in (NLMSG_ERROR, NLMSG_DONE) or not flags:
                    return messages
                data = data[(size + 3) & ~3 :]

    def napi_set(self, body: bytes) -> Answer:
        message = self._ask(self.family, NAPI_SET, body, NLM_F_ACK)[-1]
        flags = struct.unpack_from("H", message, 6)[0]
        code = -struct.unpack_from("i", message, 16)[0]
        # NETLINK_CAP_ACK: only the header of the request is echoed before the extack attributes.
        extra = attrs(message[36:]) if flags & NLM_F_ACK_TLVS else {}
        text = extra.get(1)
        return {
            "errno": code,
            "msg": text.rstrip(b"\0").decode() if text else None,
            "offs": struct.unpack("I", extra[2])[0] if 2 in extra else None,
            "miss": struct.unpack("I", extra[5])[0] if 5 in extra else None,
        }

    def napis(self, ifindex: int) -> list[dict[int, bytes]]:
        body = attr(A_IFINDEX, struct.pack("I", ifindex))
        replies = self._ask(self.family, NAPI_GET, body, NLM_F_DUMP)
        return [attrs(reply[HDR:]) for reply in replies[:-1]]

    def received(self, ifindex: int) -> list[int]:
        """Packets of each receive queue; of a driver that does not tell them, none."""
        body = attr(Q_IFINDEX, u32(ifindex)) + attr(Q_SCOPE, u32(SCOPE_QUEUE))
        replies = self._ask(self.family, QSTATS_GET, body, NLM_F_DUMP)
        queues = {}
        for queue in (attrs(reply[HDR:]) for reply in replies[:-1]):
            if Q_RX_PACKETS in queue and struct.unpack("I", queue[Q_TYPE])[0] == TYPE_RX:
                number = struct.unpack("I", queue[Q_ID])[0]
                queues[number] = int.from_bytes(queue[Q_RX_PACKETS], "little")
        return [queues[number] for number in sorted(queues)]


def u32(value: int) -> bytes:
    return struct.pack("I", value)


def napi_ids(netdev: Netdev, device: str) -> list[int]:
    found = netdev.napis(socket.if_nametoindex(device))
    return [struct.unpack("I", napi[A_ID])[0] for napi in found]


def mode(netdev: Netdev, device: str, napi_id: int) -> tuple[int | None, bool]:
    """(value of ``threaded``, is a pid reported) of one NAPI."""
    for napi in netdev.napis(socket.if_nametoindex(device)):
        if struct.unpack("I", napi[A_ID])[0] == napi_id:
            value = struct.unpack("I", napi[A_THREADED])[0] if A_THREADED in napi else None
            return value, 4 in napi
    raise SystemExit(f"NAPI {napi_id} of {device} is gone")


def payloads(top: int) -> dict[str, bytes]:
    """What an attribute may hold, by its length (of zeros) and by its value in 4 or 8 bytes."""
    found = {f"length {length}": b"\0" * length for length in (0, 1, 2, 3, 4, 8)}
    for name, value in (("max", top), ("max + 1", top + 1)):
        found[name] = struct.pack("Q" if value >= 1 << 32 else "I", value)
    return found


def table(netdev: Netdev, napi: int) -> dict[str, Answer]:
    """Each attribute of the family's NAPI with each payload, and left out, to NAPI ``napi``."""
    ident = attr(A_ID, u32(napi))
    out = {"id absent": netdev.napi_set(attr(A_THREADED, u32(1)))}
    out["all else absent"] = netdev.napi_set(ident)
    for name, (kind, top) in ATTRIBUTES.items():
        for what, payload in payloads(top).items():
            body = attr(kind, payload) if kind == A_ID else ident + attr(kind, payload)
            out[f"{name} {what}"] = netdev.napi_set(body)
        if kind not in (A_ID, A_IFINDEX, A_IRQ, A_PID):
            netdev.napi_set(ident + attr(kind, u32(0)))
    return out


def asked_by_child(prepare: Callable[[], None], napi: int) -> dict[str, Answer]:
    """table() as a child gets it after ``prepare`` changed what it may do."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        prepare()
        with os.fdopen(write_end, "w") as answers:
            json.dump(table(Netdev(), napi), answers)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer: dict[str, Answer] = json.load(pipe)
    os.waitpid(child, 0)
    return answer


def enter_new_namespace() -> None:
    """os.unshare() exists from Python 3.12 only."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")


def become_nobody() -> None:
    os.setresuid(65534, 65534, 65534)


def effects(netdev: Netdev, device: str, napi: int, other: int) -> dict[str, object]:
    """What a successful set changes: the one NAPI, its thread, nothing of its neighbour."""
    seen: dict[str, object] = {"before": mode(netdev, device, napi)}
    netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(1)))
    seen["on"] = mode(netdev, device, napi)
    seen["neighbour"] = mode(netdev, device, other)
    netdev.napi_set(attr(A_ID, u32(napi)) + attr(A_THREADED, u32(0)))
    seen["off"] = mode(netdev, device, napi)
    return seen


def main() -> int:
    Path("/sys/bus/netdevsim/new_device").write_text("77 1 4")
    subprocess.run(["udevadm", "settle"], check=True)
    device = next(Path("/sys/bus/netdevsim/devices/netdevsim77/net").iterdir()).name
    subprocess.run(["ip", "link", "set", device, "up"], check=True)
    netdev = Netdev()
    ids = napi_ids(netdev, device)
    if len(ids) != 4:
        raise SystemExit(f"{device}: 4 NAPIs expected, {ids} reported")
    answers: dict[str, object] = {"dump descends": ids == sorted(ids, reverse=True)}
    answers["effects"] = effects(netdev, device, ids[0], ids[1])
    tables = {
        "up": table(netdev, ids[0]),
        "unknown id": table(netdev, UNKNOWN_ID),
        "foreign namespace": asked_by_child(enter_new_namespace, ids[0]),
        "no capability": asked_by_child(become_nobody, ids[0]),
    }
    subprocess.run(["ip", "link", "set", device, "down"], check=True)
    tables["down"] = table(netdev, ids[0])
    answers["down dump"] = len(netdev.napis(socket.if_nametoindex(device)))
    # netdevsim has no NAPIs while it is down; this one has, with the same IDs.
    nic = sys.argv[1]
    napi = napi_ids(netdev, nic)[0]
    subprocess.run(["ip", "link", "set", nic, "down"], check=True)
    tables["down, not deleted"] = table(netdev, napi)
    subprocess.run(["ip", "link", "set", nic, "up"], check=True)
    if napi not in napi_ids(netdev, nic):
        raise SystemExit(f"{nic}: NAPI {napi} has another ID after down and up")
    answers["tables"] = tables
    Path("/sys/bus/netdevsim/del_device").write_text("77")
    json.dump(answers, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
