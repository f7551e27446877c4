# SPDX-License-Identifier: GPL-2.0-or-later
"""What ends a command before it is done: signals, taken once."""

from __future__ import annotations

import signal


def ending() -> list[signal.Signals]:
    """Return the signals that end a command beside Ctrl-C: nohup(1) has it outlive its terminal."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if outlives else [signal.SIGTERM, signal.SIGHUP]


def interrupt(*_: object) -> None:
    """Interrupt once: another that came at the same time would be raised before an undo begins."""
    for number in (signal.SIGINT, *ending()):
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt
