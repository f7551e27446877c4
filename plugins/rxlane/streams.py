# SPDX-License-Identifier: GPL-2.0-or-later
"""Standard input, output and error of a command: any may be closed, full, or read by nobody."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from rxlane.errors import legible

# What only standard output fails with, for files and sockets say in their errors what they are.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def say(text: str) -> None:
    """Write a line to standard error; where nobody can read it any more, go on without."""
    with contextlib.suppress(OSError):
        print(legible(text), file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Write a line of what was done to standard output at once.

    Where that is not possible the work is done all the same: standard error says so, unless the
    reader left.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"rxlane: {problem(error)}")
        leave()


def show(text: str) -> None:
    """Write a text to standard output, as far as its reader wants to see it; OSError when full."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        leave()


def problem(error: OSError) -> str:
    """Return what went wrong, naming the file, or standard output where it is that."""
    where, reason = error.filename, error.strerror or str(error)
    if where is None and error.errno in UNWRITABLE:
        where = "standard output"
    if isinstance(where, bytes):
        where = os.fsdecode(where)
    return reason if where is None else f"{where}: {reason}"


def open_missing() -> None:
    """Have /dev/null where the caller closed a standard stream.

    Else the next file that is opened would be it: a journal, or a socket to the kernel.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(null, mode, errors="backslashreplace"))


def leave() -> None:
    """Keep the interpreter from flushing once more, at its end, what cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
