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
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from rxlane import __version__
from rxlane.command import look, request, streams
from rxlane.errors import Kind, RxlaneError, printable, with_notes
from rxlane.model import Link, Snapshot
from rxlane.sections import Policy

if TYPE_CHECKING:
    from rxlane.apply import Applied
    from rxlane.journal import Pending, Store

STATE = "/var/lib/rxlane"
CONFIRM_MOST = 86400  # seconds
NICE = -10  # of who writes: nine times the share of a program at 0


def _options_help() -> str:
    from rxlane.policy import OPTIONS

    lines = [f"  {option.name:20} {option.hint}" for option in OPTIONS]
    return "options (--option NAME=VALUE):\n" + "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """argparse, with its complaint as one line like every other of this command."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rxlane: {printable(message, 200)}; see `{self.prog} --help`\n")


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser and those of the verbs."""
    parser = _Parser(
        prog="rxlane",
        description="Show and lay out receive lanes: queue, NAPI, IRQ, polling thread, CPU.",
        epilog=_options_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rxlane {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    look.add_map_options(
        _add(verbs, "map", "show the lanes of devices", devices=look.SHOWN, json=True)
    )
    plan = _add(verbs, "plan", "show what apply would change", devices=True, json=True)
    _add_options(plan)
    plan.add_argument("--profile", metavar="NAME", help="plan what this TuneD profile asks for")
    plan.add_argument("--snapshot", metavar="FILE", help="plan for a recorded host ('-' = stdin)")
    applying = _add(verbs, "apply", "write the plan, originals go to the journal", devices=True)
    _add_options(applying)
    applying.add_argument(
        "--confirm",
        type=_seconds,
        metavar="SECONDS",
        help="undo it unless `rxlane confirm` comes from a new login within this time",
    )
    _add(verbs, "confirm", "keep what `apply --confirm` wrote")
    watching = _add(verbs, "watch", "apply, then keep it standing", devices=True)
    _add_options(watching)
    _add(verbs, "verify", "compare the host with what apply wrote", json=True)
    all_of_it = "everything, settings of the whole host too,"
    back = _add(verbs, "rollback", "bring the originals back from the journal", devices=all_of_it)
    which = back.add_mutually_exclusive_group()
    which.add_argument(
        "--boot",
        action="store_true",
        help="only discard what earlier boots left; for the start of the host",
    )
    which.add_argument(
        "--orphaned",
        action="store_true",
        help="only what TuneD wrote and will not write again; for the start of TuneD",
    )
    linking = _add(verbs, "link", "print the .link drop-in that makes the layout permanent")
    linking.add_argument("device", type=request.device, metavar="DEV", help="network device")
    record = _add(verbs, "record", "write a snapshot without addresses as JSON")
    record.add_argument("file", nargs="?", help="file to write, stdout when left out")
    for name in ("apply", "confirm", "watch", "verify", "rollback", "link"):
        verbs.choices[name].add_argument(
            "--state",
            default=STATE,
            type=_folder,
            metavar="DIR",
            help="the journal's directory (%(default)s)",
        )
    return parser, verbs.choices


def _add(
    verbs: argparse._SubParsersAction[_Parser],
    name: str,
    text: str,
    devices: bool | str = False,
    json: bool = False,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
    if devices:
        which = devices if isinstance(devices, str) else "all physical ones"
        hint = f"network device; {which} when left out"
        parser.add_argument("devices", nargs="*", type=request.device, metavar="DEV", help=hint)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _folder(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("names no directory")
    return text


def _seconds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= CONFIRM_MOST or len(text) > 9:
        raise argparse.ArgumentTypeError(f"not a number of seconds from 1 to {CONFIRM_MOST}")
    return int(text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the layout, see `rxlane --help`",
    )


def _tell(done: Applied) -> None:
    for skip in done.plan.skips:
        streams.say(f"skipped: {skip}")
    for warning in done.plan.warnings:
        streams.say(f"warning: {warning}")
    for note in done.notes:
        streams.say(f"note: {note}")
    streams.tell(f"{done.written} settings written, {len(done.plan.holds)} as wanted already")


def _go_first() -> None:
    """Run before what computes on this host: nothing half applied waits for that.

    Not as a real-time task, and not at -20, beside which a NAPI thread on the same CPU would get
    next to nothing. The kernel's new threads do not inherit it. Without CAP_SYS_NICE the command
    takes its turn.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:  # else somebody chose
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)


def _apply(args: argparse.Namespace) -> int:
    from dataclasses import replace
    from functools import partial

    from rxlane.apply import Undo, apply
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
            pending = _arm(args, snapshot, links, policy)
        scope = [li.name for li in links] or None
        if pending is None:
            choose = partial(confirm.unguarded, kernel, store)
        else:
            choose = partial(confirm.guarded, store, pending)
        done = apply(kernel, store, policy, scope, choose=choose, undo=undo)
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
    args: argparse.Namespace, snapshot: Snapshot, links: Sequence[Link], policy: Policy
) -> Pending:
    """Have the originals come back unless somebody confirms."""
    from rxlane.decide import decide
    from rxlane.host import session
    from rxlane.journal import Store
    from rxlane.keeping import confirm, guard
    from rxlane.kernel import Linux
    from rxlane.revert import indexes_by_name
    from rxlane.sysfs import Sysfs

    plan = decide(snapshot, policy)  # what is refused needs no guard
    # Taps are laid out with the devices that are named.
    names = {link.name for link in links} | {change.target.device for change in plan.changes}
    called = indexes_by_name(snapshot.links)
    scope = [index for name, index in called.items() if name in names] if links else None
    login = session.current(Sysfs())
    own = confirm.this_process()
    return confirm.arm(Linux(), Store(args.state), login, args.confirm, scope, guard.start, own)


def _left_store(args: argparse.Namespace) -> Store:
    """Return what an apply left; JOURNAL where a folder is named that is not there.

    A mistyped one must not pass for a host where nothing was applied, nor be made.
    """
    from rxlane.journal import Store

    store = Store(args.state)
    if args.state != STATE and not store.directory.is_dir():
        raise RxlaneError(Kind.JOURNAL, f"{printable(args.state, 200)} is not a directory")
    return store


def _confirm(args: argparse.Namespace) -> int:
    from rxlane.host import session
    from rxlane.keeping import confirm
    from rxlane.kernel import Linux
    from rxlane.sysfs import Sysfs

    request.need_root()
    confirm.confirm(Linux(), _left_store(args), session.current(Sysfs()))
    streams.tell("confirmed: what was applied stays")
    return 0


def _watch(args: argparse.Namespace) -> int:
    from rxlane.journal import Store
    from rxlane.keeping import confirm, events
    from rxlane.keeping.watch import watch
    from rxlane.kernel import Linux

    kernel, store = Linux(), Store(args.state)
    names = [link.name for link in request.resolve(args.devices, kernel.observe(None, ()))]
    policy = request.from_options(args.option, names)
    request.need_root()
    confirm.refuse_second(kernel, store)
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    for number in (signal.SIGINT, *_ending()):
        signal.signal(number, lambda *_: events.wake_up(stop))
    watch(kernel, store, policy, names, stop, _log, _tell)
    return 0


def _log(level: str, text: str) -> None:
    streams.say(f"rxlane: {level}: {text}")


def _verify(args: argparse.Namespace) -> int:
    from rxlane import show
    from rxlane.applying.present import found_again, load_current
    from rxlane.items import CHEAP_ITEMS
    from rxlane.kernel import Linux
    from rxlane.verify import Verdict, verify_journal

    request.need_root("reading the journal")
    kernel, store, journal = Linux(), _left_store(args), None
    if store.directory.exists():  # without, nothing was applied, and no folder is made for that
        with store.lock():
            journal, _ = load_current(store, kernel)
    found, waiting = Verdict((), ()), None
    if journal is not None:
        waiting = sum(entry.after is None for entry in journal.entries)
        items = {e.item for e in journal.entries if e.after is not None} | CHEAP_ITEMS
        now = kernel.observe(None, items)
        found = verify_journal(found_again(kernel, journal, now.links), now)
    text = show.verify_json if args.json else show.verify_text
    streams.show(text(found, waiting))
    return 1 if found.drifted else 0


def _rollback(args: argparse.Namespace) -> int:
    from rxlane.applying.present import refuse_elsewhere
    from rxlane.applying.rollback import RolledBack, rollback
    from rxlane.journal import Store
    from rxlane.keeping import claims, confirm
    from rxlane.kernel import Linux

    store = Store(args.state)
    kernel = Linux(brief=True)
    if args.orphaned and not _orphaned(store, kernel.boot_id()):
        return 0
    links = []
    if args.devices:
        links = request.resolve(args.devices, kernel.observe(None, ()))
    devices = {link.name for link in links}
    request.need_root()
    released = True
    if args.boot:
        for note in confirm.discard_earlier(kernel, store):
            streams.say(f"note: {note}")
        return 0
    if args.orphaned:
        done = RolledBack(0)
        if _of_tuned(store):
            done = rollback(kernel, store, claims.others(store, kernel))
        claims.release_tuned(store, kernel.boot_id())
    else:
        refuse_elsewhere(store, _left_store(args).load(), kernel)
        mine = {link.ifindex for link in links} or None
        # First, or the services of .link files would put right what this brings back.
        released = _released(store, kernel.boot_id(), mine)
        done = rollback(kernel, store, devices or None, for_good=True, forget=not devices)
        if not mine or not done.pending:
            confirm.cancel(store, mine)
    for note in done.notes:
        streams.say(f"note: {note}")
    for line in done.pending:
        streams.say(f"not put back: {line}")
    streams.tell(f"{done.written} settings put back")
    return 0 if released and not done.pending else 1


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

    left = _of_tuned(store) or bool(claims.load(store, boot_id).tuned)
    return left and not tuned_profiles.at_start()


def _of_tuned(store: Store) -> bool:
    from rxlane.plan import TUNED

    journal = store.load()
    return journal is not None and journal.owner == TUNED


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "map": look.map_,
    "plan": look.plan,
    "apply": _apply,
    "confirm": _confirm,
    "watch": _watch,
    "verify": _verify,
    "rollback": _rollback,
    "link": look.link,
    "record": look.record,
}


# Verbs that write and end.
BRIEF_WRITERS = ("apply", "rollback")
INTERRUPTED = 130  # as of a process that SIGINT ended


def _ends_soon(args: argparse.Namespace) -> bool:
    waits = (getattr(args, name, None) is not None for name in ("watch", "confirm"))
    return args.verb != "watch" and not any(waits)


def _ending() -> list[signal.Signals]:
    """Return the signals that end a command beside Ctrl-C: nohup(1) has it outlive its terminal."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if outlives else [signal.SIGTERM, signal.SIGHUP]


def _interrupt(*_: object) -> None:
    """Interrupt once: another that came at the same time would be raised before an undo begins."""
    for number in (signal.SIGINT, *_ending()):
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser, verbs = _parser()
    try:
        args, rest = parser.parse_known_args(argv)
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
    for number in _ending() if script else (signal.SIGINT, *_ending()):
        # As Ctrl-C: what is half applied is undone.
        signal.signal(number, _interrupt)
    status = VERBS[args.verb](args)
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
