#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What ``ip link`` costs by two programs with many devices; prints one JSON object.

Runs as root in a guest whose clocks count instructions, with nothing else on its one CPU:
``ip_cost.py DEVICES UNPATCHED PATCHED``. DEVICES are veths, first without a NAPI, then with one on
every second, then on each. The outcome is {"N words": [NAPIs shown by the patched one, nanoseconds
of each, the least of ROUNDS]}; the time is the program's from its start to its end.
"""

import json
import subprocess
import sys
import time

WORDS = (("-d", "link"), ("-j", "-d", "link"), ("link",))
ROUNDS = 3


def batch(ip: str, lines: list[str]) -> None:
    subprocess.run([ip, "-batch", "-"], input="\n".join(lines), text=True, check=True)


def took(argv: list[str]) -> int:
    began = time.monotonic_ns()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic_ns() - began


def shown(ip: str) -> int:
    """Devices that show the mode of their NAPIs."""
    links = json.loads(subprocess.check_output([ip, "-j", "-d", "link"]))
    return sum("threaded" in link for link in links)


def main() -> None:
    count, stock, patched = int(sys.argv[1]), *sys.argv[2:]
    pairs = range(count // 2)
    batch(patched, [f"link add a{n} type veth peer name b{n}" for n in pairs])
    cost = {}
    for napis, end in ((0, ""), (count // 2, "a"), (count, "b")):
        if end:
            for n in pairs:
                subprocess.run(["ethtool", "-K", f"{end}{n}", "gro", "on"], check=True)
            batch(patched, [f"link set {end}{n} up" for n in pairs])
        for words in WORDS:
            least = [min(took([ip, *words]) for _ in range(ROUNDS)) for ip in (stock, patched)]
            cost[f"{napis} {' '.join(words)}"] = [shown(patched), *least]
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
