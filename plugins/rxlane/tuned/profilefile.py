# SPDX-License-Identifier: GPL-2.0-or-later
"""The files of TuneD's profiles, for who reads them without TuneD."""

from __future__ import annotations

import os

from rxlane.bounded import text_of
from rxlane.errors import Kind, RxlaneError

LIMIT = 1 << 20  # bytes


def profile_file(path: str) -> str | None:
    """Return the text of a file of TuneD's, None when it is not there; raises FORMAT."""
    try:
        # In UTF-8 as profiles are, which may name others: the locale's own characters may be few.
        return text_of(path, LIMIT, path.encode("utf-8", "surrogateescape"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RxlaneError(Kind.FORMAT, f"{path}: {reason}") from None
