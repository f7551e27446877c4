# SPDX-License-Identifier: GPL-2.0-or-later
"""Read a host into a Snapshot. Reads only; every link between the parts states its source."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rxlane import logins, rtnetlink, threads
from rxlane import uapi as u
from rxlane.items import (
    EVERY_ITEM,
    IRQ_ITEMS,
    IRQ_THREAD_ITEMS,
    IRQ_THREADED,
    NAPI_ITEMS,
    RFS,
    RPS,
    STEERING_ITEMS,
    SYSCTL_ITEMS,
    THREAD_ITEMS,
    THREADED,
    THREADS_OF,
    WORKQUEUE,
    XPS,
    XPS_RXQS,
)
from rxlane.model import (
    ATOM,
    CORE,
    IRQBALANCE,
    WRITERS,
    Capabilities,
    Cpu,
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
from rxlane.netdev import Netdev, QueueRow
from rxlane.rtnetlink import LinkRow
from rxlane.sysfs import Sysfs

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
FAIR_SERVER = "sys/kernel/debug/sched/fair_server"
KTHREADS = "proc/2/task/2/children"
SERVICES = "sys/fs/cgroup/system.slice"
PARTITIONED = "sys/fs/cgroup/cpuset.cpus.isolated"
WORKQUEUES = "sys/devices/virtual/workqueue/cpumask"

# Names that drivers give to the interrupt of RX queue N: virtio "virtio0-input.3",
# e1000e "eth0-rx-0", igb and ixgbe "eth0-TxRx-3", vmxnet3 "eth0-rxtx-3", mlx5 "mlx5_comp3@pci:".
_IRQ_NAME = re.compile(r"(?:input\.|(?:tx|rx)?-?rx-?(?:tx)?-|rx_?|comp)(\d+)(?:@.*)?$", re.I)


# And to one that serves TX queue N alone: "virtio0-output.3", "eth0-tx-0".
_TX_IRQ_NAME = re.compile(r"(?:output\.|(?<!rx)-tx-)(\d+)$", re.I)

Named = tuple[str, int]  # rx or tx, and the queue
_Row = TypeVar("_Row")
# What older kernels set for whole devices only, by the attributes that newer ones take.
DEVICE_WIDE = (
    u.NETDEV_A_NAPI_DEFER_HARD_IRQS,
    u.NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT,
    u.NETDEV_A_NAPI_THREADED,
)


def irq_queue(name: str) -> Named | None:
    """Return the queue that an IRQ action's name speaks of, None when it names none.

    An interrupt that serves both is its RX queue's.
    """
    for kind, pattern in (("rx", _IRQ_NAME), ("tx", _TX_IRQ_NAME)):
        match = pattern.search(name)
        if match is not None:
            return kind, int(match[1])
    return None


def topology(sysfs: Sysfs) -> Topology:
    """Read cores of all kinds, SMT siblings, NUMA nodes, isolated and nohz_full CPUs."""
    online = set(sysfs.cpus(f"{CPU}/online"))
    nodes: dict[int, int] = {}
    for name in sysfs.names(NODE):
        if re.fullmatch(r"node\d+", name):
            nodes |= dict.fromkeys(_node_cpus(sysfs, name), int(name[4:]))
    found = sysfs.cpus(f"{CPU}/present") or tuple(sorted(online))
    caches, kinds = _caches(sysfs, online), _kinds(sysfs)
    cpus = (_cpu(sysfs, n, n in online, nodes.get(n, 0)) for n in found)
    return Topology(
        tuple(replace(c, llc=caches.get(c.number), kind=kinds.get(c.number, "")) for c in cpus),
        # By the command line, and by isolated partitions of control groups since.
        tuple(sorted({*sysfs.cpus(f"{CPU}/isolated"), *sysfs.cpus(PARTITIONED)})),
        sysfs.cpus(f"{CPU}/nohz_full"),
    )


def _node_cpus(sysfs: Sysfs, node: str) -> set[int]:
    """Return a node's CPUs: cpulist has those online, links to them stay while they are offline."""
    links = (re.fullmatch(r"cpu(\d+)", name) for name in sysfs.names(f"{NODE}/{node}"))
    return {int(m[1]) for m in links if m} | set(sysfs.cpus(f"{NODE}/{node}/cpulist"))


def _caches(sysfs: Sysfs, online: Collection[int]) -> dict[int, int]:
    """Return for each CPU the lowest one that shares its last level cache, read once a cache."""
    found: dict[int, int] = {}
    for number in sorted(online):
        if number in found:
            continue
        base = f"{CPU}/cpu{number}/cache"
        last = max((n for n in sysfs.names(base) if n.startswith("index")), default=None)
        shared = () if last is None else sysfs.cpus(f"{base}/{last}/shared_cpu_list")
        found |= {n: shared[0] for n in shared}
    return found


def _kinds(sysfs: Sysfs) -> dict[int, str]:
    """Return performance and efficiency cores of a hybrid x86 host, by their PMUs' CPUs."""
    return {n: kind for kind in (CORE, ATOM) for n in sysfs.cpus(f"sys/devices/cpu_{kind}/cpus")}


def _cpu(sysfs: Sysfs, number: int, online: bool, node: int) -> Cpu:
    base = f"{CPU}/cpu{number}/topology"
    return Cpu(
        number,
        online,
        sysfs.number(f"{base}/physical_package_id") or 0,
        sysfs.number(f"{base}/core_id") or 0,
        node,
        sysfs.cpus(f"{base}/thread_siblings_list") or (number,),
        # arm64 and newer x86 kernels have it.
        capacity=sysfs.number(f"{CPU}/cpu{number}/cpu_capacity"),
    )


def _is_physical(sysfs: Sysfs, name: str) -> bool:
    """Hardware or a virtual machine's device, as against veth, bridges, taps and netdevsim."""
    bus = sysfs.target(f"sys/class/net/{name}/device/subsystem")
    return bus is not None and not bus.endswith("/netdevsim")


def _driver(sysfs: Sysfs, name: str) -> str:
    target = sysfs.target(f"sys/class/net/{name}/device/driver")
    return "" if target is None else target.rpartition("/")[2]


def _device_irqs(sysfs: Sysfs, name: str) -> dict[Named, list[int]]:
    """Return {queue: IRQs} by action names among the device's MSI vectors.

    virtio devices hang below the PCI device that owns the vectors.
    """
    found: dict[Named, list[int]] = {}
    base = f"sys/class/net/{name}/device"
    numbers = sysfs.names(f"{base}/msi_irqs") or sysfs.names(f"{base}/../msi_irqs")
    for number in sorted(int(n) for n in numbers if n.isdigit()):
        for action in sysfs.folders(f"proc/irq/{number}"):
            queue = irq_queue(action)
            if queue is not None:
                found.setdefault(queue, []).append(number)
    return found


def _queue_counts(sysfs: Sysfs, name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"rx": [], "tx": []}
    for entry in sysfs.names(f"sys/class/net/{name}/queues"):
        kind, _, number = entry.partition("-")
        if kind in found and number.isdecimal():
            found[kind].append(int(number))
    return {kind: sorted(numbers) for kind, numbers in found.items()}


def link_queues(
    counts: Mapping[str, Sequence[int]],
    rows: Iterable[QueueRow],
    napis: Sequence[Napi],
    irqs: dict[Named, list[int]],
    allocated: int = 0,
) -> tuple[Queue, ...]:
    """Join queues, NAPIs and IRQs.

    counts: queue numbers by kind from sysfs; rows: this device's queue-get; irqs: by action name;
    allocated: RX queues that the driver could use. queue-get wins; without any link from it, as
    many NAPIs as RX queues are taken in order, because drivers add them in queue order and ids
    ascend. virtio_net has a NAPI for each allocated queue although it uses no more queues than
    CPUs: the first ones are those in use.
    """
    known = {(r.kind, r.index): r.napi_id for r in rows}
    # sysfs counts queues that a driver may have set aside; queue-get counts those in use.
    wanted = sorted(known) if known else [(k, i) for k in ("rx", "tx") for i in counts.get(k, ())]
    ordered = sorted(n.napi_id for n in napis)
    receive = [index for kind, index in wanted if kind == "rx"]
    fits = len(ordered) in (len(receive), allocated) and 0 < len(receive) <= len(ordered)
    by_order = fits and not any(known.values())
    number_of = {n.napi_id: n.irq for n in napis}
    result = []
    for kind, index in wanted:
        napi, source = known.get((kind, index)), "netdev"
        if napi is None:
            napi, source = None, "unknown"
            if by_order and kind == "rx":
                napi, source = ordered[receive.index(index)], "order"
        queue = Queue(kind, index, napi, source)
        result.append(_with_irq(queue, number_of, irqs))
    return tuple(result)


def _with_irq(
    queue: Queue, number_of: dict[int, int | None], irqs: dict[Named, list[int]]
) -> Queue:
    said = None if queue.napi_id is None else number_of.get(queue.napi_id)
    if said is not None:
        return replace(queue, irq=said, irq_source="netdev")
    named = irqs.get((queue.kind, queue.index), [])
    if len(named) == 1:
        return replace(queue, irq=named[0], irq_source="irq-name")
    return queue


def steering(
    sysfs: Sysfs, device: str, queue: Queue, items: Collection[str] = STEERING_ITEMS
) -> Queue:
    """Add those of RPS and RFS of an RX queue, XPS of a TX queue, that are among the items."""
    base = f"sys/class/net/{device}/queues/{queue.kind}-{queue.index}"
    found: dict[str, Any] = {}
    if queue.kind == "rx":
        if RPS in items:
            found["rps_cpus"] = sysfs.mask(f"{base}/rps_cpus")
        if RFS in items:
            found["rps_flow_cnt"] = sysfs.number(f"{base}/rps_flow_cnt")
    else:
        if XPS in items:
            found["xps_cpus"] = sysfs.mask(f"{base}/xps_cpus")
        if XPS_RXQS in items:
            found["xps_rxqs"] = sysfs.mask(f"{base}/xps_rxqs")
    return replace(queue, **found) if found else queue


def _with_steering(sysfs: Sysfs, link: Link, items: Collection[str]) -> Link:
    return replace(link, queues=tuple(steering(sysfs, link.name, q, items) for q in link.queues))


def sysctl_file(name: str) -> str:
    return f"proc/sys/{name.replace('.', '/')}"


def host_file(name: str) -> str:
    """Return the file of one of HOST_ITEMS."""
    return WORKQUEUES if name == WORKQUEUE else sysctl_file(name)


def _sysctls(sysfs: Sysfs) -> tuple[Sysctl, ...]:
    found = ((name, sysfs.number(sysctl_file(name))) for name in SYSCTL_ITEMS)
    return tuple(Sysctl(name, value) for name, value in found if value is not None)


def _writers(sysfs: Sysfs) -> tuple[str, ...]:
    """Return the programs of model.WRITERS that run, by the control group of their service.

    irqbalance also by its socket, which is named after its pid (irqbalance.c): it may have been
    started by hand.
    """
    groups = ((name, f"{SERVICES}/{name}.service/cgroup.procs") for name in WRITERS)
    found = {name for name, path in groups if sysfs.read(path)}
    for name in sysfs.names("run/irqbalance"):
        match = re.fullmatch(r"irqbalance(\d+)\.sock", name)
        if match and _runs(sysfs, int(match[1]), IRQBALANCE):
            found.add(IRQBALANCE)
    return tuple(name for name in WRITERS if name in found)


def _runs(sysfs: Sysfs, pid: int | None, name: str) -> bool:
    return pid is not None and sysfs.read(f"proc/{pid}/comm") == name


def irq_threads(sysfs: Sysfs, others: Collection[int | None]) -> tuple[IrqThread, ...]:
    """Return the threads of threaded interrupts, "irq/N-name", children of kthreadd (pid 2).

    others: kernel threads that are known to be something else.
    """
    known = ((n, threads.affinity(pid)) for n, pid in _of_interrupts(sysfs, others))
    found = (IrqThread(number, cpus) for number, cpus in known if cpus is not None)
    return tuple(sorted(found, key=lambda t: t.irq))


def _of_interrupts(sysfs: Sysfs, others: Collection[int | None]) -> Iterator[tuple[int, int]]:
    """Yield the interrupt and the pid of each thread of a threaded interrupt."""
    children = sysfs.read(KTHREADS)
    # Without CONFIG_PROC_CHILDREN every process is asked for its name.
    pids = sysfs.names("proc") if children is None else children.split()
    for pid in (int(n) for n in pids if n.isdecimal()):
        name = None if pid in others else sysfs.read(f"proc/{pid}/comm")
        match = None if name is None else re.match(r"irq/(\d+)-", name)
        if match is not None:
            yield int(match[1]), pid


def unreserved(sysfs: Sysfs, online: Sequence[int]) -> tuple[int, ...]:
    """Return the CPUs where a real-time thread that never sleeps starves all others.

    From 6.12 on the fair server of each CPU keeps time for them, before that the real-time limit
    did. debugfs is root's; without it the limit speaks for both.
    """
    if sysfs.folders(FAIR_SERVER):
        off = (n for n in online if sysfs.number(f"{FAIR_SERVER}/cpu{n}/runtime") == 0)
        return tuple(off)
    return tuple(online) if sysfs.number("proc/sys/kernel/sched_rt_runtime_us") == -1 else ()


def _link(
    sysfs: Sysfs,
    row: LinkRow,
    napis: Sequence[Napi],
    rows: Sequence[QueueRow],
    tunables: tuple[Tunable, ...],
    wide: bool,
) -> Link:
    """wide: with what is set for the whole device."""
    base = f"sys/class/net/{row.name}"
    # Most files of a device are in the folder of its hardware, which virtual ones lack.
    real = sysfs.exists(f"{base}/device")
    irqs = _device_irqs(sysfs, row.name) if real else {}
    queues = link_queues(_queue_counts(sysfs, row.name), rows, napis, irqs, row.rx_allocated)
    physical = real and _is_physical(sysfs, row.name)
    return Link(
        name=row.name,
        ifindex=row.ifindex,
        up=row.up,
        physical=physical,
        driver=_driver(sysfs, row.name) if real else "",
        node=_node(sysfs, base) if real else None,
        **(_device_wide(sysfs, base) if wide else {}),
        napis=_ascending(napis),
        queues=queues,
        tunables=tunables,
        # Named where a virtual device has nothing to lay out itself.
        below=() if physical or napis else _below(sysfs, row.name),
    )


def _node(sysfs: Sysfs, base: str) -> int | None:
    node = sysfs.number(f"{base}/device/numa_node")
    if node is None:
        node = sysfs.number(f"{base}/device/../numa_node")
    return None if node is None or node < 0 else node


def _device_wide(sysfs: Sysfs, base: str) -> dict[str, int | None]:
    return {
        "threaded": sysfs.number(f"{base}/threaded"),
        "defer_hard_irqs": sysfs.number(f"{base}/napi_defer_hard_irqs"),
        "gro_flush_timeout": sysfs.number(f"{base}/gro_flush_timeout"),
    }


def _below(sysfs: Sysfs, name: str) -> tuple[str, ...]:
    """Return the devices below, each a link that netdev_adjacent_sysfs_add() made."""
    found = sysfs.names(f"sys/class/net/{name}")
    return tuple(n.removeprefix("lower_") for n in found if n.startswith("lower_"))


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


def _threads(sysfs: Sysfs, links: Iterable[Link]) -> tuple[Thread, ...]:
    pids = sorted({n.pid for link in links for n in link.napis if n.pid})
    found = (threads.read(sysfs, pid) for pid in pids)
    return tuple(t for t in found if t is not None)


# Settings of NAPIs and of what is found by them.
BY_NAPI = frozenset((*IRQ_ITEMS, IRQ_THREADED, *NAPI_ITEMS, *THREAD_ITEMS))
BY_IRQ = frozenset((*IRQ_ITEMS, IRQ_THREADED, *IRQ_THREAD_ITEMS))


def observe(
    sysfs: Sysfs,
    netdev: Netdev,
    capabilities: Capabilities,
    cpus: Topology,
    names: Collection[str] | None = None,
    items: Collection[str] | None = None,
    tunables: Mapping[int, tuple[Tunable, ...]] | None = None,
) -> Snapshot:
    """Read the links called names (all when None) with everything that belongs to them.

    items: settings of interest, None for all; with others the snapshot says None, which is not
    known, and without any it has the devices' names only. tunables: what their drivers keep, by
    ifindex.
    """
    asked = EVERY_ITEM if items is None else frozenset(items)
    # What only planning needs, which is always about the whole host.
    planning = names is None and THREADED in asked
    everything = rtnetlink.links()
    if not asked:
        bare = (Link(r.name, r.ifindex, r.up, False) for r in everything)
        return Snapshot(capabilities, cpus, tuple(bare))
    own = tunables or {}
    wide = items is None or _sets_whole_devices(capabilities)
    napis = _by_link(netdev.napis()) if asked & BY_NAPI else {}
    rows = _by_link((r.ifindex, r) for r in netdev.queues()) if asked & BY_NAPI else {}
    links = tuple(
        _with_steering(sysfs, link, asked)
        for r in everything
        if names is None or r.name in names
        for link in [
            _link(
                *(sysfs, r, napis.get(r.ifindex, []), rows.get(r.ifindex, [])),
                own.get(r.ifindex, ()),
                wide,
            )
        ]
    )
    polling = {n.pid for link in links for n in link.napis}
    notes = () if capabilities.netdev else ("kernel has no netdev netlink family",)
    return Snapshot(
        capabilities=capabilities,
        topology=cpus,
        links=links,
        irqs=_irqs(sysfs, links) if asked & BY_NAPI else (),
        threads=_threads(sysfs, links),
        notes=notes,
        sysctls=_sysctls(sysfs),
        writers=_writers(sysfs),
        workqueue_cpus=sysfs.mask(WORKQUEUES),
        sessions=logins.devices(sysfs, {r.ifindex: r.name for r in everything}) if planning else (),
        irq_threads=irq_threads(sysfs, polling) if planning else (),
        unreserved=unreserved(sysfs, cpus.online) if planning else (),
        stalld=planning and _runs(sysfs, sysfs.number("run/stalld.pid"), "stalld"),
    )


def _by_link(rows: Iterable[tuple[int, _Row]]) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for ifindex, row in rows:
        found.setdefault(ifindex, []).append(row)
    return found


def _irqs(sysfs: Sysfs, links: Sequence[Link]) -> tuple[Irq, ...]:
    numbers = sorted({q.irq for link in links for q in link.queues if q.irq is not None})
    polling = {n.pid for link in links for n in link.napis}
    return _with_threads(sysfs, [_irq(sysfs, n) for n in numbers], polling)


def refresh(
    sysfs: Sysfs,
    netdev: Netdev,
    before: Snapshot,
    names: Collection[str],
    items: Collection[str],
    tunables: Mapping[int, tuple[Tunable, ...]] | None = None,
) -> Snapshot:
    """Return these links of an earlier snapshot with their present values of these settings.

    Which devices and queues there are is not asked again, so nothing may have set them up anew.
    """
    asked = frozenset(items)
    links = [link for link in before.links if link.name in names]
    if asked & {*NAPI_ITEMS, *THREADS_OF[THREADED]}:
        napis = _by_link(netdev.napis())
        links = [replace(link, napis=_ascending(napis.get(link.ifindex, []))) for link in links]
        if _sets_whole_devices(before.capabilities):
            links = [_whole_device(sysfs, link) for link in links]
    if tunables is not None:
        links = [replace(link, tunables=tunables.get(link.ifindex, ())) for link in links]
    links = [_with_steering(sysfs, link, asked) for link in links]
    return replace(
        before,
        links=tuple(links),
        irqs=_irqs(sysfs, links) if asked & BY_IRQ else before.irqs,
        threads=_threads(sysfs, links) if asked & {*THREADS_OF[THREADED]} else before.threads,
        sysctls=_sysctls(sysfs) if asked & {*SYSCTL_ITEMS} else before.sysctls,
        workqueue_cpus=sysfs.mask(WORKQUEUES) if WORKQUEUE in asked else before.workqueue_cpus,
    )


def _sets_whole_devices(capabilities: Capabilities) -> bool:
    """True for a kernel that cannot set all of a NAPI's settings for itself."""
    return not set(capabilities.settable).issuperset(DEVICE_WIDE)


def _ascending(napis: Iterable[Napi]) -> tuple[Napi, ...]:
    return tuple(sorted(napis, key=lambda n: n.napi_id))


def _whole_device(sysfs: Sysfs, link: Link) -> Link:
    wide = _device_wide(sysfs, f"sys/class/net/{link.name}")
    return replace(link, **wide)  # type: ignore[arg-type]
