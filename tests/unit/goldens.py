# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixture hosts: one folder each below tests/unit/hosts, with snapshot, policy, plan and revert.

A folder `synthetic-*` also has a recipe, from which unit.synthetic makes the snapshot; `recorded-*`
were written by `rxlane record` in a guest of the lab (`python -m lab record`). A new host is a new
folder with a policy and a recipe or snapshot: no code.

`python -m unit.goldens [NAME...]` (or `make hosts`) writes what is derived, for all hosts or those
named: snapshots of recipes, recorded snapshots read again (unit.recorded), plans and reverts.
Read the difference before it is committed: a wrong plan that is kept here passes for a right one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rxlane import codec, policy, show
from rxlane.decide import decide
from rxlane.model import Snapshot
from rxlane.plan import Plan
from rxlane.revert import revert
from rxlane.sections import Policy
from unit import synthetic
from unit.recorded import TREE, again, unpack

HOSTS = Path(__file__).parent / "hosts"


def names() -> list[str]:
    return sorted(path.name for path in HOSTS.iterdir() if path.is_dir())


def recipe_text(name: str) -> str | None:
    """Return the snapshot that the host's recipe makes, None for a recorded host."""
    path = HOSTS / name / "recipe.json"
    if not path.exists():
        return None
    return codec.dumps(synthetic.snapshot(json.loads(path.read_text())))


def host(name: str) -> Snapshot:
    return codec.loads(Snapshot, (HOSTS / name / "snapshot.json").read_text(), name)


def asks(name: str) -> Policy:
    return policy.from_plain(json.loads((HOSTS / name / "policy.json").read_text()))


def load(name: str) -> tuple[Snapshot, Plan]:
    """Return the host and the plan that its policy gives."""
    snapshot = host(name)
    return snapshot, decide(snapshot, asks(name))


def derived(snapshot: Snapshot, plan: Plan) -> dict[str, str]:
    """Return the golden files of a plan by name."""
    return {
        "plan.json": show.plan_json(plan),
        "revert.json": show.plan_json(revert(plan, snapshot)),
    }


def recorded_text(name: str) -> str:
    """Return a recorded host's snapshot, read again from its tree when it has one."""
    path = HOSTS / name
    snapshot = host(name)
    if (path / TREE).exists():
        with tempfile.TemporaryDirectory() as folder:
            snapshot = again(snapshot, unpack(path / TREE, Path(folder)))
    return codec.dumps(snapshot)


def refresh(name: str) -> Iterator[str]:
    """Write what is derived; yield the files that changed."""
    path = HOSTS / name / "snapshot.json"
    text = recipe_text(name) or recorded_text(name)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        yield path.name
    for file, text in derived(*load(name)).items():
        path = HOSTS / name / file
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            yield file


if __name__ == "__main__":
    for own in sys.argv[1:] or names():
        for written in refresh(own):
            print(f"{own}/{written}")
