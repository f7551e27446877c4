# SPDX-License-Identifier: GPL-2.0-or-later
"""Read a host into a Snapshot. Reads only; every link between the parts states its source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from rxlane.host import (
    devices,
    helpers,
    hostfiles,
    interrupts,
    logins,
    places,
    threads,
    udevdb,
    vms,
)
from rxlane.items import (
    DEFER,
    EVERY_ITEM,
    FLUSH,
    IRQ_ITEMS,
    IRQ_THREAD_ITEMS,
    IRQ_THREADED,
    NAPI_ITEMS,
    RX_THREAD_ITEMS,
    SEPARATION_ITEMS,
    SYSCTL_ITEMS,
    THREAD_ITEMS,
    THREADED,
    THREADS_OF,
    VHOST_CPUS,
    WORKQUEUE,
)
from rxlane.model import UDEV, Capabilities, Helper, Irq, Link, Snapshot, Thread, Topology, Tunable
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink
from rxlane.wire.netdev import Netdev
from rxlane.wire.rtnetlink import LinkRow

_Row = TypeVar("_Row")
_Served = TypeVar("_Served", Irq, Helper)
Tunables = Mapping[int, tuple[Tunable, ...]]  # what drivers keep, by ifindex
# What older kernels set for whole devices only.
DEVICE_WIDE = (DEFER, FLUSH, THREADED)
# Settings of NAPIs and of what is found by them.
BY_NAPI = frozenset((*IRQ_ITEMS, IRQ_THREADED, *NAPI_ITEMS, *THREAD_ITEMS)) - {*RX_THREAD_ITEMS}
BY_IRQ = frozenset((*IRQ_ITEMS, IRQ_THREADED, *IRQ_THREAD_ITEMS))


def observe(
    sysfs: Sysfs,
    netdev: Netdev,
    capabilities: Capabilities,
    cpus: Topology,
    names: Collection[str] | None = None,
    items: Collection[str] | None = None,
    tunables: Tunables | None = None,
) -> Snapshot:
    """Read the links called names (all when None) with everything that belongs to them.

    items: settings of interest, None for all; with others the snapshot says None, which is not
    known; ordinary threads have no names then, and without any item it has the devices' names only.
    """
    asked = EVERY_ITEM if items is None else frozenset(items)
    everything = rtnetlink.links()
    if not asked:
        bare = (Link(r.name, r.ifindex, r.up, False) for r in everything)
        return Snapshot(capabilities, cpus, tuple(bare))
    rows = [r for r in everything if names is None or r.name in names]
    wide = items is None or _sets_whole_devices(capabilities)
    links = _links(sysfs, netdev, rows, asked, tunables or {}, wide)
    if asked & {*SEPARATION_ITEMS}:
        links = tuple(helpers.with_helpers(sysfs, link, items is None) for link in links)
    vcpus: tuple[int, ...] = ()
    if VHOST_CPUS in asked:
        named = (replace(li, tap=not li.physical and vms.is_tap(sysfs, li.name)) for li in links)
        links, vcpus = vms.with_machines(sysfs, named)
    found = Snapshot(
        capabilities=capabilities,
        topology=cpus,
        links=links,
        irqs=_irqs(sysfs, links) if asked & BY_NAPI else (),
        threads=_threads(sysfs, links, named=items is None),
        notes=hostfiles.notes(sysfs, capabilities),
        sysctls=hostfiles.sysctls(sysfs),
        writers=hostfiles.writers(sysfs),
        vcpus=vcpus,
    )
    found = _with_workqueues(sysfs, _with_offline(sysfs, found))
    # What only planning needs, which is always about the whole host.
    planning = names is None and THREADED in asked
    return _for_planning(sysfs, found, everything) if planning else found


def _links(
    sysfs: Sysfs,
    netdev: Netdev,
    wanted: Iterable[LinkRow],
    asked: frozenset[str],
    tunables: Tunables,
    wide: bool,
) -> tuple[Link, ...]:
    napis = _by_link(netdev.napis()) if asked & BY_NAPI else {}
    rows = _by_link((r.ifindex, r) for r in netdev.queues()) if asked & BY_NAPI else {}
    found = []
    for row in wanted:
        index = row.ifindex
        own = (napis.get(index, []), rows.get(index, []), tunables.get(index, ()))
        link = devices.read(sysfs, row, *own, wide)
        found.append(devices.with_steering(sysfs, link, asked))
    return tuple(found)


def _by_link(rows: Iterable[tuple[int, _Row]]) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for ifindex, row in rows:
        found.setdefault(ifindex, []).append(row)
    return found


def _for_planning(sysfs: Sysfs, found: Snapshot, everything: Iterable[LinkRow]) -> Snapshot:
    """Add what a plan may be refused for, and what nice levels are chosen by."""
    hardware = (link.ifindex for link in found.links if link.physical)
    moves = udevdb.moves_interrupts(sysfs, hardware)
    seen = logins.look(sysfs)
    return replace(
        found,
        writers=(*found.writers, *((UDEV,) if moves else ())),
        sessions=logins.devices(sysfs, seen.connections, {r.ifindex: r.name for r in everything}),
        hidden_logins=seen.hidden,
        irq_threads=interrupts.all_threads(sysfs, _polling(found.links)),
        unreserved=hostfiles.unreserved(sysfs, found.topology.online),
        virtual=hostfiles.virtual(sysfs),
        stalld=hostfiles.runs(sysfs, sysfs.number("run/stalld.pid"), "stalld"),
    )


def _polling(links: Iterable[Link]) -> set[int | None]:
    return {n.pid for link in links for n in link.napis}


def _irqs(sysfs: Sysfs, links: Sequence[Link]) -> tuple[Irq, ...]:
    numbers = sorted({q.irq for link in links for q in link.queues if q.irq is not None})
    return interrupts.read(sysfs, numbers, _polling(links))


def _threads(sysfs: Sysfs, links: Iterable[Link], named: bool = True) -> tuple[Thread, ...]:
    pids = sorted({n.pid for link in links for n in link.napis if n.pid})
    found = (threads.read(sysfs, pid) if named else threads.look(sysfs, pid) for pid in pids)
    return tuple(t for t in found if t is not None)


def refresh(
    sysfs: Sysfs,
    netdev: Netdev,
    before: Snapshot,
    names: Collection[str],
    items: Collection[str],
    tunables: Tunables | None = None,
) -> Snapshot:
    """Return these links of an earlier snapshot with their present values of these settings.

    Which devices and queues there are is not asked again, so nothing may have set them up anew.
    """
    asked = frozenset(items)
    links = [link for link in before.links if link.name in names]
    if asked & {*NAPI_ITEMS, *THREADS_OF[THREADED]}:
        napis = _by_link(netdev.napis())
        own = ((link, napis.get(link.ifindex, [])) for link in links)
        links = [replace(link, napis=devices.ascending(found)) for link, found in own]
        if _sets_whole_devices(before.capabilities):
            links = [devices.with_device_wide(sysfs, link) for link in links]
    if tunables is not None:
        links = [replace(link, tunables=tunables.get(link.ifindex, ())) for link in links]
    links = [devices.with_steering(sysfs, link, asked) for link in links]
    if asked & {*SEPARATION_ITEMS}:
        links = [helpers.with_helpers(sysfs, link) for link in links]
    if VHOST_CPUS in asked:
        links = [
            replace(link, vhosts=vms.workers(sysfs, (t.pid for t in link.vhosts))) for link in links
        ]
    found = replace(
        before,
        links=tuple(links),
        irqs=_irqs(sysfs, links) if asked & BY_IRQ else before.irqs,
        threads=_threads(sysfs, links) if asked & {*THREADS_OF[THREADED]} else before.threads,
        sysctls=hostfiles.sysctls(sysfs) if asked & {*SYSCTL_ITEMS} else before.sysctls,
    )
    found = _with_offline(sysfs, found)
    return _with_workqueues(sysfs, found) if WORKQUEUE in asked else found


def _with_workqueues(sysfs: Sysfs, found: Snapshot) -> Snapshot:
    away = set(sysfs.mask(places.WORKQUEUES_ISOLATED) or ())
    return replace(
        found,
        workqueue_cpus=sysfs.mask(places.WORKQUEUES),
        workqueue_requested=sysfs.mask(places.WORKQUEUES_REQUESTED),
        workqueue_isolated=tuple(sorted(away.intersection(found.topology.partitioned))),
    )


def _with_offline(sysfs: Sysfs, found: Snapshot) -> Snapshot:
    """Add to the CPUs of threads those that are offline; a file of each where any is."""
    offline = {cpu.number for cpu in found.topology.cpus if not cpu.online}
    if not offline:
        return found

    def whole(thread: Thread) -> Thread:
        return threads.with_offline(sysfs, thread, offline)

    def served(one: _Served) -> _Served:
        return one if one.thread is None else replace(one, thread=whole(one.thread))

    def link(one: Link) -> Link:
        own = tuple(served(helper) for helper in one.helpers)
        return replace(one, helpers=own, vhosts=tuple(whole(t) for t in one.vhosts))

    return replace(
        found,
        links=tuple(link(one) for one in found.links),
        irqs=tuple(served(one) for one in found.irqs),
        threads=tuple(whole(one) for one in found.threads),
    )


def _sets_whole_devices(capabilities: Capabilities) -> bool:
    """True for a kernel that cannot set all of a NAPI's settings for itself."""
    return not all(map(capabilities.takes, DEVICE_WIDE))
