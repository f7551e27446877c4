# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the lab reads and writes: the checkout, and one cache that outlives it."""

import os
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
BUILD = TREE / "build"
PATCHES = TREE / "kernel-patches"
KCONFIG = Path(__file__).resolve().parent / "kconfig"


def cache(*parts: str) -> Path:
    """A folder of $RXLANE_CACHE (default: rxlane in the user's cache folder), made if missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = Path(os.environ.get("RXLANE_CACHE") or f"{base}/rxlane")
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
