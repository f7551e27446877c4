# SPDX-License-Identifier: GPL-2.0-or-later
"""Long steps say what they do and, when done, how long it took."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TAIL_LINES = 25


class StepFailed(Exception):
    """A tool that the lab calls failed; the message carries the tail of what it printed."""


def say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Prints ``what`` before and the seconds it took after."""
    say(f"{what} …")
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.0f} s")


def tool(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Runs one tool and returns its standard output; StepFailed with the tail when it fails.

    ``log`` receives both streams as they come (then "" is returned), for builds of minutes.
    """
    words = [str(word) for word in argv]
    if log is None:
        done = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False
        )
        printed = done.stdout + done.stderr
        result = done.stdout
    else:
        with log.open("a") as sink:
            done = subprocess.run(
                words,
                cwd=cwd,
                env=env,
                stdout=sink,
                stderr=subprocess.STDOUT,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        printed = log.read_text(errors="replace") if done.returncode else ""
        result = ""
    if done.returncode:
        tail = "\n".join(printed.splitlines()[-TAIL_LINES:])
        raise StepFailed(f"`{' '.join(words)}` ended with {done.returncode}:\n{tail}")
    return result
