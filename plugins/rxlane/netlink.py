# SPDX-License-Identifier: GPL-2.0-or-later
"""The only opener of netlink sockets; messages, attributes and acknowledgements of any family.

Packed here rather than by a library because the kernel sends netdev dumps without NLM_F_MULTI,
which pyroute2 0.7 and 0.9 take for the end of the dump, and because importing it costs more than
the whole command.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: len, type, flags, seq, pid
_ATTR = struct.Struct("=HH")  # struct nlattr: len, type
_COOKIE = struct.Struct("=Q")  # SO_NETNS_COOKIE
_ERROR = struct.Struct("=i")

# Above what the kernel uses for one dump datagram (32 KiB, netlink_recvmsg()).
BUFFER = 1 << 18
TIMEOUT = struct.pack("@ll", 10, 0)  # struct timeval: no answer for 10 s is an error, not a hang
BURST = 64  # requests in a datagram; the errors of all fit the receive buffer
ATTEMPTS = 5  # for dumps that changed while they were read (NLM_F_DUMP_INTR)


@dataclass(frozen=True, slots=True)
class Message:
    """One netlink message; body starts after struct nlmsghdr."""

    type: int
    flags: int
    seq: int
    body: bytes


class NetlinkError(RxlaneError):
    """The kernel answered with an error. code is the positive errno, offset the bad attribute's."""

    def __init__(self, code: int, what: str, words: str = "", offset: int | None = None) -> None:
        text = f"{what}: {words or os.strerror(code)}"
        kind = Kind.UNSUPPORTED if code == errno.EOPNOTSUPP else Kind.KERNEL
        super().__init__(kind, text)
        self.code = code
        self.words = words
        self.offset = offset


def malformed(what: str) -> RxlaneError:
    return RxlaneError(Kind.FORMAT, f"malformed netlink data: {what}")


def pack_attr(number: int, payload: bytes) -> bytes:
    """Return one attribute, padded to 4 bytes (NLA_ALIGN)."""
    length = _ATTR.size + len(payload)
    return _ATTR.pack(length, number) + payload + bytes(-length % 4)


def pack_u32(number: int, value: int) -> bytes:
    return pack_attr(number, struct.pack("=I", value))


def pack_nest(number: int, *attributes: bytes) -> bytes:
    return pack_attr(number | u.NLA_F_NESTED, b"".join(attributes))


def pack_ip(address: str) -> tuple[int, bytes] | None:
    """Return (address family, bytes) of an IP address, None when it is none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return family, socket.inet_pton(family, address)
    except OSError:
        return None


def padded(message: bytes) -> bytes:
    return message + bytes(-len(message) % 4)


def pack_message(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, seq, 0) + body


def parse_messages(data: bytes) -> Iterator[Message]:
    """Yield the messages of one datagram; raise FORMAT when a length does not fit."""
    offset = 0
    while offset < len(data):
        if len(data) - offset < _HEADER.size:
            raise malformed(f"{len(data) - offset} bytes left, a header takes {_HEADER.size}")
        length, kind, flags, seq, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            raise malformed(f"message length {length} at {offset} of {len(data)}")
        yield Message(kind, flags, seq, data[offset + _HEADER.size : offset + length])
        offset += length + (-length % 4)


def parse_attrs(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (number, payload) of the attributes from offset on."""
    while offset < len(data):
        if len(data) - offset < _ATTR.size:
            # Padding after the last attribute is legal; anything longer is not.
            raise malformed(f"{len(data) - offset} bytes after the last attribute")
        length, number = _ATTR.unpack_from(data, offset)
        if length < _ATTR.size or offset + length > len(data):
            raise malformed(f"attribute length {length} at {offset} of {len(data)}")
        yield number & u.NLA_TYPE_MASK, data[offset + _ATTR.size : offset + length]
        offset += length + (-length % 4)


def pick_attrs(data: bytes, offset: int, wanted: Collection[int]) -> dict[int, bytes]:
    """Return those attributes from offset on that are wanted, looking no further than the last."""
    found: dict[int, bytes] = {}
    end, missing = len(data), len(wanted)
    while missing and end - offset >= _ATTR.size:
        length, number = _ATTR.unpack_from(data, offset)
        if length < _ATTR.size or offset + length > end:
            raise malformed(f"attribute length {length} at {offset} of {end}")
        number &= u.NLA_TYPE_MASK
        if number in wanted:
            missing -= number not in found
            found[number] = data[offset + _ATTR.size : offset + length]
        offset += length + (-length % 4)
    if missing and offset < end:
        raise malformed(f"{end - offset} bytes after the last attribute")
    return found


def attr_uint(payload: bytes) -> int:
    """Return an unsigned attribute of 1, 2, 4 or 8 bytes (nla_put_uint() picks 4 or 8)."""
    if len(payload) not in _UINT_SIZES:
        raise malformed(f"number of {len(payload)} bytes")
    return int.from_bytes(payload, _BYTE_ORDER)


def parse_uints(data: bytes, offset: int, last: int) -> dict[int, int]:
    """Return {number: value} of the attributes up to the number last, which are all unsigned.

    What parse_attrs() and attr_uint() give, for dumps of thousands of messages.
    """
    shape = _SHAPES.get((len(data), offset, last))
    if shape is not None:
        fields = shape.layout.unpack_from(data, offset)
        if fields[0::2] == shape.heads:
            return dict(zip(shape.numbers, fields[1::2], strict=True))
    return _parse_uints(data, offset, last)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the attributes of one message stand: the messages of a dump are alike.

    layout: each attribute's header as one number, its value, its padding. heads: the headers.
    """

    layout: struct.Struct
    heads: tuple[int, ...]
    numbers: tuple[int, ...]


_SHAPES: dict[tuple[int, int, int], _Shape] = {}
_CODES = {1: "Bxxx", 2: "Hxx", 4: "I", 8: "Q"}


def _remember(data: bytes, start: int, last: int, sizes: Sequence[tuple[int, int]]) -> None:
    """Note the shape of a message. sizes: number and length of each attribute's value."""
    layout = struct.Struct("=" + "".join(f"I{_CODES[size]}" for _, size in sizes))
    if layout.size == len(data) - start and len({number for number, _ in sizes}) == len(sizes):
        heads = layout.unpack_from(data, start)[0::2]
        _SHAPES[len(data), start, last] = _Shape(layout, heads, tuple(n for n, _ in sizes))


def _parse_uints(data: bytes, offset: int, last: int) -> dict[int, int]:
    found = {}
    start, end = offset, len(data)
    sizes = []
    while end - offset >= _ATTR.size:
        length, number = _ATTR.unpack_from(data, offset)
        if length < _ATTR.size or offset + length > end:
            raise malformed(f"attribute length {length} at {offset} of {end}")
        number &= u.NLA_TYPE_MASK
        if number <= last:
            sizes.append((number, length - _ATTR.size))
            if length - _ATTR.size not in _UINT_SIZES:
                raise malformed(f"number of {length - _ATTR.size} bytes")
            value = data[offset + _ATTR.size : offset + length]
            found[number] = int.from_bytes(value, _BYTE_ORDER)
        offset += length + (-length % 4)
    if offset < end:
        raise malformed(f"{end - offset} bytes after the last attribute")
    _remember(data, start, last, sizes)
    return found


_UINT_SIZES = frozenset((1, 2, 4, 8))
_BYTE_ORDER: Literal["little", "big"] = sys.byteorder


def attr_text(payload: bytes) -> str:
    return payload.split(b"\0", 1)[0].decode("utf-8", "replace")


def parse_ack(message: Message, what: str) -> NetlinkError | None:
    """Return the error that an NLMSG_ERROR or NLMSG_DONE message carries, None for success."""
    if len(message.body) < _ERROR.size:
        if message.type == u.NLMSG_DONE:
            return None
        raise malformed(f"acknowledgement of {len(message.body)} bytes")
    code = -_ERROR.unpack_from(message.body)[0]
    if code == 0:
        return None
    if code < 0:
        # A dump may end with a positive count; only a negative number is an error.
        return None
    words, offset = _extack(message)
    return NetlinkError(code, what, words, offset)


def _extack(message: Message) -> tuple[str, int | None]:
    """Return (text, offset of the bad attribute) of the extended acknowledgement, if there is."""
    if not message.flags & u.NLM_F_ACK_TLVS:
        return "", None
    start = _ERROR.size
    if message.type == u.NLMSG_ERROR:
        if len(message.body) < start + _HEADER.size:
            raise malformed("acknowledgement without the request's header")
        request_length = _HEADER.unpack_from(message.body, start)[0]
        capped = message.flags & u.NLM_F_CAPPED
        start += _HEADER.size if capped else request_length + (-request_length % 4)
    words, offset = "", None
    for number, payload in parse_attrs(message.body, start):
        if number == u.NLMSGERR_ATTR_MSG:
            words = attr_text(payload)
        elif number == u.NLMSGERR_ATTR_OFFS:
            offset = attr_uint(payload)
    return words, offset


class Socket:
    """A netlink socket: one request at a time, answers matched by sequence number."""

    def __init__(self, protocol: int) -> None:
        self._sequence = 0
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        # So that errors come with the kernel's words and without a copy of the request.
        self._socket.setsockopt(u.SOL_NETLINK, u.NETLINK_EXT_ACK, 1)
        self._socket.setsockopt(u.SOL_NETLINK, u.NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEOUT)

    def close(self) -> None:
        self._socket.close()

    def namespace(self) -> int:
        """Return the number of the network namespace that this asks, which no other one gets in
        this boot, as its inode may; 0 where the kernel (before 5.14) has none.
        """
        try:
            cookie = self._socket.getsockopt(socket.SOL_SOCKET, u.SO_NETNS_COOKIE, _COOKIE.size)
        except OSError:
            return 0
        return int(_COOKIE.unpack(cookie)[0])

    def _send(self, kind: int, flags: int, body: bytes) -> int:
        self._sequence += 1
        message = pack_message(kind, u.NLM_F_REQUEST | flags, self._sequence, body)
        self._socket.sendto(message, (0, 0))
        return self._sequence

    def _receive(self, sequences: Container[int]) -> Iterator[Message]:
        """Yield the messages of one datagram that answer these requests."""
        try:
            data, _, flags, _ = self._socket.recvmsg(BUFFER)
        except BlockingIOError:
            raise RxlaneError(Kind.KERNEL, "the kernel gave no netlink answer in 10 s") from None
        if flags & socket.MSG_TRUNC:
            raise malformed(f"datagram longer than {BUFFER} bytes")
        return (m for m in parse_messages(data) if m.seq in sequences)

    def request(self, kind: int, body: bytes, what: str) -> bytes:
        """Send one request with ACK; return the body of its answer (empty when there is none)."""
        sequence = self._send(kind, u.NLM_F_ACK, body)
        answer = b""
        while True:
            for message in self._receive((sequence,)):
                if message.type == u.NLMSG_ERROR:
                    error = parse_ack(message, what)
                    if error is not None:
                        raise error
                    return answer
                if message.type >= u.GENL_ID_CTRL:
                    answer = message.body

    def burst(self, kind: int, requests: Iterable[tuple[bytes, str]]) -> dict[int, NetlinkError]:
        """Send requests, given as (body, what), many at a time; return the errors by position.

        Only the last of each datagram is acknowledged: the kernel takes them in order and answers
        the others only with errors. A request that fails does not keep the rest from being done.
        """
        failed: dict[int, NetlinkError] = {}
        coming, start = iter(requests), 0
        while part := tuple(islice(coming, BURST)):
            first, last = self._sequence + 1, self._sequence + len(part)
            self._sequence = last
            flags = [u.NLM_F_REQUEST] * (len(part) - 1) + [u.NLM_F_REQUEST | u.NLM_F_ACK]
            messages = (
                padded(pack_message(kind, flag, first + n, body))
                for n, (flag, (body, _)) in enumerate(zip(flags, part, strict=True))
            )
            self._socket.sendto(b"".join(messages), (0, 0))
            for message in self._answers(first, last):
                at = message.seq - first
                error = parse_ack(message, part[at][1])
                if error is not None:
                    failed[start + at] = error
            start += len(part)
        return failed

    def _answers(self, first: int, last: int) -> Iterator[Message]:
        """Yield acknowledgements and errors of these requests until the last one's."""
        while True:
            for message in self._receive(range(first, last + 1)):
                if message.type == u.NLMSG_ERROR:
                    yield message
                    if message.seq == last:
                        return

    def dump(self, kind: int, body: bytes, what: str, torn: bool = False) -> list[bytes]:
        """Return the bodies of a dump, read again when the kernel says that it changed.

        torn: where it changed each time, return what the last two readings had: what one of them
        missed by a change elsewhere is in the other, and other parts are in both.
        """
        bodies: list[bytes] = []
        for _ in range(ATTEMPTS):
            before = bodies
            bodies, interrupted = self._dump_once(kind, body, what)
            if not interrupted:
                return bodies
        if torn:
            return before + bodies
        raise RxlaneError(Kind.KERNEL, f"{what}: changed during each of {ATTEMPTS} readings")

    def _dump_once(self, kind: int, body: bytes, what: str) -> tuple[list[bytes], bool]:
        sequence = self._send(kind, u.NLM_F_DUMP, body)
        bodies: list[bytes] = []
        interrupted = False
        while True:
            # Only NLMSG_DONE or NLMSG_ERROR ends a dump: netdev's parts lack NLM_F_MULTI.
            for message in self._receive((sequence,)):
                interrupted |= bool(message.flags & u.NLM_F_DUMP_INTR)
                if message.type in (u.NLMSG_DONE, u.NLMSG_ERROR):
                    error = parse_ack(message, what)
                    if error is not None:
                        raise error
                    return bodies, interrupted
                if message.type >= u.GENL_ID_CTRL:
                    bodies.append(message.body)
