# SPDX-License-Identifier: GPL-2.0-or-later
"""The netdev generic netlink family: NAPI instances, queues and their packets."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Capabilities, Napi
from rxlane.netlink import NetlinkError, attr_uint, malformed, pack_attr, pack_u32
from rxlane.wire.genl import Generic, generic_attrs, generic_uints


def parse_napi(body: bytes) -> tuple[int, Napi]:
    """Return (ifindex, NAPI) of one napi-get answer."""
    found = generic_uints(body, u.NETDEV_A_NAPI_THREADED)
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
    found = generic_uints(body, u.NETDEV_A_QUEUE_NAPI_ID)
    if any(n not in found for n in wanted):
        raise malformed("queue-get answer without id, ifindex or type")
    kind = found[u.NETDEV_A_QUEUE_TYPE]
    if kind >= len(u.NETDEV_QUEUE_TYPE):
        raise malformed(f"queue type {kind}")
    return QueueRow(
        found[u.NETDEV_A_QUEUE_IFINDEX],
        u.NETDEV_QUEUE_TYPE[kind],
        found[u.NETDEV_A_QUEUE_ID],
        found.get(u.NETDEV_A_QUEUE_NAPI_ID),
    )


def pack_napi_set(napi_id: int, values: Mapping[int, int]) -> bytes:
    """Return the attributes of a napi-set: threaded must be 4 bytes, the timeouts may be 8."""
    body = pack_u32(u.NETDEV_A_NAPI_ID, napi_id)
    for number, value in values.items():
        wide = value > 0xFFFFFFFF
        body += pack_attr(number, struct.pack("=Q" if wide else "=I", value))
    return body


RX = u.NETDEV_QUEUE_TYPE.index("rx")


def parse_qstats(body: bytes) -> tuple[tuple[int, int], int] | None:
    """Return ((ifindex, RX queue), packets), None for a TX queue or one without a count."""
    found = {n: attr_uint(p) for n, p in generic_attrs(body)}
    names = (u.NETDEV_A_QSTATS_IFINDEX, u.NETDEV_A_QSTATS_QUEUE_ID)
    packets = found.get(u.NETDEV_A_QSTATS_RX_PACKETS)
    kind = found.get(u.NETDEV_A_QSTATS_QUEUE_TYPE)
    if packets is None or kind != RX or any(name not in found for name in names):
        return None
    return (found[names[0]], found[names[1]]), packets


class Netdev(Generic):
    """The netdev generic netlink family."""

    def __init__(self) -> None:
        super().__init__(u.NETDEV_FAMILY_NAME, u.NETDEV_FAMILY_VERSION)

    def capabilities(self) -> Capabilities:
        """Probe what this kernel takes: ops by the family's list, attributes by napi-set's policy.

        Never by a version: distributions carry these features back.
        """
        if not self.present:
            return Capabilities()
        if not self.has(u.NETDEV_CMD_NAPI_SET):
            return Capabilities(netdev=True)
        policy = self.takes(u.NETDEV_CMD_NAPI_SET, "netdev policy")
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

    def napi_set(self, jobs: Iterable[tuple[int, Mapping[int, int]]]) -> dict[int, NetlinkError]:
        """Set attributes of NAPIs, given as (id, {attribute: value}); return errors by position.

        UNSUPPORTED without the op.
        """
        if not self.has(u.NETDEV_CMD_NAPI_SET):
            raise RxlaneError(Kind.UNSUPPORTED, "kernel does not support NAPI_SET")
        requests = ((pack_napi_set(napi, values), f"NAPI {napi}") for napi, values in jobs)
        return self.burst(u.NETDEV_CMD_NAPI_SET, requests)
