# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time of commands, and its ratio between two of them on a machine that does other things.

Run as a script, with a JSON list of argument vectors, it prints a JSON list of median seconds: so
it can be started in a network namespace, which then costs the measured commands nothing.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 61
TRIES = 5

Argv = Sequence[str | Path]


def seconds(argv: Sequence[str]) -> float:
    """CPU time of the process and of the kernel on its behalf; others on the machine add none."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _pid, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def medians(commands: Sequence[Argv], inside: Sequence[str] = ()) -> list[float]:
    """Of times taken in turn, so that what comes and goes hits all; ``inside`` starts the script.

    Raises CalledProcessError when one of the commands fails.
    """
    words = json.dumps([[str(word) for word in argv] for argv in commands])
    done = subprocess.run(
        [*inside, sys.executable, __file__, words], stdout=subprocess.PIPE, text=True, check=True
    )
    found: list[float] = json.loads(done.stdout)
    return found


def least_ratio(one: Argv, other: Argv, most: float, inside: Sequence[str] = ()) -> float:
    """A busy machine moves a ratio by a tenth either way: one above ``most`` is taken anew."""
    found = float("inf")
    for _again in range(TRIES):
        ours, theirs = medians([one, other], inside)
        print(f"{one[-1]}: {ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms")
        found = min(found, ours / theirs)
        if found <= most:
            break
    return found


def main() -> int:
    commands = json.loads(sys.argv[1])
    times = [[seconds(argv) for argv in commands] for _ in range(ROUNDS)]
    print(json.dumps([statistics.median(column) for column in zip(*times, strict=True)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
