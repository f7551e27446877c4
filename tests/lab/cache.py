# SPDX-License-Identifier: GPL-2.0-or-later
"""Built things by the hash of what they are built from: made once, whole or not at all."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from lab.paths import cache


def digest(parts: Iterable[bytes | str]) -> str:
    """16 hex digits over the parts, each with its length, so that no two lists collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def built(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder ``kind/key`` of the cache; ``make(folder)`` fills it when it is not there.

    A second process waits for the first. A failed or interrupted make leaves nothing behind.
    """
    home = cache(kind)
    target = home / key
    with (home / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=home))
            try:
                make(partial)
                partial.chmod(0o755)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return target
