#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch the threaded mode of a flooded interface; print JSON, a list of what each mode did.

Runs in the guest beside guest/threaded_down.py, needs root: ``threaded_flood.py DEVICE``. For each
mode: ``share``, the CPU share of the busiest NAPI thread over WINDOW_S after the mode was set, and
``off``, the step (see threaded_down.py) that switches it off again.
"""

import json
import os
import sys
import time
from pathlib import Path

from guest.threaded_down import ZERO, napis, set_mode, step

WINDOW_S = 2.0
MODES = (1, 2)
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time that a thread has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def share(pids: list[int]) -> float:
    """Of one CPU, what the busiest of these threads gets."""
    before = {pid: cpu_seconds(pid) for pid in pids}
    start = time.monotonic()
    time.sleep(WINDOW_S)
    spent = time.monotonic() - start
    return round(max((cpu_seconds(pid) - before[pid]) / spent for pid in pids), 2)


def run(device: str) -> list[dict[str, object]]:
    ZERO.write_text("0\n")
    off = ["dd", "status=none", f"if={ZERO}", f"of=/sys/class/net/{device}/threaded"]
    done: list[dict[str, object]] = []
    for mode in MODES:
        set_mode(device, mode)
        got = share([napi["pid"] for napi in napis(device)])
        outcome = step(off)
        done.append({"mode": mode, "share": got, "off": outcome})
        if not outcome["ended"]:
            break
        done[-1]["napis"] = napis(device)
    return done


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])), flush=True)
    os._exit(0)
