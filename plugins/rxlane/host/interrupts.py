# SPDX-License-Identifier: GPL-2.0-or-later
"""Read interrupts and their threads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from rxlane.host import threads
from rxlane.items import restorable
from rxlane.model import Irq, IrqThread, Thread
from rxlane.sysfs import Sysfs

KTHREADS = "proc/2/task/2/children"
# setup_irq_thread() in kernel/irq/manage.c, a handler's second thread among them
ANY = re.compile(r"irq/(\d+)-")


def all_threads(sysfs: Sysfs, others: Collection[int | None]) -> tuple[IrqThread, ...]:
    """Return the threads of threaded interrupts, "irq/N-name", children of kthreadd (pid 2).

    others: kernel threads that are known to be something else.
    """
    known = ((n, threads.look(sysfs, pid, ANY)) for n, pid in _of_interrupts(sysfs, others))
    found = (_thread(n, thread) for n, thread in known if thread is not None)
    return tuple(sorted(found, key=lambda t: t.irq))


def _thread(number: int, thread: Thread) -> IrqThread:
    named = () if restorable(thread.policy) else (thread.pid, thread.name)
    return IrqThread(number, thread.cpus, thread.sched, *named)


def _of_interrupts(sysfs: Sysfs, others: Collection[int | None]) -> Iterator[tuple[int, int]]:
    """Yield the interrupt and the pid of each thread of a threaded interrupt."""
    children = sysfs.read(KTHREADS)
    # Without CONFIG_PROC_CHILDREN every process is asked for its name.
    pids = sysfs.names("proc") if children is None else children.split()
    for pid in (int(n) for n in pids if n.isdecimal()):
        name = None if pid in others else sysfs.read(f"proc/{pid}/comm")
        match = None if name is None else ANY.match(name)
        if match is not None:
            yield int(match[1]), pid


def read(sysfs: Sysfs, numbers: Iterable[int], others: Collection[int | None]) -> tuple[Irq, ...]:
    """Return these interrupts with their threads. others: as of all_threads()."""
    return _with_threads(sysfs, [_irq(sysfs, number) for number in numbers], others)


def _irq(sysfs: Sysfs, number: int) -> Irq:
    base = f"proc/irq/{number}"
    actions = sysfs.folders(base)
    return Irq(
        number,
        ",".join(actions),
        sysfs.cpus(f"{base}/smp_affinity_list"),
        sysfs.cpus(f"{base}/effective_affinity_list"),
        # Managed IRQs lost the write bit in 6.12 (register_irq_proc() in kernel/irq/proc.c).
        sysfs.writable(f"{base}/smp_affinity_list"),
        # A shared interrupt has several actions and is in none of them ours to switch.
        sysfs.number(f"{base}/{actions[0]}/threaded") if len(actions) == 1 else None,
    )


def _with_threads(
    sysfs: Sysfs, irqs: Sequence[Irq], others: Collection[int | None]
) -> tuple[Irq, ...]:
    """Add the threads of threaded interrupts; where there are none, nobody is asked for names."""
    wanted = {irq.number for irq in irqs if irq.threaded}
    if not wanted:
        return tuple(irqs)
    pids = _of_interrupts(sysfs, others)
    found = {n: threads.read(sysfs, pid, threads.IRQ) for n, pid in pids if n in wanted}
    return tuple(replace(irq, thread=found.get(irq.number)) for irq in irqs)
