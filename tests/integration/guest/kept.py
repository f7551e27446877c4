#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Do something to a host, and measure how long until its lanes stand again.

    kept.py DEVICE SECONDS COMMAND...

Each COMMAND is one argument, run in order by sh. What counts is what the lab's reader finds of
DEVICE: NAPIs, threads, queues, interrupts. It is read every 50 ms from the end of the commands on,
for SECONDS at most. Prints JSON: lost (settings that were different at the first look), seconds
(None when it never stood again), differing (what is different in the end).
"""

import json
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

STEP = 0.05  # seconds
NET = Path("/sys/class/net")


def reader() -> ModuleType:
    loader = SourceFileLoader("reader", "/root/reader.py")
    spec = spec_from_loader("reader", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


READER = reader()


def lanes(device: str, family: int | None) -> dict[str, object]:
    """The reader's device_settings() without ethtool, which would take longer than the answer."""
    found: dict[str, object] = {}
    try:
        for order, napi in enumerate(READER.napis(device, family)):
            pid = napi.pop("pid", None)
            # Both are numbered anew by many of the operations.
            napi.pop("id"), napi.pop("irq", None)
            found |= {f"napi-{order}/{name}": number for name, number in napi.items()}
            if pid is not None:
                found[f"napi-{order}/thread"] = READER.thread(pid)
        own = ((NET / device / "device").resolve().name, device)
    except OSError:  # the device or a thread is gone at this moment
        return {}
    for queue in sorted((NET / device / "queues").glob("*")):
        for name in READER.QUEUE_FILES:
            found[f"{queue.name}/{name}"] = READER.text(queue / name)
    for key, value in READER.irq_settings().items():
        if key.split("/")[1].split("-")[0] in own:
            found[key] = value
    return found


def differing(before: dict[str, object], now: dict[str, object]) -> dict[str, object]:
    keys = sorted(before.keys() | now.keys())
    return {k: [before.get(k), now.get(k)] for k in keys if before.get(k) != now.get(k)}


def main() -> int:
    device, patience, *commands = sys.argv[1:]
    family = READER.netdev_family()
    before = lanes(device, family)
    for command in commands:
        subprocess.run(["sh", "-ec", command], check=True, stdout=subprocess.DEVNULL)
    start = time.monotonic()
    left = differing(before, lanes(device, family))
    lost = len(left)
    while left and time.monotonic() - start < float(patience):
        time.sleep(STEP)
        left = differing(before, lanes(device, family))
    took = None if left else round(time.monotonic() - start, 2)
    print(json.dumps({"lost": lost, "seconds": took, "differing": left, "settings": len(before)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
