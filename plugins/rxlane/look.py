# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs that change nothing: map, plan and record."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rxlane import request
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Snapshot
from rxlane.sections import Policy


def map_(args: argparse.Namespace) -> int:
    from rxlane import show
    from rxlane.kernel import Linux

    snapshot = Linux().observe()
    if args.devices:
        links = request.resolve(args.devices, snapshot)
    else:
        # Without names: hardware, and whatever else has NAPIs, but not lo, bridges and the like.
        links = [link for link in snapshot.links if link.physical or link.napis]
    render = show.map_json if args.json else show.map_text
    sys.stdout.write(render(snapshot, links))
    return 0


def plan(args: argparse.Namespace) -> int:
    from rxlane import show
    from rxlane.decide import decide

    if args.snapshot:
        snapshot, devices = request.read_snapshot(args.snapshot), list(args.devices)
    else:
        from rxlane.kernel import Linux

        snapshot = Linux().observe()
        devices = [link.name for link in request.resolve(args.devices, snapshot)]
    found = decide(snapshot, _policy(args, snapshot, devices))
    sys.stdout.write(show.plan_json(found) if args.json else show.plan_text(found))
    return 0


def _policy(args: argparse.Namespace, snapshot: Snapshot, devices: list[str]) -> Policy:
    if args.profile is None:
        return request.from_options(args.option, devices)
    if args.option or devices:
        problem = "a profile names its own devices and options"
        raise RxlaneError(Kind.OPTION, problem, remedy="leave DEV and --option out")
    policy, notes = request.from_profile(args.profile, snapshot.links)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return policy


def record(args: argparse.Namespace) -> int:
    from rxlane import codec
    from rxlane.kernel import Linux

    text = codec.dumps(Linux().observe())
    if args.file is None or args.file == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(args.file).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RxlaneError(Kind.FORMAT, f"{args.file}: {reason}") from None
    return 0
