# SPDX-License-Identifier: GPL-2.0-or-later
"""Options as text to a Policy: one grammar and one set of error messages for every door.

Pure. An empty value means "leave alone", so that a profile's variable can switch an option off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rxlane import cpulist
from rxlane.errors import Kind, RxlaneError, printable
from rxlane.items import (
    BACKLOG,
    BUSY_POLL,
    BUSY_READ,
    COALESCE_ITEMS,
    FAIR,
    FRAMES_OF,
    KERNEL,
    MODES,
    OFF,
    ON,
    REALTIME,
    RING_ITEMS,
    SWITCHES,
)
from rxlane.options import Option, Reader, option_of
from rxlane.sections import (
    MAX,
    RFS_AUTO,
    RX_SCHED_OPTIONS,
    SCHED_AUTO,
    SCHED_OPTIONS,
    THREADS_AUTO,
    FlowSteering,
    IrqLayout,
    ModeRule,
    Policy,
    Section,
)
from rxlane.topology import AUTO, NUMA_LOCAL, PLACEMENTS

MAX_FLOWS = 1 << 24  # a table of 64 MB; the kernel takes 1 << 29
MAX_BACKLOG = 1_000_000
MAX_BUSY = 1000  # microseconds; a read that polls longer takes the CPU for nothing
# One second: a longer pause between polls is a dead link, not a tuning.
MAX_TIMEOUT = 1_000_000_000
MAX_RING = 1 << 20  # descriptors; drivers have at most 32768
MAX_COALESCE = 1_000_000  # microseconds or packets; a second's delay is a dead link
MAX_DEFER = 2**31 - 1  # S32_MAX, netdev_a_napi_defer_hard_irqs_range in netdev-genl-gen.c


NAPI, IRQ_LAYOUT, FLOW_STEERING = "napi", "irq_layout", "flow_steering"
KINDS = (NAPI, IRQ_LAYOUT, FLOW_STEERING)

NAPI_OPTIONS = (
    Option("threaded", "off, on or busy-poll, for all queues or as MODE@QUEUES,... (on@1-)"),
    Option("management_queues", "how many of the lowest RX queues are left alone"),
    Option(
        "thread_cpus", "CPUs for the NAPI threads, or auto, numa-local, one-per-core, spread-llc"
    ),
    Option("thread_spread", "one: a CPU for each thread; all: every thread on all of thread_cpus"),
    Option("thread_policy", "scheduling class of the threads: other, batch, idle, fifo or rr"),
    Option("thread_priority", "real-time priority 1..98, with fifo and rr"),
    Option("thread_nice", "nice level -20..19, with other and batch, or auto (10 in a guest)"),
    Option("defer_hard_irqs", "empty polls before the interrupt is enabled again"),
    Option("gro_flush_timeout", "nanoseconds between polls while interrupts are deferred"),
    Option("irq_suspend_timeout", "nanoseconds interrupts stay off while the application polls"),
    Option("allow_realtime_cpu0", "1 permits real-time threads on CPU 0"),
    Option("channels", "queues of a device, or pairs of queues where it has pairs, or max"),
    Option("ring_rx", "descriptors of each receive ring, or max"),
    Option("ring_tx", "descriptors of each transmit ring, or max"),
    Option("adaptive_rx", "on or off: the driver chooses receive coalescing by load"),
    Option("adaptive_tx", "on or off: the driver chooses transmit coalescing by load"),
    Option("rx_usecs", "microseconds from a received packet to its interrupt"),
    Option("tx_usecs", "microseconds from a sent packet to its interrupt"),
    Option("rx_frames", "received packets for one interrupt"),
    Option("tx_frames", "sent packets for one interrupt"),
    Option("allow_session_reset", "1 permits new queues and link resets on the device of a login"),
)
# What an interrupt may be told: to run its handler in a thread, or auto, which is on where no
# thread of the NAPI's own polls.
IRQ_MODES = (OFF, ON, AUTO)
IRQ_OPTIONS = (
    Option("irq_cpus", "CPUs for the RX interrupts: a list or as thread_cpus"),
    Option("threaded", "RX interrupts in threads: off, on, auto (no NAPI thread), or MODE@QUEUES"),
    Option("thread_cpus", "CPUs for the interrupts' threads: as thread_cpus, auto: the IRQ's"),
    Option("thread_spread", "one: a CPU for each interrupt's thread; all: each on all of them"),
    Option("thread_policy", "scheduling class of the interrupts' threads"),
    Option("thread_priority", "real-time priority 1..98 of the interrupts' threads"),
    Option("thread_nice", "nice level of the interrupts' threads, as thread_nice"),
    Option("allow_realtime_cpu0", "1 permits real-time threads of interrupts on CPU 0"),
    Option("workqueue_cpus", "CPUs for unbound kernel workers: auto (not the pollers') or a list"),
    Option("smt_siblings", "idle: nothing that is spread goes to siblings of pollers' CPUs; any"),
    Option("timer_migration", "1: timers of idle CPUs move to busy ones, 0: they stay"),
)
STEERING_OPTIONS = (
    Option("rps", "CPUs that process received packets: off, auto, numa-local or a list"),
    Option("rfs", "steer flows to their application's CPU: off, auto or table entries"),
    Option("arfs", "on or off: the NIC's filters bring a flow to its application's queue"),
    Option("rx_threads", "threads of a device that process what it received: off, auto or a count"),
    Option("rx_thread_cpus", "CPUs for the rx threads: a list, as thread_cpus, or kernel"),
    Option("rx_thread_policy", "scheduling class of the rx threads"),
    Option("rx_thread_priority", "real-time priority 1..98 of the rx threads"),
    Option("rx_thread_nice", "nice level of the rx threads, as thread_nice"),
    Option("rx_allow_realtime_cpu0", "1 permits real-time rx threads on CPU 0"),
    Option("xps", "TX queue by CPU or by RX queue: off, auto or rxqs"),
    Option("vhost_cpus", "CPUs for the taps' vhost threads: auto (not the vCPUs') or a list"),
    Option("tap_rps", "CPUs that process what taps received: off or a list"),
    Option("netdev_max_backlog", "packets that may wait on a CPU, at least; 1..1000000"),
    Option("busy_read", "microseconds a blocking read polls, 0..1000"),
    Option("busy_poll", "microseconds poll() and select() poll, 0..1000"),
)
BY_KIND = {NAPI: NAPI_OPTIONS, IRQ_LAYOUT: IRQ_OPTIONS, FLOW_STEERING: STEERING_OPTIONS}


def names(kind: str) -> tuple[str, ...]:
    return tuple(option.name for option in BY_KIND[kind])


def _spelled(kind: str, name: str) -> str:
    """Say what an option is called where those of all kinds stand together.

    A name belongs to the first kind that has it; others put their kind before it.
    """
    return name if next(k for k in KINDS if name in names(k)) == kind else f"{kind}.{name}"


OPTIONS = tuple(
    Option(_spelled(kind, option.name), option.hint) for kind in KINDS for option in BY_KIND[kind]
)


def parse_modes(text: str, modes: tuple[str, ...] = MODES) -> tuple[ModeRule, ...]:
    """Parse `MODE` or `MODE@QUEUES,...`; raises cpulist.ListError with the wrong part.

    A part without `@` that starts with a digit continues the queues of the part before it:
    `on@0,2-3,busy-poll@4-`.
    """
    if text in modes:
        return (ModeRule(text),)
    groups: list[tuple[str, list[tuple[int, int | None]]]] = []
    for part in (p.strip() for p in text.split(",")):
        mode, at, queues = part.partition("@")
        if at:
            if mode not in modes:
                raise cpulist.ListError(f"'{mode[:20]}' is no mode")
            groups.append((mode, []))
        elif part in modes:
            raise cpulist.ListError(f"'{part}' among others needs its queues: {part}@QUEUES")
        elif not groups or not part[:1].isdigit():
            raise cpulist.ListError(f"'{part[:20]}' is no mode")
        else:
            queues = part
        groups[-1][1].append(cpulist.parse_spans(queues.strip()))
    rules = tuple(ModeRule(mode, tuple(spans)) for mode, spans in groups)
    _reject_overlap(rules)
    return rules


def _reject_overlap(rules: Iterable[ModeRule]) -> None:
    own = (span for rule in rules for span in rule.spans or ())
    spans = sorted((low, cpulist.HIGHEST if high is None else high) for low, high in own)
    for (_, high), (low, _) in zip(spans, spans[1:], strict=False):
        if low <= high:
            raise cpulist.ListError(f"queue {low} is named twice")


def _modes(read: Reader, modes: tuple[str, ...] = MODES) -> tuple[ModeRule, ...]:
    text = read.get("threaded")
    if not text:
        return ()
    try:
        return parse_modes(text, modes)
    except cpulist.ListError as error:
        remedy = f"give {', '.join(modes)} or MODE@QUEUES such as on@1-"
        raise read.fail("threaded", str(error), remedy) from None


def _amount(read: Reader, option: str, high: int) -> int | str | None:
    return MAX if read.get(option) == MAX else read.integer(option, 1, high, MAX)


def _tunables(read: Reader) -> tuple[tuple[str, int | str], ...]:
    """Read rings and coalescing."""
    found: dict[str, int | str | None] = {}
    for item in RING_ITEMS:
        found[item] = _amount(read, option_of(item), MAX_RING)
    for item in COALESCE_ITEMS:
        name = option_of(item)
        switch = item in SWITCHES
        found[item] = (
            read.choice(name, (ON, OFF)) if switch else read.integer(name, 0, MAX_COALESCE)
        )
    for usecs, frames in FRAMES_OF.items():
        if found[usecs] == found[frames] == 0:
            of_usecs, of_frames = option_of(usecs), option_of(frames)
            problem = f"leaves no interrupt beside {of_usecs}=0"
            raise read.fail(of_frames, problem, f"give {of_frames}=1, an interrupt for each packet")
    return tuple((item, value) for item, value in found.items() if value is not None)


def _cpus(read: Reader) -> tuple[int, ...] | None:
    text = read.get("thread_cpus")
    if not text:
        return None
    return () if text in PLACEMENTS else read.cpus("thread_cpus", ", ".join(PLACEMENTS))


def _placement(read: Reader, option: str) -> str:
    text = read.get(option)
    return text if text in PLACEMENTS else AUTO


def _sched(read: Reader, names: Sequence[str] = SCHED_OPTIONS) -> str | None:
    """Read the class of a section's threads from three options."""
    of_policy, of_priority, of_nice = names
    policy = read.choice(of_policy, FAIR + REALTIME)
    priority = read.integer(of_priority, 1, 98)
    auto = read.get(of_nice) == AUTO
    nice = None if auto else read.integer(of_nice, -20, 19, AUTO)
    if policy in REALTIME:
        if auto or nice is not None:
            raise read.fail(of_nice, f"has no meaning with {policy}", "leave it empty")
        if priority is None:
            remedy = f"set {of_priority} to 1..98"
            raise read.fail(of_policy, "needs a priority", remedy)
        return f"{policy}:{priority}"
    if priority is not None:
        remedy = f"set {of_policy} to fifo or rr, or leave {of_priority} empty"
        raise read.fail(of_priority, "needs a real-time class", remedy)
    if policy == "idle" and (auto or nice is not None):
        raise read.fail(of_nice, "has no meaning with idle", "leave it empty")
    if auto:
        return f"{policy or 'other'}{SCHED_AUTO}"
    if policy is None and nice is None:
        return None
    return f"{policy or 'other'}:{nice or 0}"


def parse_section(name: str, devices: Iterable[str], options: Mapping[str, str]) -> Section:
    """Parse a [napi] section; raises OPTION at the first option that cannot be understood."""
    read = Reader(name, options)
    read.reject_unknown(names(NAPI))
    return Section(
        name=name,
        devices=tuple(devices),
        modes=_modes(read),
        management_queues=read.integer("management_queues", 0, cpulist.HIGHEST) or 0,
        cpus=_cpus(read),
        placement=_placement(read, "thread_cpus"),
        shared_cpus=_shared(read),
        sched=_sched(read),
        defer_hard_irqs=read.integer("defer_hard_irqs", 0, MAX_DEFER),
        gro_flush_timeout=read.integer("gro_flush_timeout", 0, MAX_TIMEOUT),
        irq_suspend_timeout=read.integer("irq_suspend_timeout", 0, MAX_TIMEOUT),
        allow_realtime_cpu0=_allowed(read, "allow_realtime_cpu0"),
        channels=_amount(read, "channels", cpulist.HIGHEST),
        tunables=_tunables(read),
        allow_session_reset=_allowed(read, "allow_session_reset"),
        text=read.text(),
    )


def _allowed(read: Reader, option: str) -> bool:
    return read.choice(option, ("0", "1")) == "1"


def _shared(read: Reader) -> bool:
    spread = read.choice("thread_spread", ("one", "all"))
    if spread is not None and not read.get("thread_cpus"):
        raise read.fail("thread_spread", "needs thread_cpus", "set thread_cpus or leave it empty")
    return spread == "all"


def parse_irq_layout(name: str, devices: Iterable[str], options: Mapping[str, str]) -> IrqLayout:
    read = Reader(name, options)
    read.reject_unknown(names(IRQ_LAYOUT))
    text = read.get("irq_cpus")
    cpus: tuple[int, ...] | None = None
    if text in PLACEMENTS and text != NUMA_LOCAL:
        cpus = ()
    elif text and text != NUMA_LOCAL:
        cpus = read.cpus("irq_cpus", ", ".join(PLACEMENTS))
    return IrqLayout(
        name=name,
        devices=tuple(devices),
        modes=_modes(read, IRQ_MODES),
        thread_cpus=_cpus(read),
        thread_placement=_placement(read, "thread_cpus"),
        shared_cpus=_shared(read),
        thread_sched=_sched(read),
        allow_realtime_cpu0=_allowed(read, "allow_realtime_cpu0"),
        cpus=cpus,
        placement=_placement(read, "irq_cpus"),
        node=text == NUMA_LOCAL,
        workqueue_cpus=_workers(read),
        timer_migration=read.integer("timer_migration", 0, 1),
        idle_siblings=read.choice("smt_siblings", ("idle", "any")) == "idle",
        text=read.text(),
    )


def _workers(read: Reader) -> tuple[int, ...] | None:
    return _list_or(read, "workqueue_cpus", "auto")


def parse_steering(name: str, devices: Iterable[str], options: Mapping[str, str]) -> FlowSteering:
    read = Reader(name, options)
    read.reject_unknown(names(FLOW_STEERING))
    rps, rps_cpus = _rps(read)
    rx_threads = _rx_threads(read)
    return FlowSteering(
        name=name,
        devices=tuple(devices),
        rps=rps,
        rps_cpus=rps_cpus,
        rfs=_rfs(read),
        arfs=_arfs(read),
        vhost_cpus=_list_or(read, "vhost_cpus", "auto"),
        tap_rps=_list_or(read, "tap_rps", OFF),
        xps=read.choice("xps", (OFF, "auto", "rxqs")),
        sysctls=_sysctls(read),
        rx_threads=rx_threads,
        rx_cpus=_rx_cpus(read),
        rx_placement=_placement(read, "rx_thread_cpus"),
        rx_kernel=read.get("rx_thread_cpus") == KERNEL,
        rx_sched=_sched(read, RX_SCHED_OPTIONS),
        rx_realtime_cpu0=_allowed(read, "rx_allow_realtime_cpu0"),
        text=read.text(),
    )


def _rps(read: Reader) -> tuple[str | None, tuple[int, ...]]:
    text = read.get("rps")
    if not text:
        return None, ()
    if text in (OFF, "auto", NUMA_LOCAL):
        return text, ()
    return "list", read.cpus("rps", f"off, auto, {NUMA_LOCAL}")


def _list_or(read: Reader, name: str, word: str) -> tuple[int, ...] | None:
    """Return the CPUs of a list, none of them for the word, None where nothing is said."""
    text = read.get(name)
    if text in ("", word):
        return () if text else None
    return read.cpus(name, word)


def _rx_threads(read: Reader) -> int | None:
    """Read the count; RPS or RFS beside it is refused, as the kernel would."""
    text = read.get("rx_threads")
    if text in (OFF, AUTO):
        count: int | None = 0 if text == OFF else THREADS_AUTO
    else:
        count = read.integer("rx_threads", 1, cpulist.HIGHEST, OFF, AUTO)
    for other in ("rps", "rfs") if count else ():
        value = read.get(other)
        if value not in ("", OFF):
            problem = f"excludes {other}={printable(value)}: a device's packets take one way"
            raise read.fail("rx_threads", problem, f"set {other}=off, or rx_threads=off")
    return count


def _rx_cpus(read: Reader) -> tuple[int, ...] | None:
    text = read.get("rx_thread_cpus")
    if not text or text == KERNEL:
        return None
    words = ", ".join((*PLACEMENTS, KERNEL))
    return () if text in PLACEMENTS else read.cpus("rx_thread_cpus", words)


def _rfs(read: Reader) -> int | None:
    text = read.get("rfs")
    if text in (OFF, AUTO):
        return 0 if text == OFF else RFS_AUTO
    return read.integer("rfs", 1, MAX_FLOWS, OFF, AUTO)


def _arfs(read: Reader) -> str | None:
    switch = read.choice("arfs", (ON, OFF))
    if switch == ON and read.get("rfs") in ("", OFF):
        raise read.fail("arfs", "needs rfs, which says where a flow's application runs", "set rfs")
    return switch


def _sysctls(read: Reader) -> tuple[tuple[str, int], ...]:
    wanted = (
        (BACKLOG, read.integer("netdev_max_backlog", 1, MAX_BACKLOG)),
        (BUSY_READ, read.integer("busy_read", 0, MAX_BUSY)),
        (BUSY_POLL, read.integer("busy_poll", 0, MAX_BUSY)),
    )
    return tuple((name, value) for name, value in wanted if value is not None)


@dataclass(frozen=True, slots=True)
class Given:
    """A section as text, of one of KINDS."""

    kind: str
    name: str
    devices: tuple[str, ...]
    options: Mapping[str, str]


def parse(sections: Iterable[Given]) -> Policy:
    """Parse sections of any kind into one Policy; raises OPTION for the first bad one."""
    given = list(sections)

    def of(kind: str) -> Iterator[tuple[str, tuple[str, ...], Mapping[str, str]]]:
        return ((g.name, g.devices, g.options) for g in given if g.kind == kind)

    return Policy(
        tuple(parse_section(*row) for row in of(NAPI)),
        tuple(parse_irq_layout(*row) for row in of(IRQ_LAYOUT)),
        tuple(parse_steering(*row) for row in of(FLOW_STEERING)),
    )


def parse_mixed(devices: Iterable[str], options: Mapping[str, str]) -> Policy:
    """Parse options of all kinds given together, spelled as in OPTIONS.

    Messages name the section that an option would be in.
    """
    Reader(None, options).reject_unknown([option.name for option in OPTIONS])
    spelled = {kind: {n: _spelled(kind, n) for n in names(kind)} for kind in KINDS}
    parts = {
        kind: {n: options[full] for n, full in own.items() if full in options}
        for kind, own in spelled.items()
    }
    at = tuple(devices)
    return parse(Given(kind, kind, at, own) for kind, own in parts.items() if own)


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Turn `name=value` arguments into options; a name given twice is an error."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            problem = f"'{text[:40]}' is no NAME=VALUE"
            remedy = "give for instance threaded=on"
            raise RxlaneError(Kind.OPTION, problem, remedy=remedy)
        if name in options:
            problem = "is given twice"
            raise RxlaneError(Kind.OPTION, problem, option=name, remedy="give it once")
        options[name] = value
    return options


def from_plain(data: object) -> Policy:
    """Build a Policy from {"sections": [{"kind", "name", "devices", "options"}]}, as fixtures do.

    kind is napi when left out.
    """

    def wrong(what: str) -> RxlaneError:
        return RxlaneError(Kind.FORMAT, f"policy: {what}")

    if not isinstance(data, dict) or not isinstance(data.get("sections"), list):
        raise wrong("no list of sections")
    sections = []
    for row in data["sections"]:
        if not isinstance(row, dict) or not isinstance(row.get("options"), dict):
            raise wrong("a section has no options")
        options = {str(k): str(v) for k, v in row["options"].items()}
        devices = [str(d) for d in row.get("devices", ())]
        kind = str(row.get("kind", NAPI))
        if kind not in KINDS:
            raise wrong(f"'{printable(kind)}' is no kind of section")
        sections.append(Given(kind, str(row.get("name", kind)), tuple(devices), options))
    return parse(sections)
