# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes wrong at each single write of an apply, and that nothing is left of it, or of one that
goes well.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.model import Snapshot
from rxlane.sections import Policy
from unit import simhost
from unit.simhost import MemoryStore, SimHost
from unit.simwrites import Killed

# Attributes of SimHost: the write of that number fails, does nothing, or is the last.
WAYS = ("fail_at", "lie_at", "kill_at")


def of_its_kernel(start: Snapshot) -> SimHost:
    """A host whose threads end with their mode where the kernel has one for each NAPI."""
    return SimHost(start, ends_threads=start.capabilities.napi_set)


def all_comes_back(
    way: str, start: Snapshot, policy: Policy, make: Callable[[Snapshot], SimHost] = of_its_kernel
) -> None:
    """Each write of the apply in turn goes wrong in a way of WAYS; the originals are back."""
    sim = make(start)
    apply(sim, MemoryStore(), policy)
    for number in range(sim.writes):
        sim = make(start)
        before, store = simhost.settings(sim), MemoryStore()
        setattr(sim, way, number)
        with pytest.raises((RxlaneError, Killed)):
            apply(sim, store, policy)
        if way == "kill_at":
            rollback(sim, store)
        assert simhost.restored(sim, before), number
        assert store.text is None


def all_stays_and_comes_back(sim: SimHost, policy: Policy) -> list[str]:
    """Applied twice and rolled back: the second apply finds nothing to plan and writes nothing, and
    every setting is as before. Returns what the first wrote.
    """
    store, before = MemoryStore(), simhost.settings(sim)
    apply(sim, store, policy)
    log, count = list(sim.log), sim.writes
    assert decide(sim.observe(), policy).changes == ()
    assert apply(sim, store, policy).written == 0 and sim.writes == count
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None
    return log
