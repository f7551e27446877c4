# SPDX-License-Identifier: GPL-2.0-or-later
"""Read one network device, and join its queues, NAPIs and interrupts; each link has a source."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rxlane.items import RFS, RPS, STEERING_ITEMS, XPS, XPS_ITEMS, XPS_RXQS
from rxlane.model import Link, Napi, Queue, Tunable
from rxlane.sysfs import Sysfs
from rxlane.wire.netdev import QueueRow
from rxlane.wire.rtnetlink import LinkRow

# Names that drivers give to the interrupt of RX queue N: virtio "virtio0-input.3",
# e1000e "eth0-rx-0", igb and ixgbe "eth0-TxRx-3", vmxnet3 "eth0-rxtx-3", mlx5 "mlx5_comp3@pci:",
# bnx2x and qede "eth0-fp-3".
_IRQ_NAME = re.compile(
    r"(?:input\.|(?:tx|rx)?-?rx-?(?:tx)?-|(?<![a-z0-9])(?:rx_?|comp)|_comp|fp-)(\d+)(?:@.*)?$", re.I
)
# Of others that share the PCI device: the Flow Director's and the control VSI of i40e and ice
# ("i40e-0000:5e:00.0:fdir-TxRx-0"), subfunctions of mlx5.
_OTHERS = re.compile(r":(?:fdir|ctrl)-|_sf_comp", re.I)
# And to one that serves TX queue N alone: "virtio0-output.3", "eth0-tx-0", stmmac "eth0:tx-0".
_TX_IRQ_NAME = re.compile(r"(?:output\.|(?<!rx)[-:]tx-)(\d+)$", re.I)

Named = tuple[str, int]  # rx or tx, and the queue

# Drivers with a NAPI for each allocated queue although they use fewer: the first ones are those of
# the RX queues. virtio_net uses no more than CPUs; igb has others for as many TX queues, behind
# these (igb_alloc_q_vectors()).
SPARE_NAPIS = ("virtio_net", "igb")


def irq_queue(name: str) -> Named | None:
    """Return the queue that an IRQ action's name speaks of, None when it names none.

    An interrupt that serves both is its RX queue's.
    """
    if _OTHERS.search(name):
        return None
    for kind, pattern in (("rx", _IRQ_NAME), ("tx", _TX_IRQ_NAME)):
        match = pattern.search(name)
        if match is not None:
            return kind, int(match[1])
    return None


def _is_physical(sysfs: Sysfs, name: str) -> bool:
    """Hardware or a virtual machine's device, as against veth, bridges, taps and netdevsim."""
    bus = sysfs.target(f"sys/class/net/{name}/device/subsystem")
    return bus is not None and not bus.endswith("/netdevsim")


def _driver(sysfs: Sysfs, name: str) -> str:
    target = sysfs.target(f"sys/class/net/{name}/device/driver")
    return "" if target is None else target.rpartition("/")[2]


def _with_only_irq(sysfs: Sysfs, name: str, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
    """Return the queues, where the one that receives has the device's only vector if no other.

    r8169 and others call it as the device.
    """
    own = [queue for queue in queues if queue.kind == "rx"]
    if len(own) != 1 or own[0].irq is not None:
        return queues
    # Its own ones: what is above may be a bridge with a vector for itself.
    found = sysfs.names(f"sys/class/net/{name}/device/msi_irqs")
    if len(found) != 1 or not sysfs.folders(f"proc/irq/{found[0]}"):
        return queues
    linked = replace(own[0], irq=int(found[0]), irq_source="only")
    return tuple(linked if queue is own[0] else queue for queue in queues)


def _device_irqs(sysfs: Sysfs, name: str) -> dict[Named, list[int]]:
    """Return {queue: IRQs} by action names among the device's MSI vectors.

    virtio devices hang below the PCI device that owns the vectors, and so do subfunctions, which
    have others of their own. What is called as the device is none of its queues': igb has such a
    one for the link.
    """
    found: dict[Named, list[int]] = {}
    base = f"sys/class/net/{name}/device"
    bus = sysfs.target(f"{base}/subsystem") or ""
    numbers = sysfs.names(f"{base}/msi_irqs")
    if not numbers and not bus.endswith("/auxiliary"):
        numbers = sysfs.names(f"{base}/../msi_irqs")
    for number in sorted(int(n) for n in numbers if n.isdigit()):
        for action in sysfs.folders(f"proc/irq/{number}"):
            queue = irq_queue(action)
            if queue is not None and action != name:
                found.setdefault(queue, []).append(number)
    return found


def _queue_counts(sysfs: Sysfs, name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"rx": [], "tx": []}
    for entry in sysfs.names(f"sys/class/net/{name}/queues"):
        kind, _, number = entry.partition("-")
        if kind in found and number.isdecimal():
            found[kind].append(int(number))
    return {kind: sorted(numbers) for kind, numbers in found.items()}


def link_queues(
    counts: Mapping[str, Sequence[int]],
    rows: Iterable[QueueRow],
    napis: Sequence[Napi],
    irqs: dict[Named, list[int]],
    allocated: int = 0,
) -> tuple[Queue, ...]:
    """Join queues, NAPIs and IRQs.

    counts: queue numbers by kind from sysfs; rows: this device's queue-get; irqs: by action name;
    allocated: how many NAPIs the driver may have instead, of which the first ones are the RX
    queues', 0 for no others than theirs. queue-get wins; without any link from it, as many NAPIs as
    RX queues are taken in order, because drivers add them in queue order and ids ascend. Interrupts
    that are named from 1 on tell that a first NAPI beyond that number receives nothing.
    """
    known = {(r.kind, r.index): r.napi_id for r in rows}
    # sysfs counts queues that a driver may have set aside; queue-get counts those in use.
    wanted = sorted(known) if known else [(k, i) for k in ("rx", "tx") for i in counts.get(k, ())]
    last = {kind: sum(1 for k, _ in wanted if k == kind) for kind in ("rx", "tx")}
    shift = {kind: _first_named(kind, number, irqs) for kind, number in last.items()}
    named = {(kind, index - shift[kind]): found for (kind, index), found in irqs.items()}
    ordered = sorted(n.napi_id for n in napis)
    receive = [index for kind, index in wanted if kind == "rx"]
    if len(ordered) == len(receive) + shift["rx"]:
        ordered = ordered[shift["rx"] :]
    fits = len(ordered) in (len(receive), allocated) and 0 < len(receive) <= len(ordered)
    by_order = fits and not any(known.values())
    number_of = {n.napi_id: n.irq for n in napis}
    result = []
    for kind, index in wanted:
        napi, source = known.get((kind, index)), "netdev"
        if napi is None:
            napi, source = None, "unknown"
            if by_order and kind == "rx":
                napi, source = ordered[receive.index(index)], "order"
        queue = Queue(kind, index, napi, source)
        result.append(_with_irq(queue, number_of, named))
    return tuple(result)


def _first_named(kind: str, count: int, irqs: Collection[Named]) -> int:
    """Return the number that names give to the first of so many queues, 0 or 1.

    tg3 names its interrupts by vector, and with RSS the first one is not any RX queue's: of four
    queues the last is "eth0-rx-4" (tg3_request_irq() in drivers/net/ethernet/broadcom/tg3.c).
    """
    numbers = {index for of, index in irqs if of == kind}
    return int(0 not in numbers and max(numbers, default=0) == count > 0)


def _with_irq(
    queue: Queue, number_of: dict[int, int | None], irqs: dict[Named, list[int]]
) -> Queue:
    said = None if queue.napi_id is None else number_of.get(queue.napi_id)
    if said is not None:
        return replace(queue, irq=said, irq_source="netdev")
    named = irqs.get((queue.kind, queue.index), [])
    if len(named) == 1:
        return replace(queue, irq=named[0], irq_source="irq-name")
    return queue


def steering(
    sysfs: Sysfs, device: str, queue: Queue, items: Collection[str] = STEERING_ITEMS
) -> Queue:
    """Add those of RPS and RFS of an RX queue, XPS of a TX queue, that are among the items."""
    base = f"sys/class/net/{device}/queues/{queue.kind}-{queue.index}"
    found: dict[str, Any] = {}
    if queue.kind == "rx":
        if RPS in items:
            found["rps_cpus"] = sysfs.mask_again(f"{base}/rps_cpus")
        if RFS in items:
            found["rps_flow_cnt"] = sysfs.number_again(f"{base}/rps_flow_cnt")
    else:
        if XPS in items:
            found["xps_cpus"] = sysfs.mask_again(f"{base}/xps_cpus")
        if XPS_RXQS in items:
            found["xps_rxqs"] = sysfs.mask_again(f"{base}/xps_rxqs")
    return replace(queue, **found) if found else queue


def with_steering(sysfs: Sysfs, link: Link, items: Collection[str]) -> Link:
    asked = {"rx": (RPS, RFS), "tx": XPS_ITEMS}
    kinds = {kind for kind, own in asked.items() if not frozenset(own).isdisjoint(items)}
    if not kinds:
        return link
    queues = (steering(sysfs, link.name, q, items) if q.kind in kinds else q for q in link.queues)
    return replace(link, queues=tuple(queues))


def read(
    sysfs: Sysfs,
    row: LinkRow,
    napis: Sequence[Napi],
    rows: Sequence[QueueRow],
    tunables: tuple[Tunable, ...],
    wide: bool,
) -> Link:
    """Return a device. rows: its queue-get; wide: with what is set for the whole of it."""
    base = f"sys/class/net/{row.name}"
    # Most files of a device are in the folder of its hardware, which virtual ones lack.
    real = sysfs.exists(f"{base}/device")
    # A representor's device is the port's, whose interrupts are no queue's of its own.
    foreign = bool(rows) and not napis and all(one.napi_id is None for one in rows)
    own = real and not foreign
    irqs = _device_irqs(sysfs, row.name) if own else {}
    driver = _driver(sysfs, row.name) if real else row.kind
    allocated = row.rx_allocated if driver in SPARE_NAPIS else 0
    queues = link_queues(_queue_counts(sysfs, row.name), rows, napis, irqs, allocated)
    if own and len(napis) < 2:
        queues = _with_only_irq(sysfs, row.name, queues)
    physical = real and _is_physical(sysfs, row.name)
    return Link(
        name=row.name,
        ifindex=row.ifindex,
        up=row.up,
        physical=physical,
        driver=driver,
        node=_node(sysfs, base) if real else None,
        **(_device_wide(sysfs, base) if wide else {}),
        napis=ascending(napis),
        queues=queues,
        tunables=tunables,
        # Named where a virtual device has nothing to lay out itself.
        below=() if physical or napis else _below(sysfs, row.name),
        carrier=row.carrier,
    )


def _node(sysfs: Sysfs, base: str) -> int | None:
    node = sysfs.number(f"{base}/device/numa_node")
    if node is None:
        node = sysfs.number(f"{base}/device/../numa_node")
    return None if node is None or node < 0 else node


def _device_wide(sysfs: Sysfs, base: str) -> dict[str, Any]:
    return {
        "threaded": sysfs.number(f"{base}/threaded"),
        "defer_hard_irqs": sysfs.number(f"{base}/napi_defer_hard_irqs"),
        "gro_flush_timeout": sysfs.number(f"{base}/gro_flush_timeout"),
    }


def _below(sysfs: Sysfs, name: str) -> tuple[str, ...]:
    """Return the devices below, each a link that netdev_adjacent_sysfs_add() made."""
    found = sysfs.names(f"sys/class/net/{name}")
    return tuple(n.removeprefix("lower_") for n in found if n.startswith("lower_"))


def ascending(napis: Iterable[Napi]) -> tuple[Napi, ...]:
    return tuple(sorted(napis, key=lambda n: n.napi_id))


def with_device_wide(sysfs: Sysfs, link: Link) -> Link:
    wide = _device_wide(sysfs, f"sys/class/net/{link.name}")
    return replace(link, **wide)
