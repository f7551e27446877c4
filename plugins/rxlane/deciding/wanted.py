# SPDX-License-Identifier: GPL-2.0-or-later
"""A lane with the thread that is wanted for it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rxlane.errors import RxlaneError
from rxlane.items import REALTIME, priority_of
from rxlane.model import Lane, Link
from rxlane.sections import Section


@dataclass(frozen=True, slots=True)
class Wanted:
    """A lane to be placed and the mode it will be in.

    helper: the number of an rx thread, which is placed as a lane is. Its options are called as
    those of NAPIs' threads with RX before. handler: it is an interrupt's thread, which sleeps, and
    FIFO is how the kernel makes it: such a class of its own counts for nothing.
    """

    section: Section
    link: Link
    lane: Lane
    mode: str
    helper: int | None = None
    handler: bool = False

    @property
    def _sched(self) -> str:
        """The class that the thread will have, its own where the section leaves that alone."""
        own = None if self.handler or self.lane.thread is None else self.lane.thread.sched
        return self.section.sched or own or ""

    @property
    def realtime(self) -> bool:
        return self._sched.partition(":")[0] in REALTIME

    @property
    def priority(self) -> int:
        """The real-time priority, 0 for a fair thread."""
        return priority_of(self._sched)

    @property
    def nice(self) -> int:
        """The nice level, 0 in a class where it has no meaning."""
        policy, _, number = self._sched.partition(":")
        return int(number) if policy in ("other", "batch") else 0

    @property
    def polling(self) -> bool:
        return self.mode == "busy-poll"

    @property
    def exclusive(self) -> bool:
        """It wants its CPU for itself."""
        return self.polling or self.realtime

    def stands(self, cpus: tuple[int, ...]) -> bool:
        """True when the thread runs like this on these CPUs already."""
        thread = self.lane.thread
        if thread is None or thread.cpus != cpus:
            return False
        return self._same_mode and self.section.sched in (None, thread.sched)

    def untouched(self, cpus: tuple[int, ...]) -> bool:
        """True when the plan says nothing new of the thread, whose class and CPUs are its own."""
        thread = self.lane.thread
        if thread is None or self.section.sched is not None or not self._same_mode:
            return False
        return self.section.cpus is None or thread.cpus == cpus

    @property
    def _same_mode(self) -> bool:
        return self.lane.mode in (self.mode, None)  # the lane of an rx thread has none


Chosen = tuple[Wanted, tuple[int, ...]]


RX = "rx_"
# Options of threads' CPUs and class, as problems and remedies name them.
_OPTION = re.compile(r"\b(?=(?:thread_(?:cpus|policy|priority|nice)|allow_realtime_cpu0)\b)")


def refuse(one: Wanted, option: str, problem: str, remedy: str) -> RxlaneError:
    """Return the refusal of a thread's CPU or class: REFUSED, with the options of its section."""
    if one.helper is not None:
        option, remedy = f"{RX}{option}", _OPTION.sub(RX, remedy)
        problem = f"rx thread {one.helper}: {problem}"
    queue = one.lane.queue.index if one.helper is None else None
    return one.section.error(option, problem, remedy, device=one.link.name, queue=queue)
