# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPUs threads that never sleep have between them, for good. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")
_Row = tuple[_T, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Group(Generic[_T]):
    """Threads whose CPUs overlap, so that they get out of each other's way as far as they can."""

    rows: tuple[_Row[_T], ...]
    cpus: frozenset[int]

    def fills(self, but: object) -> bool:
        """True when there is one for each of the CPUs, one thread not counted."""
        return sum(one is not but for one, _ in self.rows) >= len(self.cpus)


class Pollers(Generic[_T]):
    """Threads that never sleep, each with the CPUs where it may run."""

    def __init__(self, rows: Iterable[_Row[_T]]) -> None:
        alike: dict[tuple[int, ...], list[_Row[_T]]] = {}
        for row in rows:
            alike.setdefault(row[1], []).append(row)
        self._groups: dict[int, _Group[_T]] = {}
        for cpus, members in alike.items():
            met = {id(self._groups[n]): self._groups[n] for n in cpus if n in self._groups}
            every = tuple(row for group in met.values() for row in group.rows) + tuple(members)
            group = _Group(every, frozenset(cpus).union(*(g.cpus for g in met.values())))
            self._groups.update(dict.fromkeys(group.cpus, group))

    def over(self, cpus: Iterable[int], but: object = None) -> list[_Row[_T]]:
        """Return those that have all of these CPUs; none where one of the CPUs has time left.

        but: one that is not counted, whose CPUs these are.
        """
        met = dict[int, _Group[_T]]()
        for number in cpus:
            group = self._groups.get(number)
            if group is None or not (id(group) in met or group.fills(but)):
                return []
            met[id(group)] = group
        return [row for group in met.values() for row in group.rows if row[0] is not but]

    def filled(self) -> frozenset[int]:
        """Return the CPUs that have no time left."""
        return frozenset(n for n, group in self._groups.items() if group.fills(None))
