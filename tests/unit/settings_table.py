# SPDX-License-Identifier: GPL-2.0-or-later
"""What each profile sets, with reason and source: tuned-profiles/settings.md, from the profiles.

`make settings` writes it. The profiles' comments are the reasons' one home; a
paragraph of options belongs to the comment above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rxlane.tuned.variables import CALL

FOLDER = Path(__file__).parents[2] / "tuned-profiles"
TABLE = FOLDER / "settings.md"
NAMES = ("net-low-latency", "net-vm-host", "net-forwarding")
HEAD = """# What the profiles set, and why

Written by `make settings` from the profiles, whose comments are the reasons' home.
*the host's* is a setting that is left alone until its variable in
`/etc/tuned/PROFILE-variables.conf` has a value. `man 7 rxlane-tuned` explains every option. *The
script* is the one in "Add support to do threaded napi busy poll" (v4, netdev, March 2025).
"""


@dataclass(frozen=True)
class Row:
    """An option of a section: its value, the variable that holds it ("" for none), the reason."""

    section: str
    option: str
    value: str
    variable: str
    reason: str


def paragraphs(text: str) -> Iterator[list[str]]:
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip().splitlines()
        if lines:
            yield lines


def defaults_of(profile: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of a profile, each of which asks for its own value, by their defaults."""
    found = {}
    for name, text in variables.items():
        call = CALL.fullmatch(text)
        assert call and call.groups()[:2] == (profile, name), f"{profile}: {name}={text}"
        found[name] = call[3]
    return found


def variables(profile: str, text: str) -> dict[str, str]:
    """The defaults of [variables]."""
    found = re.search(r"^\[variables\]$(.*?)^\[", text, re.MULTILINE | re.DOTALL)
    lines = found[1].splitlines() if found else []
    return defaults_of(
        profile, dict(line.split("=", 1) for line in lines if re.match(r"[a-z_]+=", line))
    )


def rows(profile: str, text: str) -> list[Row]:
    """Every option of the plugins' sections, in the profile's order."""
    defaults = variables(profile, text)
    section, made = "", []
    for lines in paragraphs(text):
        comment = " ".join(line[1:].strip() for line in lines if line.startswith("#"))
        for line in lines:
            if header := re.fullmatch(r"\[(\w+)\]", line):
                section = header[1]
            elif section not in ("main", "variables") and (pair := re.match(r"(\w+)=(.*)", line)):
                inner = re.fullmatch(r"\$\{(\w+)\}", pair[2])
                variable = inner[1] if inner else ""
                value = defaults[variable] if variable else pair[2]
                made.append(Row(section, pair[1], value, variable, comment))
    return made


def table(name: str) -> str:
    text = (FOLDER / name / "tuned.conf").read_text()
    lines = [f"\n## {name}\n", "| setting | value | variable | reason and source |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    for row in rows(name, text):
        value = f"`{row.value}`" if row.value else "*the host's*"
        variable = f"`{row.variable}`" if row.variable else ""
        reason = row.reason.replace("|", "\\|")
        lines.append(f"| `[{row.section}] {row.option}` | {value} | {variable} | {reason} |")
    return "\n".join(lines) + "\n"


def document() -> str:
    return HEAD + "".join(table(name) for name in NAMES)


if __name__ == "__main__":
    TABLE.write_text(document())
