# SPDX-License-Identifier: GPL-2.0-or-later
"""Recorded and synthetic hosts (unit.goldens): each folder is a case, adding one adds no code."""

from __future__ import annotations

import json

import pytest

from rxlane import codec
from rxlane.items import PHASES
from rxlane.model import Snapshot
from rxlane.revert import revert
from rxlane.settings import View
from rxlane.showing import table
from unit import synthetic
from unit.goldens import HOSTS, derived, load, names, recipe_text

NAMES = names()
SYNTHETIC = [name for name in NAMES if name.startswith("synthetic-")]
FILES = {"snapshot.json", "policy.json", "plan.json", "revert.json"}


def test_there_are_hosts() -> None:
    assert len(NAMES) >= 16
    assert all(name.startswith(("synthetic-", "recorded-")) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_whole(name: str) -> None:
    own = {path.name for path in (HOSTS / name).iterdir()}
    assert own - {"recipe.json", "sys.tar.xz"} == FILES
    assert ("recipe.json" in own) == (name in SYNTHETIC)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_host_is_what_its_recipe_makes(name: str) -> None:
    assert recipe_text(name) == (HOSTS / name / "snapshot.json").read_text()
    assert json.loads((HOSTS / name / "recipe.json").read_text())["about"]


def test_a_recipe_with_an_unknown_word() -> None:
    with pytest.raises(KeyError, match="no colour"):
        synthetic.snapshot({"links": [{"colour": "red"}]})


@pytest.mark.parametrize("name", NAMES)
def test_plan_and_revert(name: str) -> None:
    for file, text in derived(*load(name)).items():
        assert text == (HOSTS / name / file).read_text(), f"read `make hosts` about {name}/{file}"


@pytest.mark.parametrize("name", NAMES)
def test_revert_names_every_original(name: str) -> None:
    """Every changed setting that had a value gets exactly that value back, in the right order."""
    snapshot, plan = load(name)
    view = View.of(snapshot)
    undone = {c.target: c.after for c in revert(plan, snapshot).changes}
    had = {c.target: view.read(c.target) for c in plan.changes}
    assert undone == {target: value for target, value in had.items() if value is not None}
    phases = []
    for change in revert(plan, snapshot).changes:
        own = [n for n, phase in enumerate(PHASES) if change.target.item in phase]
        phases.append(own[0] if change.after == 0 else own[-1])
    assert phases == sorted(phases)


@pytest.mark.parametrize("name", NAMES)
def test_snapshot_is_written_as_it_was_read(name: str) -> None:
    text = (HOSTS / name / "snapshot.json").read_text()
    assert codec.dumps(codec.loads(Snapshot, text, name)) == text


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_given_once(name: str) -> None:
    snapshot, _ = load(name)
    napis = [n.napi_id for link in snapshot.links for n in link.napis]
    rows = [[i.number for i in snapshot.irqs], [t.pid for t in snapshot.threads], napis]
    rows.append([link.ifindex for link in snapshot.links])
    assert all(len(numbers) == len(set(numbers)) for numbers in rows)


@pytest.mark.parametrize("name", NAMES)
def test_map_fits_the_terminal(name: str) -> None:
    snapshot, _ = load(name)
    text = table.map_text(snapshot, snapshot.links)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.isascii()
