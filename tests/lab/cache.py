# SPDX-License-Identifier: GPL-2.0-or-later
"""Built things by the hash of what they are built from: made once, whole or not at all."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.paths import cache


def digest(parts: Iterable[bytes | str]) -> str:
    """16 hex digits over the parts, each with its length, so that no two lists collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Nobody else who asks for this lock file runs meanwhile; a second process waits."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replaced(file: Path, text: str) -> None:
    """Has the file hold ``text``; who reads it meanwhile finds the old one or the new, whole."""
    if file.exists() and file.read_text() == text:
        return
    with tempfile.TemporaryDirectory(prefix=".new-", dir=file.parent) as scratch:
        new = Path(scratch) / file.name
        new.write_text(text)
        new.rename(file)


def fetched(home: Path, pattern: str, fetch: Callable[[Path], object]) -> Path | None:
    """The file of ``home`` that matches; None where ``fetch`` brought none either.

    ``fetch(folder)`` downloads it, with what belongs to it, when it is not there; a second process
    waits. What was downloaded in part only, or is being so, is not in ``home``.
    """
    with locked(home / ".lock"):
        if not any(home.glob(pattern)):
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
                fetch(Path(scratch))
                # That which tells that all is there comes last.
                for file in sorted(Path(scratch).iterdir(), key=lambda one: one.match(pattern)):
                    if file.is_file():
                        file.rename(home / file.name)
        return next(home.glob(pattern), None)


def built(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder ``kind/key`` of the cache; ``make(folder)`` fills it when it is not there.

    A second process waits for the first. A failed or interrupted make leaves nothing behind.
    """
    home = cache(kind)
    target = home / key
    with locked(home / f"{key}.lock"):
        if not target.exists():
            partial = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=home))
            try:
                make(partial)
                partial.chmod(0o755)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return target
