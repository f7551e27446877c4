# SPDX-License-Identifier: GPL-2.0-or-later
"""Plans and verdicts as text for people and JSON for programs. Pure."""

from __future__ import annotations

import json
from typing import Any

from rxlane.codec import to_plain
from rxlane.items import THREAD_ITEMS
from rxlane.plan import HOST, NONE, WHOLE, Change, Plan, Target
from rxlane.showing import sanitize
from rxlane.verify import Verdict


def change_text(change: Change) -> str:
    new = "(new thread)" if change.target.item in THREAD_ITEMS else "(new queue)"
    before = new if change.before is None else change.before
    lines = f"{change.target}: {before} -> {change.after}"
    if change.disruption != NONE:
        lines += f"  [{change.disruption}]"
    return f"{lines}\n    {change.reason}" if change.reason else lines


def plan_text(plan: Plan) -> str:
    """Return the plan as a diff with reasons; what is skipped and warned of comes after."""
    lines = [change_text(c) for c in plan.changes]
    lines += [f"skipped: {skip}" for skip in plan.skips]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines.append(f"{len(plan.changes)} to change, {len(plan.holds)} as wanted already")
    return sanitize.lines("\n".join(lines)) + "\n"


def _plain_target(target: Target) -> dict[str, Any]:
    return {
        "device": None if target.device == HOST else target.device,
        "queue": None if target.queue == WHOLE else target.queue,
        "setting": target.item,
    }


def _plain_change(change: Change) -> dict[str, Any]:
    return {
        **_plain_target(change.target),
        "before": change.before,
        "after": change.after,
        "reason": change.reason,
        "disruption": change.disruption,
    }


def plan_json(plan: Plan) -> str:
    data = {
        "changes": [_plain_change(c) for c in plan.changes],
        "holds": [_plain_change(c) for c in plan.holds],
        "skips": to_plain(plan.skips),
        "warnings": list(plan.warnings),
    }
    return json.dumps(data, indent=1) + "\n"


def verify_text(verdict: Verdict, waiting: int | None) -> str:
    """waiting: originals that are not back yet and are to be, None where nothing was applied."""
    if waiting is None:
        return "nothing was applied, so there is nothing to compare\n"
    lines = [f"drifted: {mismatch}" for mismatch in verdict.drifted]
    lines += [f"not compared: {skip}" for skip in verdict.left]
    passed = len(verdict.passed)
    if waiting:
        lines.append(f"{waiting} originals wait to be put back")
    lines.append(f"{passed} of {passed + len(verdict.drifted)} settings as planned")
    return sanitize.lines("\n".join(lines)) + "\n"


def verify_json(verdict: Verdict, waiting: int | None) -> str:
    """Return every setting with its state: ok, drifted, or the kind of the skip.

    waiting: as in verify_text().
    """
    settings = [
        {**_plain_target(entry.target), "state": "ok", "expected": entry.after}
        for entry in verdict.passed
    ]
    settings += [
        {
            **_plain_target(mismatch.target),
            "state": "drifted",
            "expected": mismatch.expected,
            "found": mismatch.found,
            "cause": mismatch.cause,
        }
        for mismatch in verdict.drifted
    ]
    settings += [
        {
            **_plain_target(skip.target),
            "state": skip.kind,
            "cause": skip.reason,
        }
        for skip in verdict.left
    ]
    data = {"applied": waiting is not None, "waiting": waiting or 0, "settings": settings}
    return json.dumps(data, indent=1) + "\n"
