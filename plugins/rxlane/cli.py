# SPDX-License-Identifier: GPL-2.0-or-later
"""The `rxlane` command.

Exit status: 0 done, 1 something drifted, failed or could not be put back, 2 the request was
refused and nothing was changed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

from rxlane import streams
from rxlane.command import act, look, parser
from rxlane.command.ending import ending, interrupt
from rxlane.errors import Kind, RxlaneError, with_notes

VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "map": look.map_,
    "plan": look.plan,
    "apply": act.apply_,
    "confirm": act.confirm_,
    "watch": act.watch_,
    "verify": act.verify_,
    "rollback": act.rollback_,
    "link": look.link,
    "record": look.record,
}
# Verbs that write and end.
BRIEF_WRITERS = ("apply", "rollback")
NICE = -10  # of who writes: nine times the share of a program at 0
INTERRUPTED = 130  # as of a process that SIGINT ended


def _go_first() -> None:
    """Run before what computes on this host: nothing half applied waits for that.

    Not as a real-time task, and not at -20, beside which a NAPI thread on the same CPU would get
    next to nothing. The kernel's new threads do not inherit it. Without CAP_SYS_NICE the command
    takes its turn.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:  # else somebody chose
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)


def _ends_soon(args: argparse.Namespace) -> bool:
    waits = (getattr(args, name, None) is not None for name in ("watch", "confirm"))
    return args.verb != "watch" and not any(waits)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    whole, verbs = parser.parsers()
    try:
        args, rest = whole.parse_known_args(argv)
        if rest:
            verbs[args.verb].error(f"unrecognized arguments: {' '.join(rest)}")
        return args
    except SystemExit:
        sys.stdout.flush()  # --help may have nowhere to go, too
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; every failure is one line on stderr."""
    streams.open_missing()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Standard error has it so: what the locale does not know is shown by its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(argv)
    except BrokenPipeError:
        return 0  # `rxlane map | head`: the reader left
    except RxlaneError as error:
        _complain(error, str(error))
        return 2 if error.kind.refused or error.kind is Kind.FORMAT else 1
    except OSError as error:
        _complain(error, streams.problem(error))
        return 1
    except KeyboardInterrupt as stop:
        _complain(stop, "interrupted")
        return INTERRUPTED
    finally:
        streams.leave()


def _complain(error: BaseException, problem: str) -> None:
    for text in (problem, *with_notes(error)[1:]):
        streams.say(f"rxlane: {text}")


def _run(argv: Sequence[str] | None) -> int:
    args = _parsed(argv)
    if _ends_soon(args):
        # Nothing of thousands of queues is garbage before the end, and looking for it takes
        # a fifth of the time.
        gc.disable()
    if args.verb in BRIEF_WRITERS:
        _go_first()
    script = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # its & outlives Ctrl-C
    for number in ending() if script else (signal.SIGINT, *ending()):
        # As Ctrl-C: what is half applied is undone.
        signal.signal(number, interrupt)
    status = VERBS[args.verb](args)
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
