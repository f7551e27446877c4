# SPDX-License-Identifier: GPL-2.0-or-later
"""Text that somebody else wrote, read up to a limit."""

from __future__ import annotations

import sys

from rxlane.errors import Kind, RxlaneError


def text_of(path: str, limit: int, file: str | bytes) -> str:
    """Return a file's text, FORMAT when it is longer than limit in bytes or no UTF-8.

    path: what it is called in messages. file: its name, "-" for standard input.
    """
    if file == "-":
        data = sys.stdin.buffer.read(limit + 1)
    else:
        with open(file, "rb") as stream:
            data = stream.read(limit + 1)
    if len(data) > limit:
        raise RxlaneError(Kind.FORMAT, f"{path}: longer than {limit} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RxlaneError(Kind.FORMAT, f"{path}: not UTF-8") from None
