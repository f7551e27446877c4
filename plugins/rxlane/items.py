# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings by name, what belongs together, the one order of writing, and the words of their values.

Units: timeouts in nanoseconds, priorities as the kernel counts them (1..99 for real-time classes).
"""

from __future__ import annotations

Value = int | str

# Settings, by the name under which plans, journals and reports show them.
THREADED = "threaded"  # off | on | busy-poll
DEFER = "defer-hard-irqs"  # count
FLUSH = "gro-flush-timeout"  # ns
SUSPEND = "irq-suspend-timeout"  # ns
CPUS = "thread-cpus"  # CPU list
SCHED = "thread-sched"  # POLICY:NICE, or POLICY:PRIORITY[:NICE] for fifo and rr
IRQ_CPUS = "irq-cpus"  # CPU list
TX_IRQ_CPUS = "tx-irq-cpus"  # of a send queue with an interrupt of its own; never planned, kept
IRQ_THREADED = "irq-threaded"  # off | on: the interrupt's handler, and its NAPI's poll, in a thread
IRQ_THREAD_CPUS = "irq-thread-cpus"  # CPU list
IRQ_THREAD_SCHED = "irq-thread-sched"  # as thread-sched
RPS = "rps-cpus"  # CPU list, or off
VHOST_CPUS = "vhost-cpus"  # CPU list; of a tap's vhost thread, counted from 0
RFS = "rps-flow-cnt"  # entries, a power of two, or 0
XPS = "xps-cpus"  # CPU list, or off; of a TX queue
XPS_RXQS = "xps-rxqs"  # queue list, or off; of a TX queue
RX_THREADS = "rx-threads"  # count, 0 for none; of a device
RX_THREAD_CPUS = "rx-thread-cpus"  # CPU list, or kernel; of a device's rx thread, counted from 0
RX_THREAD_SCHED = "rx-thread-sched"  # as thread-sched

OFF = "off"  # an empty CPU or queue list
ON = "on"
KERNEL = "kernel"  # the kernel reserves a CPU, and another one at CPU hotplug

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
# An interrupt comes after the microseconds or the packets, whichever are first; 0 is no limit.
FRAMES_OF = {RX_USECS: RX_FRAMES, TX_USECS: TX_FRAMES}
FEATURE_ITEMS = (NTUPLE,)
ETHTOOL_ITEMS = (*CHANNEL_ITEMS, *RING_ITEMS, *COALESCE_ITEMS, *FEATURE_ITEMS)
RESET_ITEMS = (*CHANNEL_ITEMS, *RING_ITEMS)  # their drivers set queues up anew
SWITCHES = (ADAPTIVE_RX, ADAPTIVE_TX, NTUPLE)  # shown as off and on
IRQ_ITEMS = (IRQ_CPUS, TX_IRQ_CPUS)
NAPI_ITEMS = (THREADED, DEFER, FLUSH, SUSPEND)
IRQ_THREAD_ITEMS = (IRQ_THREAD_CPUS, IRQ_THREAD_SCHED)
# What each mode's threads have; the threads come and go with the mode.
RX_THREAD_ITEMS = (RX_THREAD_CPUS, RX_THREAD_SCHED)
THREADS_OF = {
    THREADED: (CPUS, SCHED),
    IRQ_THREADED: IRQ_THREAD_ITEMS,
    RX_THREADS: RX_THREAD_ITEMS,
}
THREAD_ITEMS = tuple(item for items in THREADS_OF.values() for item in items)
MODE_OF = {item: mode for mode, items in THREADS_OF.items() for item in items}
XPS_ITEMS = (XPS, XPS_RXQS)
TX_ITEMS = (*XPS_ITEMS, TX_IRQ_CPUS)
STEERING_ITEMS = (RPS, RFS, *XPS_ITEMS)
# Settings of one receive queue.
RX_ITEMS = (IRQ_CPUS, IRQ_THREADED, *NAPI_ITEMS, CPUS, SCHED, *IRQ_THREAD_ITEMS, RPS, RFS)
SEPARATION_ITEMS = (RX_THREADS, *RX_THREAD_ITEMS)  # of a device and its rx threads
NET_ITEMS = (FLOW_ENTRIES, BACKLOG, BUSY_READ, BUSY_POLL)
CPU_ITEMS = (TIMER_MIGRATION, WORKQUEUE)  # what else runs on the CPUs of the lanes
SYSCTL_ITEMS = (*NET_ITEMS, TIMER_MIGRATION)
HOST_ITEMS = (*NET_ITEMS, *CPU_ITEMS)
UNRESET_ITEMS = frozenset((*ETHTOOL_ITEMS, *HOST_ITEMS))  # which no driver's reset costs
# Of what they were given the kernel shows the CPUs that are online: sched_getaffinity(), RPS, XPS.
ONLINE_ITEMS = frozenset((CPUS, IRQ_THREAD_CPUS, RX_THREAD_CPUS, VHOST_CPUS, RPS, XPS))
# Settings that cost most to read, a file or a request each: read only where they matter.
COSTLY_ITEMS = frozenset((*STEERING_ITEMS, *SEPARATION_ITEMS, *ETHTOOL_ITEMS, VHOST_CPUS))
CHEAP_ITEMS = frozenset((*RX_ITEMS, *IRQ_ITEMS, *HOST_ITEMS)) - COSTLY_ITEMS
EVERY_ITEM = CHEAP_ITEMS | COSTLY_ITEMS
# The one order of writing: first what makes queues, and what resets them; a NAPI's first poll
# finds its IRQ placed, threads exist once their mode is set, and flows are steered only when every
# queue has its place. RPS and rx threads exclude each other on a device: the latter are in two
# phases, in the first when they go.
PHASES = (
    CHANNEL_ITEMS,
    RING_ITEMS,
    COALESCE_ITEMS,
    (*IRQ_ITEMS, IRQ_THREADED),
    NAPI_ITEMS,
    (CPUS, SCHED, *IRQ_THREAD_ITEMS),
    (VHOST_CPUS,),
    FEATURE_ITEMS,
    (RX_THREADS,),
    STEERING_ITEMS,
    (RX_THREADS,),
    RX_THREAD_ITEMS,
    HOST_ITEMS,
)

# enum netdev_napi_threaded, include/uapi/linux/netdev.h
MODES = ("off", "on", "busy-poll")

REALTIME = ("fifo", "rr")
FAIR = ("other", "batch", "idle")
UNKNOWN_SCHED = ("deadline", "ext")


def priority_of(sched: str) -> int:
    """Return the real-time priority of a class as Thread.sched has it, 0 in another class."""
    policy, _, numbers = sched.partition(":")
    return int(numbers.partition(":")[0]) if policy in REALTIME else 0


def restorable(sched: str) -> bool:
    """False of a scheduling class, or a value that begins with one, that rxlane could not put back.

    The budget of SCHED_DEADLINE and the BPF program of SCHED_EXT are in no journal.
    """
    return sched.partition(":")[0] not in UNKNOWN_SCHED
