# SPDX-License-Identifier: GPL-2.0-or-later
"""What rxlane knows about a host and what it wants to change: frozen data, no behaviour of its own.

Units: timeouts in nanoseconds, priorities as the kernel counts them (1..99 for real-time classes),
CPU and node numbers as in /sys/devices/system. None means "the kernel does not report it".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

FORMAT = 1  # of recorded snapshots and of the journal

Value = int | str

_V = TypeVar("_V")

# A field that came after the first recordings: written only when it says something, so that older
# recordings and journals stay what they are.
LATER: dict[str, Any] = {"later": True}

# Settings, by the name under which plans, journals and reports show them.
THREADED = "threaded"  # off | on | busy-poll
DEFER = "defer-hard-irqs"  # count
FLUSH = "gro-flush-timeout"  # ns
SUSPEND = "irq-suspend-timeout"  # ns
CPUS = "thread-cpus"  # CPU list
SCHED = "thread-sched"  # POLICY:NICE, or POLICY:PRIORITY[:NICE] for fifo and rr
IRQ_CPUS = "irq-cpus"  # CPU list
TX_IRQ_CPUS = "tx-irq-cpus"  # of a send queue with an interrupt of its own; never planned, kept
RPS = "rps-cpus"  # CPU list, or off
RFS = "rps-flow-cnt"  # entries, a power of two, or 0
XPS = "xps-cpus"  # CPU list, or off; of a TX queue
XPS_RXQS = "xps-rxqs"  # queue list, or off; of a TX queue

OFF = "off"  # an empty CPU or queue list
ON = "on"

# Settings of a whole device that its driver keeps, by ethtool's names.
CHANNELS_RX = "channels-rx"  # receive-only queues
CHANNELS_TX = "channels-tx"  # send-only queues
CHANNELS_COMBINED = "channels-combined"  # pairs of a receive and a send queue
RING_RX = "ring-rx"  # descriptors
RING_TX = "ring-tx"
ADAPTIVE_RX = "adaptive-rx"  # off | on
ADAPTIVE_TX = "adaptive-tx"
RX_USECS = "rx-usecs"  # microseconds from a packet to its interrupt
TX_USECS = "tx-usecs"
RX_FRAMES = "rx-frames"  # packets that wait for one interrupt
TX_FRAMES = "tx-frames"
NTUPLE = "rx-ntuple-filter"  # off | on; with RFS, aRFS where the driver implements it

# Settings of the whole host, each a number in a file below /proc/sys.
FLOW_ENTRIES = "net.core.rps_sock_flow_entries"
BACKLOG = "net.core.netdev_max_backlog"
BUSY_READ = "net.core.busy_read"
BUSY_POLL = "net.core.busy_poll"
TIMER_MIGRATION = "kernel.timer_migration"
WORKQUEUE = "workqueue-cpus"  # CPU list; a mask in sysfs, the only one that is no sysctl

CHANNEL_ITEMS = (CHANNELS_RX, CHANNELS_TX, CHANNELS_COMBINED)
RING_ITEMS = (RING_RX, RING_TX)
COALESCE_ITEMS = (ADAPTIVE_RX, ADAPTIVE_TX, RX_USECS, TX_USECS, RX_FRAMES, TX_FRAMES)
FEATURE_ITEMS = (NTUPLE,)
ETHTOOL_ITEMS = (*CHANNEL_ITEMS, *RING_ITEMS, *COALESCE_ITEMS, *FEATURE_ITEMS)
RESET_ITEMS = (*CHANNEL_ITEMS, *RING_ITEMS)  # their drivers set queues up anew
SWITCHES = (ADAPTIVE_RX, ADAPTIVE_TX, NTUPLE)  # shown as off and on
IRQ_ITEMS = (IRQ_CPUS, TX_IRQ_CPUS)
NAPI_ITEMS = (THREADED, DEFER, FLUSH, SUSPEND)
THREAD_ITEMS = (CPUS, SCHED)
XPS_ITEMS = (XPS, XPS_RXQS)
TX_ITEMS = (*XPS_ITEMS, TX_IRQ_CPUS)
STEERING_ITEMS = (RPS, RFS, *XPS_ITEMS)
RX_ITEMS = (IRQ_CPUS, *NAPI_ITEMS, *THREAD_ITEMS, RPS, RFS)  # of one receive queue
NET_ITEMS = (FLOW_ENTRIES, BACKLOG, BUSY_READ, BUSY_POLL)
CPU_ITEMS = (TIMER_MIGRATION, WORKQUEUE)  # what else runs on the CPUs of the lanes
SYSCTL_ITEMS = (*NET_ITEMS, TIMER_MIGRATION)
HOST_ITEMS = (*NET_ITEMS, *CPU_ITEMS)
# The one order of writing: first what makes queues, and what resets them; a NAPI's first poll
# finds its IRQ placed, threads exist once their mode is set, and flows are steered only when every
# queue has its place.
PHASES = (
    CHANNEL_ITEMS,
    RING_ITEMS,
    COALESCE_ITEMS,
    IRQ_ITEMS,
    NAPI_ITEMS,
    THREAD_ITEMS,
    FEATURE_ITEMS,
    STEERING_ITEMS,
    HOST_ITEMS,
)

# enum netdev_napi_threaded, include/uapi/linux/netdev.h
MODES = ("off", "on", "busy-poll")

REALTIME = ("fifo", "rr")
FAIR = ("other", "batch", "idle")
UNKNOWN_SCHED = ("deadline", "ext")  # classes rxlane could not put back

DISRUPTION = {THREADED: "thread-restart"}  # RESET_ITEMS: see disruption(); all else: none
# virtnet_set_channels() and virtnet_rx_resize() stop single queues; the carrier stays.
PAUSING = frozenset({"virtio_net"})


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
    unknown. irq_source: netdev (napi-get said so), irq-name (the action's name), unknown.
    rps_* are of RX queues, xps_* of TX queues; the kernel has none for a device's only TX queue.
    """

    kind: str  # rx | tx
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
class Irq:
    """movable is False where the kernel says beforehand that it refuses another affinity."""

    number: int
    name: str
    cpus: tuple[int, ...] = ()
    effective: tuple[int, ...] = ()
    movable: bool = True


@dataclass(frozen=True, slots=True)
class Thread:
    """A kernel thread that polls a NAPI."""

    pid: int
    name: str
    policy: str
    priority: int
    nice: int
    cpus: tuple[int, ...]

    @property
    def sched(self) -> str:
        """The form in which plans and journals hold it.

        A real-time thread's nice level is shown when it has one: it counts again when the thread
        goes back to a fair class.
        """
        if self.policy not in REALTIME:
            return f"{self.policy}:{self.nice}"
        return f"{self.policy}:{self.priority}{f':{self.nice}' if self.nice else ''}"


@dataclass(frozen=True, slots=True)
class Tunable:
    """One of ETHTOOL_ITEMS that the driver lets change; top is the highest value, if it says one.

    value of SWITCHES: 0 off, 1 on.
    """

    item: str
    value: int
    top: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A network device. threaded, defer_hard_irqs and gro_flush_timeout are its sysfs files.

    below: the devices a virtual one stands on, such as the ports of a bond.
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

    def tunable(self, item: str) -> Tunable | None:
        return next((t for t in self.tunables if t.item == item), None)

    def count(self, kind: str) -> int:
        return sum(1 for q in self.queues if q.kind == kind)


@dataclass(frozen=True, slots=True)
class Cpu:
    """llc: the lowest CPU that shares the last level cache with this one."""

    number: int
    online: bool
    package: int = 0
    core: int = 0
    node: int = 0
    siblings: tuple[int, ...] = ()
    llc: int | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True)
class Topology:
    cpus: tuple[Cpu, ...]
    isolated: tuple[int, ...] = ()
    nohz_full: tuple[int, ...] = ()

    @property
    def online(self) -> tuple[int, ...]:
        return tuple(c.number for c in self.cpus if c.online)

    def cpu(self, number: int) -> Cpu | None:
        return next((c for c in self.cpus if c.number == number), None)

    @property
    def housekeeping(self) -> tuple[int, ...]:
        """Online CPUs that take any task."""
        away = {*self.isolated, *self.nohz_full}
        return tuple(n for n in self.online if n not in away)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the netdev generic netlink family of this kernel takes, as probed.

    settable: attribute numbers in napi-set's policy. max_threaded: highest mode it accepts.
    """

    netdev: bool = False
    napi_set: bool = False
    settable: tuple[int, ...] = ()
    max_threaded: int = 0


@dataclass(frozen=True, slots=True)
class IrqThread:
    """A threaded interrupt's kernel thread, and the CPUs it may run on."""

    irq: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sysctl:
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the pure parts work on; holds no addresses and no host name.

    writers: programs that were running and write the same settings, such as irqbalance.
    sessions: devices over which somebody is logged in. workqueue_cpus: of unbound kernel workers.
    unreserved: CPUs where nothing keeps time for tasks beside real-time ones. stalld: it runs.
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

    def link(self, name: str) -> Link | None:
        return next((li for li in self.links if li.name == name), None)


@dataclass(frozen=True, slots=True)
class Lane:
    """One RX queue with what serves it. shared_with is the lower queue on the same NAPI."""

    device: str
    queue: Queue
    napi: Napi | None
    irq: Irq | None
    thread: Thread | None
    mode: str | None
    shared_with: int | None = None


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
    for queue in sorted((q for q in link.queues if q.kind == "rx"), key=lambda q: q.index):
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


def _get(table: Mapping[int, _V], key: int | None) -> _V | None:
    return None if key is None else table.get(key)


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A setting's address. queue is the RX queue (TX queue for TX_ITEMS), -1 for the whole device.

    The device of a setting of the whole host is HOST. NAPI ids and IRQ numbers are no part of it:
    they change when a device goes down and up.
    """

    device: str
    queue: int
    item: str

    def __str__(self) -> str:
        if self.device == HOST:
            return self.item
        kind = "tx" if self.item in TX_ITEMS else "rx"
        return f"{self.device}/{'all' if self.queue < 0 else f'{kind}{self.queue}'}/{self.item}"


def disruption(item: str, driver: str) -> str:
    """Say what writing the setting does to traffic: none, thread-restart, queue-pause, link-reset.

    A driver that is not known to pause only is taken to reset the link.
    """
    if item in RESET_ITEMS:
        return "queue-pause" if driver in PAUSING else "link-reset"
    return DISRUPTION.get(item, "none")


WHOLE = -1
HOST = ""  # no device has an empty name


@dataclass(frozen=True, slots=True)
class Change:
    """before is None when the thread does not exist yet, so that it has no value."""

    target: Target
    before: Value | None
    after: Value
    reason: str = ""
    disruption: str = "none"


@dataclass(frozen=True, slots=True)
class Skip:
    """Something asked for that is not done. kind: unsupported, unmovable, left-alone or down."""

    device: str
    queue: int
    item: str
    kind: str
    reason: str

    def __str__(self) -> str:
        where = self.device if self.queue < 0 else f"{self.device} queue {self.queue}"
        if self.device == HOST:
            where = "host"
        return f"{where}: {self.item} {self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """changes are to be written; holds already have the wanted value (before equals after)."""

    changes: tuple[Change, ...] = ()
    holds: tuple[Change, ...] = ()
    skips: tuple[Skip, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A setting that is not as planned. found is None when its queue or thread is gone."""

    target: Target
    expected: Value
    found: Value | None
    cause: str

    def __str__(self) -> str:
        found = "nothing" if self.found is None else self.found
        return f"{self.target}: expected {self.expected}, found {found} ({self.cause})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting in the journal: what it was before rxlane first wrote it, and what it is to be.

    after is None when nothing is wanted (any more) but the original must be kept: a thread that
    ends with its mode takes its CPU and class with it. ifindex tells the device apart from another
    that took its name later.
    """

    device: str
    ifindex: int
    queue: int
    item: str
    before: Value | None
    after: Value | None
    kept: bool = field(default=False, metadata=LATER)

    @property
    def target(self) -> Target:
        return Target(self.device, self.queue, self.item)


@dataclass(frozen=True, slots=True)
class Journal:
    """boot_id: /proc/sys/kernel/random/boot_id of the boot in which the entries were written.

    owner: TUNED once TuneD wrote any of it, so that nobody else's settings go when TuneD ends.
    """

    boot_id: str
    entries: tuple[Entry, ...]
    owner: str = ""
    format: int = FORMAT


TUNED = "tuned"
