# SPDX-License-Identifier: GPL-2.0-or-later
"""What a guest was doing that says nothing any more: its kernel tells, asked by an NMI.

With NMI_WORDS on its command line the kernel takes one for a reason to panic, and then writes to
its console where each CPU was and what every task waits for. Nothing is slower by it before.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from lab import monitor

# panic_print: 1 for the tasks, 0x40 for the CPUs (kernel's admin-guide/kernel-parameters). Not 4,
# for the timers: once it panics those of one CPU are left. All that is more than the log of
# Debian's kernels holds, 128 KiB, whose oldest lines would be lost.
NMI_WORDS = "unknown_nmi_panic panic_print=0x41 log_buf_len=2M"
ASKED = re.compile(r"Kernel panic - not syncing: NMI")
CPU = re.compile(r"\bCPU: (\d+) (?:UID: \d+ )?PID: \d+ Comm: (.+?) (?:Not tainted|Tainted)")
IDLE = re.compile(r"NMI backtrace for cpu (\d+) skipped: idling at (\S+)")
AT = re.compile(r"\bRIP: [0-9a-f]{4}:(\S+)")
TASK = re.compile(r"\btask:(\S+) +state:(\S) .*\bpid:(\d+) .*\bppid:(\d+)")
# One that the unwinder is not sure of has a question mark before it.
FRAME = re.compile(r"^(?:\[[ .\d]+\])? +([A-Za-z_][\w.]*)\+0x\w+/0x\w+")
FRAMES = 8
INIT, KTHREADD = 1, 2
# Where an idle CPU stands: what 6.12 and 7.2 halt it with.
HALTED = re.compile(r"\b(?:pv_native_safe_halt|native_safe_halt|default_idle|acpi_idle\w*)\+")


@dataclass
class Task:
    """One that the kernel told of; ``stack`` has the innermost function first."""

    name: str
    state: str
    pid: int
    parent: int
    stack: list[str] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether it matters where: in D, or what init has not begun or ended yet."""
        return self.state == "D" or self.pid == INIT

    @property
    def in_kernel(self) -> bool:
        return KTHREADD in (self.pid, self.parent)


def ask(folder: Path) -> None:
    """Has the guest in ``folder`` panic. It ends once it has told, if it still takes an NMI."""
    monitor.ask(folder, "inject-nmi")


def doing(console: str) -> list[str]:
    """What ``console`` tells of CPUs, of tasks that wait, and what else runs; a line each.

    Empty where the kernel took no NMI.
    """
    told = since_asked(console)
    if not told:
        return []
    found = tasks(told)
    waiting = [f"{t.name}({t.state}): {' < '.join(t.stack)}" for t in found if t.waits]
    others = [f"{task.name}({task.state})" for task in found if not task.in_kernel]
    return [*cpus(told), *waiting, "processes: " + " ".join(others)]


def halted(console: str, number: int) -> bool:
    """Whether that CPU stood where an idle one does."""
    own = (line for line in cpus(since_asked(console)) if line.startswith(f"CPU {number},"))
    return any(HALTED.search(line) for line in own)


def before_init(console: str) -> str:
    """Where each CPU of a kernel stood that had not come as far as init, in one line; else empty.

    Until then the first process has the name of the idle task that it was made from.
    """
    told = since_asked(console)
    begun = all(task.pid != INIT or not task.name.startswith("swapper") for task in tasks(told))
    return "" if begun else "; ".join(cpus(told))


def all_idle(console: str) -> str:
    """Where each CPU halted, in one line; empty if any was at work."""
    where = cpus(since_asked(console))
    idle = bool(where) and all(HALTED.search(line) for line in where)
    return "; ".join(where) if idle else ""


def until_asked(console: str) -> str:
    """What the kernel had said of itself before it took the NMI, or all if it took none."""
    asked = ASKED.search(console)
    return console if asked is None else console[: asked.start()]


def since_asked(console: str) -> list[str]:
    """The lines since the kernel took the NMI; none if it took none.

    The CPU that takes it says where it was after the panic, as the others do.
    """
    return console[len(until_asked(console)) :].splitlines()


def cpus(lines: list[str]) -> list[str]:
    """Where each CPU was: "CPU 1, swapper/1: default_idle+0xf/0x20"."""
    found: dict[int, str] = {}
    number, who = 0, ""
    for line in lines:
        if idle := IDLE.search(line):
            found[int(idle[1])] = f"CPU {idle[1]}, idle: {idle[2]}"
        elif cpu := CPU.search(line):
            number, who = int(cpu[1]), f"CPU {cpu[1]}, {cpu[2]}"
        elif who and (at := AT.search(line)):
            found[number], who = f"{who}: {at[1]}", ""
    return [found[number] for number in sorted(found)]


def tasks(lines: list[str]) -> list[Task]:
    found: list[Task] = []
    for line in lines:
        if row := TASK.search(line):
            found.append(Task(row[1], row[2], int(row[3]), int(row[4])))
        elif found and len(found[-1].stack) < FRAMES and (frame := FRAME.match(line)):
            found[-1].stack.append(frame[1])
    return found
