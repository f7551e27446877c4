# SPDX-License-Identifier: GPL-2.0-or-later
"""A lane with the thread that is wanted for it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rxlane.errors import Kind, RxlaneError
from rxlane.items import REALTIME
from rxlane.model import Lane, Link
from rxlane.sections import Section


@dataclass(frozen=True, slots=True)
class Wanted:
    """A lane to be placed and the mode it will be in.

    helper: the number of an rx thread, which is placed as a lane is. Its options are called as
    those of NAPIs' threads with RX before.
    """

    section: Section
    link: Link
    lane: Lane
    mode: str
    helper: int | None = None

    @property
    def realtime(self) -> bool:
        return (self.section.sched or "").partition(":")[0] in REALTIME

    @property
    def priority(self) -> int:
        """The real-time priority, 0 for a fair thread."""
        policy, _, number = (self.section.sched or "").partition(":")
        return int(number.partition(":")[0]) if policy in REALTIME else 0

    @property
    def polling(self) -> bool:
        return self.mode == "busy-poll"

    @property
    def exclusive(self) -> bool:
        """It wants its CPU for itself."""
        return self.polling or self.realtime

    @property
    def rank(self) -> int:
        """The priority that it will have, also where the section leaves the class alone."""
        thread = self.lane.thread
        kept = self.section.sched is None and thread is not None
        return thread.priority if kept and thread is not None else self.priority

    def stands(self, cpus: tuple[int, ...]) -> bool:
        """True when the thread runs like this on these CPUs already."""
        thread = self.lane.thread
        if thread is None or thread.cpus != cpus:
            return False
        # The lane of an rx thread has no mode.
        mode = self.lane.mode in (self.mode, None)
        return mode and self.section.sched in (None, thread.sched)


Chosen = tuple[Wanted, tuple[int, ...]]


RX = "rx_"
# Options of threads' CPUs and class, as problems and remedies name them.
_OPTION = re.compile(r"\b(?=(?:thread_(?:cpus|policy|priority|nice)|allow_realtime_cpu0)\b)")


def refuse(one: Wanted, option: str, problem: str, remedy: str) -> RxlaneError:
    """Return the refusal of a thread's CPU or class: REFUSED, with the options of its section."""
    if one.helper is not None:
        option, remedy = f"{RX}{option}", _OPTION.sub(RX, remedy)
        problem = f"rx thread {one.helper}: {problem}"
    return RxlaneError(
        Kind.REFUSED,
        problem,
        section=one.section.name,
        option=option,
        value=one.section.option(option) or None,
        device=one.link.name,
        queue=one.lane.queue.index if one.helper is None else None,
        remedy=remedy,
    )
