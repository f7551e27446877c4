# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a plan is written now, and what after another look at the host. Pure.

Channels and rings make queues anew: which NAPIs, interrupts and threads there are is known only
afterwards, and so is what the driver reset. So they are written first and alone, the host is
observed again, and the rest is planned for what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace

from rxlane.deciding import cutting
from rxlane.deciding.draft import assigned
from rxlane.deciding.hardware import totals
from rxlane.items import (
    CHANNEL_ITEMS,
    CHEAP_ITEMS,
    ETHTOOL_ITEMS,
    EVERY_ITEM,
    RESET_ITEMS,
    RFS,
    RING_ITEMS,
    RPS,
    RX_THREAD_ITEMS,
    RX_THREADS,
    SEPARATION_ITEMS,
    TX_ITEMS,
    VHOST_CPUS,
    XPS_ITEMS,
    Value,
)
from rxlane.model import Link, Snapshot
from rxlane.plan import WHOLE, Change, Journal, Plan, Target
from rxlane.revert import Carried, originals, renamed
from rxlane.sections import Policy
from rxlane.settings import View

# Enough for: what leaving queues have goes back, channels and rings, all the rest, and what threads
# that came with returned modes call for.
ROUNDS = 4


def first_part(carried: Carried, plan: Plan, before: Snapshot) -> Carried:
    """Return what is to be written before the host, which is as in before, is looked at again.

    What the plan wants of a queue that leaves is not: it would cost a round that the rest may need.
    """
    resets = [c for c in carried.changes if c.target.item in RESET_ITEMS]
    if not resets:
        return carried
    goal = {c.target: c.after for c in resets}
    own = set(plan.changes)
    back = (c for c in carried.changes if c.before is not None and c not in own)
    links = {link.name: link for link in before.links}
    leaves = tuple(c for c in back if _leaves(links.get(c.target.device), goal, c.target))
    return replace(carried, changes=leaves or tuple(resets), returns=True)


def _leaves(link: Link | None, goal: Mapping[Target, Value], target: Target) -> bool:
    """True for a setting of a queue that goes away with the channels of the goal."""
    if link is None or target.queue == WHOLE:
        return False
    wanted = {
        item: int(goal[Target(link.name, WHOLE, item)])
        for item in CHANNEL_ITEMS
        if Target(link.name, WHOLE, item) in goal
    }
    return bool(wanted) and _beyond(target, totals(link, wanted))


def _beyond(target: Target, queues: Mapping[str, int]) -> bool:
    """True when a device with so many queues does not have the setting."""
    if target.item in RX_THREAD_ITEMS:
        return False  # of no queue
    if target.item in TX_ITEMS:
        # The kernel has no XPS for a device's only send queue.
        return target.queue >= queues["tx"] or (queues["tx"] == 1 and target.item in XPS_ITEMS)
    return target.queue >= queues["rx"]


def leaving(values: Mapping[Target, Value], view: View) -> dict[Target, Value]:
    """Return those of the values to be put back that belong to queues which go away by that."""
    return {t: v for t, v in values.items() if _leaves(view.links.get(t.device), values, t)}


def of_reset(view: View, changes: Iterable[Change]) -> dict[Target, Value]:
    """Return every setting of the devices whose channels or rings change."""
    names = {c.target.device for c in changes if c.target.item in RESET_ITEMS}
    found: dict[Target, Value] = {}
    for name in sorted(names & set(view.links)):
        found |= view.of_device(view.links[name])
    return found


def gone(view: View, values: Mapping[Target, Value | None], target: Target) -> bool:
    """True when the queue is not there because its device has its original channels again."""
    link = view.links.get(target.device)
    channels = {
        t.item: v
        for t, v in values.items()
        if t.device == target.device and t.item in CHANNEL_ITEMS
    }
    if link is None or not channels or target.queue == WHOLE:
        return False
    back = all(view.read(Target(link.name, WHOLE, i)) == v for i, v in channels.items())
    return back and _beyond(target, {kind: link.count(kind) for kind in ("rx", "tx")})


def asked(snapshot: Snapshot, policy: Policy) -> frozenset[Target]:
    """Return the channels and rings that the policy speaks of, whether devices have them or not."""
    found = set[Target]()
    for section, link in assigned(snapshot, policy.sections):
        items = {item for item, _ in section.tunables if item in RING_ITEMS}
        items.update(CHANNEL_ITEMS if section.channels is not None else ())
        found.update(Target(link.name, WHOLE, item) for item in items)
    return frozenset(found)


def coming_back(
    journal: Journal | None, view: View, scope: Container[str] | None, policy: Policy
) -> dict[Target, Value]:
    """Return what goes back to where the policy does not want it; see originals(). journal: as
    called_now().

    Channels that will stay as they are are not among it: their driver refused to change them, or
    does not tell them now, or that could cut off a login.
    """
    back = originals(journal, view, scope, asked(view.snapshot, policy))
    refused = channels_refused(journal)

    def stays(target: Target) -> bool:
        if target.item not in CHANNEL_ITEMS:
            return False
        risk = cutting.at_risk(view, policy, target.device, target.item)
        return target in refused or view.read(target) is None or risk is not None

    return {target: value for target, value in back.items() if not stays(target)}


def channels_refused(journal: Journal | None) -> dict[Target, str]:
    """Return the channels whose driver refused to change them when the journal was written, by
    what it said.
    """
    left = () if journal is None else journal.left
    counts = (s for s in left if s.kind == "unsupported" and s.item in CHANNEL_ITEMS)
    return {s.target: s.reason for s in counts}


def not_tried(journal: Journal | None, carried: Carried, before: Snapshot) -> frozenset[Target]:
    """Return the channels that a driver keeps from going back and that are not asked to now."""
    tried = {change.target for change in carried.changes}
    refused = channels_refused(journal).keys() - tried
    if not refused:
        return frozenset()
    view, here = View.of(before), renamed(carried.entries, before.links)
    own = (e for e in here if e.target in refused)
    away = (e for e in own if e.before is not None and not view.is_back(e.target, e.before))
    return frozenset(e.target for e in away)


def without_tunables(snapshot: Snapshot, refused: Collection[Target]) -> Snapshot:
    """Return the host without the settings that a driver showed and then refused to change.

    Nothing is planned upon them any more, such as queues that will not come. One count of channels
    without the others would have these stand for it.
    """
    missing = {(t.device, t.item) for t in refused if t.item in ETHTOOL_ITEMS}
    counted = {device for device, item in missing if item in CHANNEL_ITEMS}
    missing |= {(device, item) for device in counted for item in CHANNEL_ITEMS}
    if not missing:
        return snapshot

    def left(link: Link) -> Link:
        own = (t for t in link.tunables if (link.name, t.item) not in missing)
        return replace(link, tunables=tuple(own))

    return replace(snapshot, links=tuple(left(link) for link in snapshot.links))


def refused_before(
    journal: Journal | None, snapshot: Snapshot, policy: Policy
) -> dict[Target, str]:
    """Return the channels that the policy speaks of and whose driver refused to change them when
    the journal was written, by what it said.

    It would refuse again, but only after what the queues have that were to leave went back in vain.
    """
    if journal is None:
        return {}
    own, wanted = {entry.ifindex for entry in journal.entries}, asked(snapshot, policy)
    names = {link.name for link in snapshot.links if link.ifindex in own}
    known = channels_refused(journal)
    return {t: why for t, why in known.items() if t.device in names and t in wanted}


def reads(policy: Policy, items: Collection[str]) -> frozenset[str]:
    """Return the settings that must be read to plan: steering and what ethtool knows cost most.

    items: those of the journal. What a reset may lose is read before it.
    """
    if any(i in RESET_ITEMS for i in items) or any(s.resets for s in policy.sections):
        return EVERY_ITEM
    found = {*CHEAP_ITEMS, *items}
    if policy.tunes:
        found.update(ETHTOOL_ITEMS)
    if policy.guests:
        found.add(VHOST_CPUS)
    for section in policy.steering:
        # Each excludes the other on a device.
        found.update((RPS, RX_THREADS) if section.rps is not None else ())
        found.update((RFS, RX_THREADS) if section.rfs is not None else ())
        found.update((*SEPARATION_ITEMS, RPS, RFS) if section.separates else ())
        found.update(XPS_ITEMS if section.xps is not None else ())
        found.update((RPS, RX_THREADS) if section.tap_rps is not None else ())
    return frozenset(found)
