# SPDX-License-Identifier: GPL-2.0-or-later
"""What TuneD is about to apply, read from its files: TuneD itself is not running yet."""

from __future__ import annotations

from rxlane import profile
from rxlane.errors import RxlaneError
from rxlane.sysfs import Sysfs

# tuned/consts.py
ACTIVE, MODE, POST_LOADED = (
    f"etc/tuned/{name}" for name in ("active_profile", "profile_mode", "post_loaded_profile")
)
AUTO = "auto"  # TuneD chooses the profile anew when it starts


def at_start(files: Sysfs | None = None) -> frozenset[str]:
    """Return which kinds of our sections TuneD applies when it starts now.

    Where its files leave a doubt (automatic mode, a profile that is not there or that only TuneD
    can read) the answer is none: to bring originals back once too often costs a moment, for TuneD
    plans anew from them.
    """
    files = files or Sysfs()
    active = files.read(ACTIVE) or ""
    names = ["" if files.read(MODE) == AUTO else active, files.read(POST_LOADED) or ""]
    try:
        return profile.kinds(" ".join(names), lambda path: files.read(path.lstrip("/")))
    except RxlaneError:
        return frozenset()
