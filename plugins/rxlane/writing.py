# SPDX-License-Identifier: GPL-2.0-or-later
"""Write settings by the kernel's methods, in the one order, and read them back.

An interrupt that the kernel keeps to itself fails nothing: it is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from rxlane import stages
from rxlane.errors import Kind, RxlaneError
from rxlane.items import (
    CHANNEL_ITEMS,
    ETHTOOL_ITEMS,
    IRQ_ITEMS,
    IRQ_THREAD_ITEMS,
    IRQ_THREADED,
    STEERING_ITEMS,
    THREAD_ITEMS,
    Value,
)
from rxlane.kernel import Kernel
from rxlane.model import Link, Thread
from rxlane.plan import HOST, WHOLE, Change, Target, phases
from rxlane.settings import View
from rxlane.verify import absence


def reads(items: Iterable[str]) -> tuple[bool, bool]:
    """Return whether any of these settings is about steering or ethtool: both cost most to read."""
    known = set(items)
    return not known.isdisjoint(STEERING_ITEMS), not known.isdisjoint(ETHTOOL_ITEMS)


# What a driver or an interrupt may turn out not to have only when it is written.
LACKING = {*ETHTOOL_ITEMS, IRQ_THREADED}


def _group(wanted: tuple[Target, Value]) -> tuple[str, int, str]:
    """Say what is written together. A queue's two interrupts are two: one may be unmovable.

    Sorted by it, an interrupt's affinity comes before its mode.
    """
    target = wanted[0]
    alone = target.item in (*IRQ_ITEMS, IRQ_THREADED)
    thread = "irq-thread" if target.item in IRQ_THREAD_ITEMS else ""
    return target.device, target.queue, target.item if alone else thread


def write(kernel: Kernel, view: View, wanted: list[tuple[Target, Value]]) -> dict[Target, str]:
    """Write what differs, one call for all settings of a queue or device that go together.

    Returns what cannot be had, with the reason: interrupts that cannot be moved or switched, and
    what a driver lacks. An interrupt that is not switched gets no thread either.
    """
    refused = {}
    differing = sorted(((t, v) for t, v in wanted if view.read(t) != v), key=_group)
    for (device, queue, _), group in groupby(differing, key=_group):
        values = {target.item: value for target, value in group}
        try:
            _write_one(kernel, view, device, queue, values)
        except RxlaneError as error:
            lacking = error.kind is Kind.UNSUPPORTED and values.keys() <= LACKING
            if error.kind is Kind.UNMOVABLE or lacking:
                items = (*values, *(IRQ_THREAD_ITEMS if IRQ_THREADED in values else ()))
                refused.update({Target(device, queue, item): error.problem for item in items})
                continue
            if error.device is None:
                error.device, error.queue = device, None if queue == WHOLE else queue
            raise
    return refused


def _write_one(
    kernel: Kernel, view: View, device: str, queue: int, values: dict[str, Value]
) -> None:
    first = next(iter(values))
    if first in ETHTOOL_ITEMS:
        kernel.write_tunables(_link(view, device), values)
        return
    if device == HOST:
        for name, value in values.items():
            kernel.write_sysctl(name, value)
        return
    if first in STEERING_ITEMS:
        kernel.write_queue(_link(view, device), queue, values)
        return
    if queue == WHOLE:
        # decide() plans device-wide values only where the kernel has no per-NAPI ones. On such a
        # kernel the threaded file is safe to write while the device is down; on others it is not.
        kernel.write_device(_link(view, device), values)
        return
    target = Target(device, queue, first)
    if first in THREAD_ITEMS:
        kernel.write_thread(_thread(view, target).pid, values)
    elif first in IRQ_ITEMS or first == IRQ_THREADED:
        _write_irq(kernel, view, target, str(values[first]))
    else:
        lane = view.lane(target)
        if lane is None or lane.napi is None:
            raise RxlaneError(Kind.KERNEL, absence(view, target))
        kernel.write_napi(lane.napi.napi_id, values)


def _thread(view: View, target: Target) -> Thread:
    lane = view.lane(target)
    thread = None if lane is None else lane.thread
    if target.item in IRQ_THREAD_ITEMS:
        thread = None if lane is None or lane.irq is None else lane.irq.thread
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


def read_back(kernel: Kernel, devices: Collection[str], phase: Iterable[Change]) -> None:
    phase = list(phase)
    view = View.of(kernel.observe(devices, *reads(c.target.item for c in phase)))
    for change in phase:
        found = view.read(change.target)
        if found != change.after:
            target = change.target
            raise RxlaneError(
                Kind.KERNEL,
                f"{target.item} was set to {change.after} and reads"
                f" {absence(view, target) if found is None else found}",
                device=target.device,
                queue=None if target.queue == WHOLE else target.queue,
            )


def put_back(kernel: Kernel, values: dict[Target, Value]) -> tuple[int, list[str]]:
    """Write values wherever they differ, going on after a failure; first those of queues that go.

    Returns how many were written and one line for each that could not be. A setting without a
    present value (its thread ended with the mode) needs nothing.
    """
    devices = {t.device for t in values}
    written, failed = 0, list[str]()
    leaving = {}
    if any(t.item in CHANNEL_ITEMS for t in values):
        leaving = stages.leaving(values, View.of(kernel.observe(devices, False, True)))
    for part in (leaving, values) if leaving else (values,):
        count, problems = _put_back(kernel, part, devices)
        written, failed = written + count, failed + problems
    return written, failed


def _put_back(
    kernel: Kernel, values: Mapping[Target, Value], devices: Collection[str]
) -> tuple[int, list[str]]:
    written, failed = 0, []
    for targets in phases(values):
        view = View.of(kernel.observe(devices, *reads(t.item for t in targets)))
        due = [(t, values[t]) for t in targets if view.read(t) not in (None, values[t])]
        for _, group in groupby(sorted(due, key=_group), key=_group):
            wanted = list(group)
            try:
                refused = write(kernel, view, wanted)
                written += len(wanted) - len(refused)
                failed += [f"{target}: {why}" for target, why in refused.items()]
            except (RxlaneError, OSError) as error:
                failed.append(str(error))
    return written, failed
