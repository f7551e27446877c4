# SPDX-License-Identifier: GPL-2.0-or-later
"""Strategies for hosts of any shape and policies of any kind: recipes of unit.synthetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from rxlane import cpulist
from rxlane.model import IrqThread, Link, Snapshot, Thread
from rxlane.policy import Given, parse
from rxlane.sections import Policy
from unit import synthetic

NODES = 4
GROUPS = st.builds(
    lambda cores, smt, node, package: {
        "count": cores * smt,
        "smt": smt,
        "node": node,
        "package": package,
    },
    st.integers(1, 8),
    st.sampled_from([1, 1, 2, 4]),
    st.integers(0, NODES - 1),
    st.integers(0, 1),
)
LINKS = st.fixed_dictionaries(
    {
        "driver": st.sampled_from(["virtio_net", "mlx5_core", "ena"]),
        "rx": st.one_of(st.integers(1, 3), st.integers(1, 12)),
        "node": st.sampled_from([None, 0, 1, 3]),
    },
    optional={
        "tx": st.integers(1, 12),
        "up": st.booleans(),
        "physical": st.booleans(),
        "queues_a_napi": st.sampled_from([0, 1, 1, 2, 3]),
        "napi_source": st.sampled_from(["netdev", "order", "unknown"]),
        "combined": st.booleans(),
        "irq": st.sampled_from([None, 40, 2_147_480_000]),
        "irq_source": st.sampled_from(["netdev", "irq-name"]),
        "irq_cpus": st.sampled_from(["all", "each"]),
        "managed": st.booleans(),
        "irq_threaded": st.sampled_from([None, 0, 0, 1]),
        "steering": st.booleans(),
        "rx_threads": st.sampled_from([None, 0, 0, 1, 3]),
    },
)
THREADED = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["on", "busy-poll"]),
        "sched": st.sampled_from(["other:0", "other:-5", "fifo:30", "batch:3"]),
        "thread_cpus": st.sampled_from(["all", "each"]),
    }
)


ODD = ("deadline", "ext")  # classes that nobody could put back


@st.composite
def odd_hosts(draw: st.DrawFn, host: Snapshot) -> Snapshot:
    """The host with such a class for some threads of NAPIs and interrupts, and some rx threads."""

    def classed(thread: Thread | None) -> Thread | None:
        policy = draw(st.sampled_from([None, None, None, *ODD]))
        return thread if thread is None or policy is None else thread.classed(f"{policy}:0")

    def with_helpers(link: Link) -> Link:
        own = (replace(helper, thread=classed(helper.thread)) for helper in link.helpers)
        return replace(link, helpers=tuple(own))

    return replace(
        host,
        links=tuple(with_helpers(link) for link in host.links),
        threads=tuple(t for thread in host.threads if (t := classed(thread)) is not None),
        irqs=tuple(replace(irq, thread=classed(irq.thread)) for irq in host.irqs),
        irq_threads=tuple(
            replace(thread, sched="ext:0", pid=60_000 + thread.irq, name=f"irq/{thread.irq}-x")
            if draw(st.booleans())
            else thread
            for thread in host.irq_threads
        ),
    )


def some(draw: st.DrawFn, numbers: range) -> str:
    """A random CPU list of some of the numbers."""
    if not numbers:
        return ""
    found = st.sets(st.integers(numbers[0], numbers[-1]), max_size=len(numbers) // 2)
    return cpulist.render(draw(found))


@st.composite
def hosts(draw: st.DrawFn, busy: bool = False) -> Snapshot:
    """1 to 192 CPUs with gaps of any kind, and up to four devices of any kind.

    busy: there is a device, all are up, and each NAPI can have a thread. Of the others most have
    nothing to plan.
    """
    groups = draw(st.lists(GROUPS, min_size=2 if busy else 1, max_size=6))
    count = sum(group["count"] for group in groups)
    uniform = len({group["smt"] for group in groups}) == 1
    kernels = ["busy-poll", "busy-poll", "threaded"] if busy else list(synthetic.KERNELS)
    kernel = draw(st.sampled_from(kernels))
    links: list[dict[str, Any]] = []
    for number, row in enumerate(draw(st.lists(LINKS, min_size=int(busy), max_size=4))):
        row["name"] = f"eth{number}"
        if busy:
            row |= {"up": True, "physical": True}
        if kernel in ("threaded", "busy-poll") and draw(st.booleans()):
            row |= draw(THREADED)
            if kernel == "threaded":
                row["mode"] = "on"
        links.append(row)
    return synthetic.snapshot(
        {
            "kernel": kernel,
            "cpus": groups,
            "siblings": draw(st.sampled_from(["beside", "apart"])) if uniform else "beside",
            # CPU 0 cannot go offline on most machines.
            "offline": some(draw, range(1, count)),
            "isolated": some(draw, range(1, count)),
            "nohz_full": some(draw, range(1, count)),
            "links": links,
            "writers": draw(st.sampled_from([[], ["irqbalance"]])),
        }
    )


@st.composite
def dangerous_hosts(draw: st.DrawFn) -> Snapshot:
    """The same with what real-time threads and pollers may be refused for, and with guests."""
    host = draw(st.one_of(hosts(), hosts(busy=True), hosts(busy=True)))
    online = host.topology.online
    cpus = st.sets(st.sampled_from(online), min_size=1, max_size=3).map(lambda s: tuple(sorted(s)))
    numbers = [irq.number for irq in host.irqs if irq.threaded != 0][:6] + [7_001, 7_002]
    threads = draw(st.dictionaries(st.sampled_from(numbers), cpus, max_size=3))
    polling = draw(st.sampled_from([0, 0, 0, 50]))
    return replace(
        host,
        irq_threads=tuple(IrqThread(number, own) for number, own in sorted(threads.items())),
        unreserved=draw(st.one_of(st.just(()), cpus)),
        stalld=draw(st.booleans()),
        vcpus=draw(st.one_of(st.just(()), cpus)),
        sysctls=tuple(
            replace(s, value=polling) if s.name == "net.core.busy_read" else s for s in host.sysctls
        ),
    )


LISTS = ["0", "1-3", "2,5,7", "0-7", "100-120"]
# Most hosts lack a CPU of most lists, which is refused: one is chosen as often as one is named.
CPUS = [*len(LISTS) * ["auto"], *LISTS]
MODES = ["on", "busy-poll", "busy-poll", "off", "on@1-", "busy-poll@0,on@1-"]
NAPI = st.fixed_dictionaries(
    {"threaded": st.sampled_from(MODES)},
    optional={
        "management_queues": st.sampled_from(["0", "1", "3"]),
        "thread_cpus": st.sampled_from(CPUS),
        "thread_policy": st.sampled_from(["other", "batch", "idle"]),
        "defer_hard_irqs": st.sampled_from(["0", "100"]),
        "gro_flush_timeout": st.sampled_from(["0", "15000"]),
        "irq_suspend_timeout": st.just("20000"),
    },
)
REALTIME = st.fixed_dictionaries(
    {
        "thread_policy": st.sampled_from(["fifo", "rr"]),
        "thread_priority": st.sampled_from(["1", "49", "50", "98"]),
    },
    optional={"allow_realtime_cpu0": st.sampled_from(["0", "1"])},
)
IRQ = st.fixed_dictionaries(
    {"irq_cpus": st.sampled_from(["numa-local", *CPUS])},
    optional={
        "threaded": st.sampled_from(["on", "off", "auto", "on@1-", "off@0,auto@1-"]),
        "thread_cpus": st.sampled_from(CPUS),
        "thread_nice": st.sampled_from(["-5", "3"]),
    },
)
STEERING = st.fixed_dictionaries(
    {},
    optional={
        "rps": st.sampled_from(["off", "numa-local", *CPUS]),
        "rfs": st.sampled_from(["off", "auto", "500"]),
        "xps": st.sampled_from(["off", "auto", "rxqs"]),
        "netdev_max_backlog": st.just("5000"),
    },
)


SEPARATION = st.fixed_dictionaries(
    {},
    optional={
        "rx_threads": st.sampled_from(["off", "auto", "auto", "1", "3"]),
        "rx_thread_cpus": st.sampled_from(["kernel", "spread-llc", *CPUS]),
        "rx_thread_nice": st.sampled_from(["-5", "3"]),
        "rx_allow_realtime_cpu0": st.sampled_from(["0", "1"]),
    },
)


@st.composite
def flows(draw: st.DrawFn) -> dict[str, str]:
    """RPS and RFS, or rx threads, or what both may have; these may be real-time."""
    separated = draw(SEPARATION) if draw(st.booleans()) else {}
    steered = draw(STEERING)
    if draw(st.booleans()) and separated:
        separated.pop("rx_thread_nice", None)
        separated |= {"rx_thread_policy": "rr", "rx_thread_priority": "2"}
        separated.setdefault("rx_thread_cpus", "auto")  # of all CPUs they are refused
    if separated.get("rx_threads", "off") != "off":
        steered = {name: value for name, value in steered.items() if name not in ("rps", "rfs")}
    return steered | separated


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    napi = draw(NAPI)
    if draw(st.booleans()):
        napi |= draw(REALTIME)
        napi.setdefault("thread_cpus", "auto")  # of all CPUs they are refused
    rows = [Given("napi", "napi", (), napi)]
    if draw(st.booleans()):
        rows.append(Given("irq_layout", "irq", (), draw(IRQ)))
    if draw(st.integers(0, 3)):
        rows.append(Given("flow_steering", "flows", (), draw(flows())))
    return parse(rows)


ALONE = st.fixed_dictionaries(
    {
        "threaded": st.sampled_from(["busy-poll", "busy-poll@0,on@1-", "on", "busy-poll@0"]),
        "thread_cpus": st.sampled_from(["auto", "auto", "1-3", "2,5,7"]),
    },
    optional={"thread_policy": st.just("fifo"), "management_queues": st.just("1")},
)
# By another's hand.
POLLED = {"mode": "busy-poll", "sched": "fifo:20", "thread_cpus": "each"}
NODE, AUTO = st.integers(0, 1), st.sampled_from(["auto", "numa-local"])


@st.composite
def alone(draw: st.DrawFn) -> tuple[Snapshot, Policy]:
    """A host with CPUs for about as many pollers and real-time threads as are asked for, others'
    IRQ threads and pollers on some of them, and what keeps off these.

    On any host, and with any policy, that is too rare for what it may break to be found.
    """
    links = [
        {
            "name": f"eth{number}",
            "rx": draw(st.integers(1, 3)),
            "node": draw(st.none() | NODE),
            "irq_cpus": draw(st.sampled_from(["all", "each"])),
        }
        | draw(st.sampled_from([{}, {}, POLLED]))
        for number in range(draw(st.integers(1, 3)))
    ]
    smt = draw(st.sampled_from([1, 2]))
    groups = [{"count": smt * draw(st.integers(2, 4)), "smt": smt, "node": n} for n in (0, 1)]
    host = synthetic.snapshot({"kernel": "busy-poll", "cpus": groups, "links": links})
    held = draw(st.sets(st.integers(1, 3), max_size=2))
    napi = draw(ALONE)
    if "thread_policy" in napi:
        napi["thread_priority"] = draw(st.sampled_from(["20", "50"]))
    rows = [
        Given("napi", "napi", (), napi),
        Given("irq_layout", "irq", (), {"irq_cpus": draw(AUTO)}),
        Given("flow_steering", "flows", (), {"rps": draw(AUTO)}),
    ]
    threads = [IrqThread(7000 + n, (n,)) for n in held]
    if draw(st.booleans()):  # as threadirqs makes them
        threads = [*(IrqThread(irq.number, irq.cpus[:1]) for irq in host.irqs), *threads]
    return replace(host, irq_threads=tuple(threads)), parse(rows)
