# SPDX-License-Identifier: GPL-2.0-or-later
"""What must outlive this process, on disk: the originals, an apply that waits to be confirmed, and
who lays out which interface.

Written whole and durably. A power cut at any moment leaves the old file or the new one, never a
part: temporary file, fsync, rename, fsync of the directory. A checksum tells a damaged file, the
boot id an outdated one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rxlane import codec
from rxlane.errors import Kind, RxlaneError
from rxlane.host.session import Login
from rxlane.plan import Journal
from rxlane.stored import FORMAT, LATER, STATE

DIRECTORY = Path(STATE)
UNCHANGED = "nothing was changed"
LOCK_WAIT = 10.0  # seconds; an apply of hundreds of queues takes less


@dataclass(frozen=True, slots=True)
class Process:
    """started: as in session.start_of(), for pids are used again."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Pending:
    """An apply that is undone unless it is confirmed.

    deadline: nanoseconds of CLOCK_BOOTTIME. devices: indexes of the devices whose originals come
    back, HOST_INDEX for the host's, None for all. guard: the process that waits, None until it is
    ready; failure says why it never will be. applier: the process that applies. absent: indexes of
    devices with originals that were not here when it began, so that it has no part in them; below
    zero where another device had it then.
    """

    boot_id: str
    token: str
    deadline: int
    devices: tuple[int, ...] | None
    login: Login
    guard: Process | None = None
    failure: str = ""
    format: int = FORMAT
    applier: Process | None = field(default=None, metadata=LATER)
    absent: tuple[int, ...] = field(default=(), metadata=LATER)

    def covers(self, index: int) -> bool:
        """True where the originals of the device of this index come back."""
        return self.devices is None or index in self.devices


@dataclass(frozen=True, slots=True)
class Claims:
    """Indexes of the interfaces that are laid out by their .link files, and by TuneD's profile.

    released: None, or since a damaged file was replaced those that a rollback took from whoever had
    them: of all others a claim may have been lost.
    """

    boot_id: str
    links: tuple[int, ...] = ()
    tuned: tuple[int, ...] = ()
    format: int = FORMAT
    released: tuple[int, ...] | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True)
class Word:
    """That a device's layout was given up. index: None for all. at: ns, no two of one alike."""

    index: int | None
    at: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Layouts that were given up while others may keep them: rolled back, or not confirmed.

    The last word of each device, so that one which comes soon after another takes nothing from it.
    """

    words: tuple[Word, ...] = ()
    format: int = FORMAT

    def with_words(self, indexes: Iterable[int | None], at: int) -> GivenUp:
        new = {index: Word(index, at) for index in indexes}
        return GivenUp((*(word for word in self.words if word.index not in new), *new.values()))


class _Versioned(Protocol):
    @property
    def format(self) -> int: ...


_Held = TypeVar("_Held", bound=_Versioned)


class Sealed(Generic[_Held]):
    """One object in one file with its checksum. label: its name within the file."""

    def __init__(self, path: Path, kind: type[_Held], label: str, loss: str, remedy: str) -> None:
        self.path = path
        self._kind = kind
        self._label = label
        self._loss = loss
        self._remedy = remedy

    def load(self) -> _Held | None:
        """Return what the file holds, None when there is none; JOURNAL when it is damaged."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self.path, "cannot be read", error) from error
        return self._parse(data)

    def _damaged(self, why: str) -> RxlaneError:
        problem = f"{self.path} is damaged ({why}): {self._loss}"
        return RxlaneError(Kind.JOURNAL, problem, remedy=self._remedy)

    def _parse(self, data: bytes) -> _Held:
        try:
            outer = json.loads(data)
        except UnicodeDecodeError:
            raise self._damaged("not UTF-8") from None
        except (ValueError, RecursionError):
            raise self._damaged("no JSON") from None
        if not isinstance(outer, dict) or set(outer) != {self._label, "crc32"}:
            raise self._damaged(f"no {self._label}")
        if outer["crc32"] != self._checksum(data):
            raise self._damaged("checksum")
        del data
        try:
            held = codec.from_plain(self._kind, outer.pop(self._label))
        except RxlaneError as error:
            raise self._damaged(str(error)) from None
        if held.format != FORMAT:
            raise self._damaged(f"format {held.format}")
        return held

    def _checksum(self, data: bytes) -> int:
        """Return the checksum of what is sealed, byte for byte.

        It is to tell damage, not malice; the library of cryptography is 3 MB of a watcher's memory.
        """
        start, end = len(self._label) + len('{"":'), data.rfind(b',"crc32":')
        return zlib.crc32(memoryview(data)[start : max(start, end)])

    def save(self, held: _Held) -> None:
        """Replace the file durably; JOURNAL, with the old one intact, when that fails."""
        temporary = self.path.with_suffix(".tmp")
        checksum = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "wb") as stream:
                stream.write(b'{"%s":' % self._label.encode())
                for piece in codec.pieces(held):
                    data = piece.encode()
                    checksum = zlib.crc32(data, checksum)
                    stream.write(data)
                stream.write(b',"crc32":%d}\n' % checksum)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self.path)
            self._sync_directory()
        except OSError as error:
            raise _failed(self.path, "cannot be written", error) from error

    def remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as error:
            raise _failed(self.path, "cannot be removed", error) from error

    def _sync_directory(self) -> None:
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Store:
    """The journal's directory. Use lock() around load, change and save."""

    def __init__(self, directory: str | Path = DIRECTORY) -> None:
        self.directory = Path(directory)
        self.path = self.directory / "journal.json"
        loss, remedy = "the original settings are not known", "look at it, then remove it or reboot"
        self._journal = Sealed(self.path, Journal, "journal", loss, remedy)
        loss, remedy = "what waits to be confirmed is not known", "run `rxlane rollback`"
        self.pending = Sealed(self.directory / "confirm.json", Pending, "pending", loss, remedy)
        loss, remedy = "who lays out what is not known", "restart tuned and the services of links"
        self.claims = Sealed(self.directory / "claims.json", Claims, "claims", loss, remedy)
        loss, remedy = "what was given up is not known", "remove it"
        self.given_up = Sealed(self.directory / "given-up.json", GivenUp, "given", loss, remedy)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the only right to change settings; BUSY when another holds it for long."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _lock_file(self.directory / "lock")
        except FileExistsError as error:
            problem = f"{self.directory} is not a directory"
            remedy = "name the journal's directory"
            raise RxlaneError(Kind.JOURNAL, problem, remedy=remedy) from error
        except OSError as error:
            raise _failed(self.path, "cannot be locked", error) from error
        try:
            self._wait(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int) -> None:
        deadline = time.monotonic() + LOCK_WAIT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    problem = f"another rxlane holds {self.directory}/lock"
                    raise RxlaneError(Kind.BUSY, problem, remedy="try again") from None
                time.sleep(0.05)

    def load(self) -> Journal | None:
        """Return the journal, None when there is none; JOURNAL when it is damaged."""
        return self._journal.load()

    def save(self, journal: Journal) -> None:
        """Replace the journal durably; JOURNAL, with the old one intact, when that fails."""
        self._journal.save(journal)

    def remove(self) -> None:
        self._journal.remove()


def _lock_file(path: Path) -> int:
    """Open the lock; on a file system that became read-only originals can still be brought back."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def meaning(what: str) -> Iterator[None]:
    """Say with an error of the store what it means for who ran into it."""
    try:
        yield
    except RxlaneError as error:
        error.problem = f"{error.problem}; {what}"
        raise


def _failed(path: Path, what: str, error: OSError) -> RxlaneError:
    reason = os.strerror(error.errno or 0)
    return RxlaneError(Kind.JOURNAL, f"{path} {what}: {reason}")
