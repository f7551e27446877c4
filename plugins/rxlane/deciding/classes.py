# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads of a class that could not be restored: what would touch one is refused. Pure.

Whoever gave a thread such a class had a reason. A thread that the plan leaves alone refuses
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeGuard

from rxlane import cpulist
from rxlane.deciding.draft import assigned
from rxlane.errors import Kind, RxlaneError
from rxlane.items import (
    CHANNEL_ITEMS,
    CPUS,
    IRQ_CPUS,
    IRQ_ITEMS,
    IRQ_THREAD_CPUS,
    IRQ_THREAD_SCHED,
    IRQ_THREADED,
    OFF,
    RESET_ITEMS,
    RING_RX,
    RING_TX,
    RX_THREAD_CPUS,
    RX_THREAD_SCHED,
    RX_THREADS,
    SCHED,
    THREAD_ITEMS,
    THREADED,
    VHOST_CPUS,
    restorable,
)
from rxlane.model import Link, Snapshot, Thread
from rxlane.plan import LINK_RESET, WHOLE, Change, Target, ends
from rxlane.revert import threads_of
from rxlane.sections import RX_SCHED_OPTIONS, SCHED_OPTIONS, Named, Policy
from rxlane.settings import View

NOBODY = Policy()
MOVE, RECLASS, END = "move", "change the class of", "end"
_CLASS = {SCHED, IRQ_THREAD_SCHED, RX_THREAD_SCHED}
# The options, of [napi], [irq_layout] and [flow_steering], that ask for what touches threads.
_NAPI = dict.fromkeys(CHANNEL_ITEMS, ("channels",)) | {
    RING_RX: ("ring_rx",),
    RING_TX: ("ring_tx",),
    THREADED: ("threaded",),
    CPUS: ("thread_cpus",),
    SCHED: SCHED_OPTIONS,
}
_IRQ = {
    IRQ_CPUS: ("irq_cpus",),
    IRQ_THREADED: ("threaded",),
    IRQ_THREAD_CPUS: ("thread_cpus",),
    IRQ_THREAD_SCHED: SCHED_OPTIONS,
}
_STEERING = {
    RX_THREADS: ("rx_threads",),
    RX_THREAD_CPUS: ("rx_thread_cpus",),
    RX_THREAD_SCHED: RX_SCHED_OPTIONS,
    VHOST_CPUS: ("vhost_cpus",),
}


def check(
    view: View,
    changes: Iterable[Change],
    policy: Policy = NOBODY,
    kind: Kind = Kind.REFUSED,
) -> None:
    """Refuse changes that would move such a thread, give it another class or end it.

    view: the host before the changes. policy: who asks for them, for the message. kind: of the
    error, where something was written before.
    """
    if not _some(view.snapshot):
        return
    for change in changes:
        if view.holds(change.target, change.after):
            continue
        for how, thread in _touched(view, change):
            if _lasting(thread):
                raise _refusal(view, policy, kind, change, how, thread)


def _lasting(thread: Thread | None) -> TypeGuard[Thread]:
    return thread is not None and not restorable(thread.policy)


def _some(host: Snapshot) -> bool:
    """True when there is any such thread; most hosts have none."""
    helpers = (helper.thread for link in host.links for helper in link.helpers)
    vhosts = (thread for link in host.links for thread in link.vhosts)
    known = chain(host.threads, (irq.thread for irq in host.irqs), helpers, vhosts)
    rows = all(restorable(thread.sched) for thread in host.irq_threads)
    return any(map(_lasting, known)) or not rows


def _touched(view: View, change: Change) -> Iterator[tuple[str, Thread | None]]:
    """Yield the threads that a change touches, with what it does to them."""
    target, after = change.target, change.after
    link = view.links.get(target.device)
    if target.item in (*THREAD_ITEMS, VHOST_CPUS):
        yield RECLASS if target.item in _CLASS else MOVE, view.thread(target)
    elif target.item in IRQ_ITEMS:
        yield from ((MOVE, thread) for thread in _following(view, target, str(after)))
    elif link is not None and target.item in RESET_ITEMS and change.disruption == LINK_RESET:
        # Its driver may make NAPIs and interrupts anew, and their threads with them.
        threads = chain(_of_napis(view, link), _of_interrupts(view, link))
        yield from ((END, thread) for thread in threads)
    elif link is not None and (target.queue, target.item, after) == (WHOLE, THREADED, OFF):
        yield from ((END, thread) for thread in _of_napis(view, link))
    else:
        own = (t for t in threads_of(view, target) if ends(t, {target: after}))
        yield from ((END, view.thread(one)) for one in own)


def _following(view: View, target: Target, cpus: str) -> Iterator[Thread]:
    """Yield the threads that go where their interrupt goes.

    That of one whose mode can be switched stays where it is.
    """
    irq = view.irq(target)
    if irq is not None and irq.threaded is None:
        for thread in _of_interrupt(view, irq.number):
            if thread.cpus != cpulist.parse(cpus):
                yield thread


def _of_napis(view: View, link: Link) -> Iterator[Thread]:
    """Yield the threads of all NAPIs of a device, also of those that only send."""
    pids = {napi.pid for napi in link.napis}
    return (thread for thread in view.snapshot.threads if thread.pid in pids)


def _of_interrupts(view: View, link: Link) -> Iterator[Thread]:
    for number in dict.fromkeys(queue.irq for queue in link.queues):
        irq = None if number is None else view.irqs.get(number)
        if irq is not None and irq.thread is not None:
            yield irq.thread
        elif irq is not None:
            yield from _of_interrupt(view, irq.number)


def _of_interrupt(view: View, number: int) -> Iterator[Thread]:
    """Yield the threads of an interrupt whose mode cannot be switched, which may be several."""
    for thread in view.snapshot.irq_threads:
        if thread.irq == number and thread.sched:
            yield Thread(thread.pid, thread.name, "", 0, 0, thread.cpus).classed(thread.sched)


def _refusal(
    view: View, policy: Policy, kind: Kind, change: Change, how: str, thread: Thread
) -> RxlaneError:
    target = change.target
    section, option = _asked(view.snapshot, policy, target)
    return RxlaneError(
        kind,
        f"setting {target.item} to {change.after} would {how} thread {thread.pid} ({thread.name}),"
        f" whose class SCHED_{thread.policy.upper()} could not be restored",
        section=None if section is None else section.name,
        option=option,
        value=None if section is None or option is None else section.option(option),
        device=target.device,
        queue=_queue(view, target, thread),
        remedy=f"`chrt --other --pid 0 {thread.pid}` makes way",
    )


def _asked(host: Snapshot, policy: Policy, target: Target) -> tuple[Named, str] | tuple[None, None]:
    """Return the section and its option that ask for the setting; None for what goes back."""
    kinds: tuple[tuple[Sequence[Named], dict[str, tuple[str, ...]]], ...] = (
        (policy.sections, _NAPI),
        (policy.irq, _IRQ),
        (policy.steering, _STEERING),
    )
    for sections, options in kinds:
        own = [section for section, link in assigned(host, sections) if link.name == target.device]
        # Taps are laid out with whatever a section names.
        for section in sections if target.item == VHOST_CPUS else own:
            for option in options.get(target.item, ()):
                if section.option(option):
                    return section, option
    return None, None


def _queue(view: View, target: Target, thread: Thread) -> int | None:
    """Return the RX queue that the thread serves, None where it serves none alone."""
    for (device, queue), lane in view.lanes.items():
        handler = None if lane.irq is None else lane.irq.thread
        if device == target.device and thread.pid in (
            own.pid for own in (lane.thread, handler) if own is not None
        ):
            return queue
    return target.queue if target.item == IRQ_CPUS else None
