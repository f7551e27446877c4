# SPDX-License-Identifier: GPL-2.0-or-later
"""Trees of /sys and /proc as files, and a line of one of them."""

from __future__ import annotations

from pathlib import Path

from rxlane.sysfs import Sysfs


def tree(root: Path, files: dict[str, str]) -> Sysfs:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sysfs(root)


def stat_line(name: str, flags: int, nice: int, priority: int, policy: int) -> str:
    fields = ["S", "2", "0", "0", "0", "-1", str(flags), *["0"] * 9, str(nice), "1", *["0"] * 19]
    fields += [str(priority), str(policy), "0", "0", "0"]
    return f"77 ({name}) " + " ".join(fields)
