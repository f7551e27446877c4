# SPDX-License-Identifier: GPL-2.0-or-later
"""Logins, a guard, and an apply that waits to be confirmed."""

from __future__ import annotations

import os

from rxlane.host.session import Login
from rxlane.journal import Pending, Process, Store
from rxlane.keeping import confirm
from unit.simhost import SimHost

OLD = Login(audit=3, newest=5, sid=100, tty=34816, started=10, at=1000)
NEW = Login(audit=6, newest=6, sid=200, tty=34817, started=2000, at=2100)
SELF = Process(os.getpid(), 1)  # started never fits, so that nobody is signalled


def ready(store: Store, token: str) -> None:
    """Stands for a guard that got ready."""
    confirm.register(store, token, SELF)


def arm(host: SimHost, store: Store, devices: list[int] | None = None) -> Pending:
    return confirm.arm(host, store, OLD, 60, devices, ready)
