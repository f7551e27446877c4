# SPDX-License-Identifier: GPL-2.0-or-later
"""python -m lab: kernels, roots and series from the shell. `-h` lists the verbs."""

import argparse
import sys
from pathlib import Path

from lab import apt, custody, eachmodel, eachpatch, kernel, record, rootfs, shell
from lab.base import BASES, BadBase
from lab.progress import StepFailed


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m lab")
    verbs = top.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("kernel", help="build a kernel, or take it from the cache")
    guest = verbs.add_parser("shell", help="boot a guest and run a command, or lines of stdin")
    for verb in (build, guest):
        verb.add_argument("--flavour", default="fast", choices=sorted(kernel.FLAVOURS))
        verb.add_argument("--stock", action="store_true", help="without our series")
    build.set_defaults(debian=False)
    debian = verbs.add_parser("debian", help="fetch Debian's own kernel of this base")
    debian.set_defaults(debian=True)
    series = verbs.add_parser("series", help="the series applies with fuzz 0; checkpatch")
    series.add_argument("--build", action="store_true", help="each patch builds alone, and boots")
    series.add_argument("--models", action="store_true", help="each compiles in all others, too")
    series.add_argument("--first", type=int, default=1, help="with these: from this patch on")
    series.add_argument("--last", type=int, default=9999, help="with these: as far as this one")
    verbs.add_parser("tree", help="lay build/kernel-BASE with the series as commits")
    verbs.add_parser("refresh", help="write the commits of build/kernel-BASE as patches")
    for name in ("kernel", "shell", "debian", "series", "tree", "refresh"):
        verbs.choices[name].add_argument("base", choices=BASES)
    guest.add_argument("--debian", action="store_true", help="Debian's own kernel of the base")
    guest.add_argument("--cpus", type=int, default=1, help="8: two sockets and NUMA nodes, SMT")
    guest.add_argument("--share", type=Path, action="append", default=[], help="into /mnt/share")
    guest.add_argument("command", nargs="*", help="after --: the command and its words")
    verbs.add_parser("root", help="make the guests' Debian 13 root")
    recorded = verbs.add_parser("record", help="boot guests and write them down as fixture hosts")
    recorded.add_argument("hosts", nargs="*", help="of these names; all when left out")
    return top


def chosen(words: argparse.Namespace) -> kernel.KernelImage:
    if words.debian:
        return kernel.debian_prebuilt(words.base)
    return kernel.build(words.base, words.flavour, not words.stock)


def check_series(words: argparse.Namespace) -> None:
    if words.build:
        eachpatch.check(words.base, words.first, words.last)
    if words.models:
        eachmodel.check(words.base, words.first, words.last)
    if not (words.build or words.models):
        custody.check_series(words.base)


def act(words: argparse.Namespace) -> int:
    """The verb's exit code."""
    match words.verb:
        case "shell":
            spec = shell.machine(words.cpus, words.share)
            return shell.shell(chosen(words), spec, words.command)
        case "kernel" | "debian":
            print(chosen(words).bzimage)
        case "series":
            check_series(words)
        case "tree":
            print(custody.tree(words.base))
        case "refresh":
            custody.refresh(words.base)
        case "record":
            record.record_all(words.hosts)
        case "root":
            print(rootfs.root_image())
    return 0


def main() -> int:
    try:
        return act(parser().parse_args())
    except (StepFailed, BadBase, apt.NoPackage, ValueError) as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
