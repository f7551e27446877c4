# SPDX-License-Identifier: GPL-2.0-or-later
"""A lane with the thread that is wanted for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rxlane.errors import Kind, RxlaneError
from rxlane.items import REALTIME
from rxlane.model import Lane, Link
from rxlane.sections import Section


@dataclass(frozen=True, slots=True)
class Wanted:
    """A lane to be placed and the mode it will be in."""

    section: Section
    link: Link
    lane: Lane
    mode: str

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


Chosen = tuple[Wanted, tuple[int, ...]]


def refuse(one: Wanted, option: str, problem: str, remedy: str) -> RxlaneError:
    return RxlaneError(
        Kind.REFUSED,
        problem,
        section=one.section.name,
        option=option,
        value=one.section.option(option) or None,
        device=one.link.name,
        queue=one.lane.queue.index,
        remedy=remedy,
    )
