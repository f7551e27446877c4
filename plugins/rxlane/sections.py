# SPDX-License-Identifier: GPL-2.0-or-later
"""What the operator wants, parsed: one dataclass for each kind of section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rxlane.errors import Kind, RxlaneError
from rxlane.items import RESET_ITEMS


@dataclass(frozen=True, slots=True)
class ModeRule:
    """A mode for some RX queues; spans None means all of them."""

    mode: str
    spans: tuple[tuple[int, int | None], ...] | None = None

    def covers(self, queue: int) -> bool:
        if self.spans is None:
            return True
        return any(lo <= queue and (hi is None or queue <= hi) for lo, hi in self.spans)


def mode_of(rules: Iterable[ModeRule], queue: int) -> str | None:
    """Return the mode that one of the rules has for the queue; there is one at most."""
    return next((rule.mode for rule in rules if rule.covers(queue)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What every section has. devices empty means every physical device."""

    name: str
    devices: tuple[str, ...] = ()
    text: tuple[tuple[str, str], ...] = field(default=())

    def option(self, name: str) -> str:
        """Return the option as the operator wrote it, for messages."""
        return dict(self.text).get(name, "")

    def reason(self, *names: str) -> str:
        """Return those of these options that the operator gave, as the reason of a change."""
        own = dict(self.text)
        given = [f"{name}={own[name]}" for name in names if own.get(name)]
        return f"{' '.join(given)} in [{self.name}]"

    def error(
        self,
        option: str,
        problem: str,
        remedy: str,
        *,
        kind: Kind = Kind.REFUSED,
        device: str | None = None,
        queue: int | None = None,
    ) -> RxlaneError:
        """Return the error about an option, with its value as the operator wrote it."""
        return RxlaneError(
            kind,
            problem,
            section=self.name,
            option=option,
            value=self.option(option) or None,
            device=device,
            queue=queue,
            remedy=remedy,
        )


MAX = "max"  # as many as the device has
# The options of a section that make the class of its threads, those of rx threads too.
SCHED_OPTIONS = ("thread_policy", "thread_priority", "thread_nice")
RX_SCHED_OPTIONS = tuple(f"rx_{option}" for option in SCHED_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Named):
    """One [napi] section.

    channels: queues, or pairs of queues. tunables: (item, value) of rings and coalescing.

    cpus: None leave alone, () choose by placement (one of topology.PLACEMENTS), else the CPUs to go
    round. shared_cpus: each thread may run on all of them. sched: None leave alone, else as in
    items.SCHED, with SCHED_AUTO for a nice level that is to be chosen.
    """

    modes: tuple[ModeRule, ...] = ()
    management_queues: int = 0
    cpus: tuple[int, ...] | None = None
    placement: str = "auto"
    shared_cpus: bool = False
    sched: str | None = None
    defer_hard_irqs: int | None = None
    gro_flush_timeout: int | None = None
    irq_suspend_timeout: int | None = None
    allow_realtime_cpu0: bool = False
    channels: int | str | None = None
    tunables: tuple[tuple[str, int | str], ...] = ()
    allow_session_reset: bool = False

    @property
    def resets(self) -> bool:
        """True when the section may set up queues anew."""
        return self.channels is not None or any(item in RESET_ITEMS for item, _ in self.tunables)


@dataclass(frozen=True, slots=True, kw_only=True)
class IrqLayout(Named):
    """One [irq_layout] section.

    modes: threaded modes of interrupts, off, on or AUTO. thread_cpus, shared_cpus, thread_sched: of
    their threads, as cpus, shared_cpus and sched of Section; () means the interrupt's own CPUs, but
    those of vCPUs, and of these what thread_placement takes; with shared_cpus all near the device.
    cpus: None leave alone, () choose one CPU for each IRQ by placement, else the CPUs to choose
    from.
    node: each IRQ may go to all housekeeping CPUs of the device's node (numa-local).
    workqueue_cpus: None leave alone, () those that it had but the pollers' (auto), else these.
    idle_siblings: what is spread also keeps off the SMT siblings of pollers' CPUs.
    """

    modes: tuple[ModeRule, ...] = ()
    thread_cpus: tuple[int, ...] | None = None
    thread_placement: str = "auto"
    shared_cpus: bool = False
    thread_sched: str | None = None
    allow_realtime_cpu0: bool = False
    cpus: tuple[int, ...] | None = None
    placement: str = "auto"
    node: bool = False
    workqueue_cpus: tuple[int, ...] | None = None
    timer_migration: int | None = None
    idle_siblings: bool = False

    @property
    def places(self) -> bool:
        """True when it says where interrupts go."""
        return self.node or self.cpus is not None

    @property
    def threads(self) -> bool:
        """True when anything is asked of the interrupts' modes or threads."""
        return bool(self.modes) or (self.thread_cpus, self.thread_sched) != (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSteering(Named):
    """One [flow_steering] section; None leaves alone.

    rps: off, auto, numa-local or list, with rps_cpus for list. rfs: entries of the host's flow
    table, 0 none, RFS_AUTO as many as the queues call for. arfs: on or off. xps: off, auto or
    rxqs. sysctls: (name, value) pairs. vhost_cpus: of all taps' vhost threads, empty for auto.
    tap_rps: of all taps, empty for off.
    rx_threads: how many each device has, 0 none, THREADS_AUTO as many as there are CPUs for them.
    rx_cpus, rx_placement, rx_sched: of these threads, as cpus, placement and sched of Section;
    rx_kernel: the kernel chooses their CPUs.
    """

    rps: str | None = None
    rps_cpus: tuple[int, ...] = ()
    rfs: int | None = None
    vhost_cpus: tuple[int, ...] | None = None
    tap_rps: tuple[int, ...] | None = None
    arfs: str | None = None
    xps: str | None = None
    sysctls: tuple[tuple[str, int], ...] = ()
    rx_threads: int | None = None
    rx_cpus: tuple[int, ...] | None = None
    rx_placement: str = "auto"
    rx_kernel: bool = False
    rx_sched: str | None = None
    rx_realtime_cpu0: bool = False

    @property
    def separates(self) -> bool:
        """True when anything is asked of rx threads."""
        placed = self.rx_cpus is not None or self.rx_kernel
        return self.rx_threads is not None or placed or self.rx_sched is not None


SCHED_AUTO = ":auto"
RFS_AUTO = -1
THREADS_AUTO = -1


@dataclass(frozen=True, slots=True)
class Policy:
    """confirmed: what might cut the operator off is undone unless a new login confirms it."""

    sections: tuple[Section, ...] = ()
    irq: tuple[IrqLayout, ...] = ()
    steering: tuple[FlowSteering, ...] = ()
    confirmed: bool = False

    @property
    def all(self) -> tuple[Named, ...]:
        return (*self.sections, *self.irq, *self.steering)

    @property
    def guests(self) -> bool:
        """True when taps matter, or vCPUs, whose CPUs are left out where CPUs are chosen and are
        warned of where busy pollers are given them.
        """
        placed = [section.cpus for section in self.sections]
        placed += [cpus for section in self.irq for cpus in (section.cpus, section.thread_cpus)]
        placed += [section.rx_cpus for section in self.steering]
        near = any(section.node for section in self.irq)
        near = near or any(section.rps in ("auto", "numa-local") for section in self.steering)
        taps = ((section.vhost_cpus, section.tap_rps) for section in self.steering)
        near = near or any(r.mode == "busy-poll" for s in self.sections if s.cpus for r in s.modes)
        return near or () in placed or any(given != (None, None) for given in taps)

    @property
    def tunes(self) -> bool:
        """True when anything is asked for that ethtool knows."""
        return any(s.resets or s.tunables for s in self.sections) or any(
            s.arfs is not None for s in self.steering
        )
