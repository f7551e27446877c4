# SPDX-License-Identifier: GPL-2.0-or-later
"""How a NIC spreads flows over its receive queues: Receive Side Scaling, `ethtool -x`.

By ioctl, which every kernel has; the netlink command came with 6.2 and its hash fields with 6.17.
The hash key is a secret (who knows it can aim flows at one queue): only its digest is kept, by
which two recordings can be told apart.
"""

from __future__ import annotations

import struct

from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Hashed, Rss
from rxlane.wire.ioctl import Asking

# struct ethtool_rxfh: cmd, rss_context, indir_size, key_size, hfunc, reserved; table and key follow
_RXFH = struct.Struct("=IIIIB7x")
_RXNFC = struct.Struct("=IIQ")  # the part of struct ethtool_rxnfc that ETHTOOL_GRXFH has
MOST = 1 << 16  # entries and bytes; a driver that says more is not believed
DIGEST = 16  # hexadecimal digits


def _digest(key: bytes) -> str:
    import hashlib  # 3 MB, for those who record

    return hashlib.sha256(key).hexdigest()[:DIGEST]


def parse_rxfh(data: bytes) -> Rss | None:
    """Return the answer to ETHTOOL_GRSSH, None of a driver without a table; FORMAT if cut short."""
    if len(data) < _RXFH.size:
        raise _malformed(f"{len(data)} bytes")
    _, _, entries, length, function = _RXFH.unpack_from(data)
    if _RXFH.size + 4 * entries + length != len(data):
        raise _malformed(f"{entries} entries and {length} bytes of key in {len(data)} bytes")
    if not entries:
        return None
    table = struct.unpack_from(f"={entries}I", data, _RXFH.size)
    key = data[_RXFH.size + 4 * entries :]
    digest = _digest(key) if key else ""
    return Rss(u.ETH_RSS_HASH.get(function, str(function)), table, digest)


def parse_fields(flow: str, data: bytes) -> Hashed | None:
    """Return the header fields of an answer to ETHTOOL_GRXFH, None when none is hashed."""
    if len(data) != _RXNFC.size:
        raise _malformed(f"{len(data)} bytes of hash fields")
    bits = _RXNFC.unpack(data)[2]
    fields = tuple(name for bit, name in u.RXH.items() if bits & bit)
    return Hashed(flow, fields) if fields else None


def _malformed(what: str) -> RxlaneError:
    return RxlaneError(Kind.FORMAT, f"malformed RSS answer: {what}")


class Reader(Asking):
    """Reads RSS of devices."""

    def read(self, device: str) -> Rss | None:
        """Return how the device's flows are spread, None where its driver does not say."""
        sizes = self.ask(device, _RXFH.pack(u.ETHTOOL_GRSSH, 0, 0, 0, 0))
        if sizes is None:
            return None
        _, _, entries, length, _ = _RXFH.unpack(sizes)
        if not 0 < entries <= MOST or length > MOST:
            return None
        asked = _RXFH.pack(u.ETHTOOL_GRSSH, 0, entries, length, 0) + bytes(4 * entries + length)
        answer = self.ask(device, asked)
        found = None if answer is None else parse_rxfh(answer)
        if found is None:
            return None
        fields = (self._fields(device, flow) for flow in u.RSS_FLOWS)
        return Rss(found.function, found.table, found.key, tuple(f for f in fields if f))

    def _fields(self, device: str, flow: str) -> Hashed | None:
        answer = self.ask(device, _RXNFC.pack(u.ETHTOOL_GRXFH, u.RSS_FLOWS[flow], 0))
        return None if answer is None else parse_fields(flow, answer)
