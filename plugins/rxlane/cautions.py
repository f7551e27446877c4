# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that warns of what is allowed and yet costs host or lane. Pure.

What would starve either is refused, see rxlane.dangers. Of threads that stand as the plan has them
nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rxlane import cpulist
from rxlane.draft import Draft
from rxlane.model import Topology
from rxlane.pollers import Pollers
from rxlane.wanted import Chosen


def warn(
    draft: Draft, host: Topology, chosen: Iterable[Chosen], others: Collection[Chosen] = ()
) -> None:
    """Warn of the CPUs that NAPIs' threads are given.

    others: threads of devices outside of the plan.
    """
    rows = list(chosen)
    fresh = [(one, cpus) for one, cpus in rows if not one.untouched(cpus)]
    pollers = [row for row in (*rows, *others) if row[0].polling]
    draft.warnings += _of_host(host, fresh, pollers)
    draft.warnings += _of_isolated(host, fresh)


def _of_host(host: Topology, fresh: list[Chosen], pollers: list[Chosen]) -> Iterable[str]:
    """Yield what pollers take from all that is no lane's."""
    added = [(one, cpus) for one, cpus in fresh if one.polling]
    if not added:
        return
    if host.housekeeping and Pollers(pollers).filled().issuperset(host.housekeeping):
        yield (
            "busy-polling threads are on every housekeeping CPU"
            f" ({cpulist.render(host.housekeeping)}), and all else gets what they leave:"
            " thread fewer queues, or leave a CPU out of thread_cpus"
        )
        return
    for one, cpus in added:
        if cpus == (0,) and not one.realtime:
            yield (
                f"{one.link.name} queue {one.lane.queue.index}: its busy-polling thread is on CPU"
                " 0, which carries the kernel's own work: leave that out of thread_cpus"
            )


def _of_isolated(host: Topology, fresh: Iterable[Chosen]) -> Iterable[str]:
    """Yield what was to have an isolated CPU and has another, chosen by auto."""
    if host.housekeeping == host.open:
        return
    ordinary = set(host.housekeeping)
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for one, cpus in fresh:
        if one.exclusive and one.section.cpus == () and len(cpus) == 1 and cpus[0] in ordinary:
            what = "busy poller" if one.polling else "real-time thread"
            found.setdefault((one.link.name, what), []).append((one.lane.queue.index, cpus[0]))
    for (device, what), rows in found.items():
        queues, places = (cpulist.render(column) for column in zip(*rows, strict=True))
        s, verb = ("s", "are") if len(rows) > 1 else ("", "is")
        yield (
            f"{device}: {what}{s} of queue{s} {queues} {verb} on housekeeping CPU{s} {places}: no"
            " isolated core is left near the device"
        )
