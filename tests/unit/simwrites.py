# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel of a simulated host does when it is written to.

It shares no code with apply(): it creates and ends threads with their modes, gives new threads new
pids, and can fail, lie or be killed at any write. The host around it is in unit.simhost.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rxlane.errors import Kind, RxlaneError
from rxlane.items import restorable
from rxlane.model import Helper, Irq, Link, Napi, Queue, Snapshot, Thread
from rxlane.netlink import NetlinkError

MODES = ["off", "on", "busy-poll"]


class Killed(BaseException):
    """Stands for kill -9: no handler of the library may catch it."""


class SimKernel:
    """The settings of a host, and what writing them does.

    ends_threads: switching a mode off ends its thread (patched 6.12, 7.2; not stock 6.12).
    """

    def __init__(self, start: Snapshot, ends_threads: bool = True) -> None:
        self.capabilities = start.capabilities
        self.topology = start.topology
        self.links = {li.name: li for li in start.links}
        self.threads = {t.pid: t for t in start.threads}
        self.irqs = {i.number: i for i in start.irqs}
        # Threads that follow their interrupt: those of threadirqs, PREEMPT_RT and a driver's own.
        switched = {i.number for i in start.irqs if i.threaded is not None}
        self.followers = {t.irq: t for t in start.irq_threads if t.irq not in switched}
        self.sysctls = {s.name: s.value for s in start.sysctls}
        self.workqueue_cpus = start.workqueue_cpus
        self.workqueue_requested = start.workqueue_requested
        self.lacking: set[str] = set()  # tunables that are shown and cannot be set
        self.rounds: dict[str, Callable[[int], int]] = {}  # what drivers make of tunables' numbers
        self.strict_moderation = False  # of its drivers, see _refuse_moderation()
        self.managed: set[int] = set()  # IRQs that refuse another affinity, as EIO and EPERM say
        self.fixed_mode: set[int] = set()  # IRQs that refuse another mode, as EOPNOTSUPP says
        self.kept: dict[int, Thread] = {}  # what IRQ threads were given, over off and on
        # What rx threads were given, over every change of their number, by device and thread.
        self.given: dict[tuple[str, int], Helper] = {}
        self.ends_threads = ends_threads
        self.writes = 0
        self.log: list[str] = []
        self.fail_at: int | None = None  # number of the write that is refused
        self.kill_at: int | None = None  # number of the write after which the process dies
        self.lie_at: int | None = None  # number of the write that the kernel takes and ignores
        self.on_write: Callable[[], None] | None = None
        self._next_pid = max([999, *self.threads]) + 1

    def _write(self, what: str, change: Callable[[], None]) -> None:
        number = self.writes
        self.writes += 1
        self.log.append(what)
        if self.on_write is not None:
            self.on_write()
        if number == self.fail_at:
            raise RxlaneError(Kind.KERNEL, "refused by the test")
        if number != self.lie_at:
            change()
        if number == self.kill_at:
            raise Killed

    def _owner(self, napi_id: int) -> Link:
        for one in self.links.values():
            if any(n.napi_id == napi_id for n in one.napis):
                return one
        raise RxlaneError(Kind.KERNEL, f"NAPI {napi_id}: No such file or directory")

    def _with_mode(self, one: Link, napi: Napi, mode: int) -> Napi:
        pid = napi.pid
        if mode and pid is None:
            pid = self._next_pid
            self._next_pid += 1
            name = f"napi/{one.name}-{napi.napi_id}"
            self.threads[pid] = Thread(pid, name, "other", 0, 0, self.topology.online)
        if not mode and pid is not None and self.ends_threads:
            del self.threads[pid]
            pid = None
        return replace(napi, pid=pid)

    def write_napi(self, napi_id: int, values: Mapping[str, int | str]) -> None:
        if not self.capabilities.napi_set:
            raise RxlaneError(Kind.UNSUPPORTED, "kernel does not support NAPI_SET")
        if "threaded" in values and 8 not in self.capabilities.settable:
            raise RxlaneError(Kind.KERNEL, f"NAPI {napi_id}: Invalid argument")

        def change() -> None:
            one = self._owner(napi_id)
            napis = tuple(
                self._changed(one, n, values) if n.napi_id == napi_id else n for n in one.napis
            )
            self.links[one.name] = replace(one, napis=napis)

        self._write(f"napi {napi_id} {dict(values)}", change)

    def write_napis(
        self, jobs: Sequence[tuple[int, Mapping[str, int | str]]]
    ) -> dict[int, RxlaneError]:
        if not self.capabilities.napi_set:  # the op is missing, whatever is asked
            raise RxlaneError(Kind.UNSUPPORTED, "kernel does not support NAPI_SET")
        failed = {}
        for at, (napi_id, values) in enumerate(jobs):
            try:
                self.write_napi(napi_id, values)
            except RxlaneError as error:
                failed[at] = error
        return failed

    def _changed(self, one: Link, napi: Napi, values: Mapping[str, int | str]) -> Napi:
        for item, value in values.items():
            if item == "threaded":
                mode = MODES.index(str(value))
                if mode > self.capabilities.max_threaded:
                    raise RxlaneError(Kind.KERNEL, "integer out of range")
                napi = replace(self._with_mode(one, napi, mode), threaded=mode)
            else:
                napi = _with_timer(napi, item, int(value))
        return napi

    def write_device(self, link: Link, values: Mapping[str, int | str]) -> None:
        def change() -> None:
            one = self.links[link.name]
            for item, value in values.items():
                if item == "threaded":
                    mode = MODES.index(str(value))
                    napis = tuple(self._with_mode(one, n, mode) for n in one.napis)
                    one = replace(one, threaded=mode, napis=napis)
                elif item == "defer-hard-irqs":
                    one = replace(one, defer_hard_irqs=int(value))
                elif item == "rx-threads":
                    one = self._separated(one, int(value))
                else:
                    one = replace(one, gro_flush_timeout=int(value))
            self.links[link.name] = one

        self._write(f"device {link.name} {dict(values)}", change)

    def _separated(self, one: Link, count: int) -> Link:
        """As rx_threads_store() of our kernels does it."""
        if one.rx_threads is None:
            raise RxlaneError(Kind.UNSUPPORTED, "rx_threads does not exist")
        if count > max(len(self.topology.online), one.rx_threads):
            raise RxlaneError(Kind.KERNEL, "Numerical result out of range")
        if count and any(q.rps_cpus or q.rps_flow_cnt for q in one.queues):
            raise RxlaneError(Kind.KERNEL, f"writing {count} to rx_threads: resource busy")
        for helper in one.helpers:
            self.given[one.name, helper.number] = helper
        present = {helper.number: helper for helper in one.helpers}
        own = (present.get(n) or self._helper(one.name, n) for n in range(count))
        return replace(one, rx_threads=count, helpers=tuple(own))

    def _helper(self, device: str, number: int) -> Helper:
        """A new thread, on a CPU of the kernel's choice or with what the last one was given."""
        online = self.topology.online
        cpu = online[number % len(online)]
        new = Helper(number, Thread(0, f"rx{number}/{device}"[:15], "other", 0, 0, (cpu,)), cpu)
        found = self.given.get((device, number), new)
        assert found.thread is not None
        thread = replace(found.thread, pid=self._next_pid)
        self._next_pid += 1
        return replace(found, thread=thread)

    def _move_helper(self, one: Link, pid: int, values: Mapping[str, int | str]) -> Link:
        def moved(helper: Helper) -> Helper:
            if helper.thread is None or helper.thread.pid != pid:
                return helper
            cpus, rest = values.get("rx-thread-cpus"), dict(values)
            if cpus == "kernel":
                cpu = self.topology.online[helper.number % len(self.topology.online)]
                thread = replace(helper.thread, cpus=(cpu,))
                rest.pop("rx-thread-cpus")
                helper = replace(helper, reserved=cpu, thread=thread)
            elif cpus is not None:
                helper = replace(helper, reserved=None)
            assert helper.thread is not None
            return replace(helper, thread=_scheduled(helper.thread, rest, "rx-thread"))

        return replace(one, helpers=tuple(moved(helper) for helper in one.helpers))

    def write_thread(self, pid: int, values: Mapping[str, int | str]) -> None:
        for policy in (str(v).partition(":")[0] for i, v in values.items() if i.endswith("sched")):
            if not restorable(policy):
                raise RxlaneError(Kind.UNSUPPORTED, f"scheduling class {policy} cannot be set")

        def change() -> None:
            if "vhost-cpus" in values:
                self._move_vhost(pid, _cpus(str(values["vhost-cpus"])))
                return
            if any(item.startswith("rx-thread") for item in values):
                for name, link in self.links.items():
                    self.links[name] = self._move_helper(link, pid, values)
                return
            if pid in self.threads:
                self.threads[pid] = _scheduled(self.threads[pid], values, "thread")
                return
            irq = next(i for i in self.irqs.values() if i.thread and i.thread.pid == pid)
            assert irq.thread is not None
            thread = _scheduled(irq.thread, values, "irq-thread")
            self.irqs[irq.number] = replace(irq, thread=thread)
            self.kept[irq.number] = thread

        self._write(f"thread {pid} {dict(values)}", change)

    def _move_vhost(self, pid: int, cpus: tuple[int, ...]) -> None:
        """As __sched_setaffinity() does it: what the thread's cpuset has of them."""
        for name, link in self.links.items():
            moved = (_within(t, cpus) if t.pid == pid else t for t in link.vhosts)
            self.links[name] = replace(link, vhosts=tuple(moved))

    def write_irq_mode(self, number: int, mode: str) -> None:
        """A thread has what the one before it was given, by the kernel's own book."""
        if number in self.fixed_mode:
            raise RxlaneError(Kind.UNSUPPORTED, f"IRQ {number} cannot be switched {mode}")

        def change() -> None:
            thread = None
            if mode == "on":
                name = f"irq/{number}-nic"
                new = Thread(self._next_pid, name, "other", 0, 0, self.topology.online)
                thread = replace(self.kept.get(number, new), pid=self._next_pid)
                self._next_pid += 1
            irq = self.irqs[number]
            self.irqs[number] = replace(irq, threaded=int(mode == "on"), thread=thread)

        self._write(f"irq-mode {number} {mode}", change)

    def write_irq(self, number: int, cpus: str) -> None:
        if number in self.managed:
            raise RxlaneError(Kind.UNMOVABLE, f"IRQ {number} is managed")

        def change() -> None:
            own = _cpus(cpus)
            self.irqs[number] = replace(self.irqs[number], cpus=own)
            if number in self.followers:
                self.followers[number] = replace(self.followers[number], cpus=own[:1])

        self._write(f"irq {number} {cpus}", change)

    def write_queue(self, link: Link, queue: int, values: Mapping[str, int | str]) -> None:
        def change() -> None:
            one = self.links[link.name]
            for item, value in values.items():
                kind = "tx" if item.startswith("xps") else "rx"
                if kind == "rx" and one.rx_threads and _steered(item, value):
                    raise RxlaneError(Kind.KERNEL, f"writing {value} to {item}: resource busy")
                field = {item.replace("-", "_"): _steered(item, value)}
                queues = tuple(
                    replace(q, **field) if (q.kind, q.index) == (kind, queue) else q
                    for q in one.queues
                )
                one = replace(one, queues=queues)
            self.links[link.name] = one

        self._write(f"queue {link.name} {queue} {dict(values)}", change)

    def write_tunables(self, link: Link, values: Mapping[str, int | str]) -> None:
        if self.lacking & set(values):
            raise RxlaneError(Kind.UNSUPPORTED, "Operation not supported")
        if self.strict_moderation:
            self._refuse_moderation(link.name, values)

        def change() -> None:
            one = self.links[link.name]
            numbers = {i: ["off", "on"].index(v) if v in ("off", "on") else int(v)
                       for i, v in values.items()}  # fmt: skip
            numbers = {i: self.rounds[i](v) if i in self.rounds else v for i, v in numbers.items()}
            tunables = tuple(replace(t, value=numbers.get(t.item, t.value)) for t in one.tunables)
            one = replace(one, tunables=tunables)
            if any(i.startswith(("channels", "ring")) for i in numbers):
                one = self._reset(one)
            self.links[link.name] = one

        self._write(f"tunables {link.name} {dict(values)}", change)

    def _refuse_moderation(self, name: str, values: Mapping[str, int | str]) -> None:
        """As i40e, iavf, ice, idpf and virtio_net: no other numbers in a request that has adaptive
        mode on. What a request leaves out the kernel fills in with what is.
        """
        now: dict[str, int | str] = {t.item: t.value for t in self.links[name].tunables}
        for way in ("rx", "tx"):
            numbers = (f"{way}-usecs", f"{way}-frames")
            differ = any(item in values and values[item] != now.get(item) for item in numbers)
            adaptive = f"adaptive-{way}"
            if differ and values.get(adaptive, now.get(adaptive)) in ("on", 1):
                raise NetlinkError(errno.EINVAL, f"coalescing of {name}")

    def _reset(self, one: Link) -> Link:
        """Set queues up anew, as the rudest drivers do: other NAPI ids, nothing is kept.

        Threads are new ones, interrupts go everywhere, the driver's own XPS comes. The mode of a
        whole device is not the driver's: netif_napi_add() makes its threads again.
        """
        held = {t.item: t.value for t in one.tunables}
        pairs = held.get("channels-combined", 0)
        counts = {k: pairs + held.get(f"channels-{k}", 0) for k in ("rx", "tx")}
        if not any(counts.values()):
            counts = {k: one.count(k) for k in ("rx", "tx")}
        linked = {q.index: q for q in one.queues if q.kind == "rx"}
        sending = {q.index: q.irq for q in one.queues if q.kind == "tx" and q.irq is not None}
        spare = max((q.irq or 0 for li in self.links.values() for q in li.queues), default=0) + 1
        base = max((n.napi_id for li in self.links.values() for n in li.napis), default=8192) + 1
        queues, napis = [], []
        for i in range(counts["rx"]):
            old = linked.get(i)
            irq = old.irq if old is not None else spare + i
            if self.irqs:
                self.irqs[irq or 0] = Irq(irq or 0, f"nic-{irq}", self.topology.online, (0,))
            queues.append(Queue("rx", i, base + i, "netdev", irq, "irq-name", (), 0))
            like = one.napis[0]
            timers = (0, 0, 0) if self.capabilities.napi_set else (None, None, None)
            napi = Napi(base + i, None, None, None if like.threaded is None else 0, *timers)
            wide = like.threaded is None and one.threaded
            napis.append(self._with_mode(one, napi, 1) if wide else napi)
        for i in range(counts["tx"]):
            many = counts["tx"] > 1
            cpus = (self.topology.online[i % len(self.topology.online)],)
            sent = sending.get(i, spare + 50 + i)
            if self.irqs:
                self.irqs[sent] = Irq(sent, f"nic-{sent}", cpus, cpus)
            xps = (cpus, ()) if many else (None, None)
            queues.append(
                Queue("tx", i, irq=sent, irq_source="irq-name", xps_cpus=xps[0], xps_rxqs=xps[1])
            )
        for napi in one.napis:
            self.threads.pop(napi.pid or 0, None)
        return replace(one, queues=tuple(queues), napis=tuple(napis))

    def write_sysctl(self, name: str, value: int | str) -> None:
        def change() -> None:
            if name == "workqueue-cpus":
                # workqueue_set_unbound_cpumask(): it takes isolated CPUs, too, and stores both.
                self.workqueue_cpus = _cpus(str(value))
                if self.workqueue_requested is not None:
                    self.workqueue_requested = self.workqueue_cpus
            else:
                self.sysctls[name] = int(value)

        self._write(f"sysctl {name} {value}", change)


def _within(thread: Thread, cpus: tuple[int, ...]) -> Thread:
    own = tuple(n for n in cpus if n in thread.allowed or not thread.allowed)
    if not own:
        raise RxlaneError(Kind.UNSUPPORTED, f"the control group of thread {thread.pid} has none")
    return replace(thread, cpus=own)


def _with_timer(napi: Napi, item: str, value: int) -> Napi:
    if item == "defer-hard-irqs":
        return replace(napi, defer_hard_irqs=value)
    if item == "gro-flush-timeout":
        return replace(napi, gro_flush_timeout=value)
    return replace(napi, irq_suspend_timeout=value)


def _scheduled(thread: Thread, values: Mapping[str, int | str], prefix: str) -> Thread:
    if f"{prefix}-cpus" in values:
        thread = replace(thread, cpus=_cpus(str(values[f"{prefix}-cpus"])))
    if f"{prefix}-sched" in values:
        policy, first, *second = str(values[f"{prefix}-sched"]).split(":")
        realtime = policy in ("fifo", "rr")
        thread = replace(
            thread,
            policy=policy,
            priority=int(first) if realtime else 0,
            nice=int((second or ["0"])[0] if realtime else first),
        )
    return thread


def _steered(item: str, value: int | str) -> Any:
    if item == "rps-flow-cnt":
        return int(value)
    return () if value == "off" else _cpus(str(value))


def _cpus(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        numbers.extend(range(int(low), int(high or low) + 1))
    return tuple(numbers)
