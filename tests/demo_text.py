# SPDX-License-Identifier: GPL-2.0-or-later
"""How the demo speaks: steps with their durations, commands with their output, the closing."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from bench.gain import Gain


@dataclass
class Outcome:
    """What one guest showed. ``lacks`` are rxlane's own words for what the kernel cannot do."""

    kernel: str
    settings: int = 0
    changed: int = 0
    gain: Gain | None = None
    lacks: list[str] = field(default_factory=list)
    seconds: float = 0.0


def line(text: str, stream: TextIO | None = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)


def chapter(text: str) -> None:
    line(f"\n=== {text} ===")


@contextmanager
def act(what: str) -> Iterator[None]:
    """Prints ``what`` before, and after it the seconds it took."""
    line(f"\n--> {what}")
    start = time.monotonic()
    yield
    line(f"    ({time.monotonic() - start:.1f} s)")


def quote(argv: Sequence[str], output: str) -> None:
    """A command of the guest and what it printed, indented."""
    line(f"    guest# {' '.join(argv)}")
    for row in output.rstrip().splitlines():
        line(f"    {row}".rstrip())


def gain_text(gain: Gain) -> str:
    off, on, ratio = gain.off, gain.on, gain.ratio
    return (
        f"×{ratio.median:.1f} (runs {ratio.low:.1f}..{ratio.high:.1f}): "
        f"{off.median / 1000:.0f} thousand rounds of work a second "
        f"({off.low / 1000:.0f}..{off.high / 1000:.0f}) with the profile off, "
        f"{on.median / 1000:.0f} ({on.low / 1000:.0f}..{on.high / 1000:.0f}) on, "
        f"{off.runs} runs each, alternating"
    )


def closing(outcomes: Sequence[Outcome], seconds: float) -> None:
    chapter("Summary")
    for outcome in outcomes:
        line(f"\n{outcome.kernel}, {outcome.seconds:.0f} s from boot to end")
        line("  profile applied, verified and switched off by tuned-adm, from Debian packages")
        if outcome.gain is not None:
            target = outcome.gain.target
            line(f"  an application on CPU {target.cpu} while queue {target.queue} is flooded:")
            line(f"    {gain_text(outcome.gain)}")
        line(
            f"  {outcome.changed} of {outcome.settings} settings differed under the profile; "
            "afterwards every one equals its original"
        )
        for lack in outcome.lacks or ["nothing: this kernel has all that rxlane asks for"]:
            line(f"  lacks: {lack}")
    line(f"\nTotal: {seconds:.0f} s")
