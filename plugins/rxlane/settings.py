# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading one setting out of a Snapshot: the one translation from an address to a value. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rxlane import cpulist
from rxlane.items import (
    CPUS,
    DEFER,
    ETHTOOL_ITEMS,
    FLUSH,
    IRQ_CPUS,
    IRQ_THREAD_CPUS,
    IRQ_THREAD_ITEMS,
    IRQ_THREADED,
    KERNEL,
    MODES,
    OFF,
    ON,
    ONLINE_ITEMS,
    RFS,
    RPS,
    RX_ITEMS,
    RX_THREAD_CPUS,
    RX_THREAD_ITEMS,
    RX_THREADS,
    SCHED,
    SUSPEND,
    SWITCHES,
    THREADED,
    TX_IRQ_CPUS,
    TX_ITEMS,
    VHOST_CPUS,
    WORKQUEUE,
    XPS,
    Value,
)
from rxlane.model import Helper, Index, Irq, Lane, Link, Queue, Snapshot, Thread, lanes
from rxlane.plan import HOST, WHOLE, Target


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot indexed for many look-ups."""

    snapshot: Snapshot
    links: Mapping[str, Link]
    lanes: Mapping[tuple[str, int], Lane]
    senders: Mapping[tuple[str, int], Queue]
    sysctls: Mapping[str, int]
    irqs: Mapping[int, Irq]
    offline: frozenset[int] = frozenset()

    @classmethod
    def of(cls, snapshot: Snapshot) -> View:
        index = Index.of(snapshot)
        found = {
            (link.name, lane.queue.index): lane
            for link in snapshot.links
            for lane in lanes(index, link)
        }
        senders = {
            (link.name, queue.index): queue
            for link in snapshot.links
            for queue in link.queues
            if queue.kind == "tx"
        }
        links = {link.name: link for link in snapshot.links}
        sysctls = {s.name: s.value for s in snapshot.sysctls}
        offline = frozenset(cpu.number for cpu in snapshot.topology.cpus if not cpu.online)
        return cls(snapshot, links, found, senders, sysctls, index.irqs, offline)

    def irq(self, target: Target) -> Irq | None:
        """Return the interrupt that one of IRQ_ITEMS, or IRQ_THREADED, is about.

        A send queue that shares its receive queue's has none of its own.
        """
        lane = self.lane(target)
        if target.item in (IRQ_CPUS, IRQ_THREADED):
            return None if lane is None else lane.irq
        sender = self.senders.get((target.device, target.queue))
        number = None if sender is None else sender.irq
        if number is None or number in self._received(target.device):
            return None
        return self.irqs.get(number)

    def _received(self, device: str) -> set[int | None]:
        link = self.links.get(device)
        return set() if link is None else {q.irq for q in link.queues if q.kind == "rx"}

    def of_device(self, link: Link) -> dict[Target, Value]:
        """Return every setting of the device and its queues that has a value."""
        targets = [Target(link.name, WHOLE, item) for item in ETHTOOL_ITEMS]
        for queue in link.queues:
            items = TX_ITEMS if queue.kind == "tx" else RX_ITEMS
            targets += [Target(link.name, queue.index, item) for item in items]
        found = ((target, self.read(target)) for target in targets)
        return {target: value for target, value in found if value is not None}

    def lane(self, target: Target) -> Lane | None:
        return self.lanes.get((target.device, target.queue))

    def read(self, target: Target) -> Value | None:
        """Return the setting's value, None when what it belongs to is not there."""
        if target.device == HOST:
            if target.item == WORKQUEUE:
                return listed(requested(self.snapshot))
            return self.sysctls.get(target.item)
        if target.item in TX_ITEMS:
            sender = self.senders.get((target.device, target.queue))
            if target.item == TX_IRQ_CPUS:
                irq = self.irq(target)
                return None if irq is None or not irq.cpus else cpulist.render(irq.cpus)
            return None if sender is None else read_sender(sender, target.item)
        if target.item == VHOST_CPUS:
            return self._vhost(target)
        if target.item in RX_THREAD_ITEMS:
            return _read_helper(self.helper(target), target.item)
        if target.queue == WHOLE:
            link = self.links.get(target.device)
            return None if link is None else read_device(link, target.item)
        lane = self.lane(target)
        return None if lane is None else read_lane(lane, target.item)

    def holds(self, target: Target, value: Value | None) -> bool:
        """True when the setting has the value, as far as the CPUs that are online and its thread's
        control group let it.
        """
        found, thread = self.read(target), self._confined(target)
        if found == value or not (self.offline or thread) or target.item not in ONLINE_ITEMS:
            return found == value
        return self._reached(found, thread) == self._reached(value, thread) != set()

    def is_back(self, target: Target, original: Value) -> bool:
        """True when an original has come back, as far as it can now."""
        return self.holds(target, self.returning(target, original))

    def returning(self, target: Target, original: Value) -> Value:
        """Return what brings an original back now.

        A mask for kernel workers that was written before a partition was isolated had no effect on
        the CPUs of that, and written now it would. A vhost thread whose control group has none of
        the CPUs any more keeps those that it got there.
        """
        thread = self._confined(target)
        if thread is not None:
            cpus = {*cpulist.parse(str(original))}
            if cpus.isdisjoint(self.offline) and not thread.reaches(cpus):
                return cpulist.render(thread.cpus) or original
        if target.item != WORKQUEUE or self.read(target) == original:
            return original
        left = {*cpulist.parse(str(original))}.difference(self.snapshot.workqueue_isolated)
        return cpulist.render(left) if left else original

    def _confined(self, target: Target) -> Thread | None:
        """Return the vhost thread of a setting if the CPUs of its control group are known."""
        thread = self.vhost(target) if target.item == VHOST_CPUS else None
        return thread if thread is not None and thread.allowed else None

    def _reached(self, value: Value | None, thread: Thread | None) -> set[int]:
        """Return the CPUs of a list that are online and that the thread, if any, may have."""
        if not isinstance(value, str) or value in (OFF, KERNEL):
            return set()
        online = {*cpulist.parse(value)} - self.offline
        return online if thread is None else thread.reaches(online)

    def _vhost(self, target: Target) -> str | None:
        thread = self.vhost(target)
        return None if thread is None else cpulist.render(thread.cpus)

    def vhost(self, target: Target) -> Thread | None:
        """Return a tap's vhost thread by its number."""
        link = self.links.get(target.device)
        own = () if link is None else link.vhosts
        return own[target.queue] if 0 <= target.queue < len(own) else None

    def thread(self, target: Target) -> Thread | None:
        """Return the thread that a setting of one is of."""
        if target.item == VHOST_CPUS:
            return self.vhost(target)
        if target.item in RX_THREAD_ITEMS:
            helper = self.helper(target)
            return None if helper is None else helper.thread
        lane = self.lane(target)
        if lane is None or target.item not in IRQ_THREAD_ITEMS:
            return None if lane is None else lane.thread
        return None if lane.irq is None else lane.irq.thread

    def helper(self, target: Target) -> Helper | None:
        """Return a device's rx thread by its number."""
        link = self.links.get(target.device)
        own = () if link is None else link.helpers
        return next((helper for helper in own if helper.number == target.queue), None)


def requested(snapshot: Snapshot) -> tuple[int, ...] | None:
    """Return the mask for kernel workers that stands, whatever partitions take off it."""
    known = snapshot.workqueue_requested
    return snapshot.workqueue_cpus if known is None else known


def read_device(link: Link, item: str) -> Value | None:
    if item in ETHTOOL_ITEMS:
        tunable = link.tunable(item)
        return None if tunable is None else shown(item, tunable.value)
    if item == THREADED:
        number = link.threaded
        return None if number is None or not 0 <= number < len(MODES) else MODES[number]
    return {
        DEFER: link.defer_hard_irqs,
        FLUSH: link.gro_flush_timeout,
        RX_THREADS: link.rx_threads,
    }.get(item)


def shown(item: str, value: int) -> Value:
    """Return a tunable's number as plans and journals hold it."""
    return (OFF, ON)[value != 0] if item in SWITCHES else value


def listed(numbers: Collection[int] | None) -> str | None:
    """Return the list of CPUs or queues as plans and journals hold it."""
    return None if numbers is None else cpulist.render(numbers) or OFF


def read_sender(queue: Queue, item: str) -> Value | None:
    return listed(queue.xps_cpus if item == XPS else queue.xps_rxqs)


def read_lane(lane: Lane, item: str) -> Value | None:
    napi, irq = lane.napi, lane.irq
    if item == IRQ_CPUS:
        return None if irq is None or not irq.cpus else cpulist.render(irq.cpus)
    if item == IRQ_THREADED:
        return None if irq is None or irq.threaded is None else (OFF, ON)[irq.threaded]
    if item in IRQ_THREAD_ITEMS:
        return _read_thread(None if irq is None else irq.thread, item == IRQ_THREAD_CPUS)
    if item == RPS:
        return listed(lane.queue.rps_cpus)
    if item == RFS:
        return lane.queue.rps_flow_cnt
    if item in (CPUS, SCHED):
        return _read_thread(lane.thread, item == CPUS)
    if napi is None:
        return None
    if item == THREADED:
        # Without a mode of its own a NAPI has its device's, which is a setting of the device.
        return None if napi.threaded is None else lane.mode
    return {
        DEFER: napi.defer_hard_irqs,
        FLUSH: napi.gro_flush_timeout,
        SUSPEND: napi.irq_suspend_timeout,
    }.get(item)


def _read_helper(helper: Helper | None, item: str) -> str | None:
    if helper is None or helper.thread is None:
        return None
    if item == RX_THREAD_CPUS and helper.reserved is not None:
        return KERNEL
    return _read_thread(helper.thread, item == RX_THREAD_CPUS)


def _read_thread(thread: Thread | None, cpus: bool) -> str | None:
    if thread is None:
        return None
    return cpulist.render(thread.cpus) if cpus else thread.sched
