# SPDX-License-Identifier: GPL-2.0-or-later
"""The text of .link files, read as systemd reads it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

LINK = "Link"
_COMMENTS = ("#", ";")
_BLANKS = " \t\n\r"
_ENDS = re.compile(r"\r\n|[\n\r\0]")
# Not a backslash that is itself escaped.
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


class Assignment(NamedTuple):
    """A line such as `MTUBytes=9000` and the section it is in."""

    section: str
    key: str
    value: str


def _lines(text: str) -> Iterator[str]:
    """Yield the lines, joined where one goes on. A comment between the parts is none of them."""
    begun = ""
    for line in _ENDS.split(text):
        if line.lstrip(_BLANKS).startswith(_COMMENTS):
            continue
        begun += line
        if _CONTINUED.search(begun):
            begun = f"{begun[:-1]} "
        else:
            yield begun.strip(_BLANKS)
            begun = ""
    yield begun.strip(_BLANKS)


def assignments(text: str) -> Iterator[Assignment]:
    """Yield what a file says, in its order."""
    section = ""
    for line in _lines(text):
        key, equals, value = line.partition("=")
        if line.startswith("["):
            section = line[1:-1]
        elif equals:
            yield Assignment(section, key.rstrip(_BLANKS), value.lstrip(_BLANKS))


def words(value: str) -> list[str]:
    """Return the words of a value without their quotes, up to a quote that nothing closes."""
    lexer = shlex.shlex(value, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escapedquotes = "\"'"  # within both, other than in a shell
    found: list[str] = []
    with suppress(ValueError):
        found.extend(lexer)
    return found
