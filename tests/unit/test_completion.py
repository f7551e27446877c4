# SPDX-License-Identifier: GPL-2.0-or-later
"""Bash completion: what is offered comes from the command itself, and what is offered is taken."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rxlane import cli, policy

TREE = Path(__file__).resolve().parents[2]
SCRIPT = TREE / "plugins" / "completion" / "rxlane"
# What takes a number and nothing else; all other options have words.
NUMBERS = (
    "priority",
    "nice",
    "irqs",
    "timeout",
    "usecs",
    "frames",
    "backlog",
    "busy_",
    "management",
)
VALUES = {o.name for o in policy.OPTIONS if not any(part in o.name for part in NUMBERS)}


def offered(*words: str) -> set[str]:
    """What bash offers for the last word, which bash has cut at `=` already."""
    command = shlex.join([sys.executable, "-m", "rxlane"])
    script = f"""
set -u
rxlane() {{ PYTHONPATH={shlex.quote(str(TREE / "plugins"))} {command} "$@"; }}
compopt() {{ :; }}
. {shlex.quote(str(SCRIPT))}
COMP_WORDS=(rxlane {shlex.join(words)})
COMP_CWORD={len(words)}
_rxlane
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_verbs() -> None:
    assert offered("") == set(cli.VERBS)
    assert offered("re") == {verb for verb in cli.VERBS if verb.startswith("re")}


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("map", "-"), {"--json", "--svg", "--watch", "--snapshot", "--color", "-h"}),
        (("plan", "--s"), {"--snapshot"}),
        (("plan", "eth0", "--pro"), {"--profile"}),
        (("map", "--color", "a"), {"auto", "always"}),
        (("map", "--color", "=", "n"), {"never"}),
        (("plan", "-o", "threaded", "=", "o"), {"on", "off"}),
        (("-",), {"--help", "--version", "-h"}),
    ],
)
def test_flags(words: tuple[str, ...], some: set[str]) -> None:
    found = offered(*words)
    assert some <= found and all(word.startswith(words[-1]) for word in found)


def test_names_of_layout_options() -> None:
    assert offered("apply", "-o", "") == {f"{option.name}=" for option in policy.OPTIONS}
    assert offered("plan", "--option", "thread_n") == {"thread_nice="}


@pytest.mark.parametrize("name", [option.name for option in policy.OPTIONS])
def test_values_that_are_offered_are_taken(name: str) -> None:
    """Alone or with what the option needs beside it; numbers and lists are the user's."""
    beside = {
        "thread_spread": {"thread_cpus": "auto"},
        "thread_policy": {"thread_priority": "5"},
        "irq_layout.thread_policy": {"irq_layout.thread_priority": "5"},
        "rx_thread_policy": {"rx_thread_priority": "5"},
        "arfs": {"rfs": "auto"},
    }
    found = offered("plan", "-o", name, "=")
    assert found or name not in VALUES
    for value in found:
        more = beside.get(name, {})
        if value in ("other", "batch", "idle"):
            more = {}
        policy.parse_mixed("x", [], {name: value, **more})


def test_devices_and_files(tmp_path: Path) -> None:
    assert "lo" in offered("map", "")
    assert offered("verify", "") == set() and offered("map", "--watch", "") == set()
    (tmp_path / "host.json").write_text("")
    assert offered("plan", "--snapshot", f"{tmp_path}/h") == {f"{tmp_path}/host.json"}
    assert offered("record", f"{tmp_path}/h") == {f"{tmp_path}/host.json"}
    assert offered("apply", "--state", f"{tmp_path}/h") == set()
