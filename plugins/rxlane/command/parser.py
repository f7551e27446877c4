# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line's words: verbs, their options, and what is said of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NoReturn

from rxlane import __version__
from rxlane.command import look, request
from rxlane.errors import printable
from rxlane.stored import STATE

CONFIRM_MOST = 86400  # seconds


def _options_help() -> str:
    from rxlane.policy import OPTIONS

    lines = [f"  {option.name:20} {option.hint}" for option in OPTIONS]
    return "options (--option NAME=VALUE):\n" + "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """argparse, with its complaint as one line like every other of this command."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rxlane: {printable(message, 200)}; see `{self.prog} --help`\n")


def parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
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
    which.add_argument(
        "--tuned",
        action="store_true",
        help="only what TuneD wrote; for the removal of its plugins, where it cannot be told",
    )
    linking = _add(verbs, "link", "print the .link drop-in that makes the layout permanent")
    linking.add_argument("device", type=request.device, metavar="DEV", help="network device")
    record = _add(verbs, "record", "write a snapshot without addresses as JSON")
    record.add_argument("file", nargs="?", help="file to write, stdout when left out")
    for name in ("plan", "apply", "confirm", "watch", "verify", "rollback", "link"):
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
