# SPDX-License-Identifier: GPL-2.0-or-later
"""A driver's own counters, `ethtool -S`. Of these there is no netlink command.

Names differ from driver to driver; packets_of() knows the common spellings of "packets that RX
queue N received".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from rxlane import uapi as u
from rxlane.wire.ioctl import Asking

# virtio "rx0_packets" and "rx_queue_0_packets", mlx5 "rx0_packets", ixgbe and igb
# "rx_queue_0_packets", i40e and ice "rx-0.packets" and "rx_queue_0_packets", ena
# "queue_0_rx_cnt", bnxt "[0]: rx_ucast_packets", gve "rx_packets[0]", tg3 none.
_PACKETS = re.compile(
    r"rx[-_]?(?:queue[-_])?(\d+)[._](?:rx_)?packets|queue_(\d+)_rx_cnt|rx_packets\[(\d+)\]"
    r"|\[(\d+)\]: rx_ucast_packets"
)
MOST = 1 << 16  # counters of a device; a driver that says more is not believed


def packets_of(counters: Iterable[tuple[str, int]]) -> dict[int, int]:
    """Return packets by RX queue, as far as the names tell."""
    found = {}
    for name, value in counters:
        match = _PACKETS.fullmatch(name)
        if match is not None:
            found[int(next(group for group in match.groups() if group is not None))] = value
    return found


class Driver(Asking):
    """Reads counters; names are asked for once a device, as they do not change while it is up."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[tuple[str, int], list[str]] = {}

    def received(self, device: str) -> dict[int, int]:
        """Return packets by RX queue; empty for a driver that does not say."""
        count = self._count(device)
        if not 0 < count <= MOST:
            return {}
        names = self._names.get((device, count)) or self._strings(device, count)
        head = struct.pack("=II", u.ETHTOOL_GSTATS, count)
        # With channels it may have got other counters since. Newer kernels then tell none, others
        # write all that there are.
        data = self.ask(device, head + bytes(8 * count), len(head) + 8 * MOST)
        if data is None or not names or not data.startswith(head):
            return {}
        self._names[device, count] = names
        values = struct.unpack_from(f"={count}Q", data, len(head))
        return packets_of(zip(names, values, strict=True))

    def _count(self, device: str) -> int:
        head = struct.pack("=IIQ", u.ETHTOOL_GSSET_INFO, 0, 1 << u.ETH_SS_STATS)
        data = self.ask(device, head + bytes(4))
        if data is None or not struct.unpack_from("=IIQ", data)[2]:
            return 0
        return int(struct.unpack_from("=I", data, len(head))[0])

    def _strings(self, device: str, count: int) -> list[str]:
        """Return the counters' names, nothing where these are not as many by now."""
        head = struct.pack("=III", u.ETHTOOL_GSTRINGS, u.ETH_SS_STATS, count)
        most = len(head) + u.ETH_GSTRING_LEN * MOST
        data = self.ask(device, head + bytes(u.ETH_GSTRING_LEN * count), most)
        if data is None or not data.startswith(head):
            return []
        rows = (
            data[len(head) + n * u.ETH_GSTRING_LEN :][: u.ETH_GSTRING_LEN] for n in range(count)
        )
        return [row.partition(b"\0")[0].decode("ascii", "replace") for row in rows]
