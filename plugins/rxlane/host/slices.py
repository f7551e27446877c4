# SPDX-License-Identifier: GPL-2.0-or-later
"""Where systemd has its control groups: what runs as a service, and who is logged in."""

from __future__ import annotations

from rxlane.sysfs import Sysfs

# The unified tree; of hosts with version 1 beside it or alone, systemd's own.
TREES = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified")
SYSTEM, USER = "system.slice", "user.slice"


def folder(sysfs: Sysfs, name: str) -> str:
    """Return the folder of SYSTEM or USER."""
    found = (f"{tree}/{name}" for tree in TREES)
    return next((path for path in found if sysfs.exists(path)), f"{TREES[0]}/{name}")
