# SPDX-License-Identifier: GPL-2.0-or-later
"""Recorded and synthetic hosts: one folder each, with snapshot, policy, plan and revert.

A new folder is a new case; no code is added. `python3 tests/unit/test_hosts.py NAME` writes plan
and revert of a folder from its snapshot and policy, to be read before they are kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rxlane import codec, policy, show
from rxlane.decide import decide
from rxlane.model import PHASES, Plan, Snapshot
from rxlane.revert import revert
from rxlane.settings import View

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(p.name for p in HOSTS.iterdir() if p.is_dir())


def load(name: str) -> tuple[Snapshot, Plan]:
    folder = HOSTS / name
    snapshot = codec.loads(Snapshot, (folder / "snapshot.json").read_text(), name)
    wanted = policy.from_plain(json.loads((folder / "policy.json").read_text()))
    return snapshot, decide(snapshot, wanted)


def test_there_are_hosts() -> None:
    assert len(NAMES) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_plan_and_revert(name: str) -> None:
    snapshot, plan = load(name)
    assert show.plan_json(plan) == (HOSTS / name / "plan.json").read_text()
    expected = (HOSTS / name / "revert.json").read_text()
    assert show.plan_json(revert(plan, snapshot)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_revert_names_every_original(name: str) -> None:
    """Every changed setting that had a value gets exactly that value back, in the right order."""
    snapshot, plan = load(name)
    view = View.of(snapshot)
    undone = {c.target: c.after for c in revert(plan, snapshot).changes}
    had = {c.target: view.read(c.target) for c in plan.changes}
    assert undone == {target: value for target, value in had.items() if value is not None}
    items = [c.target.item for c in revert(plan, snapshot).changes]
    phases = [next(n for n, phase in enumerate(PHASES) if item in phase) for item in items]
    assert phases == sorted(phases)


@pytest.mark.parametrize("name", NAMES)
def test_snapshot_is_written_as_it_was_read(name: str) -> None:
    text = (HOSTS / name / "snapshot.json").read_text()
    assert codec.dumps(codec.loads(Snapshot, text, name)) == text


@pytest.mark.parametrize("name", NAMES)
def test_map_fits_the_terminal(name: str) -> None:
    snapshot, _ = load(name)
    text = show.map_text(snapshot, snapshot.links)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.isascii()


def regenerate(name: str) -> None:
    snapshot, plan = load(name)
    (HOSTS / name / "plan.json").write_text(show.plan_json(plan))
    (HOSTS / name / "revert.json").write_text(show.plan_json(revert(plan, snapshot)))


if __name__ == "__main__":
    for host in sys.argv[1:]:
        regenerate(host)
