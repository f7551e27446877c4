# SPDX-License-Identifier: GPL-2.0-or-later
"""What rxlane knows about a host: frozen data, and the lanes that it makes up. Pure.

Units: timeouts in nanoseconds, priorities as the kernel counts them (1..99 for real-time classes),
CPU and node numbers as in /sys/devices/system. None means "the kernel does not report it".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rxlane import uapi
from rxlane.items import DEFER, FLUSH, MODES, REALTIME, SUSPEND, THREADED, priority_of
from rxlane.stored import FORMAT, LATER

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Napi:
    """One NAPI instance as NETDEV_CMD_NAPI_GET reports it."""

    napi_id: int
    irq: int | None = None
    pid: int | None = None
    threaded: int | None = None
    defer_hard_irqs: int | None = None
    gro_flush_timeout: int | None = None
    irq_suspend_timeout: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """A hardware queue, where its NAPI and IRQ are known from, and how its flows are steered.

    napi_source: netdev (queue-get said so), order (as many NAPIs as RX queues, ascending),
    unknown. irq_source: netdev (napi-get said so), irq-name (the action's name), only
    (the device has no other), unknown.
    rps_* are of RX queues, xps_* of TX queues; the kernel has none for a device's only TX queue.
    """

    kind: str  # rx | tx; unknown only in others()
    index: int
    napi_id: int | None = None
    napi_source: str = "unknown"
    irq: int | None = None
    irq_source: str = "unknown"
    rps_cpus: tuple[int, ...] | None = None
    rps_flow_cnt: int | None = None
    xps_cpus: tuple[int, ...] | None = None
    xps_rxqs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """A kernel thread of a lane: of a NAPI, an interrupt or a tap, or an rx thread.

    allowed: of a tap's thread, which is in its guest's control group, the CPUs that this group's
    tasks may have; () where that is not known.
    """

    pid: int
    name: str
    policy: str
    priority: int
    nice: int
    cpus: tuple[int, ...]
    allowed: tuple[int, ...] = field(default=(), metadata=LATER)

    @property
    def sched(self) -> str:
        """The form in which plans and journals hold it.

        A real-time thread's nice level is shown when it has one: it counts again when the thread
        goes back to a fair class.
        """
        if self.policy not in REALTIME:
            return f"{self.policy}:{self.nice}"
        return f"{self.policy}:{self.priority}{f':{self.nice}' if self.nice else ''}"

    def reaches(self, cpus: Iterable[int]) -> set[int]:
        """Return those of the CPUs that its control group lets it have."""
        return {*cpus}.intersection(self.allowed) if self.allowed else {*cpus}

    def classed(self, sched: str) -> Thread:
        """Return the thread as it is with what its sched says."""
        policy, number, nice = (*sched.split(":"), "0")[:3]
        if policy in REALTIME:
            return replace(self, policy=policy, priority=int(number), nice=int(nice))
        return replace(self, policy=policy, priority=0, nice=int(number))


@dataclass(frozen=True, slots=True)
class Irq:
    """movable is False where the kernel says beforehand that it refuses another affinity.

    threaded: its handler runs in a thread (0, 1), None where the kernel cannot switch it. thread:
    that thread.
    """

    number: int
    name: str
    cpus: tuple[int, ...] = ()
    effective: tuple[int, ...] = ()
    movable: bool = True
    threaded: int | None = field(default=None, metadata=LATER)
    thread: Thread | None = field(default=None, metadata=LATER)

    @property
    def arrives(self) -> tuple[int, ...]:
        """The CPUs to which it comes, which may be fewer than it may come to.

        x86 without interrupt remapping moves one when it comes next (kernel/irq/migration.c), and
        says until then where it was.
        """
        leaving = self.cpus and not {*self.effective} <= {*self.cpus}
        return self.cpus if leaving else self.effective or self.cpus


# Programs that write what rxlane writes, each for reasons of its own.
IRQBALANCE, GUEST_AGENT, NETWORK_MANAGER = "irqbalance", "google-guest-agent", "NetworkManager"
WRITERS = (IRQBALANCE, GUEST_AGENT, NETWORK_MANAGER)
# Not a program that goes on running: it sets up interfaces by .link files that say so.
UDEV = "systemd-udevd"
# Those that move interrupts, and what keeps them from it.
MOVERS = {
    IRQBALANCE: "stop it, or give it --banirq for each",
    GUEST_AGENT: "set set_multiqueue=false in [InstanceSetup] of its configuration",
    UDEV: "leave IRQAffinity options out of the interfaces' .link files",
}

# How a lane is polled, beside MODES: in the thread of its interrupt.
IRQ_THREAD = "irq-thread"


@dataclass(frozen=True, slots=True)
class Tunable:
    """One of ETHTOOL_ITEMS that the driver lets change; top is the highest value, if it says one.

    value of SWITCHES: 0 off, 1 on.
    """

    item: str
    value: int
    top: int | None = None


@dataclass(frozen=True, slots=True)
class Hashed:
    """Header fields by which flows of one kind (tcp4, udp4, tcp6, udp6) are told apart."""

    flow: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rss:
    """How a NIC spreads flows: the hash function, and the RX queue of each hash value's remainder.

    key: the start of its SHA-256, empty where the driver tells no key.
    """

    function: str
    table: tuple[int, ...]
    key: str = ""
    fields: tuple[Hashed, ...] = ()


@dataclass(frozen=True, slots=True)
class Handled:
    """What an rx thread has handled since its device was made, and what waits for it.

    backlog in packets, backlog_bytes in bytes. flows: values of 10 bits of the flow hash in the
    last second, so at least so many flows.
    """

    packets: int | None = None
    batches: int | None = None
    wakeups: int | None = None
    dropped: int | None = None
    backlog: int | None = None
    backlog_bytes: int | None = None
    flows: int | None = None


@dataclass(frozen=True, slots=True)
class Helper:
    """An rx thread: it takes its share of a device's flows from all receive queues.

    reserved: the CPU that the kernel chose, None where somebody set the thread's own. handled is
    for people and recordings: nothing is planned by it.
    """

    number: int
    thread: Thread | None = None
    reserved: int | None = None
    handled: Handled | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True)
class Link:
    """A network device. threaded, defer_hard_irqs and gro_flush_timeout are its sysfs files.

    below: the devices a virtual one stands on, such as the ports of a bond. vhosts: the kernel's
    threads that serve a tap of a virtual machine. rx_threads: how many helpers it is to have.
    features: names of those that are on, as ethtool has them. carrier: false of one that is up and
    has none, such as a port without a cable.
    """

    name: str
    ifindex: int
    up: bool
    physical: bool
    driver: str = ""
    node: int | None = None
    threaded: int | None = None
    defer_hard_irqs: int | None = None
    gro_flush_timeout: int | None = None
    napis: tuple[Napi, ...] = ()
    queues: tuple[Queue, ...] = ()
    tunables: tuple[Tunable, ...] = field(default=(), metadata=LATER)
    below: tuple[str, ...] = field(default=(), metadata=LATER)
    rss: Rss | None = field(default=None, metadata=LATER)
    tap: bool = field(default=False, metadata=LATER)
    vhosts: tuple[Thread, ...] = field(default=(), metadata=LATER)
    rx_threads: int | None = field(default=None, metadata=LATER)
    helpers: tuple[Helper, ...] = field(default=(), metadata=LATER)
    features: tuple[str, ...] = field(default=(), metadata=LATER)
    carrier: bool = field(default=True, metadata=LATER)

    @property
    def state(self) -> str:
        """Return in words whether traffic can come."""
        if not self.up:
            return "down"
        return "up" if self.carrier else "no carrier"

    def tunable(self, item: str) -> Tunable | None:
        return next((t for t in self.tunables if t.item == item), None)

    def count(self, kind: str) -> int:
        return sum(1 for q in self.queues if q.kind == kind)

    def senders(self) -> dict[int | None, list[int]]:
        """Return the TX queues of each NAPI that is known to have some."""
        found: dict[int | None, list[int]] = {}
        for queue in self.queues_of("tx"):
            found.setdefault(queue.napi_id, []).append(queue.index)
        return found

    def queues_of(self, kind: str) -> list[Queue]:
        """Return the queues of one kind, ascending."""
        return sorted((q for q in self.queues if q.kind == kind), key=lambda q: q.index)


@dataclass(frozen=True, slots=True)
class Cpu:
    """llc: the lowest CPU that shares the last level cache with this one.

    capacity: how much it does in a second, 1024 for the host's fastest. kind: core or atom, where
    the PMUs of a hybrid x86 host tell performance and efficiency cores apart.
    """

    number: int
    online: bool
    package: int = 0
    core: int = 0
    node: int = 0
    siblings: tuple[int, ...] = ()
    llc: int | None = field(default=None, metadata=LATER)
    capacity: int | None = field(default=None, metadata=LATER)
    kind: str = field(default="", metadata=LATER)


# Values of Cpu.kind, by the names of their PMUs: cpu_core and cpu_atom.
CORE, ATOM = "core", "atom"


@dataclass(frozen=True, slots=True)
class Topology:
    """isolated: for tasks that are put there by name. partitioned: for those of one control group,
    so that the kernel takes its own threads off and lets nobody put them there.
    """

    cpus: tuple[Cpu, ...]
    isolated: tuple[int, ...] = ()
    nohz_full: tuple[int, ...] = ()
    partitioned: tuple[int, ...] = field(default=(), metadata=LATER)

    @property
    def online(self) -> tuple[int, ...]:
        return tuple(c.number for c in self.cpus if c.online)

    def cpu(self, number: int) -> Cpu | None:
        return next((c for c in self.cpus if c.number == number), None)

    @property
    def housekeeping(self) -> tuple[int, ...]:
        """Online CPUs that take any task."""
        away = {*self.isolated, *self.nohz_full, *self.partitioned}
        return tuple(n for n in self.online if n not in away)

    @property
    def open(self) -> tuple[int, ...]:
        """Online CPUs that kernel threads may be put on; all where that is none."""
        away = set(self.partitioned)
        return tuple(n for n in self.online if n not in away) or self.online


# In the order of rxlane.kernel's requests: napi-set handles threaded first, so that a failed thread
# changes nothing else.
NAPI_ATTRIBUTE = {
    THREADED: uapi.NETDEV_A_NAPI_THREADED,
    DEFER: uapi.NETDEV_A_NAPI_DEFER_HARD_IRQS,
    FLUSH: uapi.NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT,
    SUSPEND: uapi.NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the netdev generic netlink family of this kernel takes, as probed.

    settable: attribute numbers in napi-set's policy. max_threaded: highest mode it accepts.
    """

    netdev: bool = False
    napi_set: bool = False
    settable: tuple[int, ...] = ()
    max_threaded: int = 0

    def takes(self, item: str) -> bool:
        """True when napi-set takes the setting, one of NAPI_ATTRIBUTE."""
        return NAPI_ATTRIBUTE[item] in self.settable


# irq_thread() in kernel/irq/manage.c calls sched_set_fifo().
IRQ_THREAD_PRIORITY = 50


@dataclass(frozen=True, slots=True)
class IrqThread:
    """A threaded interrupt's kernel thread. cpus: it may run on these. sched: as Thread.sched.

    pid, name: where its class is one that could not be restored, which messages name.
    """

    irq: int
    cpus: tuple[int, ...]
    sched: str = field(default="", metadata=LATER)
    pid: int = field(default=0, metadata=LATER)
    name: str = field(default="", metadata=LATER)

    @property
    def priority(self) -> int:
        """The real-time priority, 0 in another class; the kernel's where the class is not known."""
        return priority_of(self.sched) if self.sched else IRQ_THREAD_PRIORITY


@dataclass(frozen=True, slots=True)
class Sysctl:
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the pure parts work on; holds no addresses and no host name.

    writers: programs that were running and write the same settings, such as irqbalance.
    sessions: devices over which somebody is logged in. hidden_logins: somebody is, and over which
    device cannot be told. workqueue_cpus: of unbound kernel workers;
    workqueue_requested: the mask last written, where the kernel tells that apart: it takes the CPUs
    of isolated partitions, workqueue_isolated, off when a partition is made, and not when a mask is
    written.
    unreserved: CPUs where nothing keeps time for tasks beside real-time ones. stalld: it runs.
    vcpus: CPUs to which threads that run a vCPU are bound. virtual: the host is a virtual machine.
    """

    capabilities: Capabilities
    topology: Topology
    links: tuple[Link, ...] = ()
    irqs: tuple[Irq, ...] = ()
    threads: tuple[Thread, ...] = ()
    notes: tuple[str, ...] = ()
    sysctls: tuple[Sysctl, ...] = ()
    writers: tuple[str, ...] = ()
    format: int = FORMAT
    sessions: tuple[str, ...] = field(default=(), metadata=LATER)
    workqueue_cpus: tuple[int, ...] | None = field(default=None, metadata=LATER)
    irq_threads: tuple[IrqThread, ...] = field(default=(), metadata=LATER)
    unreserved: tuple[int, ...] = field(default=(), metadata=LATER)
    stalld: bool = field(default=False, metadata=LATER)
    vcpus: tuple[int, ...] = field(default=(), metadata=LATER)
    virtual: bool = field(default=False, metadata=LATER)
    hidden_logins: bool = field(default=False, metadata=LATER)
    workqueue_requested: tuple[int, ...] | None = field(default=None, metadata=LATER)
    workqueue_isolated: tuple[int, ...] = field(default=(), metadata=LATER)

    def link(self, name: str) -> Link | None:
        return next((li for li in self.links if li.name == name), None)


@dataclass(frozen=True, slots=True)
class Lane:
    """One RX queue with what serves it. shared_with is the lower queue on the same NAPI.

    For NAPIs without an RX queue see others().
    """

    device: str
    queue: Queue
    napi: Napi | None
    irq: Irq | None
    thread: Thread | None
    mode: str | None
    shared_with: int | None = None

    @property
    def polled(self) -> str | None:
        """Return how packets are polled: the mode, or IRQ_THREAD where softirq is the mode."""
        in_thread = self.irq is not None and self.irq.threaded == 1
        return IRQ_THREAD if in_thread and self.mode in (None, "off") else self.mode

    @property
    def poller(self) -> Thread | None:
        """Return the thread that polls, None where softirq does or the thread is not known."""
        if self.polled == IRQ_THREAD:
            return None if self.irq is None else self.irq.thread
        return None if self.mode in (None, "off") else self.thread


def napi_mode(link: Link, napi: Napi) -> str | None:
    """Return off, on or busy-poll; kernels without attribute 8 know it for the device only."""
    number = link.threaded if napi.threaded is None else napi.threaded
    if number is None or not 0 <= number < len(MODES):
        return None
    return MODES[number]


@dataclass(frozen=True, slots=True)
class Index:
    """A snapshot's threads by pid and IRQs by number, made once for many links."""

    threads: Mapping[int, Thread]
    irqs: Mapping[int, Irq]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Index:
        return cls({t.pid: t for t in snapshot.threads}, {i.number: i for i in snapshot.irqs})


def lanes(index: Index, link: Link) -> Iterator[Lane]:
    """Yield one lane for each RX queue of the link, ascending."""
    napis = {n.napi_id: n for n in link.napis}
    threads, irqs = index.threads, index.irqs
    first: dict[int, int] = {}
    for queue in link.queues_of("rx"):
        napi = None if queue.napi_id is None else napis.get(queue.napi_id)
        if napi is None:
            yield Lane(link.name, queue, None, _get(irqs, queue.irq), None, None)
            continue
        owner = first.setdefault(napi.napi_id, queue.index)
        yield Lane(
            link.name,
            queue,
            napi,
            _get(irqs, queue.irq),
            _get(threads, napi.pid),
            napi_mode(link, napi),
            None if owner == queue.index else owner,
        )


def others(index: Index, link: Link) -> Iterator[Lane]:
    """Yield the same for NAPIs that no RX queue is known to use, in their order.

    The queue is the lowest TX queue of each, or of kind unknown and number 0.
    """
    receive = {q.napi_id for q in link.queues if q.kind == "rx"}
    send = {q.napi_id: q for q in reversed(link.queues_of("tx"))}
    for napi in link.napis:
        if napi.napi_id in receive:
            continue
        queue = send.get(napi.napi_id, Queue("unknown", 0, napi.napi_id))
        if queue.irq is None and napi.irq is not None:
            queue = replace(queue, irq=napi.irq, irq_source="netdev")
        thread, mode = _get(index.threads, napi.pid), napi_mode(link, napi)
        yield Lane(link.name, queue, napi, _get(index.irqs, queue.irq), thread, mode)


def _get(table: Mapping[int, _V], key: int | None) -> _V | None:
    return None if key is None else table.get(key)
