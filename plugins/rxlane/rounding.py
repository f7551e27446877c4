# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers that a driver rounds: rings to powers of two, microseconds to steps of its clock. Pure.

What it makes of a number is wanted from then on. The journal keeps beside it what was asked for:
asking for that again has its answer and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from rxlane.items import COALESCE_ITEMS, RING_ITEMS, SWITCHES, Value
from rxlane.model import Link
from rxlane.plan import Change, Entry, Journal, Plan, Target
from rxlane.revert import renamed
from rxlane.settings import View

ITEMS = frozenset((*RING_ITEMS, *COALESCE_ITEMS)).difference(SWITCHES)
# A driver that shows the old value rounded to that only if it is as near as this part of what was
# asked for: else it took the number and ignored it.
NEAR = 8


def accepted(change: Change, found: Value | None) -> bool:
    """True where the driver rounded: by half or to double at most, and nothing to or from 0."""
    asked = change.after
    if change.target.item not in ITEMS or not isinstance(asked, int) or not isinstance(found, int):
        return False
    if not asked or not found:
        return False
    if found == change.before:
        return abs(found - asked) <= max(1, asked // NEAR)
    return asked <= 2 * found and found <= 2 * asked


def remedy(change: Change, found: Value | None) -> str | None:
    """Say what to ask for where a driver did something else with a number."""
    item = change.target.item
    if item not in ITEMS or found is None:
        return None
    given = f"give {item.replace('-', '_')}={found}"
    return given if found != change.before else f"the driver kept that: {given} or another number"


def made(view: View, changes: Iterable[Change]) -> dict[Target, Value]:
    """Return what drivers made of the numbers that they rounded, of changes that were written."""
    rows = ((c, view.read(c.target)) for c in changes if c.target.item in ITEMS)
    return {c.target: found for c, found in rows if found not in (None, c.after)}


def recorded(entries: Iterable[Entry], rounded: Mapping[Target, Value]) -> tuple[Entry, ...]:
    """Return the journal's entries with that; what only came back is wanted no more than before."""
    return tuple(
        replace(entry, after=rounded[entry.target], asked=entry.after)
        if entry.target in rounded and entry.after is not None
        else entry
        for entry in entries
    )


def answered(
    plan: Plan, journal: Journal | None, links: Collection[Link], written: bool = False
) -> Plan:
    """Return the plan with what drivers made of its numbers, and a warning for each.

    written: the plan has been. Before that only what is as the driver left it is answered.
    """
    entries = () if journal is None else journal.entries
    known = {e.target: e for e in renamed([e for e in entries if e.asked is not None], links)}
    if not known:
        return plan
    changes, holds, warnings = list[Change](), [*plan.holds], [*plan.warnings]
    for change in plan.changes:
        has = _answer(known.get(change.target), change, written)
        if has is None:
            changes.append(change)
            continue
        warnings.append(_warning(change, has))
        (holds if change.before == has else changes).append(replace(change, after=has))
    return replace(plan, changes=tuple(changes), holds=tuple(holds), warnings=tuple(warnings))


def _answer(entry: Entry | None, change: Change, written: bool) -> Value | None:
    if entry is None or entry.asked != change.after:
        return None
    return entry.after if written or entry.after == change.before else None


def _warning(change: Change, has: Value) -> str:
    device, _, item = change.target
    return f"{device}: {item}: {change.after} was asked for, the driver has {has}"
