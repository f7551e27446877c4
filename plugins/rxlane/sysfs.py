# SPDX-License-Identifier: GPL-2.0-or-later
"""The only opener of files under /proc and /sys. root= points it at a recorded tree in tests."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rxlane import cpulist
from rxlane.errors import Kind, RxlaneError


class Sysfs:
    """Reads and writes small text files below root; absent and unreadable files read as None.

    keep: how many files may stay open from one reading to the next, see read_again().
    """

    def __init__(self, root: str | Path = "/", keep: int = 0) -> None:
        self._root = os.fspath(root).rstrip("/")
        self._keep = keep
        self._kept: dict[str, int] = {}

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _path(self, name: str) -> bytes:
        """Return the path as the kernel has it: in UTF-8, whatever the locale is."""
        return self.path(name).encode("utf-8", "surrogateescape")

    def read(self, name: str) -> str | None:
        """Return the file's text without surrounding white space, None when it cannot be read.

        Many attributes answer EINVAL or EOPNOTSUPP while a device is down; to a reader that is
        the same as not being there.
        """
        try:
            # Plain system calls: an apply reads thousands of these, and open() makes twice as many.
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _contents(descriptor, name).decode("utf-8", "replace").strip()
            finally:
                os.close(descriptor)
        except OSError:
            return None

    def start(self, name: str) -> str:
        """Return the first page of a file that may be long, nothing when it cannot be read."""
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, PAGE).decode("utf-8", "replace")
            finally:
                os.close(descriptor)
        except OSError:
            return ""

    def read_again(self, name: str, writable: bool = False) -> str | None:
        """Return what read() does, of a file that is soon read or written again.

        It stays open if there is room, which halves the system calls of all that follows. An open
        file is the same queue's and the same task's for ever: once these are gone it only fails,
        and the name is looked up anew.
        """
        descriptor = self._kept.get(name)
        try:
            if descriptor is None:
                if len(self._kept) >= self._keep:
                    return self.read(name)
                access = os.O_RDWR if writable else os.O_RDONLY
                descriptor = os.open(self._path(name), access | os.O_CLOEXEC)
                self._kept[name] = descriptor
            data = os.pread(descriptor, READ_SIZE, 0)
        except OSError:
            self._forget(name)
            return self.read(name)
        # A full page may not be all of it.
        return data.decode("utf-8", "replace").strip() if len(data) % PAGE else self.read(name)

    def _forget(self, name: str) -> None:
        descriptor = self._kept.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for name in list(self._kept):
            self._forget(name)

    def number(self, name: str) -> int | None:
        return _number(self.read(name))

    def number_again(self, name: str) -> int | None:
        """Return what number() does, of a file as of read_again() that may be written."""
        return _number(self.read_again(name, writable=True))

    def mask_again(self, name: str) -> tuple[int, ...] | None:
        """Return what mask() does, of a file as of read_again() that may be written."""
        return _mask(self.read_again(name, writable=True))

    def cpus(self, name: str) -> tuple[int, ...]:
        """Return a CPU list file's numbers; () when it is absent, empty or says (null)."""
        text = self.read(name)
        if text is None:
            return ()
        try:
            return cpulist.parse(text)
        except cpulist.ListError:
            return ()

    def mask(self, name: str) -> tuple[int, ...] | None:
        """Return the numbers of a hexadecimal mask file, None when it cannot be read."""
        return _mask(self.read(name))

    def writable(self, name: str) -> bool:
        """True unless the file's mode lets nobody write it. access() tells root nothing."""
        found = self._stat(name)
        return found is None or bool(found.st_mode & stat.S_IWUSR)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(_text(entry) for entry in os.listdir(self._path(directory)))
        except OSError:
            return []

    def inode(self, name: str) -> int:
        """Return the number of the file behind the name, 0 when there is none: of a namespace's
        file it tells which namespace.
        """
        found = self._stat(name)
        return 0 if found is None else found.st_ino

    def filesystem(self, name: str) -> int | None:
        """Return the number of the file system that a file is on, None when it cannot be seen."""
        found = self._stat(name)
        return None if found is None else found.st_dev

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(self._path(name))
        except OSError:
            return None

    def exists(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def pin(self, directory: str) -> int:
        """Return a descriptor that only holds the directory; OSError when there is none."""
        return os.open(self._path(directory), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def folders(self, directory: str) -> list[str]:
        """Return the names of real directories inside, links not followed."""
        try:
            with os.scandir(self._path(directory)) as entries:
                own = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            return sorted(_text(name) for name in own)
        except OSError:
            return []

    def target(self, link: str) -> str | None:
        """Return the resolved path of a symbolic link, None when it does not exist."""
        path = self._path(link)
        return _text(os.path.realpath(path)) if os.path.exists(path) else None

    def write(self, name: str, text: str) -> None:
        """Write text in one system call; KERNEL or UNSUPPORTED with the kernel's reason."""
        if name in self._kept and self._rewrite(name, text):
            return
        try:
            descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise RxlaneError(Kind.UNSUPPORTED, f"/{name} does not exist") from None
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            problem = f"writing {text} to /{name}: {reason}"
            raise RxlaneError(Kind.KERNEL, problem) from error

    def _rewrite(self, name: str, text: str) -> bool:
        """Write to a file that is open; False, with the file closed, when that fails."""
        try:
            os.pwrite(self._kept[name], text.encode(), 0)
        except OSError:
            self._forget(name)
            return False
        return True


def _text(name: bytes) -> str:
    """Return a name as netlink's are read: what is no UTF-8 is replaced."""
    return name.decode("utf-8", "replace")


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _mask(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else cpulist.parse_mask(text)
    except cpulist.ListError:
        return None


PAGE = os.sysconf("SC_PAGE_SIZE")
READ_SIZE = 1 << 16  # bytes; lists and masks of 8192 CPUs are shorter, so one read mostly does


def _contents(descriptor: int, name: str) -> bytes:
    """Read to the end. What is no full page is whole after one read in sysfs, and so is a task's
    stat; elsewhere in /proc a read may end between two lines.
    """
    parts = []
    while part := os.read(descriptor, READ_SIZE):
        parts.append(part)
        if len(part) % PAGE and (name.startswith("sys/") or name.endswith("/stat")):
            break
    return b"".join(parts)
