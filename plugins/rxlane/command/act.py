# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs about what is applied: apply, confirm, watch, verify and rollback."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rxlane import streams
from rxlane.command import request
from rxlane.command.ending import ending
from rxlane.errors import Kind, RxlaneError, printable
from rxlane.model import Link, Snapshot
from rxlane.sections import Policy
from rxlane.stored import STATE

if TYPE_CHECKING:
    from rxlane.apply import Applied
    from rxlane.journal import Pending, Store
    from rxlane.kernel import Linux


def _tell(done: Applied) -> None:
    for skip in done.plan.skips:
        streams.say(f"skipped: {skip}")
    for warning in done.plan.warnings:
        streams.say(f"warning: {warning}")
    for note in done.notes:
        streams.say(f"note: {note}")
    streams.tell(str(done))


def apply_(args: argparse.Namespace) -> int:
    """Write what the options ask for; with --confirm for a time, or until confirmed."""
    from dataclasses import replace
    from functools import partial

    from rxlane.apply import apply
    from rxlane.applying.undoing import Undo
    from rxlane.journal import Store
    from rxlane.keeping import claims, confirm
    from rxlane.kernel import Linux

    kernel, store = Linux(brief=args.confirm is None), Store(args.state)
    snapshot = kernel.observe(None, None if args.confirm is not None else ())
    links = request.resolve(args.devices, snapshot)
    policy = replace(
        request.from_options(args.option, [li.name for li in links]),
        confirmed=args.confirm is not None,
    )
    request.need_root()
    confirm.refuse_second(kernel, store)
    pending, undo = None, Undo()
    try:
        if args.confirm is not None:
            pending = _arm(kernel, store, args.confirm, policy, snapshot, links)
        scope = {li.name: li.ifindex for li in links} or None
        if pending is None:
            choose = partial(confirm.unguarded, kernel, store)
        else:
            choose = partial(confirm.guarded, store, pending)
        done = apply(kernel, store, policy, scope, choose=choose, undo=undo, called=scope)
    except (RxlaneError, OSError, KeyboardInterrupt):
        # The guard goes only where nothing is left for it.
        if pending is not None and not undo:
            confirm.disarm(store, pending)
        raise
    _tell(done)
    claimed = claims.load(store, kernel.boot_id())
    if claimed.tuned:
        streams.say("note: TuneD's profile takes this back at the next event: set it there")
    for link in links or snapshot.links:
        if link.ifindex in claimed.links:
            unit = f"rxlane-link@{link.ifindex}"
            streams.say(f"note: {unit} holds {link.name} to its .link file")
    if pending is not None:
        streams.tell(f"undone in {args.confirm} s unless `rxlane confirm` comes from a new login")
    return 0


def _arm(
    kernel: Linux,
    store: Store,
    seconds: int,
    policy: Policy,
    snapshot: Snapshot,
    links: Sequence[Link],
) -> Pending:
    """Have the originals come back unless somebody confirms within so many seconds."""
    from rxlane.apply import foresee
    from rxlane.applying.present import of_this_boot
    from rxlane.host import session
    from rxlane.keeping import confirm, guard
    from rxlane.revert import indexes_by_name
    from rxlane.sysfs import Sysfs

    journal = of_this_boot(store, kernel.boot_id())
    devices = [link.name for link in links] or None
    plan = foresee(kernel, journal, snapshot, policy, devices)  # what is refused needs no guard
    # Taps are laid out with the devices that are named.
    names = {link.name for link in links} | {change.target.device for change in plan.changes}
    called = indexes_by_name(snapshot.links)
    scope = [index for name, index in called.items() if name in names] if links else None
    login, own = session.current(Sysfs()), confirm.this_process()
    return confirm.arm(kernel, store, login, seconds, scope, guard.start, own)


def _left_store(args: argparse.Namespace) -> Store:
    """Return what an apply left; JOURNAL where a folder is named that is not there.

    A mistyped one must not pass for a host where nothing was applied, nor be made.
    """
    from rxlane.journal import Store

    store = Store(args.state)
    if args.state != STATE and not store.directory.is_dir():
        raise RxlaneError(Kind.JOURNAL, f"{printable(args.state, 200)} is not a directory")
    return store


def confirm_(args: argparse.Namespace) -> int:
    """Keep what waits to be confirmed."""
    from rxlane.host import session
    from rxlane.keeping import confirm
    from rxlane.kernel import Linux
    from rxlane.sysfs import Sysfs

    request.need_root()
    confirm.confirm(Linux(), _left_store(args), session.current(Sysfs()))
    streams.tell("confirmed: what was applied stays")
    return 0


def watch_(args: argparse.Namespace) -> int:
    """Write it, then keep it standing until a signal says to stop."""
    from rxlane.journal import Store
    from rxlane.keeping import confirm, events
    from rxlane.keeping.watch import watch
    from rxlane.kernel import Linux

    kernel, store = Linux(), Store(args.state)
    links = request.resolve(args.devices, kernel.observe(None, ()))
    called = {link.name: link.ifindex for link in links}
    policy = request.from_options(args.option, list(called))
    request.need_root()
    confirm.refuse_second(kernel, store)
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    for number in (signal.SIGINT, *ending()):
        signal.signal(number, lambda *_: events.wake_up(stop))
    watch(kernel, store, policy, called, stop, _log, _tell)
    return 0


def _log(level: str, text: str) -> None:
    streams.say(f"rxlane: {level}: {text}")


def verify_(args: argparse.Namespace) -> int:
    """Tell what differs from what was written; 1 when something drifted."""
    from rxlane import show
    from rxlane.applying.present import found_again, load_current
    from rxlane.applying.writing import waiting
    from rxlane.items import CHEAP_ITEMS
    from rxlane.kernel import Linux
    from rxlane.verify import Verdict, verify_journal

    request.need_root("reading the journal")
    kernel, store, journal = Linux(), _left_store(args), None
    if store.directory.exists():  # without, nothing was applied, and no folder is made for that
        with store.lock():
            journal, _ = load_current(store, kernel)
    found, left = Verdict((), ()), None
    if journal is not None:
        now = kernel.observe(None, {e.item for e in journal.entries} | CHEAP_ITEMS)
        journal = found_again(kernel, journal, now.links)
        found, left = verify_journal(journal, now), waiting(journal, now)
    text = show.verify_json if args.json else show.verify_text
    streams.show(text(found, left))
    return 1 if found.drifted else 0


def rollback_(args: argparse.Namespace) -> int:
    """Bring originals back: of devices, of everything, or what --boot, --orphaned, --tuned say."""
    from rxlane.applying.present import Called, refuse_elsewhere
    from rxlane.applying.rollback import RolledBack, rollback
    from rxlane.journal import Store
    from rxlane.keeping import claims, confirm
    from rxlane.kernel import Linux

    store = Store(args.state)
    kernel = Linux(brief=True)
    links = _named(args, kernel)
    if args.orphaned and not _orphaned(store, kernel.boot_id()):
        return 0
    request.need_root()
    released = True
    if args.boot:
        for note in confirm.discard_earlier(kernel, store):
            streams.say(f"note: {note}")
        return 0
    if args.orphaned or args.tuned:
        done = RolledBack(0)
        if claims.of_tuned(store):
            # A TuneD that could not be told may run, and keep what it wrote.
            done = rollback(kernel, store, claims.others(store, kernel), for_good=args.tuned)
        claims.release_tuned(store, kernel.boot_id())
    else:
        refuse_elsewhere(store, _left_store(args).load(), kernel)
        mine = {link.ifindex for link in links} or None
        # First, or the services of .link files would put right what this brings back.
        released = _released(store, kernel.boot_id(), mine)
        devices = None if mine is None else Called(kernel, lambda: mine)
        done = rollback(kernel, store, devices, for_good=True, forget=mine is None)
        if not mine or not done.pending:
            confirm.cancel(store, mine)
    for note in done.notes:
        streams.say(f"note: {note}")
    for line in done.pending:
        streams.say(f"not put back: {line}")
    streams.tell(str(done))
    return 0 if released and not done.pending else 1


def _named(args: argparse.Namespace, kernel: Linux) -> Sequence[Link]:
    """Return the devices that rollback is to be of, none for all."""
    if not args.devices:
        return ()
    if args.boot or args.orphaned or args.tuned:
        problem = "--boot, --orphaned and --tuned are about all that they find"
        raise RxlaneError(Kind.OPTION, problem, remedy="leave DEV out")
    return request.resolve(args.devices, kernel.observe(None, ()))


def _released(store: Store, boot_id: str, indexes: Collection[int] | None) -> bool:
    """Take interfaces, None for all, from who lays them out; False where that cannot be noted.

    A disk that is full or read-only keeps no original from coming back.
    """
    from rxlane.keeping import claims

    try:
        claims.update(store, boot_id, claims.without(indexes))
    except RxlaneError as error:
        if error.kind is not Kind.JOURNAL:
            raise
        streams.say(f"note: {error}; services of .link files may lay out again what comes back")
        return False
    return True


def _orphaned(store: Store, boot_id: str) -> bool:
    """True when a TuneD that is gone left settings or interfaces that the next one does not take.

    It may have found all settings as its profile wants them.
    """
    from rxlane.keeping import claims
    from rxlane.tuned import tuned_profiles

    left = claims.of_tuned(store) or bool(claims.load(store, boot_id).tuned)
    return left and not tuned_profiles.at_start()
