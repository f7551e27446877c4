# SPDX-License-Identifier: GPL-2.0-or-later
"""Plans and verdicts as text for people and JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rxlane.codec import to_plain
from rxlane.items import THREAD_ITEMS
from rxlane.plan import HOST, WHOLE, Change, Mismatch, Plan


def change_text(change: Change) -> str:
    new = "(new thread)" if change.target.item in THREAD_ITEMS else "(new queue)"
    before = new if change.before is None else change.before
    lines = f"{change.target}: {before} -> {change.after}"
    if change.disruption != "none":
        lines += f"  [{change.disruption}]"
    return f"{lines}\n    {change.reason}" if change.reason else lines


def plan_text(plan: Plan) -> str:
    """Return the plan as a diff with reasons; what is skipped and warned of comes after."""
    lines = [change_text(c) for c in plan.changes]
    lines += [f"skipped: {skip}" for skip in plan.skips]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines.append(f"{len(plan.changes)} to change, {len(plan.holds)} as wanted already")
    return "\n".join(lines) + "\n"


def _plain_change(change: Change) -> dict[str, Any]:
    target = change.target
    queue = None if target.queue == WHOLE else target.queue
    return {
        "device": None if target.device == HOST else target.device,
        "queue": queue,
        "setting": target.item,
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


def verify_text(checked: int, mismatches: Sequence[Mismatch]) -> str:
    lines = [f"drifted: {m}" for m in mismatches]
    lines.append(f"{checked - len(mismatches)} of {checked} settings as planned")
    return "\n".join(lines) + "\n"


def verify_json(checked: int, mismatches: Sequence[Mismatch]) -> str:
    drifted = [
        {
            "setting": str(m.target),
            "expected": m.expected,
            "found": m.found,
            "cause": m.cause,
        }
        for m in mismatches
    ]
    return json.dumps({"checked": checked, "drifted": drifted}, indent=1) + "\n"
