# SPDX-License-Identifier: GPL-2.0-or-later
"""Write settings by the kernel's methods, in the one order, and read them back.

An interrupt that the kernel keeps to itself fails nothing: it is reported.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rxlane.applying import stages
from rxlane.deciding import moderation
from rxlane.errors import Kind, RxlaneError
from rxlane.items import (
    CHANNEL_ITEMS,
    CHEAP_ITEMS,
    COALESCE_ITEMS,
    ETHTOOL_ITEMS,
    IRQ_ITEMS,
    IRQ_THREAD_ITEMS,
    IRQ_THREADED,
    MODE_OF,
    NAPI_ITEMS,
    RESET_ITEMS,
    RING_ITEMS,
    RX_THREAD_ITEMS,
    STEERING_ITEMS,
    SWITCHES,
    THREAD_ITEMS,
    THREADS_OF,
    VHOST_CPUS,
    Value,
)
from rxlane.kernel import Job, Kernel
from rxlane.model import Link, Snapshot, Thread
from rxlane.netlink import NetlinkError
from rxlane.plan import HOST, WHOLE, Change, Journal, Target, counted, phases
from rxlane.revert import renamed
from rxlane.settings import View
from rxlane.verify import NO_HELPER, NO_THREAD, absence

# What a driver, an interrupt or a control group may turn out not to have only when it is written.
LACKING = {*ETHTOOL_ITEMS, IRQ_THREADED, VHOST_CPUS}
COALESCE_NUMBERS = frozenset(COALESCE_ITEMS).difference(SWITCHES)
# Numbers of which a driver may make others.
ROUNDED_ITEMS = COALESCE_NUMBERS.union(RING_ITEMS)
# An original counts as back if the driver is off by no more than one in so many.
NEAR = 8
# Settings that are not written with a queue's others: interrupts', and those of their threads.
_TOGETHER = {item: item for item in (*IRQ_ITEMS, IRQ_THREADED)}
_TOGETHER |= dict.fromkeys(IRQ_THREAD_ITEMS, "irq-thread")
_TOGETHER |= dict.fromkeys(RX_THREAD_ITEMS, "rx-thread")
_TOGETHER[VHOST_CPUS] = VHOST_CPUS
Group = tuple[str, int, dict[str, Value]]  # device, queue, and what is written together


def _group(wanted: tuple[Target, Value]) -> tuple[str, int, str]:
    """Say what is written together. A queue's two interrupts are two: one may be unmovable.

    Sorted by it, an interrupt's affinity comes before its mode.
    """
    device, queue, item = wanted[0]
    return device, queue, _TOGETHER.get(item, "")


@dataclass(slots=True)
class Outcome:
    """written: how many settings. failed: in the order of writing.

    refused: what cannot be had, with the reason: interrupts that cannot be moved or switched, CPUs
    that a thread's control group has not, and what a driver lacks. An interrupt that is not
    switched gets no thread either.
    """

    written: int = 0
    refused: dict[Target, str] = field(default_factory=dict)
    failed: list[RxlaneError | OSError] = field(default_factory=list)

    def note(self, group: Group, error: RxlaneError | OSError | None) -> None:
        """Take in how writing a group ended."""
        device, queue, values = group
        if error is None:
            self.written += len(values)
            return
        if isinstance(error, RxlaneError):
            lacking = error.kind is Kind.UNSUPPORTED and values.keys() <= LACKING
            if error.kind is Kind.UNMOVABLE or lacking:
                items = (*values, *(IRQ_THREAD_ITEMS if IRQ_THREADED in values else ()))
                self.refused |= {Target(device, queue, item): error.problem for item in items}
                return
            if error.device is None:
                _locate(error, Target(device, queue, next(iter(values))))
        self.failed.append(error)


def _locate(error: RxlaneError, target: Target) -> None:
    """Say where it happened; the number of some settings is a thread's."""
    error.device, error.queue = target.device, None if target.queue == WHOLE else target.queue
    thread = counted(target.item).thread
    if thread:
        name = f"{thread} {target.queue}"
        error.problem, error.queue = f"{name}: {error.problem}", None


def write(
    kernel: Kernel, view: View, wanted: Iterable[tuple[Target, Value]], go_on: bool = False
) -> Outcome:
    """Write what differs, one call for all settings of a queue or device that go together.

    go_on: after a failure, too; else the first is raised. NAPIs are set many at a time, so some may
    have been after one that failed.
    """
    outcome = Outcome()
    differing = sorted(((t, v) for t, v in wanted if not view.holds(t, v)), key=_group)
    jobs: list[tuple[Group, Job]] = []
    for (device, queue, _), parts in groupby(differing, key=_group):
        group = device, queue, {target.item: value for target, value in parts}
        try:
            napi = _napi(view, group)
            if napi is not None:
                jobs.append((group, (napi, group[2])))
                continue
            _write_one(kernel, view, *group)
            outcome.note(group, None)
        except (RxlaneError, OSError) as error:
            outcome.note(group, error)
            if outcome.failed and not go_on:
                raise
    if jobs:
        _write_napis(kernel, jobs, outcome)
    if outcome.failed and not go_on:
        raise outcome.failed[0]
    return outcome


def _write_napis(kernel: Kernel, jobs: Sequence[tuple[Group, Job]], outcome: Outcome) -> None:
    try:
        failed = kernel.write_napis([job for _, job in jobs])
    except (RxlaneError, OSError) as error:
        # Of no NAPI alone. Which of them were set all the same is seen by who looks again.
        outcome.failed.append(error)
        return
    for at, (group, _) in enumerate(jobs):
        outcome.note(group, failed.get(at))


def _napi(view: View, group: Group) -> int | None:
    """Return the id of the NAPI that the group's settings are of, None when they are of none."""
    device, queue, values = group
    first = next(iter(values))
    if first not in NAPI_ITEMS or queue == WHOLE:
        return None
    target = Target(device, queue, first)
    lane = view.lane(target)
    if lane is None or lane.napi is None:
        raise RxlaneError(Kind.KERNEL, absence(view, target))
    return lane.napi.napi_id


def _write_one(
    kernel: Kernel, view: View, device: str, queue: int, values: dict[str, Value]
) -> None:
    first = next(iter(values))
    if first in ETHTOOL_ITEMS:
        _write_tunables(kernel, _link(view, device), values)
        return
    if device == HOST:
        for name, value in values.items():
            kernel.write_sysctl(name, value)
        return
    if first in STEERING_ITEMS:
        kernel.write_queue(_link(view, device), queue, values)
        return
    if queue == WHOLE:
        # rx threads are always a device's. Else decide() plans device-wide values only where the
        # kernel has no per-NAPI ones. On such a kernel the threaded file is safe to write while the
        # device is down; on others it is not.
        kernel.write_device(_link(view, device), values)
        return
    target = Target(device, queue, first)
    if first in THREAD_ITEMS or first == VHOST_CPUS:
        kernel.write_thread(_thread(view, target).pid, values)
    else:
        _write_irq(kernel, view, target, str(values[first]))


def _write_tunables(kernel: Kernel, link: Link, values: dict[str, Value]) -> None:
    try:
        kernel.write_tunables(link, values)
    except NetlinkError as error:
        requests = moderation.in_order(values)
        if error.code != errno.EINVAL or len(requests) < 2:
            raise
        for request in requests:
            kernel.write_tunables(link, request)


def _thread(view: View, target: Target) -> Thread:
    thread = view.thread(target)
    if thread is None:
        raise RxlaneError(Kind.KERNEL, absence(view, target))
    return thread


def _write_irq(kernel: Kernel, view: View, target: Target, value: str) -> None:
    irq = view.irq(target)
    if irq is None:
        raise RxlaneError(Kind.KERNEL, absence(view, target))
    if target.item == IRQ_THREADED:
        kernel.write_irq_mode(irq.number, value)
    else:
        kernel.write_irq(irq.number, value)


def _link(view: View, device: str) -> Link:
    link = view.links.get(device)
    if link is None:
        raise RxlaneError(Kind.NO_DEVICE, "device is gone")
    return link


def read_back(
    kernel: Kernel, view: View, devices: Collection[str], phase: Iterable[Change]
) -> View:
    """Raise KERNEL unless every setting of the phase is as wanted; return the host as it is now."""
    phase = list(phase)
    after = _after(kernel, view, devices, {c.target.item for c in phase})
    if not all(after.holds(c.target, c.after) for c in phase):
        # Whether the queue or the device is gone is seen only by looking at everything.
        after = View.of(kernel.observe(devices, {c.target.item for c in phase} | CHEAP_ITEMS))
        for change in phase:
            _check(after, change)
    return after


def _check(view: View, change: Change) -> None:
    if not view.holds(change.target, change.after):
        target, found = change.target, view.read(change.target)
        reads = absence(view, target) if found is None else found
        problem = f"{target.item} was set to {change.after} and reads {reads}"
        error = RxlaneError(Kind.KERNEL, problem, remedy=_rounded(change, found))
        _locate(error, target)
        raise error


def _rounded(change: Change, found: Value | None) -> str | None:
    """Say what to give instead of a number that the driver rounds, as to powers of two."""
    item = change.target.item
    if item not in ROUNDED_ITEMS or found in (None, change.before):
        return None
    return f"the driver rounds it: give {item.replace('-', '_')}={found}"


def _after(kernel: Kernel, view: View, devices: Collection[str], items: Collection[str]) -> View:
    """Look again at the settings that were written, and at the threads that come with them."""
    wanted = {*items, *(item for mode in items for item in THREADS_OF.get(mode, ()))}
    if wanted.isdisjoint(RESET_ITEMS):
        return View.of(kernel.refresh(view.snapshot, devices, wanted))
    return View.of(kernel.observe(devices, wanted | CHEAP_ITEMS))


def put_back(
    kernel: Kernel, values: Mapping[Target, Value], before: Snapshot | None = None
) -> tuple[int, list[str], frozenset[Target]]:
    """Write values wherever they differ, going on after a failure; first those of queues that go.

    before: the host with all these settings, where the caller has just looked. Returns how many
    were written, one line for each that could not be, and which of those the kernel refuses for
    good. A setting without a present value (its thread ended with the mode) needs nothing.
    """
    devices = {t.device for t in values}
    items = {t.item for t in values} | CHEAP_ITEMS
    view = View.of(kernel.observe(devices, items) if before is None else before)
    written, failed, refused = 0, list[str](), set[Target]()
    leaving = {}
    if any(t.item in CHANNEL_ITEMS for t in values):
        leaving = stages.leaving(values, view)
    for part in (leaving, values) if leaving else (values,):
        for done in _put_back(kernel, view, part, items):
            written += done.written
            failed += [f"{target}: {why}" for target, why in done.refused.items()]
            failed += [str(error) for error in done.failed]
            refused |= done.refused.keys()
        view = view if part is values else View.of(kernel.observe(devices, items))
    return written, failed, frozenset(refused)


def _put_back(
    kernel: Kernel, view: View, values: Mapping[Target, Value], items: Collection[str]
) -> Iterator[Outcome]:
    devices = {t.device for t in values}
    for targets in phases(values):
        present = (t for t in targets if view.read(t) is not None)
        due = [(t, view.returning(t, values[t])) for t in present if not view.is_back(t, values[t])]
        yield write(kernel, view, due, go_on=True)
        changed = {t.item for t, _ in due}
        if changed & {*RESET_ITEMS}:
            view = View.of(kernel.observe(devices, items))
        elif changed & {*THREADS_OF}:
            view = _after(kernel, view, devices, changed)


def nearest(before: View, now: View, originals: Mapping[Target, Value | None]) -> dict[Target, str]:
    """Return the numbers of coalescing of which the driver made another, with what it made.

    Some count ticks of a clock and round down both what is set and what is read, as
    stmmac_usec2riwt() and stmmac_riwt2usec(): no number may give what there was at first, and
    writing it again would not either. before: the host before the originals were written; what is
    as it was then was refused or ignored.
    """
    result = {}
    for target, original in sorted(originals.items()):
        found = now.read(target) if target.item in COALESCE_NUMBERS else None
        if not isinstance(found, int) or not isinstance(original, int):
            continue
        if found not in (original, before.read(target)) and _close(found, original):
            result[target] = f"was {original}, of which the driver makes {found}"
    return result


def _close(found: int, original: int) -> bool:
    return abs(found - original) <= max(1, original // NEAR)


def missing(view: View, originals: Mapping[Target, Value | None]) -> dict[Target, str]:
    """Return the settings that are not at their originals, with the reason.

    What had no value needs none; nor does a thread that ended with its mode, or a queue that is
    gone with its channels.
    """
    result = {}
    for target, original in originals.items():
        if original is None or view.is_back(target, original):
            continue
        found = view.read(target)
        if found is not None:
            result[target] = f"is {found}, was {original}"
            continue
        why = absence(view, target)
        ended = why in (NO_THREAD, NO_HELPER) and not _mode_missing(view, originals, target)
        if not ended and not stages.gone(view, originals, target):
            result[target] = why
    return result


def waiting(journal: Journal, snapshot: Snapshot) -> int:
    """Return how many originals are to be put back and are not, those of lost devices among them.

    What a driver's reset may cost does not wait: it is there as long as nothing took it.
    """
    entries = [
        e for e in journal.entries if e.after is None and not e.kept and e.before is not None
    ]
    here = renamed(entries, snapshot.links)
    away = len(entries) - len(here)
    return away + len(missing(View.of(snapshot), {e.target: e.before for e in here}))


def _mode_missing(view: View, originals: Mapping[Target, Value | None], target: Target) -> bool:
    """True for a setting of a thread whose mode is to come back, and the thread with it."""
    mode = MODE_OF.get(target.item)
    owners = [Target(target.device, n, mode) for n in (target.queue, WHOLE)] if mode else []
    known = ((owner, originals.get(owner)) for owner in owners)
    return any(value is not None and not view.holds(owner, value) for owner, value in known)
