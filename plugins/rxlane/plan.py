# SPDX-License-Identifier: GPL-2.0-or-later
"""What rxlane wants to change and keeps in its journal: frozen data. Pure.

And what goes by a setting's address alone: its phase, what writing it does to traffic, whether it
is of a thread that comes or goes with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rxlane.items import (
    COALESCE_ITEMS,
    IRQ_THREADED,
    MODE_OF,
    NTUPLE,
    OFF,
    PHASES,
    RESET_ITEMS,
    RFS,
    RPS,
    RX_THREAD_ITEMS,
    RX_THREADS,
    THREADED,
    TX_ITEMS,
    VHOST_CPUS,
    Value,
)
from rxlane.stored import FORMAT, LATER

WHOLE = -1
HOST = ""  # no device has an empty name
HOST_INDEX = 0  # in the journal, for settings of the host; the kernel numbers devices from 1

TUNED = "tuned"  # an owner of a journal
NONE, QUEUE_PAUSE, LINK_RESET = "none", "queue-pause", "link-reset"  # see disruption()

# RESET_ITEMS, COALESCE_ITEMS, NTUPLE: see disruption(); all else: none.
DISRUPTION = dict.fromkeys((THREADED, IRQ_THREADED), "thread-restart")
# virtnet_set_channels() and virtnet_rx_resize() stop single queues; the carrier stays.
PAUSING = frozenset({"virtio_net"})
# Drivers that do more for coalescing than set registers, if only for some numbers:
# ixgbe_do_reset(), bnx2_netif_stop() and stop_gfar() take the link down, enetc_stop() and
# rtl8152_set_coalesce() stop queues.
COALESCING = dict.fromkeys(("ixgbe", "bnx2", "fsl-gianfar"), LINK_RESET)
COALESCING |= dict.fromkeys(("fsl_enetc", "fsl_enetc_vf", "nxp_enetc4", "r8152"), QUEUE_PAUSE)
# Drivers that reset the link for their filters' switch: ixgbe_set_features(), i40e_set_features(),
# igb_set_features(), igc_set_features(), bnxt_set_features(), and wx_set_features() for txgbe.
FILTERING = frozenset(("ixgbe", "i40e", "igb", "igc", "txgbe", "bnxt_en"))


class Target(NamedTuple):
    """A setting's address. queue is the RX queue (TX queue for TX_ITEMS), -1 for the whole device.

    The device of a setting of the whole host is HOST. NAPI ids and IRQ numbers are no part of it:
    they change when a device goes down and up. A tuple because thousands are hashed and sorted.
    """

    device: str
    queue: int
    item: str

    def __str__(self) -> str:
        if self.device == HOST:
            return self.item
        kind = counted(self.item).prefix
        return f"{self.device}/{'all' if self.queue < 0 else f'{kind}{self.queue}'}/{self.item}"


class Counted(NamedTuple):
    """What the number of a target counts.

    prefix: stands before it in the address. thread: the kind of thread; empty for queues.
    """

    prefix: str
    thread: str = ""


_RX_QUEUES = Counted("rx")
_COUNTED = dict.fromkeys(TX_ITEMS, Counted("tx"))
_COUNTED |= dict.fromkeys(RX_THREAD_ITEMS, Counted("rx-thread", "rx thread"))
_COUNTED[VHOST_CPUS] = Counted("vhost", "vhost thread")


def counted(item: str) -> Counted:
    """Return what the numbers of the item's targets count."""
    return _COUNTED.get(item, _RX_QUEUES)


def disruption(item: str, driver: str) -> str:
    """Say what writing the setting does to traffic: none, thread-restart, queue-pause, link-reset.

    A driver that is not known to pause only is taken to reset the link for other queues, and to do
    nothing to traffic for other coalescing, or for its filters.
    """
    if item in RESET_ITEMS:
        return QUEUE_PAUSE if driver in PAUSING else LINK_RESET
    if item in COALESCE_ITEMS:
        return COALESCING.get(driver, NONE)
    if item == NTUPLE:
        return LINK_RESET if driver in FILTERING else NONE
    return DISRUPTION.get(item, NONE)


_PHASE = {item: number for number, items in enumerate(PHASES, 1) for item in items}
# Of what has two phases, the one in which it is switched off.
_OFF_PHASE = {i: n for n, items in reversed(list(enumerate(PHASES, 1))) for i in items}


def phases(values: Mapping[Target, Value]) -> list[list[Target]]:
    """Return the settings in the order of writing them to these values, in each phase as given.

    Threads that end with their mode come first: kernels that give a mode's next thread what the
    last one had must have the originals to give.
    """
    found: list[list[Target]] = [[] for _ in range(len(PHASES) + 1)]
    for target, value in values.items():
        order = _OFF_PHASE if value == 0 else _PHASE
        phase = 0 if ends(target, values) else order.get(target.item)
        if phase is not None:
            found[phase].append(target)
    return [targets for targets in found if targets]


def ends(target: Target, values: Mapping[Target, Value]) -> bool:
    """True for a setting of a thread that ends with its mode, or its device's count, of these."""
    return False in _told(target, values)


def begins(target: Target, values: Mapping[Target, Value]) -> bool:
    """True for a setting of a thread that there will be with one of these modes or counts."""
    return True in _told(target, values)


def excluded(target: Target, after: Value, values: Mapping[Target, Value]) -> bool:
    """True for RPS or RFS that is to be on, on a device that has rx threads by these values."""
    if target.item not in (RPS, RFS) or after in (OFF, 0):
        return False
    return bool(values.get(Target(target.device, WHOLE, RX_THREADS)))


def _told(target: Target, values: Mapping[Target, Value]) -> set[bool]:
    """Return whether the values call for the thread that the setting is of; empty: not told."""
    mode = MODE_OF.get(target.item)
    if mode is None or not values:
        return set()
    owners = {Target(target.device, number, mode) for number in (target.queue, WHOLE)}
    own = [values[owner] for owner in owners if owner in values]
    if mode == RX_THREADS:
        return {target.queue < int(count) for count in own}
    return {value != OFF for value in own}


@dataclass(frozen=True, slots=True)
class Change:
    """before is None when the thread does not exist yet, so that it has no value."""

    target: Target
    before: Value | None
    after: Value
    reason: str = ""
    disruption: str = NONE


@dataclass(frozen=True, slots=True)
class Skip:
    """Something asked for that is not done. kind: unsupported, unmovable, left-alone or down."""

    device: str
    queue: int
    item: str
    kind: str
    reason: str

    @property
    def target(self) -> Target:
        return Target(self.device, self.queue, self.item)

    def __str__(self) -> str:
        kind = counted(self.item).thread or "queue"
        where = self.device if self.queue < 0 else f"{self.device} {kind} {self.queue}"
        if self.device == HOST:
            where = "host"
        return f"{where}: {self.item} {self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """changes are to be written; holds already have the wanted value (before equals after)."""

    changes: tuple[Change, ...] = ()
    holds: tuple[Change, ...] = ()
    skips: tuple[Skip, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A setting that is not as planned. found is None when its queue or thread is gone."""

    target: Target
    expected: Value
    found: Value | None
    cause: str

    def __str__(self) -> str:
        found = "nothing" if self.found is None else self.found
        return f"{self.target}: expected {self.expected}, found {found} ({self.cause})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting in the journal: what it was before rxlane first wrote it, and what it is to be.

    after is None when nothing is wanted (any more) but the original must be kept: a thread that
    ends with its mode takes its CPU and class with it. ifindex tells the device apart from another
    that took its name later.
    """

    device: str
    ifindex: int
    queue: int
    item: str
    before: Value | None
    after: Value | None
    kept: bool = field(default=False, metadata=LATER)

    @property
    def target(self) -> Target:
        return Target(self.device, self.queue, self.item)


@dataclass(frozen=True, slots=True)
class Journal:
    """boot_id: /proc/sys/kernel/random/boot_id of the boot in which the entries were written.

    owner: TUNED once TuneD wrote any of it, so that nobody else's settings go when TuneD ends.
    netns: inode of the network namespace whose devices the entries are of, and netns_cookie what no
    later one has, 0 if not known. left: what was asked for and is not done. folders: ifindex and
    inode of the devices' folders in sysfs. stood: what had the wanted value already, so that it was
    not written: the originals, should a reset take it.
    """

    boot_id: str
    entries: tuple[Entry, ...]
    owner: str = ""
    format: int = FORMAT
    netns: int = field(default=0, metadata=LATER)
    netns_cookie: int = field(default=0, metadata=LATER)
    left: tuple[Skip, ...] = field(default=(), metadata=LATER)
    folders: tuple[tuple[int, int], ...] = field(default=(), metadata=LATER)
    stood: tuple[Entry, ...] = field(default=(), metadata=LATER)
