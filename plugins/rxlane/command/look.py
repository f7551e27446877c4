# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs that change nothing: map, plan, link and record."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TextIO

from rxlane import streams
from rxlane.command import request
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Link, Snapshot
from rxlane.plan import Plan
from rxlane.sections import Policy
from rxlane.showing import sanitize

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")  # as PEP 538 has them
NOTHING_SHOWN = "no device here is hardware or has NAPI instances"
NAME_THEM = "name devices to see others"
SHOWN = "hardware and what has NAPI instances or vhost threads"


def add_map_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `rxlane map` beyond those that verbs share."""
    parser.add_argument("--svg", metavar="FILE", help="write a picture ('-' = stdout)")
    parser.add_argument("--snapshot", metavar="FILE", help="show a recorded host ('-' = stdin)")
    parser.add_argument(
        "--watch",
        type=_count,
        nargs="?",
        const=0,
        metavar="COUNT",
        help="show packets and CPU time of each lane every second, COUNT times or until Ctrl-C",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour by mode; auto: on a terminal",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not int(text):
        problem = f"{text[:20]!r} is not a number of times: name devices first, or --watch=COUNT"
        raise argparse.ArgumentTypeError(problem)
    return int(text)


def map_(args: argparse.Namespace) -> int:
    """Show the lanes of a host, this or a recorded one."""
    if args.watch is not None:
        return _watch(args)
    if args.json and args.svg is not None:
        problem = "--json and --svg are two ways to show the same"
        raise RxlaneError(Kind.OPTION, problem, remedy="leave one of them out")
    recorded = args.snapshot is not None
    snapshot = request.read_snapshot(args.snapshot) if recorded else _observe()
    links = request.resolve(args.devices, snapshot, recorded) if args.devices else _shown(snapshot)
    if not links:
        streams.say(f"note: {NOTHING_SHOWN}; {NAME_THEM}")
    if args.svg is not None:
        from rxlane.showing import svg

        _write(args.svg, svg.render(snapshot, links))
    elif args.json:
        from rxlane.showing import mapjson

        sys.stdout.write(mapjson.map_json(snapshot, links))
    else:
        from rxlane.showing import table

        colour, unicode = terminal(sys.stdout, os.environ, args.color)
        sys.stdout.write(table.map_text(snapshot, links, table.Style(colour, unicode)))
    return 0


def _watch(args: argparse.Namespace) -> int:
    """Show what the lanes carry, interval by interval, until interrupted or COUNT is reached.

    1 when all devices that were named are gone.
    """
    from rxlane.command import live

    if args.snapshot is not None or args.svg is not None:
        problem = "--watch is about the running host, in text or with --json"
        raise RxlaneError(Kind.OPTION, problem, remedy="leave --snapshot and --svg out")
    snapshot = _observe()
    links = request.resolve(args.devices, snapshot) if args.devices else _shown(snapshot)
    if not links:
        raise RxlaneError(Kind.NO_DEVICE, NOTHING_SHOWN, remedy=NAME_THEM)
    colour, unicode = terminal(sys.stdout, os.environ, args.color)
    others = None if args.devices else _shown
    redraw = sys.stdout.isatty() and knows_escapes(os.environ) and not args.json
    wanted = live.Wanted(links, others, args.watch, args.json, colour, unicode, redraw)
    try:
        gone = live.watch(wanted, sys.stdout)
    except KeyboardInterrupt:
        return 0  # the way to end it
    if gone:
        streams.say(f"rxlane: {', '.join(gone)}: gone, and no other device was named to watch")
    return 1 if gone else 0


def _observe() -> Snapshot:
    from rxlane.kernel import Linux

    return Linux().observe()


def _shown(snapshot: Snapshot) -> list[Link]:
    """Without names: SHOWN, but not lo, bridges and the like."""
    return [link for link in snapshot.links if link.physical or link.napis or link.vhosts]


def terminal(stream: TextIO, environment: Mapping[str, str], colour: str) -> tuple[bool, bool]:
    """Return whether to use colour, and characters beyond ASCII: only where a person reads.

    NO_COLOR as https://no-color.org has it.
    """
    person = stream.isatty()
    able = knows_escapes(environment) and not environment.get("NO_COLOR")
    wide = _is_utf8(stream.encoding or "") and _is_utf8(_charset(environment))
    return colour == "always" or (colour == "auto" and person and able), person and wide


def knows_escapes(environment: Mapping[str, str]) -> bool:
    """Return whether TERM names a terminal that obeys escape codes."""
    return environment.get("TERM", "") not in ("", "dumb")


def _charset(environment: Mapping[str, str]) -> str:
    """Return the character set that the locale names, as locale(7) has it; empty for C.

    Python writes UTF-8 in C, too, and sets LC_CTYPE to one of COERCED there: LANG says if it is.
    """
    every, ctype = environment.get("LC_ALL"), environment.get("LC_CTYPE")
    chosen = every or (ctype if ctype not in COERCED else "") or environment.get("LANG", "")
    return chosen.partition(".")[2].partition("@")[0]


def _is_utf8(charset: str) -> bool:
    return charset.lower().replace("-", "") == "utf8"


def _write(name: str, text: str) -> None:
    """Write a file, `-` for standard output, in UTF-8; FORMAT when that cannot be."""
    if name == "-":
        sys.stdout.buffer.write(text.encode())
        return
    if not name:
        raise RxlaneError(Kind.FORMAT, "no file is named", remedy="give '-' for standard output")
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RxlaneError(Kind.FORMAT, f"{name}: {reason}") from None


def plan(args: argparse.Namespace) -> int:
    """Show what apply would change, here or on a recorded host."""
    from rxlane import show

    found = _here(args) if args.snapshot is None else _recorded(args)
    sys.stdout.write(show.plan_json(found) if args.json else show.plan_text(found))
    return 0


def _recorded(args: argparse.Namespace) -> Plan:
    from rxlane.decide import decide

    snapshot = request.read_snapshot(args.snapshot)
    devices = [link.name for link in request.resolve(args.devices, snapshot, recorded=True)]
    return decide(snapshot, _policy(args, snapshot, devices))


def _here(args: argparse.Namespace) -> Plan:
    """Return the plan with what goes back of an earlier apply, if its journal can be read."""
    from rxlane.apply import foresee
    from rxlane.applying.present import of_this_boot, refuse_elsewhere
    from rxlane.journal import Store
    from rxlane.keeping import claims
    from rxlane.kernel import Linux

    kernel, store, journal = Linux(), Store(args.state), None
    snapshot = kernel.observe()
    devices = [link.name for link in request.resolve(args.devices, snapshot)]
    policy = _policy(args, snapshot, devices)
    scope: Container[str] | None = devices or None
    try:
        found = of_this_boot(store, kernel.boot_id())
        refuse_elsewhere(store, found, kernel)
        journal = found
        if args.profile is not None:
            scope = claims.others(store, kernel)
    except RxlaneError as error:
        if error.kind not in (Kind.JOURNAL, Kind.REFUSED):
            raise
        streams.say(f"note: {error.problem}: what would be put back of it is not shown")
    return foresee(kernel, journal, snapshot, policy, scope)


def _policy(args: argparse.Namespace, snapshot: Snapshot, devices: list[str]) -> Policy:
    if args.profile is None:
        if not devices and not any(link.physical for link in snapshot.links):
            streams.say("note: no device here is hardware; name devices to lay out others")
        return request.from_options(args.option, devices)
    if args.option or devices:
        problem = "a profile names its own devices and options"
        raise RxlaneError(Kind.OPTION, problem, remedy="leave DEV and --option out")
    recorded = args.snapshot is not None
    policy, notes = request.from_profile(args.profile, snapshot.links, recorded)
    for note in notes:
        streams.say(f"note: {note}")
    return policy


def link(args: argparse.Namespace) -> int:
    """Print the drop-in that gives a device the layout it has; 1 when it cannot say all of it."""
    from rxlane.applying.present import of_this_boot, refuse_elsewhere
    from rxlane.host import udevdb
    from rxlane.journal import Store
    from rxlane.kernel import Linux
    from rxlane.linkfiles import linkfile
    from rxlane.sysfs import Sysfs

    request.need_root("reading the journal")
    kernel, store = Linux(), Store(args.state)
    snapshot = kernel.observe()
    (device,) = request.resolve([args.device], snapshot)
    journal = of_this_boot(store, kernel.boot_id())
    refuse_elsewhere(store, journal, kernel)
    entries = () if journal is None else journal.entries
    found = linkfile.layout(snapshot, device, entries)
    files, index = Sysfs(), device.ifindex
    present = udevdb.link_files(udevdb.properties(files, index) or {})
    shared = udevdb.shares(files, index)
    sys.stdout.write(linkfile.render(found, device.name, present, shared))
    return 1 if found.missing else 0


def record(args: argparse.Namespace) -> int:
    """Write this host as JSON, without addresses."""
    from rxlane import codec

    text = sanitize.without_addresses(codec.dumps(_observe()))
    _write("-" if args.file is None else args.file, text)
    return 0
