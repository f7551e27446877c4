# SPDX-License-Identifier: GPL-2.0-or-later
"""`make demo`: an operator's main job, from packages to the measured gain and back.

    demo.py --kernel ours      our patched 6.12, built here
    demo.py --kernel debian    Debian's own prebuilt 6.12 and 7.2: no build, and what each lacks

Exit code: 0 all as it should be; 1 a step failed or a setting did not come back; 3 the guest was
lost, which says nothing about rxlane.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.flood import ModeRefused
from bench.gain import NoLane
from bench.tools import ToolBuildFailed
from demo_story import NotRestored, tell
from demo_text import Outcome, act, closing, line
from lab.apt import NoPackage
from lab.debtools import packages as patched_tools
from lab.kernel import KernelImage, build, debian_prebuilt
from lab.paths import BUILD, TREE
from lab.progress import StepFailed
from lab.source import NoSource
from lab.vm import CommandFailed, GuestLost, Splat

DEBS = BUILD / "debs"
FAILED = (
    CommandFailed, ModeRefused, NoLane, NoPackage, NoSource, NotRestored, Splat, StepFailed,
    ToolBuildFailed, subprocess.CalledProcessError,
)  # fmt: skip
KERNELS: dict[str, tuple[Callable[[], KernelImage], ...]] = {
    "ours": (partial(build, base="6.12", flavour="fast", patched=True),),
    "debian": (partial(debian_prebuilt, "6.12"), partial(debian_prebuilt, "7.2")),
}


def packages() -> list[Path]:
    """The Debian packages, as `make demo` has just built them, or built here."""
    if not list(DEBS.glob("*.deb")):
        with act("building the Debian packages"):
            subprocess.run([TREE / "packaging" / "build-debs"], check=True)
    return sorted(DEBS.glob("*.deb"))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.py", description="rxlane's main job in a guest")
    parser.add_argument("--kernel", choices=KERNELS, default="ours")
    parser.add_argument("--rounds", type=int, choices=range(1, 21), metavar="1..20", default=3)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    start = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        debs = packages()
        with act("ethtool and iproute2 with our patches: from the cache, or built now"):
            tools = patched_tools()
        for kernel in KERNELS[args.kernel]:
            with act("the kernel: from the cache, or made now"):
                image = kernel()
            outcomes.append(tell(image, debs, tools, args.rounds))
    except GuestLost as lost:
        line(f"the guest was lost: {lost}", sys.stderr)
        return 3
    except FAILED as error:
        line(f"{type(error).__name__}: {error}", sys.stderr)
        return 1
    closing(outcomes, time.monotonic() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
