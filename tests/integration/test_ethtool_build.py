# SPDX-License-Identifier: GPL-2.0-or-later
"""The patch to ethtool as such: builds by other compilers and without netlink, and its cost."""

import os
import re
import shutil
import sys
from pathlib import Path

import ethtool_tool as tool
import pytest
from cpu_time import least_ratio, medians
from iproute2_space import GRO, Space, run, space

from conftest import missing

DEVICES, QUEUES = 512, 8
# What showing all of them may cost beside the dumps alone, and beside showing half of them.
MOST, MOST_OF_HALF = 2.0, 2.5


@pytest.mark.long
@pytest.mark.parametrize("flavour", ["clang", "no-netlink"])
def test_builds_whole(flavour: str) -> None:
    """Its own tests passed when it was built; our file had no warning of -Wall -Wextra."""
    if not shutil.which(tool.FLAVOURS[flavour].compiler):
        missing(f"{tool.FLAVOURS[flavour].compiler} is not installed")
    program = tool.ethtool(flavour)
    assert "--set-napi DEVNAME" in run([program, "--help"]).stdout
    assert run([program, "--version"]).stdout.startswith(f"ethtool version {tool.VERSION}")


@pytest.mark.long
def test_without_netlink_it_says_so() -> None:
    for words in (["--show-napi", "lo"], ["--set-napi", "lo", "all", "threaded", "on"]):
        done = run([tool.ethtool("no-netlink"), *words])
        assert (done.returncode, done.stdout) == (1, "")
        assert "netlink" in done.stderr and done.stderr.count("\n") == 1


def fill(ns: Space, pairs: int) -> None:
    """Pairs of veths, each end with eight NAPIs and up."""
    many = f"numrxqueues {QUEUES} numtxqueues {QUEUES}"
    names = [f"{end}{number}" for number in range(pairs) for end in "ab"]
    lines = [f"link add a{n} {many} type veth peer name b{n} {many}" for n in range(pairs)]
    for batch in (lines, [f"link set {name} up" for name in names]):
        done = run(["ip", "-n", ns.name, "-batch", "-"], stdin="\n".join(batch))
        assert (done.returncode, done.stderr) == (0, "")
        if batch is lines:
            ns.inside(sys.executable, "-c", GRO, *names)


def counted(ns: Space) -> tuple[int, int]:
    """How many devices and NAPIs the tool shows; the raw dump must have read as many NAPIs."""
    text = ns.inside(ns.ip, "--show-napi", "*").stdout
    read = re.match(r"\d+ links, (\d+) NAPIs", ns.inside(tool.raw_dump()).stdout)
    napis = len(re.findall(r"^NAPI \d+:$", text, re.MULTILINE))
    assert read and int(read[1]) == napis
    return text.count("NAPI parameters for "), napis


@pytest.mark.long
def test_cost_of_showing_512_devices() -> None:
    """CPU time in text and JSON against a program that only reads the same dumps; and linear."""
    if os.geteuid() != 0:
        missing("network namespaces need root")
    program = tool.ethtool()
    over: list[str] = []
    with (
        space(f"rxlane-ethtool-all-{os.getpid()}", program) as full,
        space(f"rxlane-ethtool-half-{os.getpid()}", program) as half,
    ):
        fill(full, DEVICES // 2)
        fill(half, DEVICES // 4)
        assert counted(full) == (DEVICES, DEVICES * QUEUES)
        assert counted(half) == (DEVICES // 2, DEVICES // 2 * QUEUES)
        for words in (["--show-napi", "*"], ["--json", "--show-napi", "*"]):
            there, other = (["ip", "netns", "exec", ns.name] for ns in (full, half))
            shown: list[str | Path] = [program, *words]
            raw = least_ratio(shown, [tool.raw_dump()], MOST, there)
            twice = medians([shown], there)[0] / medians([shown], other)[0]
            print(f"{' '.join(words)}: {raw:.2f} of a raw dump, {twice:.2f} of half as many")
            over += [f"{words}: {raw}, {twice}"] if raw > MOST or twice > MOST_OF_HALF else []
    assert over == []
