#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run rxlane and kill it with SIGKILL before the N-th thing that it does to its files.

    killed.py N VERB ARGUMENT...

Counted are openings for writing, fsync, replace and unlink, from 1. Ends as rxlane does when it
does fewer than N.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

LEFT = int(sys.argv[1])


def counted(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        global LEFT
        if real is not OPEN or arguments[1] & os.O_CREAT:
            LEFT -= 1
            if not LEFT:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    return call


OPEN = os.open


def main() -> int:
    for name in ("open", "fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    from rxlane.cli import main as rxlane

    return rxlane(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
