# SPDX-License-Identifier: GPL-2.0-or-later
"""What is asked for and not done: how it is told, and what of it the journal knows. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from rxlane.applying import stages
from rxlane.items import CHANNEL_ITEMS, IRQ_ITEMS, THREAD_ITEMS
from rxlane.plan import HOST, Journal, Plan, Skip, Target


def told(plan: Plan, refused: Mapping[Target, str]) -> tuple[Skip, ...]:
    """Return the plan's skips and what was refused: of channels only that, which it planned
    without.
    """
    uncounted = {t.device for t in refused if t.item in CHANNEL_ITEMS}
    skips = (s for s in plan.skips if s.item != "channels" or s.device not in uncounted)
    return (*skips, *refusals(refused))


def refusals(refused: Mapping[Target, str]) -> Iterator[Skip]:
    for t, why in refused.items():
        if t.item not in THREAD_ITEMS:  # their mode's line says it
            kind = "unmovable" if t.item in IRQ_ITEMS else "unsupported"
            yield Skip(t.device, t.queue, t.item, kind, why)


def knowing(journal: Journal, refused: Mapping[Target, str], written: Container[Target]) -> Journal:
    """Return the journal with what has been learned of drivers since: which channels they refused
    to change, and which they did change. The next plan must not expect others.
    """
    channels = {t: why for t, why in refused.items() if t.item in CHANNEL_ITEMS}
    done = {t for t in stages.channels_refused(journal) if t in written}
    known = tuple(s for s in journal.left if s.kind != "unsupported" or s.target not in done)
    new = (skip for skip in refusals(channels) if skip not in known)
    return replace(journal, left=(*known, *new))


def left(
    journal: Journal | None,
    plan: Plan,
    scope: Container[str] | None,
    refused: Mapping[Target, str],
    stay: Container[Target],
) -> tuple[Skip, ...]:
    """Return what is asked for and not done: by this plan, for devices outside of it, and what
    refused before and is not tried again. stay: channels that do, though nobody asks for them.
    """
    waiting = {held.target for held in plan.holds if held.before != held.after}
    new = told(plan, refused)

    def stays(skip: Skip) -> bool:
        outside = scope is not None and skip.device != HOST and skip.device not in scope
        kept = skip.kind == "unsupported" and skip.target in stay
        return outside or skip.target in waiting or kept

    old = () if journal is None else journal.left
    return (*(skip for skip in old if skip not in new and stays(skip)), *new)
