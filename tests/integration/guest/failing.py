# SPDX-License-Identifier: GPL-2.0-or-later
"""Let allocations of one operation fail, one at a time, and tell what came of it.

Runs in the guest as root on a kernel with FAILSLAB, FAIL_PAGE_ALLOC and FAULT_INJECTION, and
imports nothing of rxlane. An allocation is one of slab or of pages, as threads' stacks are. An
operation is done with the first allocation of this task failing (fail-nth), then with
the second, and so on until none is left to fail; where it has kernel threads created, which another
task does, likewise with the allocations of that one, and then often with them failing at random
(Documentation/fault-injection).
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEBUGFS = Path("/sys/kernel/debug")
SLAB, PAGES = "failslab", "fail_page_alloc"
KTHREADD = 2
# Per cent of kthreadd's allocations, of which a thread needs some twenty, and operations at that;
# the threads that it creates inherit it.
KTHREADD_FAILS, ROUNDS = 7, 60
MOST_ALLOCATIONS = 200
UNANSWERED = -1


class Task:
    """The fault injection of a task, this one or that which creates kernel threads.

    The file is held open, so that opening it cannot fail.
    """

    def __init__(self, name: str = "thread-self") -> None:
        self.file = os.open(f"/proc/{name}/fail-nth", os.O_RDWR)

    def arm(self, nth: int) -> None:
        os.pwrite(self.file, str(nth).encode(), 0)

    def disarm(self) -> bool:
        """Whether the failure has happened."""
        left = int(os.pread(self.file, 32, 0))
        os.pwrite(self.file, b"0", 0)
        return left == 0


def inject(kinds: tuple[str, ...] = (SLAB, PAGES), **values: object) -> None:
    for kind in kinds:
        for name, value in values.items():
            (DEBUGFS / kind / name.replace("_", "-")).write_text(str(value))


def prepare() -> None:
    """Failures are possible from now on, and happen where they are asked for."""
    subprocess.run(["mount", "-t", "debugfs", "debugfs", DEBUGFS], check=False)
    inject(verbose=0, ignore_gfp_wait="N", task_filter="Y", interval=1, times=0)
    inject((PAGES,), min_order=0, ignore_gfp_highmem="N")
    inject(probability=KTHREADD_FAILS)
    Path(f"/proc/{KTHREADD}/make-it-fail").write_text("1")


def finish() -> None:
    inject(probability=0)


class Trial:
    """One operation from one start; counts what came of it.

    ``reset`` brings the start about and ``look`` tells the settings, which are to be as
    ``wanted(before)`` where ``act`` returns 0, and as before where it returns an errno; either,
    where it returns UNANSWERED.
    """

    def __init__(
        self, label: str, reset: Callable[[], None], look: Callable[[], Any],
        act: Callable[[], int], wanted: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        self.label, self.reset, self.look, self.act, self.wanted = label, reset, look, act, wanted
        self.came = {"allocations": 0, "of kthreadd": 0, "errors": 0, "done": 0, "unanswered": 0}
        self.faults: list[str] = []

    def _judge(self, before: Any, code: int, when: str) -> None:
        after, wanted = self.look(), self.wanted(before)
        right = {0: (wanted,), UNANSWERED: (before, wanted)}.get(code, (before,))
        if after not in right:
            self.faults.append(f"{self.label}, {when}: answered {code}, {after} not {right}")
        self.came[{0: "done", UNANSWERED: "unanswered"}.get(code, "errors")] += 1

    def each_allocation(self, task: Task, whose: str = "allocations") -> None:
        for nth in range(1, MOST_ALLOCATIONS):
            self.reset()
            before = self.look()
            task.arm(nth)
            code = self.act()
            happened = task.disarm()
            self._judge(before, code, f"{whose} {nth}")
            if not happened:
                self.came[whose] = nth - 1
                return
        self.faults.append(f"{self.label}: more than {MOST_ALLOCATIONS} {whose}")

    def in_kthreadd(self) -> None:
        """With the creation of kernel threads failing: at each allocation, and at random."""
        self.each_allocation(Task(str(KTHREADD)), "of kthreadd")
        for number in range(ROUNDS):
            self.reset()
            before = self.look()
            inject(times=-1)
            code = self.act()
            inject(times=0)
            self._judge(before, code, f"round {number}")
