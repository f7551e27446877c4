# SPDX-License-Identifier: GPL-2.0-or-later
"""What TuneD applies, read from its files: when it starts, and before our plugins are removed.

`python3 -m rxlane.tuned.tuned_profiles` ends well when TuneD uses nothing of ours.
"""

from __future__ import annotations

import sys

from rxlane.errors import RxlaneError
from rxlane.host import places
from rxlane.journal import DIRECTORY, Store
from rxlane.plan import TUNED
from rxlane.sysfs import Sysfs
from rxlane.tuned import profile

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
    active = "" if files.read(MODE) == AUTO else files.read(ACTIVE) or ""
    return _kinds(files, f"{active} {files.read(POST_LOADED) or ''}")


def in_use(store: Store, files: Sysfs) -> bool:
    """Tell whether TuneD is to switch its profile off before our plugins and profiles go.

    One that has a section of ours could not load any more, also where it applied nothing. What the
    files do not tell (a profile that only TuneD can read, one changed meanwhile) the journal does.
    """
    names = f"{files.read(ACTIVE) or ''} {files.read(POST_LOADED) or ''}".split()
    return any(_kinds(files, name) for name in names) or _holds(store, files)


def _kinds(files: Sysfs, names: str) -> frozenset[str]:
    try:
        return profile.kinds(names, lambda path: files.read(path.lstrip("/")))
    except RxlaneError:
        return frozenset()


def _holds(store: Store, files: Sysfs) -> bool:
    """True when TuneD wants settings that it wrote.

    Where an original could not come back (device down) when TuneD took another profile, that one
    has no part in it.
    """
    try:
        journal = store.load()
    except RxlaneError:
        return True  # who knows what is in a damaged one
    if journal is None or journal.owner != TUNED or journal.boot_id != files.read(places.BOOT_ID):
        return False
    return any(entry.after is not None for entry in journal.entries)


def main(root: str = "") -> int:
    """Return 0 when there is nothing to switch off: any failure counts as if there were."""
    return int(in_use(Store(f"{root}{DIRECTORY}"), Sysfs(root)))


if __name__ == "__main__":
    sys.exit(main())
