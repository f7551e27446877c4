# SPDX-License-Identifier: GPL-2.0-or-later
"""What a command line asks for: devices, options, a profile, a recorded host."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from rxlane.bounded import text_of
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Link, Snapshot
from rxlane.sections import Policy
from rxlane.tuned.profilefile import profile_file

SNAPSHOT_LIMIT = 256 << 20  # bytes; 512 CPUs and 4096 queues make some 3 MB


def resolve(devices: Sequence[str], snapshot: Snapshot, recorded: bool = False) -> list[Link]:
    """Return the named links; NO_DEVICE for the first that is not there.

    Altnames count, unless the host is a recorded one: no record has them.
    """
    from rxlane.deciding.draft import no_device
    from rxlane.wire import rtnetlink

    found: dict[str, Link] = {}
    for name in devices:
        link = snapshot.link(name)
        if link is None and not recorded:
            own = rtnetlink.resolve(name)
            link = None if own is None else snapshot.link(own)
        if link is None:
            raise no_device(snapshot, name)
        found[link.name] = link
    return list(found.values())


def need_root(what: str = "changing settings") -> None:
    """Raise REFUSED for anybody else."""
    if os.geteuid() != 0:
        raise RxlaneError(Kind.REFUSED, f"{what} needs root", remedy="use sudo")


def device(argument: str) -> str:
    """Return a device's name from the command line as netlink has it, whatever the locale is."""
    return _utf8(argument, "replace")


def _utf8(argument: str, errors: str) -> str:
    """Return what was given on the command line read as UTF-8."""
    return os.fsencode(argument).decode("utf-8", errors)


def from_options(texts: Sequence[str], devices: Sequence[str]) -> Policy:
    """Return the policy of `--option NAME=VALUE` arguments; OPTION when there is none."""
    from rxlane.policy import parse_assignments, parse_mixed

    options = parse_assignments(texts)
    if not options:
        problem = "no option is given, so there is nothing to do"
        raise RxlaneError(Kind.OPTION, problem, remedy="give for instance --option threaded=on")
    return parse_mixed(devices, options)


def from_profile(
    names: str, links: Collection[Link], recorded: bool
) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy of TuneD profiles on these links, and notes about the files with values.

    recorded: the links are those of another host, which may have other values.
    """
    from rxlane import policy
    from rxlane.tuned import profile

    found = profile.load(_utf8(names, "surrogateescape"), profile_file)
    values = found.values if recorded else []
    notes = [f"values are those of {path} of this machine" for path in values]
    return policy.parse(found.sections(links)), (*notes, *found.notes)


def read_snapshot(path: str) -> Snapshot:
    """Return the recorded host in a file, `-` for standard input."""
    from rxlane import codec
    from rxlane.host import plausible
    from rxlane.stored import FORMAT

    if not path:
        raise RxlaneError(Kind.FORMAT, "--snapshot names no file", remedy="give '-' for stdin")
    try:
        text = text_of(path, SNAPSHOT_LIMIT, path)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RxlaneError(Kind.FORMAT, f"{path}: {reason}") from None
    snapshot = codec.loads(Snapshot, text, path)
    if snapshot.format != FORMAT:
        raise RxlaneError(Kind.FORMAT, f"{path}: format {snapshot.format}, known is {FORMAT}")
    plausible.check(snapshot, path)
    return snapshot
