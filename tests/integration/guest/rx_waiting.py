#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Make an interface's packets dear and see what waits whenever its helper threads change; JSON.

Runs as root: ``rx_waiting.py DEV BATCH``, where BATCH are lines for tc. Waits for DEV, runs them,
and ends when it is gone. ``resized`` is how often the number of threads was another one,
``waiting`` how often packets had been waiting for the threads just before, and ``most`` how many at
most.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

LOOK_S = 0.005


def look(folder: Path) -> tuple[int, int]:
    """(threads, packets that wait for them). OSError once the interface is gone."""
    waiting = 0
    for file in folder.glob("rx_thread/*/backlog"):
        try:
            waiting += int(file.read_text())
        except OSError:
            continue  # the thread has ended since
    return int((folder / "rx_threads").read_text()), waiting


def main() -> int:
    device, batch = sys.argv[1:]
    folder = Path("/sys/class/net", device)
    while not folder.exists():
        time.sleep(LOOK_S)
    subprocess.run(["tc", "-batch", batch], check=True)
    seen = {"resized": 0, "waiting": 0, "most": 0}
    threads, waited = look(folder)
    while True:
        time.sleep(LOOK_S)
        try:
            now, waiting = look(folder)
        except OSError:
            break
        if now != threads:
            seen["resized"] += 1
            seen["waiting"] += waited > 0
            seen["most"] = max(seen["most"], waited)
        threads, waited = now, waiting
    json.dump(seen, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
