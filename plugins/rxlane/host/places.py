# SPDX-License-Identifier: GPL-2.0-or-later
"""In which files under /proc and /sys settings stand, without the leading slash. Pure.

Not all stand in one: of threads the scheduler is asked, of channels and the like the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rxlane.items import (
    DEFER,
    FLUSH,
    HOST_ITEMS,
    IRQ_ITEMS,
    IRQ_THREADED,
    RFS,
    RPS,
    RX_THREADS,
    STEERING_ITEMS,
    SYSCTL_ITEMS,
    THREADED,
    TX_ITEMS,
    XPS,
    XPS_RXQS,
)
from rxlane.plan import Target
from rxlane.settings import View

DEVICE_FILE = {
    THREADED: "threaded",
    DEFER: "napi_defer_hard_irqs",
    FLUSH: "gro_flush_timeout",
    RX_THREADS: "rx_threads",
}
QUEUE_FILE = {RPS: "rps_cpus", RFS: "rps_flow_cnt", XPS: "xps_cpus", XPS_RXQS: "xps_rxqs"}
BOOT_ID = "proc/sys/kernel/random/boot_id"
WORKQUEUES = "sys/devices/virtual/workqueue/cpumask"
# What was last written there, and CPUs of isolcpus= and of isolated partitions, on kernels where
# making a partition takes its CPUs off; older ones have neither.
WORKQUEUES_REQUESTED = f"{WORKQUEUES}_requested"
WORKQUEUES_ISOLATED = f"{WORKQUEUES}_isolated"


def of_host(item: str) -> str:
    """Return the file of one of HOST_ITEMS."""
    return f"proc/sys/{item.replace('.', '/')}" if item in SYSCTL_ITEMS else WORKQUEUES


def of_device(device: str, item: str) -> str:
    """Return the file of one of DEVICE_FILE."""
    return f"sys/class/net/{device}/{DEVICE_FILE[item]}"


def of_queue(device: str, queue: int, item: str) -> str:
    """Return the file of one of STEERING_ITEMS."""
    kind = "tx" if item in TX_ITEMS else "rx"
    return f"sys/class/net/{device}/queues/{kind}-{queue}/{QUEUE_FILE[item]}"


def of_irq(number: int) -> str:
    """Return the file of the CPUs that an interrupt may go to, as a list."""
    return f"proc/irq/{number}/smp_affinity_list"


def of_irq_mode(number: int, action: str) -> str:
    return f"proc/irq/{number}/{action}/threaded"


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of settings in one directory. device: whose they are, "" for the host's."""

    device: str
    names: frozenset[str]


def folders(view: View, targets: Iterable[Target]) -> dict[str, Folder]:
    """Return what these settings stand in, by directory. A NAPI's, which netlink sets, are also
    written through its device's files, and an interrupt's CPUs as a mask.
    """
    found: dict[str, tuple[str, set[str]]] = {}
    for target in targets:
        for path in _paths(view, target):
            directory, _, name = path.rpartition("/")
            found.setdefault(directory, (target.device, set()))[1].add(name)
    # Thousands of queues have the same files.
    same: dict[frozenset[str], frozenset[str]] = {}
    return {
        directory: Folder(device, same.setdefault(own := frozenset(names), own))
        for directory, (device, names) in found.items()
    }


def _paths(view: View, target: Target) -> Iterator[str]:
    item = target.item
    if item in HOST_ITEMS:
        yield of_host(item)
    elif item in STEERING_ITEMS:
        yield of_queue(target.device, target.queue, item)
    elif item in DEVICE_FILE:
        yield of_device(target.device, item)
    elif item in (*IRQ_ITEMS, IRQ_THREADED):
        irq = view.irq(target)
        if irq is None:
            return
        if item == IRQ_THREADED:
            yield of_irq_mode(irq.number, irq.name)
            return
        listed = of_irq(irq.number)
        yield from (listed, listed.removesuffix("_list"))
