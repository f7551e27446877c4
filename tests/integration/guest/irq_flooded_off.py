#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch interrupts back to hard mode while there is no end of packets; print JSON.

Runs in the guest as root, beside irq_busy_poll.py and what that needs, and imports nothing of
rxlane: ``irq_flooded_off.py INTERFACE TIMES``. More packets come than the guest can take in. A list
of what was seen each time: ``before``, who polled in threaded mode and how many of these polls used
up their budget, as only a queue makes them that does not run dry; ``seconds``, what the writes of 0
took; ``after``, the same polls in hard mode.
"""

import json
import sys
import time

from irq_busy_poll import Polls  # type: ignore[import-not-found]
from irq_stress import Interrupts  # type: ignore[import-not-found]
from stress import Nic  # type: ignore[import-not-found]

# Polls to see each time, for so many seconds at most.
POLLS, PATIENCE_S = 20, 20.0


def seen(polls: Polls) -> dict[str, object]:
    polls.start()
    end = time.monotonic() + PATIENCE_S
    while len(polls.who()) < POLLS and time.monotonic() < end:
        time.sleep(0.05)
    found: dict[str, object] = polls.stop()
    return found


def main() -> None:
    nic, times = Nic(sys.argv[1]), int(sys.argv[2])
    interrupts = Interrupts(nic)
    # Those of transmission have no packets to take in.
    polls = Polls(nic.name(), "work > 0")
    rounds = []
    for _ in range(times):
        for kind in interrupts.kinds:
            interrupts.file(kind).write_text("1")
        before = seen(polls)
        began = time.monotonic()
        for kind in interrupts.kinds:
            interrupts.file(kind).write_text("0")
        seconds = time.monotonic() - began
        rounds.append({"before": before, "seconds": round(seconds, 3), "after": seen(polls)})
    polls.end()
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
