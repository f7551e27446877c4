# SPDX-License-Identifier: GPL-2.0-or-later
"""python -m lab: kernels, roots and series from the shell. `-h` lists the verbs."""

import argparse
import sys

from lab import apt, custody, kernel, rootfs
from lab.base import BASES, BadBase
from lab.progress import StepFailed


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m lab")
    verbs = top.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("kernel", help="build a kernel, or take it from the cache")
    build.add_argument("--flavour", default="fast", choices=sorted(kernel.FLAVOURS))
    build.add_argument("--stock", action="store_true", help="without our series")
    verbs.add_parser("debian", help="fetch Debian's own kernel of this base")
    series = verbs.add_parser("series", help="the series applies with fuzz 0; checkpatch")
    series.add_argument("--build", action="store_true", help="each patch builds alone, W=1")
    verbs.add_parser("tree", help="lay build/kernel-BASE with the series as commits")
    verbs.add_parser("refresh", help="write the commits of build/kernel-BASE as patches")
    for name in ("kernel", "debian", "series", "tree", "refresh"):
        verbs.choices[name].add_argument("base", choices=BASES)
    verbs.add_parser("root", help="make the guests' Debian 13 root")
    return top


def act(words: argparse.Namespace) -> None:
    match words.verb:
        case "kernel":
            print(kernel.build(words.base, words.flavour, not words.stock).bzimage)
        case "debian":
            print(kernel.debian_prebuilt(words.base).bzimage)
        case "series" if words.build:
            custody.build_each(words.base)
        case "series":
            custody.check_series(words.base)
        case "tree":
            print(custody.tree(words.base))
        case "refresh":
            custody.refresh(words.base)
        case "root":
            print(rootfs.root_image())


def main() -> int:
    try:
        act(parser().parse_args())
    except (StepFailed, BadBase, apt.NoPackage, ValueError) as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
