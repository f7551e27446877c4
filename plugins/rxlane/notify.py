# SPDX-License-Identifier: GPL-2.0-or-later
"""inotify(7): which files of a folder were put there, replaced or removed."""

from __future__ import annotations

import ctypes
import os
import struct

# include/uapi/linux/inotify.h
IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_Q_OVERFLOW = 0x80, 0x100, 0x200, 0x4000
_HEADER = struct.Struct("=iIII")  # struct inotify_event: wd, mask, cookie, len
ROOM = 1 << 16  # bytes read at once; an event has at most 16 and a name of 256


class Folders:
    """A descriptor that becomes readable when something happens in the folders watched."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"inotify: {os.strerror(code)}")
        return result

    def watch(self, folder: str) -> int:
        """Return the watch's number; OSError when there is no such folder."""
        mask = IN_MOVED_TO | IN_CREATE | IN_DELETE
        path = os.fsencode(folder)
        return self._checked(self._libc.inotify_add_watch(self.descriptor, path, mask))

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
                name = data[at - size : at].rstrip(b"\0")
                found.add((number, os.fsdecode(name)))

    def close(self) -> None:
        os.close(self.descriptor)
