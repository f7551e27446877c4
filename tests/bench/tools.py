# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds the load tools (tools/*.c), statically linked: a guest needs no toolchain for them.

Packaged tools that were weighed, and why they do not do this job:

* netperf UDP_STREAM (what the seed used): each of 200 instances keeps a TCP control connection
  into the very guest whose receive path is being starved and reads its counters over it, so
  under livelock runs abort or hang; the receiver's count also takes in what it finds in its
  socket buffers after the flood.
* iperf3: one receiving process for all streams (the seed has one a flow), messages from 16 bytes
  up (the seed's first row has 1), and the same control connection.
* netperf TCP_RR is what seed 004 used, and serves here too; its RPC test was never published;
* sockperf and netperf UDP_RR: the first is in neither image; the second stops for good at the
  first lost datagram, which is the normal case under flood.
"""

import subprocess
from pathlib import Path

from lab.cache import digest
from lab.paths import BUILD

SOURCES = Path(__file__).resolve().parent / "tools"
NAMES = ("udpflood", "udpsink", "udpecho", "openrr", "rpc")
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")


class ToolBuildFailed(Exception):
    """The C compiler refused a tool; the message is what it printed."""


def build_tool(name: str, folder: Path = BUILD / "bench") -> Path:
    """The tool's binary, compiled anew unless it is of the same sources, words and compiler.

    Raises ToolBuildFailed.
    """
    source, target = SOURCES / f"{name}.c", folder / name
    argv = ["gcc", *FLAGS, "-o", str(target), str(source), "-lm"]
    compiler = subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout
    texts = (path.read_bytes() for path in sorted((source, *SOURCES.glob("*.h"))))
    stamp, made_of = folder / f".{name}", digest([*FLAGS, compiler, *texts])
    if target.exists() and stamp.exists() and stamp.read_text() == made_of:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolBuildFailed(f"{' '.join(argv)}:\n{done.stderr}")
    stamp.write_text(made_of)
    return target


def build_tools(folder: Path = BUILD / "bench") -> dict[str, Path]:
    """All tools by name."""
    return {name: build_tool(name, folder) for name in NAMES}
