# SPDX-License-Identifier: GPL-2.0-or-later
"""inotify(7): which files of a folder came, went or were written."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

# include/uapi/linux/inotify.h
IN_MODIFY, IN_Q_OVERFLOW, IN_IGNORED = 0x2, 0x4000, 0x8000
IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x80, 0x100, 0x200
COMINGS = IN_MOVED_TO | IN_CREATE | IN_DELETE
_HEADER = struct.Struct("=iIII")  # struct inotify_event: wd, mask, cookie, len
# How many of these all processes of a user together may have, and of open files one may.
MOST = "fs.inotify.max_user_instances, or the limit of open files"
ROOM = 1 << 16  # bytes read at once; an event has at most 16 and a name of 256


class Folders:
    """A descriptor that becomes readable when something happens in the folders watched."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        made = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self.descriptor = self._checked(made, MOST)

    def _checked(self, result: int, full: str = "") -> int:
        """full: what to raise where there are too many."""
        if result < 0:
            code = ctypes.get_errno()
            remedy = f"; raise {full}" if full and code == errno.EMFILE else ""
            raise OSError(code, f"inotify: {os.strerror(code)}{remedy}")
        return result

    def watch(self, folder: str, mask: int = COMINGS) -> int:
        """Return the watch's number, the same for the same folder; OSError when there is none."""
        path = os.fsencode(folder)
        return self._checked(self._libc.inotify_add_watch(self.descriptor, path, mask))

    def unwatch(self, number: int) -> None:
        self._checked(self._libc.inotify_rm_watch(self.descriptor, number))

    def read(self) -> set[tuple[int, str]] | None:
        """Return the watch and name of what changed; None when the kernel lost count of it."""
        found: set[tuple[int, str]] = set()
        while True:
            try:
                data = os.read(self.descriptor, ROOM)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                number, mask, _, size = _HEADER.unpack_from(data, at)
                at += _HEADER.size + size
                if mask & IN_Q_OVERFLOW:
                    return None
                if mask & IN_IGNORED:
                    continue  # the answer to unwatch()
                name = data[at - size : at].rstrip(b"\0")
                found.add((number, os.fsdecode(name)))

    def close(self) -> None:
        os.close(self.descriptor)
