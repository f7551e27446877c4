# SPDX-License-Identifier: GPL-2.0-or-later
"""The journal of originals on disk: written whole, durably, before the first change.

A power cut at any moment leaves the old file or the new one, never a part: temporary file, fsync,
rename, fsync of the directory. A checksum tells a damaged file, the boot id an outdated one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rxlane import codec
from rxlane.errors import Kind, RxlaneError
from rxlane.model import FORMAT, Journal

DIRECTORY = Path("/var/lib/rxlane")
LOCK_WAIT = 10.0  # seconds; an apply of hundreds of queues takes less


class Store:
    """The journal's directory. Use lock() around load, change and save."""

    def __init__(self, directory: str | Path = DIRECTORY) -> None:
        self.directory = Path(directory)
        self.path = self.directory / "journal.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the only right to change settings; BUSY when another holds it for long."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.directory / "lock", flags, 0o600)
        except OSError as error:
            raise self._failed("cannot be locked", error) from error
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

    def _failed(self, what: str, error: OSError) -> RxlaneError:
        reason = os.strerror(error.errno or 0)
        return RxlaneError(Kind.JOURNAL, f"{self.path} {what}: {reason}")

    def load(self) -> Journal | None:
        """Return the journal, None when there is none; JOURNAL when it is damaged."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("cannot be read", error) from error
        except UnicodeDecodeError:
            raise self._damaged("not UTF-8") from None
        return self._parse(text)

    def _damaged(self, why: str) -> RxlaneError:
        return RxlaneError(
            Kind.JOURNAL,
            f"{self.path} is damaged ({why}): the original settings are not known",
            remedy="look at it, then remove it or reboot",
        )

    def _parse(self, text: str) -> Journal:
        try:
            outer = json.loads(text)
        except (ValueError, RecursionError):
            raise self._damaged("no JSON") from None
        if not isinstance(outer, dict) or set(outer) != {"journal", "sha256"}:
            raise self._damaged("no journal")
        if outer["sha256"] != _digest(outer["journal"]):
            raise self._damaged("checksum")
        try:
            journal = codec.from_plain(Journal, outer["journal"])
        except RxlaneError as error:
            raise self._damaged(str(error)) from None
        if journal.format != FORMAT:
            raise self._damaged(f"format {journal.format}")
        return journal

    def save(self, journal: Journal) -> None:
        """Replace the journal durably; JOURNAL, with the old one intact, when that fails."""
        plain = codec.to_plain(journal)
        text = json.dumps({"journal": plain, "sha256": _digest(plain)}, indent=1)
        temporary = self.directory / "journal.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self.path)
            self._sync_directory()
        except OSError as error:
            raise self._failed("cannot be written, nothing was changed", error) from error

    def remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as error:
            raise self._failed("cannot be removed", error) from error

    def _sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _digest(plain: object) -> str:
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
