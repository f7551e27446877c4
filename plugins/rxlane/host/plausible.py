# SPDX-License-Identifier: GPL-2.0-or-later
"""What a recorded host must be, beside being of the right types, for anybody to work on it. Pure.

The kernel tells nothing else; a person or another tool may have put it in a file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from rxlane import cpulist
from rxlane.errors import Kind, RxlaneError
from rxlane.items import CHANNEL_ITEMS, SWITCHES
from rxlane.model import Irq, Link, Queue, Snapshot, Thread, Topology, Tunable

_T = TypeVar("_T")

# As the kernel's classes are shown, by number where they have no name, and Thread.sched has them.
_POLICY = re.compile(r"[a-z]+|[0-9]{1,10}")
_SCHED = re.compile(rf"(?:{_POLICY.pattern})(?::-?[0-9]{{1,10}}){{1,2}}")

LARGEST = 2**32 - 1  # of what ethtool reads and sets: struct ethtool_ringparam and others

Found = tuple[str, str]  # a place in the file, and what is wrong with it


def check(snapshot: Snapshot, where: str) -> None:
    """Raise FORMAT for the first thing that no host has. where: the file."""
    for place, problem in _problems(snapshot):
        raise RxlaneError(Kind.FORMAT, f"{where}: {place}: {problem}")


def _problems(snapshot: Snapshot) -> Iterator[Found]:
    yield from _topology(snapshot.topology)
    yield from _texts("notes", snapshot.notes)
    yield from _words("writers", snapshot.writers)
    yield from _texts("sessions", snapshot.sessions)
    yield from _words("sysctls", (sysctl.name for sysctl in snapshot.sysctls))
    yield from _unique("links", "name", [link.name for link in snapshot.links])
    yield from _unique("links", "ifindex", [link.ifindex for link in snapshot.links])
    for at, link in enumerate(snapshot.links):
        yield from _link(f"links[{at}]", link)
    yield from _unique("irqs", "number", [irq.number for irq in snapshot.irqs])
    for at, irq in enumerate(snapshot.irqs):
        yield from _irq(f"irqs[{at}]", irq)
    yield from _threads("threads", snapshot.threads)
    for at, of in enumerate(snapshot.irq_threads):
        yield from _cpus(f"irq_threads[{at}].cpus", of.cpus)
        yield from _texts(f"irq_threads[{at}]", (of.name,))
        if of.sched and _SCHED.fullmatch(of.sched) is None:
            yield f"irq_threads[{at}].sched", "no POLICY:NUMBER"
    yield from _cpus("workqueue_cpus", snapshot.workqueue_cpus or ())
    yield from _cpus("workqueue_requested", snapshot.workqueue_requested or ())
    yield from _cpus("workqueue_isolated", snapshot.workqueue_isolated)
    yield from _cpus("unreserved", snapshot.unreserved)
    yield from _cpus("vcpus", snapshot.vcpus)


def _topology(host: Topology) -> Iterator[Found]:
    if not host.online:
        yield "topology.cpus", "no CPU is online"
    yield from _unique("topology.cpus", "number", [cpu.number for cpu in host.cpus])
    yield from _cpus("topology.cpus", (cpu.number for cpu in host.cpus))
    for at, cpu in enumerate(host.cpus):
        yield from _cpus(f"topology.cpus[{at}].siblings", cpu.siblings)
    for name in ("isolated", "nohz_full", "partitioned"):
        yield from _cpus(f"topology.{name}", getattr(host, name))


def _link(where: str, link: Link) -> Iterator[Found]:
    rss = () if link.rss is None else (link.rss.function, link.rss.key)
    yield from _texts(where, (link.name, *link.below))
    yield from _words(where, (link.driver, *rss, *link.features))
    for at, tunable in enumerate(link.tunables):
        yield from _tunable(f"{where}.tunables[{at}]", tunable)
    if not 0 <= (link.rx_threads or 0) <= cpulist.HIGHEST:
        yield f"{where}.rx_threads", f"{link.rx_threads} is no count of threads"
    if not link.name:
        yield f"{where}.name", "empty"
    if link.ifindex < 1:
        yield f"{where}.ifindex", f"{link.ifindex} is no index of a device"
    for kind in ("rx", "tx"):
        own = [queue.index for queue in link.queues if queue.kind == kind]
        yield from _unique(f"{where}.queues", "index", own)
    for at, queue in enumerate(link.queues):
        yield from _queue(f"{where}.queues[{at}]", queue)
    yield from _threads(f"{where}.vhosts", link.vhosts)
    given = [helper.thread for helper in link.helpers if helper.thread is not None]
    yield from _threads(f"{where}.helpers", given)
    yield from _unique(f"{where}.helpers", "number", [helper.number for helper in link.helpers])


def _tunable(where: str, own: Tunable) -> Iterator[Found]:
    yield from _words(where, (own.item,))
    most = cpulist.HIGHEST if own.item in CHANNEL_ITEMS else LARGEST
    for number in (own.value, own.top or 0):
        if not 0 <= number <= most:
            yield where, f"{number} is not from 0 to {most}"
    if own.item in SWITCHES and own.top is not None:
        yield f"{where}.top", "a switch has no highest value"


def _queue(where: str, queue: Queue) -> Iterator[Found]:
    if queue.kind not in ("rx", "tx"):
        yield f"{where}.kind", "neither rx nor tx"
    yield from _words(where, (queue.napi_source, queue.irq_source))
    if queue.index < 0:
        yield f"{where}.index", f"{queue.index} is no queue"
    yield from _cpus(f"{where}.rps_cpus", queue.rps_cpus or ())
    yield from _cpus(f"{where}.xps_cpus", queue.xps_cpus or ())
    yield from _cpus(f"{where}.xps_rxqs", queue.xps_rxqs or ())


def _irq(where: str, irq: Irq) -> Iterator[Found]:
    if irq.threaded not in (None, 0, 1):
        yield f"{where}.threaded", f"{irq.threaded} is neither 0 nor 1"
    yield from _texts(where, (irq.name,))
    yield from _cpus(f"{where}.cpus", irq.cpus)
    yield from _cpus(f"{where}.effective", irq.effective)
    yield from _threads(f"{where}.thread", () if irq.thread is None else (irq.thread,))


def _threads(where: str, threads: Iterable[Thread]) -> Iterator[Found]:
    for at, thread in enumerate(threads):
        yield from _texts(f"{where}[{at}]", (thread.name,))
        if _POLICY.fullmatch(thread.policy) is None:
            yield f"{where}[{at}].policy", "no scheduling class"
        yield from _cpus(f"{where}[{at}].cpus", thread.cpus)
        yield from _cpus(f"{where}[{at}].allowed", thread.allowed)


def _cpus(where: str, numbers: Iterable[int]) -> Iterator[Found]:
    for number in numbers:
        if not 0 <= number <= cpulist.HIGHEST:
            yield where, f"{number} is not from 0 to {cpulist.HIGHEST}"


def _texts(where: str, texts: Iterable[str]) -> Iterator[Found]:
    """Say where half of a surrogate pair is, which JSON has and no output takes."""
    for text in texts:
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            yield where, "text that is not Unicode"


def _words(where: str, texts: Iterable[str]) -> Iterator[Found]:
    """The same for what no device's name is part of: it has no control characters either."""
    for text in texts:
        if not text.isprintable():
            yield from _texts(where, (text,))
            yield where, "text with control characters"


def _unique(where: str, what: str, values: Collection[_T]) -> Iterator[Found]:
    if len(set(values)) < len(values):
        yield where, f"the same {what} twice"
