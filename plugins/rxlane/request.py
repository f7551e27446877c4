# SPDX-License-Identifier: GPL-2.0-or-later
"""What a command line asks for: devices, options, a profile, a recorded host."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence

from rxlane.errors import Kind, RxlaneError
from rxlane.model import Link, Snapshot
from rxlane.sections import Policy

SECTION = "rxlane"  # the section's name in messages about options from the command line
SNAPSHOT_LIMIT = 256 << 20  # bytes; 512 CPUs and 4096 queues make some 3 MB
PROFILE_LIMIT = 1 << 20  # bytes


def resolve(devices: Sequence[str], snapshot: Snapshot) -> list[Link]:
    """Return the named links; NO_DEVICE for the first that is not there. Altnames count."""
    from rxlane import rtnetlink

    found: dict[str, Link] = {}
    for name in devices:
        link = snapshot.link(name)
        if link is None:
            own = rtnetlink.resolve(name)
            link = None if own is None else snapshot.link(own)
        if link is None:
            raise RxlaneError(Kind.NO_DEVICE, "no such device", device=name)
        found[link.name] = link
    return list(found.values())


def device(argument: str) -> str:
    """Return a device's name from the command line as netlink has it, whatever the locale is."""
    return os.fsencode(argument).decode("utf-8", "replace")


def from_options(texts: Sequence[str], devices: Sequence[str]) -> Policy:
    """Return the policy of `--option NAME=VALUE` arguments; OPTION when there is none."""
    from rxlane.policy import parse_assignments, parse_mixed

    options = parse_assignments(texts, SECTION)
    if not options:
        problem = "no option is given, so there is nothing to do"
        raise RxlaneError(Kind.OPTION, problem, remedy="give for instance --option threaded=on")
    return parse_mixed(SECTION, devices, options)


def from_profile(names: str, links: Collection[Link]) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy of TuneD profiles on these links, and notes about what was not found."""
    from rxlane import policy, profile

    found = profile.load(names, _profile_file)
    return policy.parse(found.sections(links)), tuple(found.notes)


def _profile_file(path: str) -> str | None:
    try:
        return text_of(path, PROFILE_LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RxlaneError(Kind.FORMAT, f"{path}: {reason}") from None


def text_of(path: str, limit: int) -> str:
    """Return a file's text, FORMAT when it is longer than limit or no UTF-8."""
    try:
        if path == "-":
            text = sys.stdin.read(limit + 1)
        else:
            with open(path, encoding="utf-8") as stream:
                text = stream.read(limit + 1)
    except UnicodeDecodeError:
        raise RxlaneError(Kind.FORMAT, f"{path}: not UTF-8") from None
    if len(text) > limit:
        raise RxlaneError(Kind.FORMAT, f"{path}: longer than {limit} bytes")
    return text


def read_snapshot(path: str) -> Snapshot:
    """Return the recorded host in a file, `-` for standard input."""
    from rxlane import codec, plausible
    from rxlane.stored import FORMAT

    if not path:
        raise RxlaneError(Kind.FORMAT, "--snapshot names no file", remedy="give '-' for stdin")
    try:
        text = text_of(path, SNAPSHOT_LIMIT)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RxlaneError(Kind.FORMAT, f"{path}: {reason}") from None
    snapshot = codec.loads(Snapshot, text, path)
    if snapshot.format != FORMAT:
        raise RxlaneError(Kind.FORMAT, f"{path}: format {snapshot.format}, known is {FORMAT}")
    plausible.check(snapshot, path)
    return snapshot
