# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() about channels, rings and coalescing: what a device's driver keeps. Pure.

The number of channels decides which queues there are, so it comes first: counts() and returning()
say what each device will have, foresee() what the host looks like then, and everything else is
planned for that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from rxlane.deciding import cutting
from rxlane.deciding.draft import Draft
from rxlane.deciding.moderation import FIXED_FRAMES
from rxlane.items import (
    CHANNEL_ITEMS,
    CHANNELS_COMBINED,
    CHANNELS_RX,
    CHANNELS_TX,
    COALESCE_ITEMS,
    FRAMES_OF,
    RESET_ITEMS,
    RING_ITEMS,
    Value,
)
from rxlane.model import NETWORK_MANAGER, Irq, Link, Napi, Queue, Snapshot, Tunable
from rxlane.options import option_of
from rxlane.plan import WHOLE, Target
from rxlane.sections import MAX, Policy, Section
from rxlane.settings import read_device

Device = tuple[Section, Link]
Counts = Mapping[str, Mapping[str, int]]  # by device, then by CHANNEL_ITEMS

# Queues that are not there yet have NAPIs and interrupts that nobody knows: numbers below zero,
# which the kernel gives to none.
UNBORN = -1


class Asked(NamedTuple):
    """A value of a setting, and the option that it comes from. why: where that does not say it."""

    value: Value
    option: str
    why: str = ""


def counts(devices: Iterable[Device]) -> dict[str, dict[str, int]]:
    """Return the channels wanted of each device that is up and can have them."""
    found = {}
    for section, link in devices:
        if section.channels is not None and link.up and _shortage(section, link) is None:
            found[link.name] = _wanted(section, link)
    return found


def returning(values: Mapping[Target, Value]) -> dict[str, dict[str, int]]:
    """Return the channels of each device that are among what goes back to these values."""
    found: dict[str, dict[str, int]] = {}
    for target, value in values.items():
        if target.item in CHANNEL_ITEMS:
            found.setdefault(target.device, {})[target.item] = int(value)
    return found


def _own(link: Link) -> dict[str, Tunable]:
    return {t.item: t for t in link.tunables if t.item in CHANNEL_ITEMS}


def _wanted(section: Section, link: Link) -> dict[str, int]:
    """Return the counts to set: pairs where the driver has pairs, else receivers and senders."""
    own = _own(link)
    items = (CHANNELS_COMBINED,) if CHANNELS_COMBINED in own else (CHANNELS_RX, CHANNELS_TX)
    asked = section.channels
    return {
        i: own[i].top or own[i].value if asked is None or asked == MAX else int(asked)
        for i in items
        if i in own
    }


def _shortage(section: Section, link: Link) -> str | None:
    """Say why the device cannot have the channels, None when it can."""
    own = _own(link)
    if not own:
        return f"driver {link.driver or 'unknown'} does not let its queues be counted"
    for item, count in _wanted(section, link).items():
        top = own[item].top
        if top is not None and count > top:
            return f"channels={count}: the device has at most {top}; give up to {top}, or max"
    return None


def foresee(snapshot: Snapshot, wanted: Counts) -> Snapshot:
    """Return the host as it will be with these channels; the same object when nothing changes."""
    fate: dict[str, Link] = {}
    first = _unused(snapshot) if wanted else UNBORN
    for name, own in wanted.items():
        link = snapshot.link(name)
        if link is not None and any(read_device(link, i) != n for i, n in own.items()):
            fate[name] = _resized(link, own, first - 1000 * len(fate))
    if not fate:
        return snapshot
    links = tuple(fate.get(link.name, link) for link in snapshot.links)
    known = {irq.number: irq for irq in snapshot.irqs}
    unborn = [irq for link in fate.values() for irq in _unborn_irqs(link, known)]
    irqs = (*snapshot.irqs, *sorted(unborn, key=lambda irq: irq.number))
    return replace(snapshot, links=links, irqs=irqs)


def _unused(snapshot: Snapshot) -> int:
    """Return where numbers of unborn NAPIs and interrupts begin: this host may be foreseen."""
    irqs = (irq.number for irq in snapshot.irqs)
    napis = (napi.napi_id for link in snapshot.links for napi in link.napis)
    return min(0, *irqs, *napis) - 1


def _unborn_irqs(link: Link, known: Mapping[int, Irq]) -> Iterator[Irq]:
    """Yield interrupts of queues to come, which can be switched if those that are there can."""
    numbers = {q.irq for q in link.queues if q.irq is not None}
    switchable = any(known[n].threaded is not None for n in numbers if n in known)
    for number in numbers:
        if number <= UNBORN:
            yield Irq(number, "", threaded=0 if switchable else None)


def totals(link: Link, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return how many queues of each kind the device has with these channels."""
    held = {i: t.value for i, t in _own(link).items()} | dict(wanted)
    pairs = held.get(CHANNELS_COMBINED, 0)
    return {"rx": pairs + held.get(CHANNELS_RX, 0), "tx": pairs + held.get(CHANNELS_TX, 0)}


def _resized(link: Link, wanted: Mapping[str, int], unborn: int) -> Link:
    queues: list[Queue] = []
    napis = list(link.napis)
    for kind, count in totals(link, wanted).items():
        own = link.queues_of(kind)
        queues.extend(own[:count])
        for index in range(len(own), count):
            queue = _unborn(kind, index, own[0] if own else None, unborn - index)
            queues.append(queue)
            if queue.napi_id is not None and kind == "rx":
                napis.append(Napi(queue.napi_id, queue.irq))
    return replace(link, queues=tuple(queues), napis=tuple(napis))


def _unborn(kind: str, index: int, first: Queue | None, number: int) -> Queue:
    """Return a queue that will have what the device's first one has, with values nobody knows."""
    if first is None:
        return Queue(kind, index)
    return Queue(
        kind,
        index,
        None if first.napi_id is None or kind == "tx" else number,
        first.napi_source,
        None if first.irq is None or kind == "tx" else number,
        first.irq_source,
        rps_cpus=None if first.rps_cpus is None else (),
        rps_flow_cnt=None if first.rps_flow_cnt is None else 0,
        # A device's only send queue has no XPS, those of a device with more do.
        xps_cpus=() if kind == "tx" else None,
        xps_rxqs=() if kind == "tx" else None,
    )


def plan(draft: Draft, policy: Policy, devices: Iterable[Device]) -> None:
    """Plan channels, rings and coalescing; REFUSED where new queues could cut off a login."""
    planned = []
    for section, link in devices:
        wanted: Mapping[str, Asked] = _values(draft, section, link)
        if cutting.guarded(draft.view, policy, link.name):
            wanted = _beside_login(draft, section, link, wanted)
        planned += [link.name] if wanted else []
        for item, (value, option, why) in wanted.items():
            draft.want(Target(link.name, WHOLE, item), value, section.reason(option) + why)
    if planned and NETWORK_MANAGER in draft.view.snapshot.writers:
        draft.warnings.append(
            f"{NETWORK_MANAGER} runs and, where a connection of {', '.join(planned)} has ethtool"
            " settings, sets those when it is activated: leave them out there"
        )


def _values(draft: Draft, section: Section, link: Link) -> dict[str, Asked]:
    """Return by item what the device can have; report the rest."""
    asked = dict(section.tunables)
    options = [o for o in ("channels", *asked) if o != "channels" or section.channels is not None]
    if options and not link.up:
        reason = f"interface {link.name} is down, and its driver may set up queues only when up"
        draft.skip(link.name, WHOLE, ", ".join(options), "down", reason)
        return {}
    found: dict[str, Asked] = {}
    if section.channels is not None:
        short = _shortage(section, link)
        if short is not None:
            draft.skip(link.name, WHOLE, "channels", "unsupported", short)
        else:
            found |= {i: Asked(n, "channels") for i, n in _wanted(section, link).items()}
    queues = draft.view.links[link.name].count("rx")
    if section.management_queues >= queues and asked:
        reason = f"management_queues={section.management_queues} keeps all of its {queues} queues"
        draft.skip(link.name, WHOLE, ", ".join(asked), "left-alone", reason)
        return found
    for item in (i for i in (*RING_ITEMS, *COALESCE_ITEMS) if i in asked):
        value = _tunable(draft, link, item, asked[item])
        if value is not None:
            found[item] = Asked(value, option_of(item))
    return found | _single_frames(draft, link, asked, found)


def _single_frames(
    draft: Draft, link: Link, asked: Container[str], found: Mapping[str, Asked]
) -> dict[str, Asked]:
    """Return 1 for numbers of packets that 0 microseconds would leave alone to end the wait.

    One that we made 1 counts with its original, which would come back. 0 stays as it is: hns3 takes
    no other, and virtio_net not while it is up.
    """
    alone = {}
    for usecs, frames in FRAMES_OF.items():
        own = link.tunable(frames)
        none = usecs in found and found[usecs].value == 0 and frames not in asked
        if not none or own is None or link.driver in FIXED_FRAMES:
            continue
        count = int(draft.returning.get(Target(link.name, WHOLE, frames), own.value))
        if count > 1:
            why = f": without a limit of time a packet would wait until there are {count}"
            alone[frames] = Asked(1, found[usecs].option, why)
    return alone


def _tunable(draft: Draft, link: Link, item: str, asked: Value) -> Value | None:
    own, given = link.tunable(item), f"{item.replace('-', '_')}={asked}"
    problem = None
    if own is None:
        problem = f"driver {link.driver or 'unknown'} does not have it"
    elif own.top is not None and asked != MAX and int(asked) > own.top:
        problem = f"{given}: the device takes at most {own.top}; give up to {own.top}, or max"
    elif asked == MAX and own.top is None:
        driver = link.driver or "unknown"
        problem = f"{given}: driver {driver} does not tell its maximum; give a number"
    elif asked == MAX:
        return own.top
    if problem is not None:
        draft.skip(link.name, WHOLE, item, "unsupported", problem)
        return None
    return asked


def _beside_login(
    draft: Draft, section: Section, link: Link, wanted: Mapping[str, Asked]
) -> Mapping[str, Asked]:
    """Return what cannot cut off who is logged in over the device.

    New queues are refused; coalescing is left alone, which profiles ask of whatever devices there
    are.
    """
    resets = {
        item: one
        for item, one in wanted.items()
        if draft.present.read(Target(link.name, WHOLE, item)) != one.value
        and cutting.cuts(draft.view, link.name, item)
    }
    option = next((one.option for item, one in resets.items() if item in RESET_ITEMS), None)
    if option is not None:
        problem = f"{cutting.LOGIN}, and the change could cut that off"
        raise section.error(option, problem, cutting.PERMIT, device=link.name)
    if resets:
        given = section.reason(*dict.fromkeys(one.option for one in resets.values()))
        why = cutting.left_alone(draft.view, link.name, given)
        draft.skip(link.name, WHOLE, ", ".join(resets), "left-alone", why)
    return {item: one for item, one in wanted.items() if item not in resets}
