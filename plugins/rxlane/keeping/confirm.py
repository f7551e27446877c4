# SPDX-License-Identifier: GPL-2.0-or-later
"""An apply that is undone unless a new login confirms it.

The originals must come back even when the applier was killed, its login hangs and real-time
pollers hold every CPU. So a process of its own waits (guard.py), told by a record on disk.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from rxlane.applying.present import found_again, indexes_now, of_this_boot
from rxlane.applying.rollback import RolledBack, bring_back
from rxlane.errors import Kind, RxlaneError
from rxlane.host.session import Login, age, not_newer, start_of
from rxlane.journal import UNCHANGED, Pending, Process, Store, meaning
from rxlane.kernel import Kernel
from rxlane.parallel import uninterrupted
from rxlane.plan import HOST, HOST_INDEX, Plan
from rxlane.revert import names_by_index
from rxlane.sysfs import Sysfs

READY_WAIT = 30.0  # seconds for the guard to start; an interpreter takes a fraction of one
READY_STEP = 0.02  # seconds between looks


def boottime() -> int:
    """Nanoseconds since boot, suspend included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def waiting(kernel: Kernel, store: Store) -> Pending | None:
    """Return the apply that waits to be confirmed.

    Settings of another boot are gone; and an apply that was killed before its guard was ready has
    written nothing.
    """
    pending = store.pending.load()
    if pending is None or pending.boot_id != kernel.boot_id():
        return None
    never = pending.guard is None and age(pending.login) > READY_WAIT
    return None if never else pending


def refuse_second(kernel: Kernel, store: Store) -> None:
    """Raise REFUSED while an apply waits: nobody could say what would come back of two."""
    with store.lock():
        _refuse_second(kernel, store)


def _refuse_second(
    kernel: Kernel, store: Store, concerned: Callable[[Pending], bool] | None = None
) -> None:
    """refuse_second() for a caller who holds the lock, and perhaps minds only some applies."""
    pending = waiting(kernel, store)
    if pending is None:
        # Or a guard that comes late would bring back what is applied now.
        if store.pending.load() is not None:
            store.pending.remove()
        return
    if concerned is not None and not concerned(pending):
        return
    left = pending.deadline - boottime()
    if left <= 0:
        raise _too_late(pending)
    problem = f"an earlier apply waits to be confirmed, {left // 10**9} s are left"
    remedy = "run `rxlane confirm` from a new login, or `rxlane rollback`"
    raise RxlaneError(Kind.REFUSED, problem, remedy=remedy)


def arm(
    kernel: Kernel,
    store: Store,
    login: Login,
    seconds: int,
    devices: Collection[int] | None,
    start: Callable[[Store, str], None],
    applier: Process | None = None,
) -> Pending:
    """Return once a guard waits, so that from here on the originals are sure to come back.

    devices: indexes, HOST_INDEX for the host, None for all. start: starts the guard for a token.
    applier: the process whose lock is to keep no guard waiting.
    Raises KERNEL, with nothing left behind, when it does not get ready, and REFUSED where it could
    not see the devices or an earlier apply waits.
    """
    if kernel.netns() != kernel.netns("1"):
        problem = "--confirm works in the network namespace of PID 1 only, where its service runs"
        raise RxlaneError(Kind.REFUSED, problem, remedy="apply without it here")
    scope = None if devices is None else tuple(sorted(devices))
    deadline = boottime() + seconds * 10**9
    token = os.urandom(8).hex()
    pending = Pending(kernel.boot_id(), token, deadline, scope, login, applier=applier)
    pending = replace(pending, absent=_absent(kernel, store))
    try:
        with store.lock():
            # Whoever asked before the plan was made may have been overtaken since.
            _refuse_second(kernel, store)
            with meaning(UNCHANGED):
                store.pending.save(pending)
        start(store, pending.token)
        return _ready(store, pending)
    except (RxlaneError, OSError, KeyboardInterrupt):
        disarm(store, pending)
        raise


def unguarded(kernel: Kernel, store: Store, plan: Plan) -> Plan:
    """Return the plan; REFUSED where an apply waits, perhaps since the lock was free. With it."""
    _refuse_second(kernel, store)
    return plan


def concerns(
    pending: Pending, plan: Plan, scope: Collection[str] | None, present: Mapping[int, str]
) -> bool:
    """True where the apply that waits is of a device of the plan, or of the scope, or of the host
    like it. present: the links that are there, names by index.
    """
    if pending.devices is None:
        return True
    own = {one.target.device for one in (*plan.changes, *plan.holds)}.union(scope or ())
    return not own.isdisjoint(_present(pending.devices, {HOST_INDEX: HOST, **present}))


@contextmanager
def patient(what: str) -> Iterator[None]:
    """For who keeps a layout: raise BUSY where an apply waits, for its end is to be waited for.

    Its originals would take with them what is written meanwhile. what: "of" something, in words.
    """
    try:
        yield
    except RxlaneError as error:
        if not error.kind.refused:
            raise
        # Without the seconds that are left: the same is said once.
        problem = f"nothing {what} is written while an apply waits to be confirmed"
        raise RxlaneError(Kind.BUSY, problem, remedy=error.remedy) from error


def patiently(
    kernel: Kernel,
    store: Store,
    what: str,
    choose: Callable[[Plan], Plan] | None,
    concerned: Callable[[Plan, Pending], bool] | None = None,
) -> Callable[[Plan], Plan]:
    """Return choose, which with the lock first raises BUSY where an apply waits; see patient().

    concerned: whether that apply is in the way of the plan; without it every one is.
    """

    def still(plan: Plan) -> Plan:
        with patient(what):
            _refuse_second(kernel, store, None if concerned is None else partial(concerned, plan))
        return plan if choose is None else choose(plan)

    return still


def guarded(store: Store, pending: Pending, plan: Plan) -> Plan:
    """Return the plan; REFUSED where the wait ended before anything was written. With the lock."""
    found = store.pending.load()
    if found is None or found.token != pending.token:
        problem = f"the wait for a confirmation ended before the lock was free, {UNCHANGED}"
        raise RxlaneError(Kind.REFUSED, problem, remedy="apply again")
    return plan


def _ready(store: Store, pending: Pending) -> Pending:
    end = time.monotonic() + READY_WAIT
    while time.monotonic() < end:
        found = store.pending.load()
        if found is None or found.token != pending.token:
            break
        if found.failure:
            raise RxlaneError(Kind.KERNEL, f"nobody could wait for a confirmation: {found.failure}")
        if found.guard is not None:
            return found
        time.sleep(READY_STEP)
    problem = f"the process that waits for a confirmation did not start in {READY_WAIT:.0f} s"
    raise RxlaneError(Kind.KERNEL, f"{problem}, {UNCHANGED}")


def disarm(store: Store, pending: Pending) -> None:
    """Forget that an apply waits, and let its guard go."""
    with uninterrupted():
        with store.lock():
            found = store.pending.load()
            if found is None or found.token != pending.token:
                return
            store.pending.remove()
        _let_go(found)


def _let_go(pending: Pending) -> None:
    if pending.guard is not None:
        wake(pending.guard)


def this_process() -> Process:
    return Process(os.getpid(), start_of(Sysfs(), os.getpid()) or 0)


def wake(guard: Process) -> None:
    """Have the guard look whether anything still waits; one that is gone needs nothing."""
    _send(guard, signal.SIGTERM)


def end(applier: Process) -> None:
    """Take the lock from an applier that hangs or is stopped; the journal has its originals."""
    _send(applier, signal.SIGKILL)


def _send(process: Process, number: signal.Signals) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # The descriptor holds the process, so that what is compared is what is signalled.
        if start_of(Sysfs(), process.pid) == process.started:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def confirm(kernel: Kernel, store: Store, own: Login) -> None:
    """Keep what was applied; REFUSED when nothing waits, it is too late, or own is an old login."""
    with store.lock():
        pending = waiting(kernel, store)
        if pending is None:
            if store.pending.load() is not None:
                store.pending.remove()  # of one that died while it armed: upgrades wait for it
            raise RxlaneError(Kind.REFUSED, "no apply waits to be confirmed")
        if boottime() >= pending.deadline:
            raise _too_late(pending)
        why = not_newer(pending.login, own)
        if why is not None:
            remedy = "log in anew and confirm from there, which shows that the host can be reached"
            raise RxlaneError(Kind.REFUSED, why, remedy=remedy)
        store.pending.remove()
    _let_go(pending)


def _too_late(pending: Pending) -> RxlaneError:
    guard, problem = pending.guard, "an apply was not confirmed in time"
    if guard is not None and start_of(Sysfs(), guard.pid) == guard.started:
        return RxlaneError(Kind.REFUSED, f"{problem}: its originals come back")
    problem = f"{problem}, and the process that brings its originals back is gone"
    return RxlaneError(Kind.REFUSED, problem, remedy="run `rxlane rollback`")


def cancel(store: Store, devices: Collection[int] | None = None) -> None:
    """After a rollback, of these devices or everything: what was only about them waits no more."""
    try:
        pending = store.pending.load()
    except RxlaneError:
        if devices is None:
            with store.lock():
                store.pending.remove()
        return
    if pending is not None and (devices is None or _only_about(pending, devices)):
        disarm(store, pending)


def _only_about(pending: Pending, devices: Collection[int]) -> bool:
    return pending.devices is not None and set(pending.devices) <= set(devices)


def expire(kernel: Kernel, store: Store, mine: Pending) -> RolledBack | None:
    """Bring the originals back, unless this apply was confirmed or rolled back: then None.

    The record stays while something could not be put back, so that it can be tried again.
    """
    with store.lock():
        try:
            found = store.pending.load()
        except RxlaneError:
            found = mine  # a damaged record confirms nothing
        if found is None or found.token != mine.token:
            return None
        done = bring_back(kernel, store, _names(kernel, store, mine), for_good=True)
        done = replace(done, pending=(*done.pending, *_away(done, mine)))
        if not done.pending:
            store.pending.remove()
        return done


def _absent(kernel: Kernel, store: Store) -> tuple[int, ...]:
    """Return the indexes of devices that have originals and are not here."""
    journal = of_this_boot(store, kernel.boot_id())
    if journal is None:
        return ()
    links = kernel.observe(None, ()).links
    entries = found_again(kernel, journal, links).entries
    here = names_by_index(links)
    return tuple(sorted({e.ifindex for e in entries if e.ifindex not in here}))


def _away(done: RolledBack, pending: Pending) -> list[str]:
    """Return a line for each device of the apply that is not here and may come back."""
    names = (
        name
        for index, name in done.away
        # Below zero where another device has its index meanwhile, see found_again().
        if not {index, abs(index)} & {*pending.absent} and pending.covers(abs(index))
    )
    return [f"{name}: not here; if it is gone for good, run `rxlane rollback`" for name in names]


def _names(kernel: Kernel, store: Store, pending: Pending) -> set[str] | None:
    """Return what the devices are called now, HOST for the host's settings.

    One that went and came back under another index is known by the journal.
    """
    if pending.devices is None:
        return None
    links = kernel.observe(None, ()).links
    journal = of_this_boot(store, kernel.boot_id())
    now = {} if journal is None else indexes_now(kernel, journal, links)
    return _present((now.get(index, index) for index in pending.devices), names_by_index(links))


def _present(devices: Iterable[int], called: Mapping[int, str]) -> set[str]:
    """Return the names of those devices that are here. called: names by index."""
    return {called[index] for index in devices if index in called}


def register(store: Store, token: str, guard: Process | None, failure: str = "") -> Pending | None:
    """Note in the record that a guard waits, or why none can; None when nothing waits.

    A failure is not noted where a guard was ready before: this one took its place. There the record
    stays as it is, too, where it cannot be written: a full disk keeps no guard from waiting.
    """
    with store.lock():
        found = store.pending.load()
        if found is None or found.token != token:
            return None
        if failure and found.guard is not None:
            return found
        noted = replace(found, guard=guard, failure=failure)
        try:
            store.pending.save(noted)
        except RxlaneError:
            if found.guard is None:
                raise
            return found
        return noted


def discard_earlier(kernel: Kernel, store: Store) -> tuple[str, ...]:
    """At boot: remove what earlier boots left. Their settings are gone, all being volatile.

    A damaged file goes too: nothing has been written in this boot that it could be about.
    """
    notes = []
    with store.lock():
        for what, load, remove in (
            ("journal", store.load, store.remove),
            ("confirmation", store.pending.load, store.pending.remove),
            ("claim", store.claims.load, store.claims.remove),
        ):
            try:
                found = load()
                if found is None or found.boot_id == kernel.boot_id():
                    continue
                notes.append(f"a {what} of another boot was discarded")
            except RxlaneError as error:
                notes.append(f"discarded: {error.problem}")
            remove()
    return tuple(notes)
