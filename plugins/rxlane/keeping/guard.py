# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that waits for a confirmation and brings the originals back without one.

It waits by itself above the priority of every poller (those end at 98). A timer unit would not do:
the manager that starts its service has no real-time priority. It needs no disk and no new memory
when the time comes: everything is imported, open and locked in memory before it says it is ready.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import syslog
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rxlane.errors import Kind, RxlaneError, with_notes
from rxlane.journal import Pending, Store
from rxlane.keeping.confirm import boottime, end, expire, register, this_process
from rxlane.kernel import Kernel, Linux

PRIORITY = 99  # of SCHED_FIFO; policies may ask for 98 at most
RETRY, RETRY_MOST = 1.0, 60.0  # seconds until what could not be put back is tried again
STACK = 256 << 10  # bytes
SHOWN = 20  # lines of a try
START_WAIT = 30  # seconds for systemd to take the unit
# include/uapi/asm-generic/mman.h
MCL_CURRENT, MCL_FUTURE = 1, 2


def command(store: Store, token: str) -> list[str]:
    """argv of a guard; -P keeps the working directory out of the module path."""
    state = str(store.directory.absolute())
    return [sys.executable, "-P", "-m", "rxlane.keeping.guard", "--state", state, token]


def unit(token: str) -> list[str]:
    """argv before command(): a transient service, which outlives its starter and its login."""
    properties = (
        "Restart=on-failure",
        "RestartSec=1",
        "StartLimitIntervalSec=0",
        "OOMScoreAdjust=-1000",
        # `systemctl isolate` is no word to look at once.
        "IgnoreOnIsolate=yes",
    )
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit=rxlane-confirm-{token}",
        "--description=Bring back network settings that are not confirmed",
        f"--setenv=PYTHONPATH={_library()}",
        *(f"--property={line}" for line in properties),
        "--",
    ]


def _library() -> Path:
    """Return the folder that holds the package."""
    return Path(__file__).resolve().parents[2]


def start(store: Store, token: str) -> None:
    """Start a guard: as a unit where systemd runs, else in a session of its own."""
    argv = command(store, token)
    if not os.path.isdir("/run/systemd/system"):  # as sd_booted(3)
        subprocess.Popen(
            argv,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_library())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return
    if shutil.which("systemd-run") is None:
        raise RxlaneError(Kind.UNSUPPORTED, "systemd-run is missing", remedy="install systemd")
    try:
        done = subprocess.run(
            [*unit(token), *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RxlaneError(Kind.KERNEL, f"systemd-run did not end in {START_WAIT} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RxlaneError(Kind.KERNEL, f"systemd-run failed: {said}")


def _prepare() -> None:
    """Take the priority and lock all memory; OSError when the kernel refuses."""
    # The stacks of threads are locked whole, and are 8 MB each if nobody says less.
    threading.stack_size(STACK)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"locking memory: {os.strerror(code)}")


def _sleep(seconds: float) -> bool:
    """Wait; True when somebody asked to look at once."""
    return signal.sigtimedwait({signal.SIGTERM}, seconds) is not None


def wait(
    kernel: Kernel,
    store: Store,
    pending: Pending,
    sleep: Callable[[float], bool],
    log: Callable[[str], None],
) -> None:
    """Wait until the deadline or until woken, then bring back what nobody confirmed."""
    while (left := pending.deadline - boottime()) > 0:
        # A suspended host counts on: the clock is read again after every sleep.
        if sleep(left / 10**9):
            break
    delay, news = RETRY, _News(log)
    while not _done(kernel, store, pending, news):
        sleep(delay)
        delay = min(2 * delay, RETRY_MOST)


@dataclass(slots=True)
class _News:
    """Logs what was not so at the last try: an interface may be down for days."""

    log: Callable[[str], None]
    last: frozenset[str] = frozenset()

    def tell(self, outcome: str, details: Iterable[str] = ()) -> None:
        now = [*details, outcome]
        new = [line for line in now if line not in self.last]
        self.last = frozenset(now)
        if len(new) > SHOWN:
            new[SHOWN:-1] = [f"and {len(new) - 1 - SHOWN} more"]
        for line in new:
            self.log(line)


def _done(kernel: Kernel, store: Store, pending: Pending, news: _News) -> bool:
    try:
        back = expire(kernel, store, pending)
    except (RxlaneError, OSError) as error:
        why = "; ".join(with_notes(error))
        news.tell(f"not confirmed, and the originals cannot be brought back yet: {why}")
        busy = isinstance(error, RxlaneError) and error.kind is Kind.BUSY
        if busy and pending.applier is not None:
            with contextlib.suppress(OSError):
                end(pending.applier)
        return False
    if back is None:
        return True
    waiting = (f"not put back yet: {line}" for line in back.pending)
    news.tell(f"not confirmed: {back}", [*back.notes, *waiting])
    return not back.pending


def _log(text: str) -> None:
    syslog.syslog(syslog.LOG_WARNING, text)


def _guard(state: str, token: str) -> int:
    store = Store(state)
    # Blocked, so that none is lost between two waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        kernel = Linux()
        kernel.observe()
        _prepare()
    except (RxlaneError, OSError) as error:
        noted = register(store, token, None, str(error))
        # Whoever waits for it is told, and to be started again would not help. But after another
        # guard of this apply nobody waits: systemd tries once more.
        return 0 if noted is None or noted.guard is None else 1
    own = this_process()
    pending = register(store, token, own)
    if pending is not None:
        if pending.guard != own:
            _log(f"{store.pending.path} cannot be written: a confirmation ends no wait before time")
        wait(kernel, store, pending, _sleep, _log)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="rxlane-guard", allow_abbrev=False)
    parser.add_argument("--state", required=True)
    parser.add_argument("token")
    args = parser.parse_args()
    syslog.openlog("rxlane", syslog.LOG_PID, syslog.LOG_DAEMON)
    try:
        return _guard(args.state, args.token)
    except RxlaneError as error:
        _log(f"cannot wait for a confirmation: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
