# SPDX-License-Identifier: GPL-2.0-or-later
"""The running kernel as apply() sees it: observe, and one method to write each kind of setting."""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rxlane import cpulist, observe, parallel
from rxlane.errors import Kind, RxlaneError, code_of
from rxlane.host import helpers, namespaces, places, processors, rss, threads
from rxlane.items import (
    CPUS,
    ETHTOOL_ITEMS,
    IRQ_THREAD_CPUS,
    IRQ_THREAD_ITEMS,
    IRQ_THREAD_SCHED,
    KERNEL,
    MODES,
    OFF,
    ON,
    REALTIME,
    RFS,
    RX_THREAD_CPUS,
    RX_THREAD_ITEMS,
    RX_THREAD_SCHED,
    RX_THREADS,
    SCHED,
    THREADED,
    VHOST_CPUS,
    WORKQUEUE,
    Value,
)
from rxlane.model import NAPI_ATTRIBUTE, Link, Snapshot
from rxlane.sysfs import Sysfs
from rxlane.wire.ethtool import Ethtool
from rxlane.wire.netdev import Netdev

# What writing the affinity of a managed IRQ gives: EPERM from 6.12 on, EIO before
# (write_irq_affinity() in kernel/irq/proc.c). An IRQ that went away gives ENOENT.
UNMOVABLE = (errno.EPERM, errno.EIO)
READ_ONLY = "/proc/irq is read-only, as in a container"

ETHTOOL = frozenset(ETHTOOL_ITEMS)
Values = Mapping[str, Value]
Job = tuple[int, Values]  # a NAPI's id and what to set
# Files that one apply keeps open; each has a page of the kernel's memory until it ends.
FILES, SPARE = 1 << 14, 128
WORKERS = 32
PARALLEL = 16  # NAPIs for each worker from which starting it pays


class Kernel(Protocol):
    """What apply() needs; tests put a simulated host in its place."""

    def observe(
        self, names: Collection[str] | None = None, items: Collection[str] | None = None
    ) -> Snapshot: ...

    def refresh(
        self, before: Snapshot, names: Collection[str], items: Collection[str]
    ) -> Snapshot: ...

    def write_napis(self, jobs: Sequence[Job]) -> Mapping[int, RxlaneError]: ...

    def write_device(self, link: Link, values: Values) -> None: ...

    def write_thread(self, pid: int, values: Values) -> None: ...

    def write_irq(self, number: int, cpus: str) -> None: ...

    def write_irq_mode(self, number: int, mode: str) -> None: ...

    def write_queue(self, link: Link, queue: int, values: Values) -> None: ...

    def write_tunables(self, link: Link, values: Values) -> None: ...

    def write_sysctl(self, name: str, value: Value) -> None: ...

    def boot_id(self) -> str: ...

    def netns(self, process: str = "self") -> int: ...

    def netns_cookie(self) -> int: ...

    def folder(self, device: str) -> int: ...


class Linux:
    """The kernel this process runs on."""

    _checked: Link | None = None  # the device whose name was looked at last

    def __init__(self, root: str | Path = "/", brief: bool = False) -> None:
        """brief: this process ends soon and keeps files open until then.

        Raises REFUSED where /sys shows other devices than netlink does.
        """
        self._sysfs = Sysfs(root, _room() if brief else 0)
        namespaces.refuse_foreign(self._sysfs)
        self._netdev = Netdev()
        self._ethtool: Ethtool | None = None
        self._capabilities = self._netdev.capabilities()

    def close(self) -> None:
        self._sysfs.close()
        self._netdev.close()
        if self._ethtool is not None:
            self._ethtool.close()

    def boot_id(self) -> str:
        """Return what tells this boot from others; KERNEL where it cannot be read, for nothing
        that was written may be taken for another boot's.
        """
        found = self._sysfs.read(places.BOOT_ID)
        if not found:
            raise RxlaneError(Kind.KERNEL, f"/{places.BOOT_ID} cannot be read")
        return found

    def netns(self, process: str = "self") -> int:
        return namespaces.inode(self._sysfs, process)

    def netns_cookie(self) -> int:
        return self._netdev.namespace()

    def folder(self, device: str) -> int:
        """Return the inode of a device's folder, 0 when there is none.

        It is the same for as long as the device is there (kernfs_rename_ns() keeps it), whatever it
        is called and whichever namespaces it has been in, where it may have got another index.
        """
        return self._sysfs.inode(f"sys/class/net/{device}")

    def observe(
        self, names: Collection[str] | None = None, items: Collection[str] | None = None
    ) -> Snapshot:
        """Read the host. items: settings of interest, None for all."""
        # CPUs are read each time: a long-lived daemon sees them come and go.
        cpus = processors.topology(self._sysfs)
        tuned = items is None or not ETHTOOL.isdisjoint(items)
        tunables = self._tools().tunables() if tuned else {}
        found = observe.observe(
            *(self._sysfs, self._netdev, self._capabilities, cpus, names, items, tunables)
        )
        return self._for_people(found) if items is None else found

    def _for_people(self, host: Snapshot) -> Snapshot:
        """Add what recordings hold and no plan asks: features, and how flows are spread."""
        active, reader = self._tools().active(), rss.Reader()
        try:
            links = tuple(
                replace(li, rss=reader.read(li.name), features=active.get(li.ifindex, ()))
                if li.physical
                else li
                for li in host.links
            )
        finally:
            reader.close()
        return replace(host, links=links)

    def refresh(self, before: Snapshot, names: Collection[str], items: Collection[str]) -> Snapshot:
        """Read these settings again; which devices and queues there are is as before."""
        tunables = None if ETHTOOL.isdisjoint(items) else self._tools().tunables()
        return observe.refresh(self._sysfs, self._netdev, before, names, items, tunables)

    def _tools(self) -> Ethtool:
        # Opened late: most phases of an apply do not need it.
        if self._ethtool is None:
            self._ethtool = Ethtool()
        return self._ethtool

    def write_napis(self, jobs: Sequence[Job]) -> Mapping[int, RxlaneError]:
        """Set any of NAPI_ITEMS, one message a NAPI; return what failed by position.

        Switching threaded mode on waits for the new thread to be scheduled: several devices at a
        time take a fraction of one after the other, most of all on busy CPUs.
        """
        workers = min(WORKERS, len(jobs) // PARALLEL)
        if workers < 2:
            return self._netdev.napi_set(_packed(jobs))
        size = -(-len(jobs) // workers)
        failed: dict[int, RxlaneError] = {}
        lost: list[Exception] = []

        def work(start: int) -> None:
            try:
                netdev = Netdev()
                try:
                    found = netdev.napi_set(_packed(jobs[start : start + size]))
                finally:
                    netdev.close()
                failed.update({start + at: error for at, error in found.items()})
            except (RxlaneError, OSError) as error:
                lost.append(error)

        parallel.do_all(work, range(0, len(jobs), size))
        if lost:
            raise lost[0]
        return failed

    def write_device(self, link: Link, values: Values) -> None:
        """Set device-wide sysfs files; the name is checked to be still this device's."""
        for item, value in values.items():
            self._check(link)
            if item == RX_THREADS:
                helpers.write_count(self._sysfs, link.name, int(value))
                continue
            self._sysfs.write(places.of_device(link.name, item), str(_number(item, value)))

    def _check(self, link: Link) -> None:
        """Raise NO_DEVICE when the name is another device's by now; once for each look at it."""
        if link is self._checked:
            return
        if self._sysfs.number(f"sys/class/net/{link.name}/ifindex") != link.ifindex:
            raise RxlaneError(Kind.NO_DEVICE, "device is gone", device=link.name)
        self._checked = link

    def write_irq(self, number: int, cpus: str) -> None:
        """Set where an IRQ may go; UNMOVABLE when the kernel keeps it to itself."""
        try:
            self._sysfs.write(places.of_irq(number), cpus)
        except RxlaneError as error:
            code = code_of(error)
            if code in UNMOVABLE:
                problem = f"IRQ {number} is managed by the kernel, which refuses another affinity"
                raise RxlaneError(Kind.UNMOVABLE, problem) from error
            if code == errno.EROFS:
                problem = f"IRQ {number} cannot be moved: {READ_ONLY}"
                raise RxlaneError(Kind.UNMOVABLE, problem) from error
            raise

    def write_irq_mode(self, number: int, mode: str) -> None:
        """Have an IRQ's handler run in a thread (on) or not (off); UNSUPPORTED where it cannot."""
        actions = self._sysfs.folders(f"proc/irq/{number}")
        if len(actions) != 1:
            problem = f"IRQ {number} has {len(actions)} actions"
            raise RxlaneError(Kind.UNSUPPORTED, f"{problem}, and only one alone can be switched")
        try:
            self._sysfs.write(places.of_irq_mode(number, actions[0]), "1" if mode == ON else "0")
        except RxlaneError as error:
            code = code_of(error)
            if code == errno.EOPNOTSUPP:
                problem = f"the kernel or its driver does not let IRQ {number} be switched {mode}"
                raise RxlaneError(Kind.UNSUPPORTED, problem) from error
            if code == errno.EROFS:
                problem = f"IRQ {number} cannot be switched {mode}: {READ_ONLY}"
                raise RxlaneError(Kind.UNSUPPORTED, problem) from error
            raise

    def write_queue(self, link: Link, queue: int, values: Values) -> None:
        """Set any of STEERING_ITEMS: RPS and RFS of an RX queue, XPS of a TX queue."""
        for item, value in values.items():
            self._check(link)
            try:
                path = places.of_queue(link.name, queue, item)
                self._sysfs.write(path, _steering_text(item, value))
            except RxlaneError as error:
                helpers.explain_busy(error, link.name)
                raise

    def write_tunables(self, link: Link, values: Values) -> None:
        """Set any of ETHTOOL_ITEMS; UNSUPPORTED when the driver has no such setting."""
        self._tools().write(link.ifindex, values)

    def write_sysctl(self, name: str, value: Value) -> None:
        """Set one of HOST_ITEMS."""
        text = str(value)
        if name == WORKQUEUE:
            text = cpulist.render_mask(cpulist.parse(text))
        self._sysfs.write(places.of_host(name), text)

    def write_thread(self, pid: int, values: Values) -> None:
        """Set CPU and class of a NAPI's, an IRQ's or an rx thread, checked just before to be one.

        Of a vhost thread the CPUs; UNSUPPORTED when its control group has none of them.

        A thread that becomes real-time gets its CPUs first, one that ceases to be gets its class
        first: it never runs real-time outside the CPUs meant for that.
        """
        if VHOST_CPUS in values:
            if threads.identify(self._sysfs, pid, threads.VHOST) is None:
                raise RxlaneError(Kind.KERNEL, f"pid {pid} is no vhost thread any more")
            _move_vhost(pid, str(values[VHOST_CPUS]))
            return
        kind, cpus, sched = _sort(values)
        found = threads.identify(self._sysfs, pid, kind)
        if found is None:
            problem = f"pid {pid} is no NAPI's, IRQ's or rx thread any more"
            raise RxlaneError(Kind.KERNEL, problem)
        realtime = str(values.get(sched, "")).partition(":")[0] in REALTIME
        for item in (cpus, sched) if realtime else (sched, cpus):
            if item not in values:
                continue
            if item == cpus:
                threads.set_cpus(pid, self._cpus(values[item]))
            else:
                threads.set_sched(pid, found[2], str(values[item]))

    def _cpus(self, value: Value) -> tuple[int, ...]:
        """Return the CPUs of a list; all that there can be leave the choice to the kernel."""
        return processors.possible(self._sysfs) if value == KERNEL else cpulist.parse(str(value))


def _move_vhost(pid: int, cpus: str) -> None:
    try:
        threads.set_cpus(pid, cpulist.parse(cpus))
    except RxlaneError as error:
        if code_of(error) == errno.EINVAL:
            problem = f"the control group of thread {pid} has none of CPUs {cpus}"
            raise RxlaneError(Kind.UNSUPPORTED, problem) from error
        raise


def _sort(values: Values) -> tuple[re.Pattern[str], str, str]:
    """Return what the thread of these settings is called, and the items of its CPUs and class."""
    if not values.keys().isdisjoint(IRQ_THREAD_ITEMS):
        return threads.IRQ, IRQ_THREAD_CPUS, IRQ_THREAD_SCHED
    if not values.keys().isdisjoint(RX_THREAD_ITEMS):
        return threads.RX, RX_THREAD_CPUS, RX_THREAD_SCHED
    return threads.NAPI, CPUS, SCHED


def _room() -> int:
    """Return how many files may stay open at once, after raising the limit as far as root may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES + SPARE if hard == resource.RLIM_INFINITY else min(hard, FILES + SPARE)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(0, wanted - SPARE)


def _steering_text(item: str, value: Value) -> str:
    if item == RFS:
        return str(value)
    return cpulist.render_mask(() if value == OFF else cpulist.parse(str(value)))


def _packed(jobs: Iterable[Job]) -> Iterator[tuple[int, dict[int, int]]]:
    # One at a time: those of thousands of queues are megabytes.
    return ((napi, _attributes(values)) for napi, values in jobs)


def _attributes(values: Values) -> dict[int, int]:
    return {
        number: _number(item, values[item])
        for item, number in NAPI_ATTRIBUTE.items()
        if item in values
    }


def _number(item: str, value: Value) -> int:
    return MODES.index(str(value)) if item == THREADED else int(value)
