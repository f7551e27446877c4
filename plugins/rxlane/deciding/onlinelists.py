# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU lists of a policy without the CPUs that are offline, of which some are left. Pure.

A CPU that goes offline must not end a layout that has it in one of its lists. A list of which none
is left stays as it is, and so does a CPU that does not exist: both are refused where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from rxlane import cpulist
from rxlane.model import Topology
from rxlane.sections import FlowSteering, IrqLayout, Named, Policy, Section

_Section = TypeVar("_Section", Section, IrqLayout, FlowSteering)

# Field and option of each list.
LISTS: dict[type[Named], tuple[tuple[str, str], ...]] = {
    Section: (("cpus", "thread_cpus"),),
    IrqLayout: (
        ("cpus", "irq_cpus"),
        ("thread_cpus", "thread_cpus"),
        ("workqueue_cpus", "workqueue_cpus"),
    ),
    FlowSteering: (
        ("rps_cpus", "rps"),
        ("rx_cpus", "rx_thread_cpus"),
        ("vhost_cpus", "vhost_cpus"),
        ("tap_rps", "tap_rps"),
    ),
}


def reduced(policy: Policy, host: Topology) -> tuple[Policy, list[str]]:
    """Return the policy with what is left of its lists, and a warning for each that lost a CPU."""
    away = {cpu.number for cpu in host.cpus if not cpu.online}
    if not away:
        return policy, []
    warnings: list[str] = []

    def own(sections: Iterable[_Section]) -> tuple[_Section, ...]:
        return tuple(_reduced(section, away, warnings) for section in sections)

    found = replace(
        policy, sections=own(policy.sections), irq=own(policy.irq), steering=own(policy.steering)
    )
    return found, warnings


def _reduced(section: _Section, away: set[int], warnings: list[str]) -> _Section:
    left: dict[str, Any] = {}
    for field, option, cpus in _lists(section):
        gone = [n for n in cpus if n in away]
        if gone and len(gone) < len(cpus):
            left[field] = tuple(n for n in cpus if n not in away)
            are = "are" if len(gone) > 1 else "is"
            gone_cpus = cpulist.named("CPU", gone)
            warnings.append(f"{section.reason(option)}: {gone_cpus} {are} offline and left out")
    return replace(section, **left) if left else section


def _lists(section: Named) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for field, option in LISTS[type(section)]:
        yield field, option, getattr(section, field) or ()
