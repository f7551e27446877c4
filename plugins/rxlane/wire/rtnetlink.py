# SPDX-License-Identifier: GPL-2.0-or-later
"""rtnetlink: the namespace's links, names and addresses, and the way to an address. Reads only."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from rxlane import uapi as u
from rxlane.netlink import (
    NetlinkError,
    Socket,
    attr_text,
    attr_uint,
    malformed,
    pack_attr,
    pack_ip,
    pack_u32,
    parse_attrs,
    pick_attrs,
)

_OF_LINK = frozenset((u.IFLA_IFNAME, u.IFLA_NUM_RX_QUEUES, u.IFLA_LINKINFO, u.IFLA_CARRIER))
_OF_STATE = frozenset(
    (
        *(u.IFLA_IFNAME, u.IFLA_MTU, u.IFLA_LINKINFO),
        *(u.IFLA_CARRIER, u.IFLA_CARRIER_CHANGES, u.IFLA_XDP),
    )
)
TUN = "tun"  # what drivers/net/tun.c calls its links, taps too
_IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_IFADDR = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefixlen, flags, scope, index
# struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEXTHOP = struct.Struct("=HBBi")  # struct rtnexthop: len, flags, hops, ifindex


@dataclass(frozen=True, slots=True)
class LinkRow:
    """rx_allocated: RX queues the driver may use at most, in use or not; 0 when not said.

    kind: of a virtual link, such as veth or bond; empty where it has none.
    """

    ifindex: int
    name: str
    up: bool
    rx_allocated: int = 0
    kind: str = ""
    carrier: bool = True


@dataclass(frozen=True, slots=True)
class LinkState:
    """What an announcement of a link is compared by; None where the message does not tell.

    xdp: which programs it has. carrier: it has one. carriers: how often that has changed. tun: it
    is a tap or its like.
    """

    ifindex: int
    name: str
    up: bool
    mtu: int | None = None
    xdp: bytes | None = None
    carrier: bool | None = None
    carriers: int | None = None
    tun: bool = False


def parse_link(body: bytes) -> LinkRow:
    index, up, name, found = _parse(body, _OF_LINK)
    allocated = found.get(u.IFLA_NUM_RX_QUEUES)
    return LinkRow(
        index,
        name,
        up,
        0 if allocated is None else attr_uint(allocated),
        _kind(found),
        # An interface that is down has none either, for another reason.
        carrier=not up or _carrier(found) is not False,
    )


def parse_state(body: bytes) -> LinkState:
    index, up, name, found = _parse(body, _OF_STATE)
    mtu, carriers = (
        attr_uint(found[number]) if number in found else None
        for number in (u.IFLA_MTU, u.IFLA_CARRIER_CHANGES)
    )
    return LinkState(
        index,
        name,
        up,
        mtu,
        found.get(u.IFLA_XDP),
        _carrier(found),
        carriers,
        _kind(found) == TUN,
    )


def _carrier(found: dict[int, bytes]) -> bool | None:
    return bool(attr_uint(found[u.IFLA_CARRIER])) if u.IFLA_CARRIER in found else None


def _kind(found: dict[int, bytes]) -> str:
    info = dict(parse_attrs(found.get(u.IFLA_LINKINFO, b"")))
    return attr_text(info.get(u.IFLA_INFO_KIND, b""))


def _parse(body: bytes, wanted: frozenset[int]) -> tuple[int, bool, str, dict[int, bytes]]:
    """Return the index of a link, whether it is up, its name, and what is wanted beside."""
    if len(body) < _IFINFO.size:
        raise malformed(f"link of {len(body)} bytes")
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    # Of some forty attributes; there may be thousands of links.
    found = pick_attrs(body, _IFINFO.size, wanted)
    if u.IFLA_IFNAME not in found:
        raise malformed("link without a name")
    return index, bool(flags & u.IFF_UP), attr_text(found[u.IFLA_IFNAME]), found


def names() -> dict[int, str]:
    """Return the names of the links that are there, by index; raises as links()."""
    return {row.ifindex: row.name for row in links()}


def links() -> list[LinkRow]:
    """Return the network namespace's links by RTM_GETLINK, ascending by ifindex."""
    rows = {row.ifindex: row for row in map(parse_link, _dump())}
    return sorted(rows.values(), key=lambda row: row.ifindex)


def states() -> list[LinkState]:
    """Return the same links as they are for what announcements tell later."""
    return list({state.ifindex: state for state in map(parse_state, _dump())}.values())


def _dump() -> list[bytes]:
    """Return the links; on a host of thousands of which some always come or go, some twice."""
    body = _IFINFO.pack(u.AF_UNSPEC, 0, 0, 0, 0)
    body += pack_u32(u.IFLA_EXT_MASK, u.RTEXT_FILTER_SKIP_STATS)
    route = Socket(u.NETLINK_ROUTE)
    try:
        return list(route.dump(u.RTM_GETLINK, body, "links", torn=True))
    finally:
        route.close()


def resolve(name: str) -> str | None:
    """Return the device's own name for a name or an alternative name, None when there is none."""
    try:
        encoded = name.encode() + b"\0"
    except UnicodeEncodeError:  # an argument that is not UTF-8
        return None
    if len(encoded) == 1 or "/" in name or len(encoded) > 128:  # ALTIFNAMSIZ
        return None
    which = u.IFLA_IFNAME if len(encoded) <= u.IFNAMSIZ else u.IFLA_ALT_IFNAME
    route = Socket(u.NETLINK_ROUTE)
    try:
        for number in dict.fromkeys((which, u.IFLA_ALT_IFNAME)):
            body = _IFINFO.pack(u.AF_UNSPEC, 0, 0, 0, 0) + pack_attr(number, encoded)
            try:
                return parse_link(route.request(u.RTM_GETLINK, body, name)).name
            except NetlinkError as error:
                if error.code not in (errno.ENODEV, errno.EINVAL, errno.ERANGE):
                    raise
        return None
    finally:
        route.close()


def holders(addresses: Iterable[str]) -> set[int]:
    """Return the indexes of the devices that have any of these IP addresses.

    A link-local address names its device itself, as in fe80::1%eth0.
    """
    addresses = set(addresses)
    zoned = {zone for a in addresses if (zone := a.partition("%")[2])}
    plain = {known[1] for a in addresses if "%" not in a and (known := pack_ip(a))}
    found = {row.ifindex for row in links() if row.name in zoned} if zoned else set()
    if not plain:
        return found
    asking = Socket(u.NETLINK_ROUTE)
    try:
        rows = asking.dump(u.RTM_GETADDR, _IFADDR.pack(u.AF_UNSPEC, 0, 0, 0, 0), "addresses")
    finally:
        asking.close()
    return found | {index for index, own in map(parse_address, rows) if own in plain}


def parse_address(body: bytes) -> tuple[int, bytes | None]:
    """Return the device's index and its own address, which has another at the line's far end."""
    if len(body) < _IFADDR.size:
        raise malformed(f"address of {len(body)} bytes")
    found = dict(parse_attrs(body, _IFADDR.size))
    return _IFADDR.unpack_from(body)[-1], found.get(u.IFA_LOCAL, found.get(u.IFA_ADDRESS))


def routes(address: str, source: str = "") -> set[int]:
    """Return the indexes of the devices by which packets to the IP address may leave.

    A link-local address names its device itself, as in fe80::1%eth0. source: the packets' own
    address, by which the host may choose another route; one that is not the host's is left out.
    """
    number, _, zone = address.partition("%")
    if zone:
        return {row.ifindex for row in links() if row.name == zone}
    known, own = pack_ip(number), pack_ip(source)
    if known is None:
        return set()
    if own is not None and own[0] == known[0]:
        found = _leaving(*known, own[1])
        if found:
            return found
    return _leaving(*known)


def _leaving(family: int, address: bytes, source: bytes = b"") -> set[int]:
    """Ask for the way of a packet, and for the route, which may have several of them."""
    attributes = pack_attr(u.RTA_DST, address)
    if source:
        attributes += pack_attr(u.RTA_SRC, source)
    found: set[int] = set()
    asking = Socket(u.NETLINK_ROUTE)
    try:
        for flags in (0, u.RTM_F_FIB_MATCH):
            head = _ROUTE.pack(family, 8 * len(address), 8 * len(source), 0, 0, 0, 0, 0, flags)
            answer = asking.request(u.RTM_GETROUTE, head + attributes, "route")
            found |= parse_route(answer)
    except NetlinkError:
        return found
    finally:
        asking.close()
    return found


def parse_route(body: bytes) -> set[int]:
    """Return the devices that a route, or each of its next hops, leaves by."""
    attributes = dict(parse_attrs(body, _ROUTE.size))
    oif, hops = attributes.get(u.RTA_OIF), attributes.get(u.RTA_MULTIPATH, b"")
    found = set() if oif is None else {attr_uint(oif)}
    while len(hops) >= _NEXTHOP.size:
        length, _, _, index = _NEXTHOP.unpack_from(hops)
        if not _NEXTHOP.size <= length <= len(hops):
            raise malformed(f"next hop of {length} bytes, {len(hops)} are left")
        found.add(index)
        hops = hops[length + (-length % 4) :]
    return found
