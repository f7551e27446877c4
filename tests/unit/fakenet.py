# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel's side of netlink: messages, and a socket that answers with them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from rxlane import netlink, uapi
from rxlane.netlink import pack_nest, pack_u32
from rxlane.wire.netdev import Netdev

GENL = struct.pack("=BBH", 0, 1, 0)
FAMILY = 31


def message(kind: int, body: bytes, seq: int = 1, flags: int = 0) -> bytes:
    return netlink.pack_message(kind, flags, seq, body)


def attr(number: int, value: int, size: str = "=I") -> bytes:
    return netlink.pack_attr(number, struct.pack(size, value))


def napi(napi_id: int, ifindex: int = 2, **more: int) -> bytes:
    body = GENL + attr(2, napi_id) + attr(1, ifindex)
    for number, value in more.items():
        body += attr(int(number[1:]), value)
    return body


def about(ifindex: int, *attributes: bytes) -> bytes:
    return GENL + pack_nest(1, pack_u32(1, ifindex)) + b"".join(attributes)


def error_body(code: int, *tlvs: bytes) -> bytes:
    return struct.pack("=i", -code) + struct.pack("=IHHII", 40, 31, 5, 1, 0) + b"".join(tlvs)


DONE = message(uapi.NLMSG_DONE, struct.pack("=i", 0), flags=2)


def family(*ops: int) -> list[bytes]:
    nests = b"".join(netlink.pack_attr(i, attr(1, op)) for i, op in enumerate(ops, 1))
    body = GENL + attr(1, FAMILY, "=H") + netlink.pack_attr(6, nests)
    return [message(uapi.GENL_ID_CTRL, body), message(uapi.NLMSG_ERROR, error_body(0))]


class FakeSocket:
    """Answers each request with the next list of datagrams; %seq is put in by renumber()."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self.answers = iter(answers)
        self.queue: Iterator[bytes] = iter(())
        self.sent: list[bytes] = []

    def setsockopt(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def sendto(self, data: bytes, _: object) -> None:
        self.sent.append(data)
        sequence = struct.unpack_from("=I", data, 8)[0]
        self.queue = iter([renumber(d, sequence) for d in next(self.answers)])

    def recvmsg(self, _: int) -> tuple[bytes, list[object], int, None]:
        data = next(self.queue, None)
        if data is None:
            raise BlockingIOError
        return data, [], 0, None


def renumber(data: bytes, sequence: int) -> bytes:
    out, offset = bytearray(data), 0
    while offset < len(data):
        if struct.unpack_from("=I", out, offset + 8)[0] != 999:
            struct.pack_into("=I", out, offset + 8, sequence)
        length = struct.unpack_from("=I", out, offset)[0]
        offset += length + (-length % 4)
    return bytes(out)


FakeNet = list[list[bytes]]


def opened(monkeypatch: pytest.MonkeyPatch, answers: FakeNet) -> tuple[Netdev, FakeSocket]:
    fake = FakeSocket(answers)
    monkeypatch.setattr(socket, "socket", lambda *_: fake)
    return Netdev(), fake
