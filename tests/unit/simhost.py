# SPDX-License-Identifier: GPL-2.0-or-later
"""A simulated host for tests: built from a Snapshot, it behaves as a kernel does when written to.

It stands in for rxlane.kernel.Linux. Here are the snapshots that tests begin with, what is read of
the host and what others do to it; what its kernel does at writes is in unit.simwrites.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rxlane import codec
from rxlane.items import ETHTOOL_ITEMS, STEERING_ITEMS
from rxlane.journal import Store
from rxlane.model import (
    Capabilities,
    Cpu,
    Handled,
    Helper,
    Irq,
    IrqThread,
    Link,
    Napi,
    Queue,
    Snapshot,
    Sysctl,
    Thread,
    Topology,
    Tunable,
)
from rxlane.plan import Journal
from unit.simwrites import SimKernel
from unit.synthetic import KERNELS

STOCK, TIMERS_ONLY = KERNELS["netdev"], KERNELS["timers"]
THREADED, BUSY_POLL = KERNELS["threaded"], KERNELS["busy-poll"]


class MemoryStore(Store):
    """A journal without a disk, for properties that run it hundreds of times."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.text: str | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def load(self) -> Journal | None:
        return None if self.text is None else codec.loads(Journal, self.text, "journal")

    def save(self, journal: Journal) -> None:
        self.text = codec.dumps(journal)

    def remove(self) -> None:
        self.text = None


def topology(
    cpus: int = 8,
    *,
    nodes: int = 1,
    smt: int = 1,
    offline: Collection[int] = (),
    isolated: Collection[int] = (),
    partitioned: Collection[int] = (),
) -> Topology:
    """CPUs numbered core by core; siblings are neighbours, nodes are equal runs of whole cores."""
    share = max(1, -(-cpus // smt) // nodes) * smt
    rows = []
    for n in range(cpus):
        first = n - n % smt
        siblings = tuple(range(first, min(first + smt, cpus)))
        node = min(n // share, nodes - 1)
        rows.append(Cpu(n, n not in offline, node, n // smt, node, siblings))
    return Topology(tuple(rows), tuple(sorted(isolated)), (), tuple(sorted(partitioned)))


def link(
    name: str = "eth0",
    queues: int = 4,
    *,
    ifindex: int = 2,
    base: int = 8193,
    physical: bool = True,
    node: int | None = None,
    kernel: Capabilities = BUSY_POLL,
    up: bool = True,
) -> Link:
    """A device with one NAPI for each RX queue, linked by queue-get; it reports what kernel has."""
    timers = (0, 0, 0) if kernel.napi_set else (None, None, None)
    mode = 0 if 8 in kernel.settable else None
    napis = tuple(Napi(base + i, None, None, mode, *timers) for i in range(queues)) if up else ()
    rx = tuple(Queue("rx", i, base + i if up else None, "netdev") for i in range(queues))
    tx = tuple(Queue("tx", i) for i in range(queues))
    return Link(name, ifindex, up, physical, "virtio_net", node, 0, 0, 0, napis, rx + tx)


def wired(link: Link, irq: int = 40) -> Link:
    """The link with RPS, RFS and XPS files and an IRQ for each queue.

    Those of RX queues are numbered from irq on, those of TX queues from 50 above it.
    """
    many = link.count("tx") > 1
    queues = tuple(
        replace(q, irq=irq + q.index, irq_source="irq-name", rps_cpus=(), rps_flow_cnt=0)
        if q.kind == "rx"
        else replace(
            q,
            irq=irq + 50 + q.index,
            xps_cpus=() if many else None,
            xps_rxqs=() if many else None,
        )
        for q in link.queues
    )
    return replace(link, queues=queues)


def whole(start: Snapshot) -> Snapshot:
    """The snapshot with wired links, their IRQs on all CPUs, and the host's sysctls."""
    links = tuple(wired(li, 40 + 100 * i) for i, li in enumerate(start.links))
    numbers = [q.irq for li in links for q in li.queues if q.irq is not None]
    online = start.topology.online
    return replace(
        start,
        links=links,
        irqs=tuple(Irq(n, f"nic-{n}", online, online[:1]) for n in numbers),
        sysctls=tuple(Sysctl(name, value) for name, value in SYSCTLS.items()),
        workqueue_cpus=online,
    )


def tuned(
    link: Link, *, top: int = 8, pairs: bool = True, ntuple: bool = False, **values: int
) -> Link:
    """The link with what ethtool knows; pairs: its driver counts pairs of queues.

    values: by item, with underscores.
    """
    queues = link.count("rx")
    found = {"channels_combined": queues} if pairs else {}
    if not pairs:
        found = {"channels_rx": queues, "channels_tx": link.count("tx")}
    found |= {"ring_rx": 256, "ring_tx": 256}
    found |= {"adaptive_rx": 1, "adaptive_tx": 0, "rx_usecs": 3, "tx_usecs": 3}
    if ntuple:
        found["rx_ntuple_filter"] = 0
    tops = {"channels": top, "ring": 1024}
    rows = [
        Tunable(name.replace("_", "-"), value, tops.get(name.partition("_")[0]))
        for name, value in (found | values).items()
    ]
    return replace(link, tunables=tuple(rows))


def separable(link: Link, count: int = 0) -> Link:
    """The link on a kernel that has rx_threads, with so many, on CPUs of the kernel's choice."""
    first, name = 100 * link.ifindex, link.name
    threads = (Thread(first + n, f"rx{n}/{name}"[:15], "other", 0, 0, (n,)) for n in range(count))
    own = (Helper(n, thread, n, handled(n)) for n, thread in enumerate(threads))
    return replace(link, rx_threads=count, helpers=tuple(own))


def handled(number: int) -> Handled:
    """Counters of an rx thread, each of another size."""
    return Handled(1000 * number, 100, 90, 7 * number, 3, 4608, 25)


SYSCTLS = {
    "net.core.rps_sock_flow_entries": 0,
    "net.core.netdev_max_backlog": 1000,
    "net.core.busy_read": 0,
    "net.core.busy_poll": 0,
    "kernel.timer_migration": 1,
}


def snapshot(
    *links: Link, cpus: Topology | None = None, capabilities: Capabilities = BUSY_POLL
) -> Snapshot:
    return Snapshot(capabilities, cpus or topology(), links or (link(kernel=capabilities),))


class SimHost(SimKernel):
    """boot: the id of the boot that it is in."""

    def __init__(self, start: Snapshot, ends_threads: bool = True, boot: str = "boot-1") -> None:
        super().__init__(start, ends_threads)
        self.sessions = start.sessions
        self.hidden_logins = start.hidden_logins
        self.writers = start.writers
        self.unreserved, self.stalld = start.unreserved, start.stalld
        self.vcpus, self.virtual = start.vcpus, start.virtual
        self.workqueue_isolated = start.workqueue_isolated
        self.boot = boot
        self.namespaces = {"self": 4026531840, "1": 4026531840}  # network namespaces by process
        self.cookie = 0  # of its own one
        self.folders: dict[str, int] = {}  # inodes by device

    def boot_id(self) -> str:
        return self.boot

    def netns(self, process: str = "self") -> int:
        return self.namespaces[process]

    def netns_cookie(self) -> int:
        return self.cookie

    def folder(self, device: str) -> int:
        return self.folders.get(device, 0)

    def refresh(self, before: Snapshot, names: Collection[str], items: Collection[str]) -> Snapshot:
        return self.observe(names)

    def observe(
        self, names: Collection[str] | None = None, items: Collection[str] | None = None
    ) -> Snapshot:
        """What was not asked for is not there, as with the kernel where reading it costs much."""
        links = tuple(li for n, li in self.links.items() if names is None or n in names)
        if items is not None and not {*ETHTOOL_ITEMS} & {*items}:
            links = tuple(replace(li, tunables=()) for li in links)
        links = tuple(_unsteered(li, {*STEERING_ITEMS} - {*(items or ())}) if items is not None
                      else li for li in links)  # fmt: skip
        if items is not None and not {"rx-threads", "rx-thread-cpus", "rx-thread-sched"} & {*items}:
            links = tuple(replace(li, rx_threads=None, helpers=()) for li in links)
        pids = {n.pid for li in links for n in li.napis}
        threads = tuple(t for p, t in sorted(self.threads.items()) if p in pids)
        return Snapshot(
            self.capabilities,
            self.topology,
            links,
            tuple(self.irqs.values()),
            threads,
            sysctls=tuple(Sysctl(n, v) for n, v in self.sysctls.items()),
            writers=self.writers,
            sessions=self.sessions,
            hidden_logins=self.hidden_logins,
            irq_threads=self._irq_threads(),
            unreserved=self.unreserved,
            stalld=self.stalld,
            vcpus=self.vcpus,
            virtual=self.virtual,
            workqueue_cpus=self.workqueue_cpus,
            workqueue_requested=self.workqueue_requested,
            workqueue_isolated=self.workqueue_isolated,
        )

    def _irq_threads(self) -> tuple[IrqThread, ...]:
        switched = (IrqThread(i.number, i.thread.cpus, i.thread.sched)
                    for i in self.irqs.values() if i.thread is not None)  # fmt: skip
        return tuple(sorted((*self.followers.values(), *switched), key=lambda t: t.irq))

    # What others do to the host

    def set_down(self, name: str) -> None:
        """As 6.12 and 7.2 report it: a device that is down shows no NAPIs."""
        one = self.links[name]
        queues = tuple(replace(q, napi_id=None, napi_source="unknown") for q in one.queues)
        self.hidden = one
        self.links[name] = replace(one, up=False, napis=(), queues=queues)

    def set_up(self, name: str, shift: int = 100) -> None:
        """Up again with other NAPI ids, as e1000e and veth do it; modes and timers are kept."""
        one = self.hidden
        napis = tuple(replace(n, napi_id=n.napi_id + shift) for n in one.napis)
        queues = tuple(
            q if q.napi_id is None else replace(q, napi_id=q.napi_id + shift) for q in one.queues
        )
        self.links[name] = replace(one, napis=napis, queues=queues)

    def isolate(self, *cpus: int) -> None:
        """Make or end an isolated partition: workqueue_unbound_exclude_cpumask()."""
        self.topology = replace(self.topology, partitioned=cpus)
        self.workqueue_isolated = cpus
        if self.workqueue_requested is not None:
            left = tuple(n for n in self.workqueue_requested if n not in cpus)
            self.workqueue_cpus = left or self.workqueue_requested

    def rename(self, old: str, new: str) -> None:
        self.links[new] = replace(self.links.pop(old), name=new)


def _unsteered(link: Link, items: Collection[str]) -> Link:
    nothing: dict[str, Any] = {item.replace("-", "_"): None for item in items}
    return replace(link, queues=tuple(replace(q, **nothing) for q in link.queues))


def settings(host: SimHost) -> dict[str, object]:
    """Every setting of the host keyed by device and queue, without pids and NAPI ids."""
    found: dict[str, object] = dict(host.sysctls)
    if host.workqueue_cpus is not None:
        found["workqueue"] = host.workqueue_cpus
    # By queue: a driver that sets its queues up anew may get other numbers.
    used = ((one, q, host.irqs.get(q.irq or 0)) for one in host.links.values() for q in one.queues)
    for one, queue, irq in used:
        if irq is not None:
            own = f"{one.name}/{queue.kind}{queue.index}/irq"
            found[own] = irq.cpus
            found[f"{own}/mode"] = (irq.threaded, _anonymous(irq.thread))
            # What the next thread will be given, too, is a setting.
            kept = host.kept.get(irq.number)
            newborn = kept is None or _anonymous(kept) == _newborn(host.topology)
            found[f"{own}/next-thread"] = None if newborn else _anonymous(kept)
    for one in host.links.values():
        found[f"{one.name}/all"] = (one.threaded, one.defer_hard_irqs, one.gro_flush_timeout)
        found |= _separation(host, one)
        found |= {f"{one.name}/{t.item}": t.value for t in one.tunables}
        by_id = {n.napi_id: n for n in one.napis}
        for queue in one.queues:
            found[f"{one.name}/{queue.kind}{queue.index}/steering"] = (
                *(queue.rps_cpus or (), queue.rps_flow_cnt),
                *(queue.xps_cpus or (), queue.xps_rxqs or ()),
            )
            napi = by_id.get(queue.napi_id or 0)
            if napi is None:
                continue
            thread = host.threads.get(napi.pid or 0)
            found[f"{one.name}/{queue.kind}{queue.index}"] = (
                napi.threaded,
                napi.defer_hard_irqs,
                napi.gro_flush_timeout,
                napi.irq_suspend_timeout,
                _anonymous(thread),
            )
    return found


def restored(host: SimHost, before: dict[str, object]) -> bool:
    """settings() as before; a thread that a kernel kept although its mode is off is as born."""
    after = settings(host)
    return after.keys() == before.keys() and all(
        after[key] == value or (not host.ends_threads and _as_born(host, value, after[key]))
        for key, value in before.items()
    )


def _as_born(host: SimHost, before: object, after: object) -> bool:
    if not isinstance(before, tuple) or before[-1:] != (None,):
        return False
    return after == (*before[:-1], _newborn(host.topology))


def _separation(host: SimHost, one: Link) -> dict[str, object]:
    """A device's rx threads, and what those that are not there now would be given."""
    if one.rx_threads is None:
        return {}
    found: dict[str, object] = {f"{one.name}/rx_threads": (one.rx_threads,)}
    own = {number: h for (name, number), h in host.given.items() if name == one.name}
    own |= {helper.number: helper for helper in one.helpers}
    for number in range(max(len(host.topology.cpus), *own, 0)):
        helper = own.get(number, Helper(number, None, 0))
        chosen = helper.reserved is not None or helper.thread is None
        cpus = "kernel" if chosen or helper.thread is None else helper.thread.cpus
        sched = "other:0" if helper.thread is None else helper.thread.sched
        found[f"{one.name}/rx-thread{number}"] = (cpus, sched)
    return found


def _anonymous(thread: Thread | None) -> Thread | None:
    return None if thread is None else replace(thread, pid=0, name="")


def _newborn(topology: Topology) -> Thread:
    return Thread(0, "", "other", 0, 0, topology.online)
