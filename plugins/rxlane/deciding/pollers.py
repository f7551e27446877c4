# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPUs threads that never sleep have between them, for good. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

_T = TypeVar("_T")
_Row = tuple[_T, tuple[int, ...]]


class Pollers(Generic[_T]):
    """Threads that never sleep, each with the CPUs where it may run.

    They get out of each other's way as far as they can: as many as possible are put on CPUs, one on
    each (a maximum matching). A CPU has time left if who is there can move on, and who is in its
    way then, until one comes to a CPU that nobody has.
    """

    def __init__(self, rows: Iterable[_Row[_T]]) -> None:
        self._rows = list(rows)
        self._number = {id(one): row for row, (one, _) in enumerate(self._rows)}
        self._users: dict[int, list[int]] = {}
        for row, (_, cpus) in enumerate(self._rows):
            for cpu in cpus:
                self._users.setdefault(cpu, []).append(row)
        self._at: dict[int, int] = {}  # by CPU, who is there
        for row in range(len(self._rows)):
            self._place(row)
        self._on = {row: cpu for cpu, row in self._at.items()}
        self._without: dict[tuple[int, ...], set[int]] = {}
        self._left = self._freed(self._users.keys() - self._at.keys())

    def _place(self, row: int) -> None:
        """Put one more on a CPU, if the others can make way for it."""
        came: dict[int, int] = {}  # by CPU, who would come there
        waiting = deque([row])
        while waiting:
            mover = waiting.popleft()
            for cpu in self._rows[mover][1]:
                if cpu in came:
                    continue
                came[cpu] = mover
                if cpu not in self._at:
                    self._move(row, cpu, came)
                    return
                waiting.append(self._at[cpu])

    def _move(self, row: int, cpu: int, came: dict[int, int]) -> None:
        """Have each go to where it would, the last one to a CPU that is free."""
        where = {mover: own for own, mover in self._at.items()}
        while True:
            mover = came[cpu]
            self._at[cpu] = mover
            if mover == row:
                return
            cpu = where[mover]

    def _freed(self, cpus: Iterable[int], but: int | None = None) -> set[int]:
        """Return the CPUs that can be had when these are free; none if somebody waits for them."""
        found = set(cpus)
        waiting = deque(found)
        while waiting:
            for row in self._users[waiting.popleft()]:
                if row == but:
                    continue
                if row not in self._on:
                    return set()
                if self._on[row] not in found:
                    found.add(self._on[row])
                    waiting.append(self._on[row])
        return found

    def _left_without(self, row: int) -> set[int]:
        """Return the CPUs that can be had if one is not counted: it is as others with its CPUs."""
        if row not in self._on:
            return set()
        alike = self._rows[row][1]
        if alike not in self._without:
            self._without[alike] = self._freed([self._on[row]], row)
        return self._without[alike]

    def over(self, cpus: Iterable[int], but: object = None) -> list[_Row[_T]]:
        """Return those that have all of these CPUs; none where one of the CPUs has time left.

        but: one that is not counted, whose CPUs these are.
        """
        asked, own = list(cpus), self._number.get(id(but))
        if any(cpu not in self._at or cpu in self._left for cpu in asked):
            return []
        if own is not None and not self._left_without(own).isdisjoint(asked):
            return []
        rows = sorted({row for cpu in asked for row in self._users[cpu]} - {own})
        return [self._rows[row] for row in rows]

    def filled(self) -> frozenset[int]:
        """Return the CPUs that have no time left."""
        return frozenset(self._at.keys() - self._left)
