# SPDX-License-Identifier: GPL-2.0-or-later
"""python -m lab shell: a guest to try things in, with one command or line by line.

Each line is a shell of its own in the guest: `cd` and variables do not last to the next.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from lab.kernel import KernelImage
from lab.machine import GuestSpec
from lab.vm import CommandFailed, Guest, GuestLost, Splat

COMMAND_S = 600.0
LOST, SPLAT = 125, 126


def machine(cpus: int, share: list[Path]) -> GuestSpec:
    """The profile's guest for 8 CPUs: two sockets and NUMA nodes, SMT; else a plain one."""
    if cpus == 8:
        return GuestSpec(
            cpus=8, sockets=2, cores=2, threads=2, numa=2, memory_mb=2048,
            e1000e=True, vmxnet3=True, share=share,
        )  # fmt: skip
    return GuestSpec(cpus=cpus, share=share)


def lines() -> Iterator[list[str]]:
    """Commands from standard input until its end; a prompt only for a person."""
    while True:
        if sys.stdin.isatty():
            print("guest# ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield ["sh", "-c", line]


def shell(kernel: KernelImage, spec: GuestSpec, command: list[str]) -> int:
    """Runs ``command``, or the lines of standard input, in a guest; the last exit code.

    125 when the guest was lost, 126 when its kernel reported a fault.
    """
    rc = 0
    try:
        with Guest(kernel, spec) as guest:
            for argv in [command] if command else lines():
                try:
                    done = guest.run(argv, timeout=COMMAND_S, check=False)
                except CommandFailed as late:
                    done = late.done
                print(done.stdout, end="", flush=True)
                print(done.stderr, end="", file=sys.stderr, flush=True)
                rc = done.rc
            guest.check_splats()
    except GuestLost as lost:
        print(f"lab: the guest is lost: {lost}", file=sys.stderr)
        return LOST
    except Splat as splat:
        print(f"lab: the guest's kernel reports:\n{splat}", file=sys.stderr)
        return SPLAT
    return rc
