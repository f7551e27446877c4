# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts that nobody has at hand, made from a recipe: JSON in, a Snapshot out, always the same.

A recipe holds `about` (what the host stands for) and

- kernel: none, netdev, timers, threaded or busy-poll: what its netdev family takes;
- cpus: groups in the order of CPU numbers, each {count, smt, node, package} and, where the kernel
  tells efficiency cores apart, kind (core or atom) or capacity;
- siblings: beside (default: threads of a core have neighbouring numbers) or apart (all first
  threads, then all second ones, as firmware of large x86 servers numbers them);
- offline, isolated, nohz_full: CPU lists;
- links: {name, driver, rx, tx, node, up, physical, ...}, see LINK; `copies` makes several, with
  {n} in the name counting them;
- sysctls (the kernel's defaults when left out; {} for none) and writers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rxlane import cpulist
from rxlane.items import MODES
from rxlane.model import (
    Capabilities,
    Cpu,
    Helper,
    Irq,
    Link,
    Napi,
    Queue,
    Snapshot,
    Sysctl,
    Thread,
    Topology,
)

KERNELS = {
    "none": Capabilities(),
    "netdev": Capabilities(netdev=True),
    "timers": Capabilities(True, True, (5, 6, 7), 0),
    "threaded": Capabilities(True, True, (5, 6, 7, 8), 1),
    "busy-poll": Capabilities(True, True, (5, 6, 7, 8), 2),
}
SYSCTLS = {
    "net.core.rps_sock_flow_entries": 0,
    "net.core.netdev_max_backlog": 1000,
    "net.core.busy_read": 0,
    "net.core.busy_poll": 0,
}
HOST: dict[str, Any] = {
    "about": "",
    "kernel": "busy-poll",
    "cpus": [],
    "siblings": "beside",
    "offline": "",
    "isolated": "",
    "nohz_full": "",
    "links": [],
    "sysctls": SYSCTLS,
    "writers": [],
}
GROUP: dict[str, Any] = {
    "count": 1,
    "smt": 1,
    "node": 0,
    "package": 0,
    "kind": "",
    "capacity": None,
}
# tx -1: as many as rx. queues_a_napi: RX queues that share a NAPI, 0 for a driver without NAPIs.
# combined: TX queue N is polled by RX queue N's NAPI. irq: number of the first, null for a driver
# whose interrupts nobody can tell apart. irq_cpus: all, or each (one CPU of the node in turn, as
# drivers hint). managed: the kernel keeps the affinity. steering: the kernel has RPS, RFS and XPS.
# irq_threaded: null where interrupts cannot be switched to threads, else 0 or 1, as they are.
# below: the devices that this one stands on.
# rx_threads: null where the kernel has none, else how many, each on a CPU of the kernel's choice.
# mode, sched and thread_cpus (all, or each as above) are how the NAPIs are polled already.
LINK: dict[str, Any] = {
    "name": "eth{n}",
    "copies": 1,
    "driver": "virtio_net",
    "rx": 1,
    "tx": -1,
    "node": None,
    "up": True,
    "physical": True,
    "queues_a_napi": 1,
    "napi_source": "netdev",
    "combined": False,
    "irq": 40,
    "irq_name": "{name}-rx-{queue}",
    "irq_source": "netdev",
    "irq_cpus": "all",
    "managed": False,
    "irq_threaded": None,
    "steering": True,
    "mode": "off",
    "sched": "other:0",
    "thread_cpus": "all",
    "below": [],
    "rx_threads": None,
}
FIRST_NAPI = 8193  # past the highest CPU, as the kernel has it (MIN_NAPI_ID)
NAPIS_A_LINK = 128
IRQS_A_LINK = 128
FIRST_PID = 2000
FIRST_IRQ_PID = 100
FIRST_HELPER_PID = 50_000
HELPERS_A_LINK = 1000


def snapshot(recipe: Mapping[str, Any]) -> Snapshot:
    """Make the host; KeyError for a word that no recipe has."""
    host = _filled(HOST, recipe)
    topology = _topology(host)
    maker = _Maker(KERNELS[host["kernel"]], topology)
    for row in host["links"]:
        given = _filled(LINK, row)
        for number in range(given["copies"]):
            maker.add(given | {"name": given["name"].format(n=number)})
    capabilities = maker.kernel
    notes = () if capabilities.netdev else ("kernel has no netdev netlink family",)
    return Snapshot(
        capabilities,
        topology,
        tuple(maker.links),
        tuple(maker.irqs),
        tuple(maker.threads),
        notes,
        tuple(Sysctl(name, value) for name, value in host["sysctls"].items()),
        tuple(host["writers"]),
    )


def _filled(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(given) - set(defaults)
    if unknown:
        raise KeyError(f"a recipe has no {', '.join(sorted(unknown))}")
    return {**defaults, **given}


def _topology(host: Mapping[str, Any]) -> Topology:
    groups = [_filled(GROUP, group) for group in host["cpus"]]
    offline = set(cpulist.parse(host["offline"]))
    cpus = sorted(_cpus(groups, host["siblings"] == "apart", offline), key=lambda c: c.number)
    isolated, nohz_full = cpulist.parse(host["isolated"]), cpulist.parse(host["nohz_full"])
    return Topology(tuple(cpus), isolated, nohz_full)


def _cpus(groups: list[dict[str, Any]], apart: bool, offline: set[int]) -> Iterator[Cpu]:
    """Yield each group's CPUs; core numbers start anew in each package."""
    cores = sum(group["count"] // group["smt"] for group in groups)
    first, core_of = 0, dict.fromkeys((group["package"] for group in groups), 0)
    for group in groups:
        for _ in range(group["count"] // group["smt"]):
            step = cores if apart else 1
            siblings = tuple(first + step * n for n in range(group["smt"]))
            core = core_of[group["package"]]
            for number in siblings:
                up = number not in offline
                # As sysfs has it: an offline CPU is nobody's sibling and names only itself.
                beside = tuple(n for n in siblings if n not in offline) if up else (number,)
                cpu = Cpu(number, up, group["package"], core, group["node"], beside)
                # Neither do the PMUs and cpu_capacity tell of it.
                told = {"kind": group["kind"], "capacity": group["capacity"]} if up else {}
                yield replace(cpu, **told)
            core_of[group["package"]] += 1
            first += 1 if apart else group["smt"]


@dataclass
class _Maker:
    kernel: Capabilities
    topology: Topology
    links: list[Link] = field(default_factory=list)
    irqs: list[Irq] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    _bases: Counter[int] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        ifindex = len(self.links) + 2
        base = FIRST_NAPI + NAPIS_A_LINK * len(self.links)
        sharing = row["queues_a_napi"]
        tx = row["rx"] if row["tx"] < 0 else row["tx"]
        napi_of = [base + q // sharing for q in range(row["rx"])] if sharing and row["up"] else []
        irq_of = self._interrupts(row, napi_of)
        rx = [self._receiver(row, q, napi_of, irq_of) for q in range(row["rx"])]
        shown = self.kernel.netdev
        napis = [self._napi(row, i, irq_of.get(i)) for i in sorted(set(napi_of))] if shown else []
        senders = [self._sender(row, q, napi_of, tx) for q in range(tx)]
        mode = MODES.index(row["mode"]) if 8 not in self.kernel.settable else 0
        self.links.append(
            Link(
                row["name"],
                ifindex,
                row["up"],
                row["physical"],
                row["driver"],
                row["node"],
                mode,
                0,
                0,
                tuple(napis),
                (*rx, *senders),
                below=tuple(row["below"]),
                rx_threads=row["rx_threads"],
                helpers=tuple(self._helpers(row, ifindex)),
            )
        )

    def _helpers(self, row: Mapping[str, Any], ifindex: int) -> Iterator[Helper]:
        online = self.topology.online
        for number in range(row["rx_threads"] or 0):
            cpu = online[number % len(online)]
            pid = FIRST_HELPER_PID + HELPERS_A_LINK * ifindex + number
            name = f"rx{number}/{row['name']}"[:15]
            yield Helper(number, Thread(pid, name, "other", 0, 0, (cpu,)), cpu)

    def _interrupts(self, row: Mapping[str, Any], napi_of: list[int]) -> dict[int, int]:
        """Make an interrupt for each NAPI, or each queue of a driver without NAPIs."""
        if row["irq"] is None or not row["up"]:
            return {}
        keys = sorted(set(napi_of)) or list(range(row["rx"]))
        copies = self._bases[row["irq"]]
        self._bases[row["irq"]] += 1
        online = self.topology.online
        near = [c.number for c in self.topology.cpus if c.online and c.node == row["node"]]
        found = {}
        for turn, key in enumerate(keys):
            number = row["irq"] + IRQS_A_LINK * copies + turn
            one = (near or online)[turn % len(near or online)]
            cpus = (one,) if row["irq_cpus"] == "each" else online
            name = row["irq_name"].format(name=row["name"], queue=turn)
            self.irqs.append(self._irq(row, Irq(number, name, cpus, (one,), not row["managed"])))
            found[key] = number
        return found

    def _irq(self, row: Mapping[str, Any], irq: Irq) -> Irq:
        """Add the thread of its handler, as drivers of NICs ask for it: ordinary, bound nowhere."""
        if row["irq_threaded"] != 1:
            return replace(irq, threaded=row["irq_threaded"])
        name = f"irq/{irq.number}-{irq.name}"[:15]
        pid = FIRST_IRQ_PID + len(self.irqs)
        thread = Thread(pid, name, "other", 0, 0, self.topology.online)
        return replace(irq, threaded=1, thread=thread)

    def _receiver(
        self, row: Mapping[str, Any], queue: int, napi_of: list[int], irq_of: Mapping[int, int]
    ) -> Queue:
        napi = napi_of[queue] if napi_of and self.kernel.netdev else None
        if row["napi_source"] == "unknown":
            napi = None
        irq = irq_of.get(napi_of[queue] if napi_of else queue)
        return Queue(
            "rx",
            queue,
            napi,
            "unknown" if napi is None else row["napi_source"],
            irq,
            "unknown" if irq is None else row["irq_source"],
            *(((), 0) if row["steering"] else (None, None)),
        )

    def _sender(self, row: Mapping[str, Any], queue: int, napi_of: list[int], tx: int) -> Queue:
        shared = row["combined"] and queue < len(napi_of) and self.kernel.netdev
        # The kernel has XPS only where there is a choice.
        choice: tuple[int, ...] | None = () if row["steering"] and tx > 1 else None
        return Queue(
            "tx",
            queue,
            napi_of[queue] if shared else None,
            "netdev" if shared else "unknown",
            xps_cpus=choice,
            xps_rxqs=choice,
        )

    def _napi(self, row: Mapping[str, Any], napi_id: int, irq: int | None) -> Napi:
        mode, pid = MODES.index(row["mode"]), None
        if mode:
            pid = FIRST_PID + len(self.threads)
            policy, _, number = row["sched"].partition(":")
            realtime = policy in ("fifo", "rr")
            priority, nice = (int(number), 0) if realtime else (0, int(number))
            name = f"napi/{row['name']}-{napi_id}"
            cpus = self.topology.online
            if row["thread_cpus"] == "each":
                cpus = (cpus[len(self.threads) % len(cpus)],)
            self.threads.append(Thread(pid, name[:15], policy, priority, nice, cpus))
        said = irq if row["irq_source"] == "netdev" else None
        known = mode if 8 in self.kernel.settable else None
        timers = (0, 0, 0) if self.kernel.napi_set else (None, None, None)
        return Napi(napi_id, said, pid, known, *timers)
