#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run ``ip link`` commands on one NIC of the guest and print what each did, as JSON.

    iproute2_threaded.py IP NIC COMMANDS

COMMANDS is a JSON list of lists of words for ``ip link set NIC``. Printed is an object: ``links``
and ``napis`` of all devices as they are at first, the former as ``ip -j -d -d link`` has them, the
latter in ascending ID as the reader /root/reader.py has them; and ``done``, for each command its
``rc`` and ``stderr``, and the NIC's ``link``, ``napis`` and what ``sysfs`` says after it.
"NAPI" in the words stands for the highest ID of the NIC.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, "/root")
reader = __import__("reader")


def napis(nic: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = reader.napis(nic, reader.netdev_family())
    return found


def links(ip: str, *which: str) -> list[dict[str, Any]]:
    argv = [ip, "-j", "-d", "-d", "link", "show", *which]
    shown = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    found: list[dict[str, Any]] = json.loads(shown.stdout)
    return found


def did(ip: str, nic: str, words: list[str]) -> dict[str, Any]:
    ids = [str(napi["id"]) for napi in napis(nic)]
    argv = [ids[-1] if word == "NAPI" else word for word in words]
    done = subprocess.run(
        [ip, "link", "set", nic, *argv], capture_output=True, text=True, timeout=60, check=False
    )
    return {
        "rc": done.returncode,
        "stderr": done.stderr,
        "link": links(ip, nic)[0],
        "napis": napis(nic),
        "sysfs": Path(f"/sys/class/net/{nic}/threaded").read_text().strip(),
    }


def main() -> int:
    ip, nic, commands = sys.argv[1:]
    found: dict[str, Any] = {"links": links(ip)}
    found["napis"] = {link["ifname"]: napis(link["ifname"]) for link in found["links"]}
    found["done"] = [did(ip, nic, words) for words in json.loads(commands)]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
