# SPDX-License-Identifier: GPL-2.0-or-later
"""The manuals' blocks of commands and of files."""

import re
from pathlib import Path

from conftest import TREE

DOC = TREE / "plugins" / "doc"
GUIDE, COMMAND, TUNED, LINK = (
    DOC / name for name in ("guide.md", "rxlane.1", "rxlane-tuned.7", "rxlane.link.7")
)
MARKDOWN = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
ROFF = re.compile(r"^\.nf\n\.RS\n(.*?)^\.RE\n\.fi$", re.M | re.S)


def blocks(manual: Path) -> list[str]:
    """The text of all blocks. Markdown blocks of another kind than sh would not be tried."""
    text = manual.read_text()
    if manual.suffix == ".md":
        return MARKDOWN.findall(text)
    return [_plain(block) for block in ROFF.findall(text)]


def _plain(roff: str) -> str:
    lines = (line for line in roff.splitlines(keepends=True) if not line.startswith("."))
    return "".join(lines).replace("\\-", "-").replace("\\e", "\\")


def commands(block: str) -> list[str]:
    """One a line, but for lines that a backslash continues."""
    return [line for line in block.replace("\\\n", "").splitlines() if not line.startswith("#")]
