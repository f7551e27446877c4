# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels, rings, coalescing and features by the ethtool generic netlink family.

A setting that the driver does not have is not in the kernel's answer, and so no Tunable.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError
from rxlane.items import (
    ADAPTIVE_RX,
    ADAPTIVE_TX,
    CHANNELS_COMBINED,
    CHANNELS_RX,
    CHANNELS_TX,
    ETHTOOL_ITEMS,
    FEATURE_ITEMS,
    ON,
    RING_RX,
    RING_TX,
    RX_FRAMES,
    RX_USECS,
    SWITCHES,
    TX_FRAMES,
    TX_USECS,
    Value,
)
from rxlane.model import Tunable
from rxlane.netlink import (
    NetlinkError,
    attr_text,
    attr_uint,
    pack_attr,
    pack_nest,
    pack_u32,
    parse_attrs,
)
from rxlane.wire import rtnetlink
from rxlane.wire.genl import Generic, generic_attrs


@dataclass(frozen=True, slots=True)
class Message:
    """A pair of commands, and the attributes (value, highest value) of the items it carries."""

    name: str
    get: int
    set: int
    fields: Mapping[str, tuple[int, int | None]]


NUMBERS = (
    Message(
        "channels",
        u.ETHTOOL_MSG_CHANNELS_GET,
        u.ETHTOOL_MSG_CHANNELS_SET,
        {
            CHANNELS_RX: (u.ETHTOOL_A_CHANNELS_RX_COUNT, u.ETHTOOL_A_CHANNELS_RX_MAX),
            CHANNELS_TX: (u.ETHTOOL_A_CHANNELS_TX_COUNT, u.ETHTOOL_A_CHANNELS_TX_MAX),
            CHANNELS_COMBINED: (
                u.ETHTOOL_A_CHANNELS_COMBINED_COUNT,
                u.ETHTOOL_A_CHANNELS_COMBINED_MAX,
            ),
        },
    ),
    Message(
        "rings",
        u.ETHTOOL_MSG_RINGS_GET,
        u.ETHTOOL_MSG_RINGS_SET,
        {
            RING_RX: (u.ETHTOOL_A_RINGS_RX, u.ETHTOOL_A_RINGS_RX_MAX),
            RING_TX: (u.ETHTOOL_A_RINGS_TX, u.ETHTOOL_A_RINGS_TX_MAX),
        },
    ),
    Message(
        "coalescing",
        u.ETHTOOL_MSG_COALESCE_GET,
        u.ETHTOOL_MSG_COALESCE_SET,
        {
            ADAPTIVE_RX: (u.ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX, None),
            ADAPTIVE_TX: (u.ETHTOOL_A_COALESCE_USE_ADAPTIVE_TX, None),
            RX_USECS: (u.ETHTOOL_A_COALESCE_RX_USECS, None),
            TX_USECS: (u.ETHTOOL_A_COALESCE_TX_USECS, None),
            RX_FRAMES: (u.ETHTOOL_A_COALESCE_RX_MAX_FRAMES, None),
            TX_FRAMES: (u.ETHTOOL_A_COALESCE_TX_MAX_FRAMES, None),
        },
    ),
)
BITSETS = (
    u.ETHTOOL_A_FEATURES_HW,
    u.ETHTOOL_A_FEATURES_WANTED,
    u.ETHTOOL_A_FEATURES_ACTIVE,
    u.ETHTOOL_A_FEATURES_NOCHANGE,
)


def header(ifindex: int | None = None, flags: int = 0) -> bytes:
    """Return the header of a request; without ifindex it is about all devices."""
    parts = [] if ifindex is None else [pack_u32(u.ETHTOOL_A_HEADER_DEV_INDEX, ifindex)]
    if flags:
        parts.append(pack_u32(u.ETHTOOL_A_HEADER_FLAGS, flags))
    return pack_nest(u.ETHTOOL_A_HEADER, *parts)


def _owner(found: Mapping[int, bytes]) -> int:
    device = dict(parse_attrs(found.get(u.ETHTOOL_A_HEADER, b"")))
    if u.ETHTOOL_A_HEADER_DEV_INDEX not in device:
        raise RxlaneError(Kind.FORMAT, "malformed netlink data: ethtool answer without a device")
    return attr_uint(device[u.ETHTOOL_A_HEADER_DEV_INDEX])


def parse_numbers(message: Message, body: bytes) -> tuple[int, tuple[Tunable, ...]]:
    """Return (ifindex, settings) of one answer."""
    found = dict(generic_attrs(body))
    result = []
    for item, (number, highest) in message.fields.items():
        if number not in found:
            continue
        top = None if highest is None or highest not in found else attr_uint(found[highest])
        if top == 0:
            continue  # mlx5 and others fill in what they do not have
        result.append(Tunable(item, attr_uint(found[number]), top))
    return _owner(found), tuple(result)


def parse_strings(body: bytes) -> dict[str, int]:
    """Return {string: index} of a string set answer."""
    strings = {}
    for sets in _nests(dict(generic_attrs(body)), u.ETHTOOL_A_STRSET_STRINGSETS):
        for one in _nests(sets, u.ETHTOOL_A_STRINGSETS_STRINGSET):
            for number, payload in parse_attrs(one.get(u.ETHTOOL_A_STRINGSET_STRINGS, b"")):
                if number != u.ETHTOOL_A_STRINGS_STRING:
                    continue
                string = dict(parse_attrs(payload))
                name = attr_text(string.get(u.ETHTOOL_A_STRING_VALUE, b""))
                strings[name] = attr_uint(string.get(u.ETHTOOL_A_STRING_INDEX, b""))
    return strings


def _nests(attributes: Mapping[int, bytes], number: int) -> Iterator[dict[int, bytes]]:
    if number in attributes:
        yield dict(parse_attrs(attributes[number]))


def parse_features(
    bits: Mapping[str, int], body: bytes, items: Iterable[str] = FEATURE_ITEMS
) -> tuple[int, tuple[Tunable, ...]]:
    """Return (ifindex, features that the driver lets change) of one answer.

    One that is wanted and not active depends on something else, and setting it back later would
    not bring that state back: it is left out.
    """
    found = dict(generic_attrs(body))
    hw, wanted, active, fixed = (_bitset(found.get(number, b"")) for number in BITSETS)
    result = []
    for item in items:
        bit = 1 << bits[item] if item in bits else 0
        if hw & ~fixed & bit and not (wanted ^ active) & bit:
            result.append(Tunable(item, int(bool(active & bit)), 1))
    return _owner(found), tuple(result)


def parse_active(bits: Mapping[str, int], body: bytes) -> tuple[int, tuple[str, ...]]:
    """Return (ifindex, names of the features that are on) of one answer."""
    found = dict(generic_attrs(body))
    active = _bitset(found.get(u.ETHTOOL_A_FEATURES_ACTIVE, b""))
    return _owner(found), tuple(sorted(name for name, bit in bits.items() if active >> bit & 1))


def _bitset(bitset: bytes) -> int:
    """Return the value of a compact bitset: words of 32 bits, the lowest first."""
    value = dict(parse_attrs(bitset)).get(u.ETHTOOL_A_BITSET_VALUE, b"")
    words = struct.unpack(f"={len(value) // 4}I", value[: len(value) // 4 * 4])
    return sum(word << 32 * place for place, word in enumerate(words))


def pack_numbers(message: Message, ifindex: int, values: Mapping[str, Value]) -> bytes:
    parts = [header(ifindex)]
    for item, value in values.items():
        number = message.fields[item][0]
        switch = item in SWITCHES
        packed = pack_attr(number, bytes([value == ON])) if switch else pack_u32(number, int(value))
        parts.append(packed)
    return b"".join(parts)


def pack_features(ifindex: int, values: Mapping[str, Value]) -> bytes:
    """Name features by their strings, whose places differ from kernel to kernel."""
    bits = []
    for item, value in values.items():
        name = pack_attr(u.ETHTOOL_A_BITSET_BIT_NAME, item.encode() + b"\0")
        flag = pack_attr(u.ETHTOOL_A_BITSET_BIT_VALUE, b"") if value == ON else b""
        bits.append(pack_nest(u.ETHTOOL_A_BITSET_BITS_BIT, name, flag))
    bitset = pack_nest(u.ETHTOOL_A_BITSET_BITS, *bits)
    head = header(ifindex, u.ETHTOOL_FLAG_OMIT_REPLY)
    return head + pack_nest(u.ETHTOOL_A_FEATURES_WANTED, bitset)


class Ethtool(Generic):
    """The ethtool generic netlink family."""

    def __init__(self) -> None:
        super().__init__(u.ETHTOOL_FAMILY_NAME, u.ETHTOOL_FAMILY_VERSION)
        self._feature_bits: dict[str, int] | None = None

    def tunables(self, features: bool = True) -> dict[int, tuple[Tunable, ...]]:
        """Return each device's settings by ifindex, in the order of ETHTOOL_ITEMS."""
        found: dict[int, list[Tunable]] = {}
        for message in NUMBERS:
            for body in self._ask(message.get, message.name):
                ifindex, own = parse_numbers(message, body)
                found.setdefault(ifindex, []).extend(own)
        for body in self._features() if features else ():
            ifindex, own = parse_features(self._bits(), body)
            found.setdefault(ifindex, []).extend(own)
        place = ETHTOOL_ITEMS.index
        return {
            ifindex: tuple(sorted(own, key=lambda t: place(t.item)))
            for ifindex, own in found.items()
            if own
        }

    def active(self) -> dict[int, tuple[str, ...]]:
        """Return the features of each device that are on, by ifindex."""
        return dict(parse_active(self._bits(), body) for body in self._features())

    def _features(self) -> list[bytes]:
        return self._ask(u.ETHTOOL_MSG_FEATURES_GET, "features", u.ETHTOOL_FLAG_COMPACT_BITSETS)

    def _ask(self, command: int, what: str, flags: int = 0) -> list[bytes]:
        """Return the answers of all devices that give one.

        The kernel ends a dump at the first driver that fails, as those of detached devices and
        of some that are down do: then each device is asked by itself.
        """
        try:
            return self.dump(command, what, header(flags=flags))
        except NetlinkError:
            return list(self._ask_each(command, what, flags))

    def _ask_each(self, command: int, what: str, flags: int) -> Iterator[bytes]:
        for link in rtnetlink.links():
            try:
                yield self.call(command, what, header(link.ifindex, flags))
            except NetlinkError:
                continue

    def _bits(self) -> dict[str, int]:
        """Return the place of each feature's name in this kernel's bitsets."""
        if self._feature_bits is None:
            number = pack_u32(u.ETHTOOL_A_STRINGSET_ID, u.ETH_SS_FEATURES)
            one = pack_nest(u.ETHTOOL_A_STRINGSETS_STRINGSET, number)
            asked = header() + pack_nest(u.ETHTOOL_A_STRSET_STRINGSETS, one)
            answer = self.call(u.ETHTOOL_MSG_STRSET_GET, "feature names", asked)
            self._feature_bits = parse_strings(answer)
        return self._feature_bits

    def write(self, ifindex: int, values: Mapping[str, Value]) -> None:
        """Set any of ETHTOOL_ITEMS on one device, one request for each kind.

        UNSUPPORTED too where coalescing without a delay is refused: tg3 and sxgbe take none.
        """
        for message in NUMBERS:
            own = {item: value for item, value in values.items() if item in message.fields}
            if own:
                asked = ", ".join(f"{item}={value}" for item, value in own.items())
                what = f"{message.name} {asked}"
                try:
                    self.call(message.set, what, pack_numbers(message, ifindex, own))
                except NetlinkError as error:
                    if error.code == errno.EINVAL and 0 in (own.get(RX_USECS), own.get(TX_USECS)):
                        error.kind = Kind.UNSUPPORTED
                    raise
        own = {item: value for item, value in values.items() if item in FEATURE_ITEMS}
        if own:
            self.call(u.ETHTOOL_MSG_FEATURES_SET, "features", pack_features(ifindex, own))
