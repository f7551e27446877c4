# SPDX-License-Identifier: GPL-2.0-or-later
"""What the operator wants, parsed: one dataclass for each kind of section."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModeRule:
    """A mode for some RX queues; spans None means all of them."""

    mode: str
    spans: tuple[tuple[int, int | None], ...] | None = None

    def covers(self, queue: int) -> bool:
        if self.spans is None:
            return True
        return any(lo <= queue and (hi is None or queue <= hi) for lo, hi in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What every section has. devices empty means every physical device."""

    name: str
    devices: tuple[str, ...] = ()
    text: tuple[tuple[str, str], ...] = field(default=())

    def option(self, name: str) -> str:
        """Return the option as the operator wrote it, for messages."""
        return dict(self.text).get(name, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Named):
    """One [napi] section.

    cpus: None leave alone, () choose (auto), else the CPUs to go round. shared_cpus: each thread
    may run on all of them. sched: None leave alone, else as in model.SCHED.
    """

    modes: tuple[ModeRule, ...] = ()
    management_queues: int = 0
    cpus: tuple[int, ...] | None = None
    shared_cpus: bool = False
    sched: str | None = None
    defer_hard_irqs: int | None = None
    gro_flush_timeout: int | None = None
    irq_suspend_timeout: int | None = None
    allow_realtime_cpu0: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IrqLayout(Named):
    """One [irq_layout] section.

    cpus: None leave alone, () choose one CPU for each IRQ (auto), else the CPUs to choose from.
    node: each IRQ may go to all housekeeping CPUs of the device's node (numa-local).
    """

    cpus: tuple[int, ...] | None = None
    node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSteering(Named):
    """One [flow_steering] section; None leaves alone.

    rps: off, auto, numa-local or list, with rps_cpus for list. rfs: entries of the host's flow
    table, 0 none, RFS_AUTO as many as the queues call for. xps: off, auto or rxqs. sysctls:
    (name, value) pairs.
    """

    rps: str | None = None
    rps_cpus: tuple[int, ...] = ()
    rfs: int | None = None
    xps: str | None = None
    sysctls: tuple[tuple[str, int], ...] = ()


RFS_AUTO = -1


@dataclass(frozen=True, slots=True)
class Policy:
    """confirmed: what might cut the operator off is undone unless a new login confirms it."""

    sections: tuple[Section, ...] = ()
    irq: tuple[IrqLayout, ...] = ()
    steering: tuple[FlowSteering, ...] = ()
    confirmed: bool = False
