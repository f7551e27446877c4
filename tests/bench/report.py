# SPDX-License-Identifier: GPL-2.0-or-later
"""What a run of the bench gathers, and how it tells of it."""

import sys
from dataclasses import dataclass, field
from typing import Any

from lab.paths import BUILD

OUT = BUILD / "bench"


@dataclass
class Report:
    """What was measured under which conditions; ``missed`` are the rows that do not hold."""

    conditions: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def show(title: str, table: str) -> None:
    print(f"\n{title}\n\n{table}", flush=True)
