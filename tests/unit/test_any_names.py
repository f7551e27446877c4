# SPDX-License-Identifier: GPL-2.0-or-later
"""Renames, drivers bound again, rollbacks and TuneD that hears of it late, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from rxlane.applying.rollback import rollback
from unit.turned import World, as_wanted

STEPS = (
    *("rename", "rename_away", "swap", "unbind", "bind", "bind", "down", "go_up", "another"),
    *("roll_back", "told", "told", "told", "refuse", "hinder", "let_go", "look", "look", "look"),
)
Steps = Sequence[tuple[str, int]]


# Each had the layout come back after the rollback, or stay away.
@example([("roll_back", 0), ("refuse", 0)])
@example([("hinder", 0), ("roll_back", 1)])
@example([("refuse", 0), ("look", 1), ("roll_back", 1), ("refuse", 0)])
@example([("hinder", 0), ("rename_away", 1), ("down", 2), ("refuse", 0)])
@example([("refuse", 0), ("let_go", 0)])
@example([("refuse", 0), ("roll_back", 0), ("let_go", 0)])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=20))
def test_what_is_wanted_is_kept_and_what_is_not_came_back(steps: Steps) -> None:
    with TemporaryDirectory() as folder, (world := World(Path(folder))).running():
        for name, number in steps:
            getattr(world, name)(number)
        world.settle()
        holds(world)
        rollback(world.host, world.store, for_good=True, forget=True)
        world.look(0)
        assert [world.state(nic) for nic in world.nics] == [nic.start for nic in world.nics]


def holds(world: World) -> None:
    assert world.keeper.given_up == world.given_up
    for nic in world.nics[:-1]:
        if nic.rolled_back or nic.let_go:
            assert world.state(nic) == nic.start, nic
        elif not world.given_up:
            assert as_wanted(world.state(nic)), nic
