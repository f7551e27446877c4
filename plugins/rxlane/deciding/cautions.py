# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of decide() that warns of what is allowed and yet costs host or lane. Pure.

What would starve either is refused, see dangers.py. Of threads that stand as the plan has them
nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rxlane import cpulist
from rxlane.deciding.draft import Draft
from rxlane.deciding.pollers import Pollers
from rxlane.deciding.wanted import RX, Chosen
from rxlane.model import Topology


def warn(
    draft: Draft,
    host: Topology,
    chosen: Iterable[Chosen],
    more: Iterable[Chosen] = (),
    others: Collection[Chosen] = (),
) -> None:
    """Warn of the CPUs that NAPIs' threads are given.

    more: interrupts' and rx threads. others: threads outside of the plan.
    """
    rows = list(chosen)
    fresh = [row for row in rows if not row[0].untouched(row[1])]
    pollers = [row for row in (*rows, *others) if row[0].polling]
    draft.warnings += _of_host(host, fresh, pollers)
    draft.warnings += _of_isolated(host, fresh)
    new = (*fresh, *(row for row in more if not row[0].untouched(row[1])))
    placed = [row for row in new if row[0].section.cpus == ()]
    named = [row for row in fresh if row[0].polling and row[0].section.cpus]
    vcpus = draft.view.snapshot.vcpus
    draft.warnings += _of_guests(vcpus, placed)
    draft.warnings += _of_pollers_named(vcpus, named)
    draft.warnings += _of_one(host, placed)


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
            " isolated core is free near the device"
        )


def _of_guests(vcpus: Collection[int], placed: Iterable[Chosen]) -> Iterable[str]:
    """Yield what shares CPUs with vCPUs, to which auto leaves theirs if there are others."""
    for reason, shared in _shared(vcpus, placed).items():
        yield (
            f"{reason}: vCPUs are bound to {cpulist.render(shared)} as well, and no CPU that it"
            " chooses from is without"
        )


def _of_pollers_named(vcpus: Collection[int], named: Iterable[Chosen]) -> Iterable[str]:
    """Yield which busy pollers were told to take CPUs that vCPUs are bound to, for good."""
    for reason, shared in _shared(vcpus, named).items():
        yield (
            f"{reason}: vCPUs are bound to {cpulist.render(shared)} and get what busy-polling"
            " threads leave: name other CPUs"
        )


def _shared(vcpus: Collection[int], rows: Iterable[Chosen]) -> dict[str, set[int]]:
    """Return the CPUs of vCPUs that the threads have, by the option that gave them."""
    found: dict[str, set[int]] = {}
    for one, cpus in rows:
        shared = set(cpus).intersection(vcpus)
        if shared:
            option = "thread_cpus" if one.helper is None else f"{RX}thread_cpus"
            found.setdefault(one.section.reason(option), set()).update(shared)
    return found


def _of_one(host: Topology, placed: Iterable[Chosen]) -> Iterable[str]:
    """Yield how many ordinary threads share the only CPU that auto has for them; the number of rx
    threads goes by CPUs, or was named.
    """
    only = host.housekeeping
    count = sum(cpus == only for one, cpus in placed if not one.exclusive and one.helper is None)
    if len(only) == 1 and count > 1 and len(host.open) > 1:
        away = cpulist.render(n for n in host.open if n not in only)
        yield (
            f"{count} threads share CPU {only[0]}, for no other housekeeping CPU is there: name"
            f" some of the isolated ones ({away}) in thread_cpus"
        )
