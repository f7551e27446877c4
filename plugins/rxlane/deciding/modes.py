# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() about NAPIs: their threaded modes and timers. Pure.

What the kernel cannot set for one NAPI is set for the whole device where that comes to the same.
"""

from __future__ import annotations

from rxlane import cpulist
from rxlane.deciding import deferral, neighbours
from rxlane.deciding.draft import Draft, assigned, without
from rxlane.deciding.wanted import Wanted
from rxlane.errors import Kind, counted
from rxlane.items import DEFER, FLUSH, MODES, OFF, ON, SUSPEND, THREADED, Value
from rxlane.model import Lane, Link, Snapshot, lanes
from rxlane.options import option_of
from rxlane.plan import WHOLE, Target
from rxlane.sections import Policy, Section, mode_of

NO_NAPI_SET = "kernel does not support NAPI_SET"
NO_PER_NAPI = "kernel does not support per-NAPI threaded mode"
NO_BUSY_POLL = "kernel does not support busy-poll threaded NAPI"


def of_whole_devices(snapshot: Snapshot, policy: Policy) -> dict[Target, Value]:
    """Return the modes that whole devices will be in on a kernel that knows no others.

    Those are the modes of their management queues as well.
    """
    found: dict[Target, Value] = {}
    if snapshot.capabilities.takes(THREADED):
        return found
    for section, link in assigned(snapshot, policy.sections):
        queues = neighbours.managed(section, link)
        modes = {mode_of(section.modes, queue.index) for queue in queues}
        if len(modes) == 1 and modes <= {OFF, ON} and link.threaded is not None:
            found[Target(link.name, WHOLE, THREADED)] = str(modes.pop())
    return found


def plan(draft: Draft, section: Section, link: Link) -> list[Wanted]:
    """Plan one device's modes and timers; return the lanes whose threads are to be placed."""
    own = list(lanes(draft.index, link))
    _check_queues(section, link, own)
    if not link.up:
        reason = f"interface {link.name} is down, no NAPI instances"
        draft.skip(link.name, WHOLE, "napi", "down", reason)
        return []
    if not any(lane.napi for lane in own):
        gro = f"`ethtool -K {link.name} gro on` gives a veth some"
        reason = _unlinked(link, own) if link.napis else without(link, "NAPI instances", gro)
        draft.skip(link.name, WHOLE, "napi", "unsupported", reason)
        return []
    managed = _managed(draft, section, link, own)
    # Without modes of its own a section places the threads that are there and stay.
    modes = {lane.queue.index: draft.mode(lane) or "off" for lane in managed}
    if section.modes:
        modes = _modes(draft, section, link, managed)
    _timers(draft, section, link, managed)
    polled = {lane.queue.index: lane.mode for lane in managed} | modes
    deferral.warn(draft, section, link, [n for n, mode in polled.items() if mode != "busy-poll"])
    back = (neighbours.returned(lane, draft.returning, section) for lane in managed)
    return [
        Wanted(section, link, lane, modes.get(lane.queue.index, "off"))
        for lane in back
        if neighbours.speaks(section, lane.queue.index)
    ]


def _unlinked(link: Link, own: list[Lane]) -> str:
    return (
        f"driver {link.driver or 'unknown'} links no queue to a NAPI, and"
        f" {counted(len(link.napis), 'NAPI')} for {counted(len(own), 'RX queue')}"
        " cannot be put in order"
    )


def _check_queues(section: Section, link: Link, own: list[Lane]) -> None:
    """Refuse a queue that the device has not; an open range such as 4- may be empty."""
    for rule in section.modes:
        for low, high in rule.spans or ():
            last = low if high is None else high
            if high is not None and last >= len(own):
                has = f"RX queues 0-{len(own) - 1}" if own else "no RX queue"
                remedy = f"name queues that exist or use an open range such as {low}-"
                raise section.error(
                    "threaded",
                    f"the device has {has}",
                    remedy,
                    kind=Kind.OPTION,
                    device=link.name,
                    queue=max(low, len(own)),
                )


def _managed(draft: Draft, section: Section, link: Link, own: list[Lane]) -> list[Lane]:
    """Return the lanes to be laid out: not the management queues, one lane for each NAPI."""
    aside = section.management_queues
    if aside:
        names = cpulist.render(range(min(aside, len(own))))
        reason = f"management_queues={aside} keeps queue {names} as it is"
        if not draft.view.snapshot.capabilities.takes(THREADED):
            reason += ", but for what this kernel can only set for the whole device"
        if aside >= len(own):
            reason += f"; {link.name} has {len(own)}, so there is none to lay out"
        draft.skip(link.name, WHOLE, "lanes", "left-alone", reason)
    result = []
    for lane in own[aside:]:
        number = lane.queue.index
        if lane.napi is None:
            draft.skip(link.name, number, "lane", "unsupported", "no NAPI is known for the queue")
        elif lane.shared_with is not None:
            reason = f"its NAPI also serves queue {lane.shared_with} and goes with that"
            draft.skip(link.name, number, "lane", "left-alone", reason)
        else:
            result.append(lane)
    return result


def _modes(draft: Draft, section: Section, link: Link, managed: list[Lane]) -> dict[int, str]:
    """Plan threaded modes; return the mode each queue will be in, where it changes or holds."""
    modes = ((lane.queue.index, mode_of(section.modes, lane.queue.index)) for lane in managed)
    wanted = {queue: mode for queue, mode in modes if mode is not None}
    capabilities = draft.view.snapshot.capabilities
    reason = section.reason("threaded")
    if not capabilities.takes(THREADED):
        why = NO_PER_NAPI if capabilities.napi_set else NO_NAPI_SET
        alike = len(set(wanted.values())) == 1 and len(wanted) == len(managed)
        return _whole_device(draft, section, link, wanted, why, alike)
    done = {}
    for queue, mode in wanted.items():
        if MODES.index(mode) > capabilities.max_threaded:
            draft.skip(link.name, queue, f"threaded={mode}", "unsupported", NO_BUSY_POLL)
            continue
        draft.want(Target(link.name, queue, THREADED), mode, reason)
        done[queue] = mode
    return done


def _whole_device(
    draft: Draft, section: Section, link: Link, wanted: dict[int, str], why: str, alike: bool
) -> dict[int, str]:
    """Fall back to the device-wide sysfs file, which knows off and on.

    alike: every managed queue is to be in the same mode, the only thing the file can express.
    """
    for queue, mode in wanted.items():
        if mode == "busy-poll":
            draft.skip(link.name, queue, "threaded=busy-poll", "unsupported", why)
    rest = {queue: mode for queue, mode in wanted.items() if mode != "busy-poll"}
    if not rest:
        return {}
    if not alike or link.threaded is None:
        instead = " or ".join(f"threaded={mode}" for mode in dict.fromkeys(rest.values()))
        reason = f"{why}, and the device's threaded file sets all queues alike: give {instead}"
        if link.threaded is None:
            reason = f"{why}, and the device has no threaded file"
        for queue, mode in rest.items():
            draft.skip(link.name, queue, f"threaded={mode}", "unsupported", reason)
        return {}
    mode = next(iter(rest.values()))
    reason = f"{section.reason('threaded')}, device-wide: {why}"
    draft.want(Target(link.name, WHOLE, THREADED), mode, reason)
    if section.management_queues and mode == "on":
        names = cpulist.render(range(section.management_queues))
        draft.warnings.append(
            f"{link.name}: {why}: threaded=on is set for the whole device, so management queue"
            f" {names} is threaded too"
        )
    return rest


def _timers(draft: Draft, section: Section, link: Link, managed: list[Lane]) -> None:
    wanted = {
        DEFER: section.defer_hard_irqs,
        FLUSH: section.gro_flush_timeout,
        SUSPEND: section.irq_suspend_timeout,
    }
    for item, value in wanted.items():
        if value is None or not managed:
            continue
        reason = section.reason(option_of(item))
        capabilities = draft.view.snapshot.capabilities
        if capabilities.takes(item):
            for lane in managed:
                draft.want(Target(link.name, lane.queue.index, item), value, reason)
            continue
        why = NO_NAPI_SET
        if capabilities.napi_set:
            why = f"this kernel's NAPI_SET does not take {item}"
        whole = Target(link.name, WHOLE, item)
        if draft.view.read(whole) is None:
            why = f"{why}, and there is no device-wide file for it"
            draft.skip(link.name, WHOLE, item, "unsupported", why)
            continue
        draft.want(whole, value, f"{reason}, device-wide: {why}")
        if section.management_queues:
            draft.warnings.append(
                f"{link.name}: {why}: {item} is set for the whole device, management"
                " queues included"
            )
