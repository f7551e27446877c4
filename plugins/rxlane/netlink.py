# SPDX-License-Identifier: GPL-2.0-or-later
"""The only opener of netlink sockets: a few packed messages of the netdev family and rtnetlink.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Capabilities, Napi

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: len, type, flags, seq, pid
_GENL = struct.Struct("=BBH")  # struct genlmsghdr: cmd, version, reserved
_ATTR = struct.Struct("=HH")  # struct nlattr: len, type
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
# struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
_ROUTE = struct.Struct("=BBBBBBBBI")
_ERROR = struct.Struct("=i")

# Above what the kernel uses for one dump datagram (32 KiB, netlink_recvmsg()).
BUFFER = 1 << 18
TIMEOUT = struct.pack("@ll", 10, 0)  # struct timeval: no answer for 10 s is an error, not a hang
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


def generic_attrs(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, payload) of a generic netlink answer."""
    return parse_attrs(body, _GENL.size)


def attr_uint(payload: bytes) -> int:
    """Return an unsigned attribute of 1, 2, 4 or 8 bytes (nla_put_uint() picks 4 or 8)."""
    if len(payload) not in (1, 2, 4, 8):
        raise malformed(f"number of {len(payload)} bytes")
    return int.from_bytes(payload, _BYTE_ORDER)


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

    def _send(self, kind: int, flags: int, body: bytes) -> int:
        self._sequence += 1
        message = pack_message(kind, u.NLM_F_REQUEST | flags, self._sequence, body)
        self._socket.sendto(message, (0, 0))
        return self._sequence

    def _receive(self, sequence: int) -> Iterator[Message]:
        """Yield the messages of one datagram that answer the request."""
        try:
            data, _, flags, _ = self._socket.recvmsg(BUFFER)
        except BlockingIOError:
            raise RxlaneError(Kind.KERNEL, "the kernel gave no netlink answer in 10 s") from None
        if flags & socket.MSG_TRUNC:
            raise malformed(f"datagram longer than {BUFFER} bytes")
        return (m for m in parse_messages(data) if m.seq == sequence)

    def request(self, kind: int, body: bytes, what: str) -> bytes:
        """Send one request with ACK; return the body of its answer (empty when there is none)."""
        sequence = self._send(kind, u.NLM_F_ACK, body)
        answer = b""
        while True:
            for message in self._receive(sequence):
                if message.type == u.NLMSG_ERROR:
                    error = parse_ack(message, what)
                    if error is not None:
                        raise error
                    return answer
                if message.type >= u.GENL_ID_CTRL:
                    answer = message.body

    def dump(self, kind: int, body: bytes, what: str) -> list[bytes]:
        """Return the bodies of a dump, read again when the kernel says that it changed."""
        for _ in range(ATTEMPTS):
            bodies, interrupted = self._dump_once(kind, body, what)
            if not interrupted:
                return bodies
        raise RxlaneError(Kind.KERNEL, f"{what}: changed during each of {ATTEMPTS} readings")

    def _dump_once(self, kind: int, body: bytes, what: str) -> tuple[list[bytes], bool]:
        sequence = self._send(kind, u.NLM_F_DUMP, body)
        bodies: list[bytes] = []
        interrupted = False
        while True:
            # Only NLMSG_DONE or NLMSG_ERROR ends a dump: netdev's parts lack NLM_F_MULTI.
            for message in self._receive(sequence):
                interrupted |= bool(message.flags & u.NLM_F_DUMP_INTR)
                if message.type in (u.NLMSG_DONE, u.NLMSG_ERROR):
                    error = parse_ack(message, what)
                    if error is not None:
                        raise error
                    return bodies, interrupted
                if message.type >= u.GENL_ID_CTRL:
                    bodies.append(message.body)


def parse_napi(body: bytes) -> tuple[int, Napi]:
    """Return (ifindex, NAPI) of one napi-get answer."""
    found = {n: attr_uint(p) for n, p in parse_attrs(body, _GENL.size)}
    if u.NETDEV_A_NAPI_ID not in found or u.NETDEV_A_NAPI_IFINDEX not in found:
        raise malformed("napi-get answer without id or ifindex")
    return found[u.NETDEV_A_NAPI_IFINDEX], Napi(
        napi_id=found[u.NETDEV_A_NAPI_ID],
        irq=found.get(u.NETDEV_A_NAPI_IRQ),
        pid=found.get(u.NETDEV_A_NAPI_PID),
        threaded=found.get(u.NETDEV_A_NAPI_THREADED),
        defer_hard_irqs=found.get(u.NETDEV_A_NAPI_DEFER_HARD_IRQS),
        gro_flush_timeout=found.get(u.NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT),
        irq_suspend_timeout=found.get(u.NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT),
    )


@dataclass(frozen=True, slots=True)
class QueueRow:
    ifindex: int
    kind: str
    index: int
    napi_id: int | None


def parse_queue(body: bytes) -> QueueRow:
    """Return one queue-get answer; attributes other than the four numbers may be nests."""
    wanted = (u.NETDEV_A_QUEUE_ID, u.NETDEV_A_QUEUE_IFINDEX, u.NETDEV_A_QUEUE_TYPE)
    found = {n: p for n, p in parse_attrs(body, _GENL.size) if n <= u.NETDEV_A_QUEUE_NAPI_ID}
    if any(n not in found for n in wanted):
        raise malformed("queue-get answer without id, ifindex or type")
    kind = attr_uint(found[u.NETDEV_A_QUEUE_TYPE])
    if kind >= len(u.NETDEV_QUEUE_TYPE):
        raise malformed(f"queue type {kind}")
    napi = found.get(u.NETDEV_A_QUEUE_NAPI_ID)
    return QueueRow(
        attr_uint(found[u.NETDEV_A_QUEUE_IFINDEX]),
        u.NETDEV_QUEUE_TYPE[kind],
        attr_uint(found[u.NETDEV_A_QUEUE_ID]),
        None if napi is None else attr_uint(napi),
    )


def parse_family(body: bytes) -> tuple[int, frozenset[int]]:
    """Return (family id, op numbers) of a CTRL_CMD_GETFAMILY answer."""
    family = None
    ops: set[int] = set()
    for number, payload in parse_attrs(body, _GENL.size):
        if number == u.CTRL_ATTR_FAMILY_ID:
            family = attr_uint(payload)
        elif number == u.CTRL_ATTR_OPS:
            for _, op in parse_attrs(payload):
                ops.update(attr_uint(p) for n, p in parse_attrs(op) if n == u.CTRL_ATTR_OP_ID)
    if family is None:
        raise malformed("family without an id")
    return family, frozenset(ops)


def parse_policy(bodies: list[bytes], op: int) -> dict[int, int | None]:
    """Return {attribute: highest value or None} that op takes, from a CTRL_CMD_GETPOLICY dump."""
    index = None
    tables: dict[int, dict[int, int | None]] = {}
    for body in bodies:
        for number, payload in parse_attrs(body, _GENL.size):
            if number == u.CTRL_ATTR_OP_POLICY:
                for command, nest in parse_attrs(payload):
                    if command == op:
                        found = dict(parse_attrs(nest)).get(u.CTRL_ATTR_POLICY_DO)
                        index = None if found is None else attr_uint(found)
            elif number == u.CTRL_ATTR_POLICY:
                for policy, nest in parse_attrs(payload):
                    table = tables.setdefault(policy, {})
                    for attribute, facts in parse_attrs(nest):
                        top = dict(parse_attrs(facts)).get(u.NL_POLICY_TYPE_ATTR_MAX_VALUE_U)
                        table[attribute] = None if top is None else attr_uint(top)
    return {} if index is None else tables.get(index, {})


def pack_napi_set(napi_id: int, values: Mapping[int, int]) -> bytes:
    """Return the body of a napi-set: threaded must be 4 bytes, the timeouts may be 8."""
    body = _GENL.pack(u.NETDEV_CMD_NAPI_SET, u.NETDEV_FAMILY_VERSION, 0)
    body += pack_u32(u.NETDEV_A_NAPI_ID, napi_id)
    for number, value in values.items():
        wide = value > 0xFFFFFFFF
        body += pack_attr(number, struct.pack("=Q" if wide else "=I", value))
    return body


RX = u.NETDEV_QUEUE_TYPE.index("rx")


def parse_qstats(body: bytes) -> tuple[tuple[int, int], int] | None:
    """Return ((ifindex, RX queue), packets), None for a TX queue or one without a count."""
    found = {n: attr_uint(p) for n, p in parse_attrs(body, _GENL.size)}
    names = (u.NETDEV_A_QSTATS_IFINDEX, u.NETDEV_A_QSTATS_QUEUE_ID)
    packets = found.get(u.NETDEV_A_QSTATS_RX_PACKETS)
    kind = found.get(u.NETDEV_A_QSTATS_QUEUE_TYPE)
    if packets is None or kind != RX or any(name not in found for name in names):
        return None
    return (found[names[0]], found[names[1]]), packets


class Generic:
    """A generic netlink family as the caller's network namespace has it."""

    def __init__(self, name: str, version: int) -> None:
        self._socket = Socket(u.NETLINK_GENERIC)
        self._version = version
        self._family: int | None = None
        self._ops: frozenset[int] = frozenset()
        self._resolve(name)

    def close(self) -> None:
        self._socket.close()

    def _resolve(self, family: str) -> None:
        name = pack_attr(u.CTRL_ATTR_FAMILY_NAME, family.encode() + b"\0")
        try:
            answer = self._socket.request(
                u.GENL_ID_CTRL, _GENL.pack(u.CTRL_CMD_GETFAMILY, 1, 0) + name, f"{family} family"
            )
        except NetlinkError as error:
            if error.code != errno.ENOENT:
                raise
            return
        self._family, self._ops = parse_family(answer)

    def dump(self, command: int, what: str, attributes: bytes = b"") -> list[bytes]:
        """Return the bodies of a dump; none from a kernel without the command."""
        if self._family is None or command not in self._ops:
            return []
        body = _GENL.pack(command, self._version, 0) + attributes
        return self._socket.dump(self._family, body, what)

    def call(self, command: int, what: str, attributes: bytes) -> bytes:
        """Send one command; return its answer. UNSUPPORTED from a kernel without it."""
        if self._family is None or command not in self._ops:
            raise RxlaneError(Kind.UNSUPPORTED, f"{what}: kernel does not have this command")
        body = _GENL.pack(command, self._version, 0) + attributes
        return self._socket.request(self._family, body, what)


class Netdev(Generic):
    """The netdev generic netlink family."""

    def __init__(self) -> None:
        super().__init__(u.NETDEV_FAMILY_NAME, u.NETDEV_FAMILY_VERSION)

    def capabilities(self) -> Capabilities:
        """Probe what this kernel takes: ops by the family's list, attributes by napi-set's policy.

        Never by a version: distributions carry these features back.
        """
        if self._family is None:
            return Capabilities()
        if u.NETDEV_CMD_NAPI_SET not in self._ops:
            return Capabilities(netdev=True)
        body = _GENL.pack(u.CTRL_CMD_GETPOLICY, 1, 0)
        body += pack_attr(u.CTRL_ATTR_FAMILY_ID, struct.pack("=H", self._family))
        body += pack_u32(u.CTRL_ATTR_OP, u.NETDEV_CMD_NAPI_SET)
        dump = self._socket.dump(u.GENL_ID_CTRL, body, "netdev policy")
        policy = parse_policy(dump, u.NETDEV_CMD_NAPI_SET)
        top = policy.get(u.NETDEV_A_NAPI_THREADED, 0)
        settable = tuple(sorted(a for a in policy if a > u.NETDEV_A_NAPI_PID))
        return Capabilities(True, True, settable, 0 if top is None else int(top))

    def napis(self) -> list[tuple[int, Napi]]:
        """Return (ifindex, NAPI) of every device that is up, in the kernel's order."""
        return [parse_napi(b) for b in self.dump(u.NETDEV_CMD_NAPI_GET, "napi-get")]

    def queues(self) -> list[QueueRow]:
        return [parse_queue(b) for b in self.dump(u.NETDEV_CMD_QUEUE_GET, "queue-get")]

    def received(self) -> dict[tuple[int, int], int]:
        """Return packets by (ifindex, RX queue), of the drivers that count them so."""
        scope = pack_attr(u.NETDEV_A_QSTATS_SCOPE, struct.pack("=I", u.NETDEV_QSTATS_SCOPE_QUEUE))
        found = (
            parse_qstats(body) for body in self.dump(u.NETDEV_CMD_QSTATS_GET, "qstats-get", scope)
        )
        return {row[0]: row[1] for row in found if row is not None}

    def napi_set(self, napi_id: int, values: Mapping[int, int]) -> None:
        """Set attributes of one NAPI; UNSUPPORTED without the op, KERNEL when it is refused."""
        if self._family is None or u.NETDEV_CMD_NAPI_SET not in self._ops:
            raise RxlaneError(Kind.UNSUPPORTED, "kernel does not support NAPI_SET")
        self._socket.request(self._family, pack_napi_set(napi_id, values), f"NAPI {napi_id}")


@dataclass(frozen=True, slots=True)
class LinkRow:
    """rx_allocated: RX queues the driver may use at most, in use or not; 0 when not said."""

    ifindex: int
    name: str
    up: bool
    rx_allocated: int = 0


def parse_link(body: bytes) -> LinkRow:
    if len(body) < _IFINFO.size:
        raise malformed(f"link of {len(body)} bytes")
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = dict(parse_attrs(body, _IFINFO.size))
    if u.IFLA_IFNAME not in found:
        raise malformed("link without a name")
    allocated = found.get(u.IFLA_NUM_RX_QUEUES)
    return LinkRow(
        index,
        attr_text(found[u.IFLA_IFNAME]),
        bool(flags & u.IFF_UP),
        0 if allocated is None else attr_uint(allocated),
    )


def link_attrs(body: bytes) -> dict[int, bytes]:
    """Return the attributes of a link message."""
    return dict(parse_attrs(body, _IFINFO.size))


def parse_group(body: bytes, name: str) -> int | None:
    """Return the number of a multicast group in a CTRL_CMD_GETFAMILY answer."""
    groups = dict(parse_attrs(body, _GENL.size)).get(u.CTRL_ATTR_MCAST_GROUPS, b"")
    for _, nest in parse_attrs(groups):
        found = dict(parse_attrs(nest))
        if attr_text(found.get(u.CTRL_ATTR_MCAST_GRP_NAME, b"")) == name:
            return attr_uint(found[u.CTRL_ATTR_MCAST_GRP_ID])
    return None


def multicast_group(family: str, name: str) -> int | None:
    """Return a generic netlink family's multicast group, None on a kernel without it."""
    attribute = pack_attr(u.CTRL_ATTR_FAMILY_NAME, family.encode() + b"\0")
    asking = Socket(u.NETLINK_GENERIC)
    try:
        body = _GENL.pack(u.CTRL_CMD_GETFAMILY, 1, 0) + attribute
        return parse_group(asking.request(u.GENL_ID_CTRL, body, f"{family} family"), name)
    except NetlinkError as error:
        if error.code != errno.ENOENT:
            raise
        return None
    finally:
        asking.close()


def links() -> list[LinkRow]:
    """Return the network namespace's links by RTM_GETLINK, ascending by ifindex."""
    body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    body += pack_u32(u.IFLA_EXT_MASK, u.RTEXT_FILTER_SKIP_STATS)
    route = Socket(u.NETLINK_ROUTE)
    try:
        rows = [parse_link(b) for b in route.dump(u.RTM_GETLINK, body, "links")]
    finally:
        route.close()
    return sorted(rows, key=lambda row: row.ifindex)


def resolve(name: str) -> str | None:
    """Return the device's own name for a name or an alternative name, None when there is none."""
    encoded = name.encode() + b"\0"
    if len(encoded) == 1 or "/" in name or len(encoded) > 128:  # ALTIFNAMSIZ
        return None
    which = u.IFLA_IFNAME if len(encoded) <= u.IFNAMSIZ else u.IFLA_ALT_IFNAME
    route = Socket(u.NETLINK_ROUTE)
    try:
        for number in dict.fromkeys((which, u.IFLA_ALT_IFNAME)):
            body = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + pack_attr(number, encoded)
            try:
                return parse_link(route.request(u.RTM_GETLINK, body, name)).name
            except NetlinkError as error:
                if error.code not in (errno.ENODEV, errno.EINVAL, errno.ERANGE):
                    raise
        return None
    finally:
        route.close()


def route(address: str) -> int | None:
    """Return the index of the device by which packets to the IP address leave, None for none.

    A link-local address names its device itself, as in fe80::1%eth0.
    """
    number, _, zone = address.partition("%")
    if zone:
        return next((row.ifindex for row in links() if row.name == zone), None)
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    try:
        packed = socket.inet_pton(family, number)
    except OSError:
        return None
    body = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    body += pack_attr(u.RTA_DST, packed)
    asking = Socket(u.NETLINK_ROUTE)
    try:
        answer = asking.request(u.RTM_GETROUTE, body, "route")
    except NetlinkError:
        return None
    finally:
        asking.close()
    found = dict(parse_attrs(answer, _ROUTE.size)).get(u.RTA_OIF)
    return None if found is None else attr_uint(found)
