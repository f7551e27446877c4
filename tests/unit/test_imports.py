# SPDX-License-Identifier: GPL-2.0-or-later
"""Imports of rxlane point only towards model, and starting stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rxlane

PACKAGE = Path(rxlane.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

# Lower numbers know nothing of higher ones; files of one layer do not import each other.
LAYERS = {
    "uapi": 0,
    "errors": 0,
    "items": 0,
    "model": 1,
    "plan": 1,
    "stored": 0,
    "cpulist": 1,
    "topology": 2,
    "placer": 3,
    "whole": 3,
    "codec": 2,
    "netlink": 1,
    "genl": 2,
    "rtnetlink": 2,
    "netdev": 3,
    "sysfs": 2,
    "namespaces": 3,
    "parallel": 0,
    "pollers": 1,
    "settings": 2,
    "sections": 2,
    "options": 2,
    "draft": 3,
    "ethtool": 3,
    "logins": 4,
    "hardware": 4,
    "cutting": 3,
    "housekeeping": 4,
    "dangers": 4,
    "deferral": 4,
    "cautions": 4,
    "classes": 4,
    "wanted": 3,
    "stages": 6,
    "leftover": 7,
    "moderation": 1,
    "sanitize": 2,
    "policy": 3,
    "variables": 3,
    "profile": 4,
    "request": 6,
    "look": 12,
    "placement": 6,
    "neighbours": 4,
    "niceness": 3,
    "onlinelists": 3,
    "plausible": 2,
    "layout": 6,
    "handlers": 5,
    "modes": 5,
    "irqthreads": 7,
    "senders": 2,
    "steering": 4,
    "threads": 3,
    "revert": 3,
    "session": 3,
    "journal": 4,
    "show": 5,
    "marks": 3,
    "ioctl": 2,
    "rss": 3,
    "vms": 4,
    "helpers": 4,
    "cells": 2,
    "helperrows": 3,
    "separation": 7,
    "vmhost": 4,
    "gstats": 3,
    "counters": 10,
    "rates": 8,
    "live": 11,
    "table": 4,
    "mapjson": 4,
    "picture": 4,
    "svg": 6,
    "decide": 8,
    "processors": 3,
    "places": 3,
    "slices": 3,
    "hostfiles": 4,
    "devices": 4,
    "interrupts": 4,
    "observe": 5,
    "verify": 4,
    "kernel": 6,
    "writing": 7,
    "present": 8,
    "undoing": 8,
    "apply": 9,
    "rollback": 9,
    "linkkeys": 4,
    "linktext": 0,
    "udevdb": 3,
    "notify": 0,
    "claims": 9,
    "streams": 1,
    "linksources": 5,
    "linkkeep": 11,
    "linkfile": 9,
    "linkd": 12,
    "tuned_compat": 11,
    "tuned_profiles": 6,
    "later": 0,
    "tuned_keep": 12,
    "tuned_facet": 13,
    "confirm": 10,
    "events": 4,
    "converge": 10,
    "watch": 11,
    "guard": 11,
    "ending": 0,
    "samples": 2,
    "bounded": 1,
    "profilefile": 2,
    "parser": 13,
    "act": 14,
    "cli": 15,
    "__main__": 16,
    "__init__": 0,
}
PURE_FOLDERS = {"deciding", "showing"}
# Of the other folders.
PURE = {
    "samples",
    "senders",
    "moderation",
    "places",
    "items",
    "stored",
    "model",
    "plan",
    "profile",
    "variables",
    "errors",
    "uapi",
    "cpulist",
    "policy",
    "linkkeys",
    "linktext",
    "linkfile",
    "topology",
    "settings",
    "plausible",
    "stages",
    "leftover",
    "sections",
    "options",
    "decide",
    "revert",
    "verify",
    "show",
    "codec",
}
IMPURE = {"os", "socket", "subprocess", "pathlib", "fcntl", "time", "io", "shutil", "threading"}


def imported(path: Path) -> set[str]:
    """Return the modules a file imports anywhere in it, also within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module == "rxlane" or module.removeprefix("rxlane.") in FOLDERS:
                found.update(f"{module}.{alias.name}" for alias in node.names)
            else:
                found.add(module)
    return found


def breaches(name: str, modules: set[str], folder: str = "") -> list[str]:
    own = {m.rpartition(".")[2] for m in modules if m.startswith("rxlane.")}
    wrong = [f"{name} imports {m}" for m in own if m in LAYERS and LAYERS[m] >= LAYERS[name]]
    if name in PURE or folder in PURE_FOLDERS:
        wrong += [f"{name} imports {m}" for m in modules if m.partition(".")[0] in IMPURE]
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_imports_point_towards_model(path: Path) -> None:
    assert path.stem in LAYERS, f"give {path.stem} a layer"
    assert breaches(path.stem, imported(path), path.parent.name) == []


def test_no_two_modules_have_one_name() -> None:
    """The layers go by it, whatever folder it is in."""
    names = [path.stem for path in MODULES if path.stem != "__init__"]
    assert len(names) == len(set(names)) and set(names) <= set(LAYERS)
    assert set(LAYERS) <= {*names, "__init__"}, "a layer of a module that is no more"
    # A folder without one would not be packaged.
    assert {path.parent for path in MODULES} == {p.parent for p in PACKAGE.rglob("__init__.py")}


def test_the_check_sees_a_breach() -> None:
    assert breaches("model", {"rxlane.decide"}) == ["model imports decide"]
    assert breaches("model", {"rxlane.deciding.draft"}) == ["model imports draft"]
    assert breaches("decide", {"os.path"}) == ["decide imports os.path"]
    assert breaches("draft", {"os.path"}, "deciding") == ["draft imports os.path"]


def test_openers_are_where_they_belong() -> None:
    """Sockets in netlink, events, ioctl, files of /proc and /sys in sysfs, processes in guard."""
    for path in MODULES:
        modules = {m.partition(".")[0] for m in imported(path)}
        assert "subprocess" not in modules or path.stem == "guard"
        assert "socket" not in modules or path.stem in ("netlink", "events", "ioctl")


def test_start_is_cheap() -> None:
    """`rxlane --version` loads none of the modules that only some verbs need."""
    script = (
        "import sys; from rxlane import cli\n"
        "try: cli.main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('rxlane')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = run.stdout.splitlines()[-1]
    assert "netlink" not in loaded and "decide" not in loaded
