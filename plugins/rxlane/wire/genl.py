# SPDX-License-Identifier: GPL-2.0-or-later
"""Generic netlink: families, the commands they have, what these take, and multicast groups."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator

from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError
from rxlane.netlink import (
    NetlinkError,
    Socket,
    attr_text,
    attr_uint,
    malformed,
    pack_attr,
    pack_u32,
    parse_attrs,
    parse_uints,
)

_HEADER = struct.Struct("=BBH")  # struct genlmsghdr: cmd, version, reserved


def pack_command(command: int, version: int) -> bytes:
    return _HEADER.pack(command, version, 0)


def generic_attrs(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, payload) of a generic netlink answer."""
    return parse_attrs(body, _HEADER.size)


def generic_uints(body: bytes, last: int) -> dict[int, int]:
    """Return the attributes of a generic netlink answer; see parse_uints()."""
    return parse_uints(body, _HEADER.size, last)


def parse_family(body: bytes) -> tuple[int, frozenset[int]]:
    """Return (family id, op numbers) of a CTRL_CMD_GETFAMILY answer."""
    family = None
    ops: set[int] = set()
    for number, payload in generic_attrs(body):
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
        for number, payload in generic_attrs(body):
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


def parse_group(body: bytes, name: str) -> int | None:
    """Return the number of a multicast group in a CTRL_CMD_GETFAMILY answer."""
    groups = dict(generic_attrs(body)).get(u.CTRL_ATTR_MCAST_GROUPS, b"")
    for _, nest in parse_attrs(groups):
        found = dict(parse_attrs(nest))
        if attr_text(found.get(u.CTRL_ATTR_MCAST_GRP_NAME, b"")) == name:
            return attr_uint(found[u.CTRL_ATTR_MCAST_GRP_ID])
    return None


def multicast_group(family: str, name: str) -> int | None:
    """Return a generic netlink family's multicast group, None on a kernel without it."""
    asking = Socket(u.NETLINK_GENERIC)
    try:
        answer = _family(asking, family)
        return None if answer is None else parse_group(answer, name)
    finally:
        asking.close()


def _family(asking: Socket, name: str) -> bytes | None:
    """Return the kernel's answer about a family, None on a kernel without it."""
    body = pack_command(u.CTRL_CMD_GETFAMILY, 1)
    body += pack_attr(u.CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0")
    try:
        return asking.request(u.GENL_ID_CTRL, body, f"{name} family")
    except NetlinkError as error:
        if error.code != errno.ENOENT:
            raise
        return None


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

    def namespace(self) -> int:
        """Return what netlink.Socket.namespace() does."""
        return self._socket.namespace()

    def _resolve(self, family: str) -> None:
        answer = _family(self._socket, family)
        if answer is not None:
            self._family, self._ops = parse_family(answer)

    @property
    def present(self) -> bool:
        """True when the kernel has the family."""
        return self._family is not None

    def has(self, command: int) -> bool:
        return command in self._ops

    def takes(self, command: int, what: str) -> dict[int, int | None]:
        """Return {attribute: highest value or None} that a command takes."""
        if self._family is None:
            return {}
        body = pack_command(u.CTRL_CMD_GETPOLICY, 1)
        body += pack_attr(u.CTRL_ATTR_FAMILY_ID, struct.pack("=H", self._family))
        body += pack_u32(u.CTRL_ATTR_OP, command)
        return parse_policy(self._socket.dump(u.GENL_ID_CTRL, body, what), command)

    def dump(self, command: int, what: str, attributes: bytes = b"") -> list[bytes]:
        """Return the bodies of a dump; none from a kernel without the command."""
        if self._family is None or command not in self._ops:
            return []
        body = pack_command(command, self._version) + attributes
        return self._socket.dump(self._family, body, what)

    def burst(self, command: int, requests: Iterable[tuple[bytes, str]]) -> dict[int, NetlinkError]:
        """Send one command many times; return the errors by position. See Socket.burst()."""
        if self._family is None or command not in self._ops:
            raise RxlaneError(Kind.UNSUPPORTED, "kernel does not have this command")
        head = pack_command(command, self._version)
        return self._socket.burst(self._family, ((head + body, what) for body, what in requests))

    def call(self, command: int, what: str, attributes: bytes) -> bytes:
        """Send one command; return its answer. UNSUPPORTED from a kernel without it."""
        if self._family is None or command not in self._ops:
            raise RxlaneError(Kind.UNSUPPORTED, f"{what}: kernel does not have this command")
        body = pack_command(command, self._version) + attributes
        return self._socket.request(self._family, body, what)
