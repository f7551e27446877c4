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


def offered(*words: str, root: Path | None = None, before: str = "set -u") -> set[str]:
    """What bash offers for the last word, which bash has cut at `=` already.

    root: where devices and profiles are looked for, and the commands run.
    """
    text = SCRIPT.read_text()
    if root:
        for top, below in (("/sys/class/net", "sys/class/net"), ("{/etc,/usr/lib}/tuned", "tuned")):
            assert top in text
            text = text.replace(top, f"{root}/{below}")
    command = shlex.join([sys.executable, "-m", "rxlane"])
    script = f"""
{before}
rxlane() {{ PYTHONPATH={shlex.quote(str(TREE / "plugins"))} {command} "$@"; }}
compopt() {{ :; }}
{text}
COMP_WORDS=(rxlane {shlex.join(words)})
COMP_CWORD={len(words)}
_rxlane
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, cwd=root
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
        "irq_layout.thread_spread": {"irq_layout.thread_cpus": "auto"},
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
        policy.parse_mixed([], {name: value, **more})


# What a device may be named, and as what it stands in the command line.
HOSTILE = {
    "$(touch${IFS}ran)": r"\$\(touch\$\{IFS\}ran\)",
    "a`touch${IFS}ran`": r"a\`touch\$\{IFS\}ran\`",
    "a;touch${IFS}ran": r"a\;touch\$\{IFS\}ran",
    "a${x:=y}": r"a\$\{x:=y\}",
    "a*": r"a\*",
    "a'b\"c": r"a\'b\"c",
    "a\\b": r"a\\b",
    "eth0.100": "eth0.100",
}


@pytest.mark.parametrize(
    ("words", "folder", "file"),
    [
        (("map", ""), "sys/class/net", ""),
        (("plan", "--profile", ""), "tuned/profiles", "tuned.conf"),
        (("plan", "--profile", "="), "tuned/profiles", "tuned.conf"),
    ],
)
def test_no_name_is_run(tmp_path: Path, words: tuple[str, ...], folder: str, file: str) -> None:
    """Neither by the completion nor by the line that it completes."""
    for name in HOSTILE:
        place = tmp_path / folder / name
        place.mkdir(parents=True)
        (place / file).touch()
    before = sorted(tmp_path.rglob("*"))
    found = offered(*words, root=tmp_path)
    assert found == set(HOSTILE.values())
    line = f"printf '%s\\n' {' '.join(found)}"
    said = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert set(said.stdout.splitlines()) == set(HOSTILE) and not said.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_is_completed_as_it_is_typed(tmp_path: Path) -> None:
    for name in ("eth0", "eth1", "a$b"):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
    for typed in ("eth", "'eth", '"eth'):
        assert offered("map", typed, root=tmp_path) == {"eth0", "eth1"}
    for typed in ("a$", r"a\$"):
        assert offered("map", typed, root=tmp_path) == {r"a\$b"}
    assert offered("map", "b", root=tmp_path) == set()


# Of the second, a subscript is expanded twice, as by bash before 5.2.
@pytest.mark.parametrize("before", ["set -u", "BASH_COMPAT=5.1"])
def test_what_was_typed_is_not_run(tmp_path: Path, before: str) -> None:
    offered("a$(touch${IFS}ran)", "-", root=tmp_path, before=before)
    assert list(tmp_path.iterdir()) == []


def test_each_help_is_asked_for_once(tmp_path: Path) -> None:
    words = [("-",), ("",), ("map", "-"), ("map", "-"), ("map", ""), ("plan", "-o", "")]
    calls = "".join(
        f"COMP_WORDS=(rxlane {shlex.join(own)}); COMP_CWORD={len(own)}; _rxlane\n" for own in words
    )
    asked = tmp_path / "asked"
    script = f"""
rxlane() {{ printf '%s\\n' "$*" >> {shlex.quote(str(asked))}; }}
compopt() {{ :; }}
{SCRIPT.read_text()}
{calls * 2}
"""
    subprocess.run(["bash", "--norc", "-c", script], check=True)
    assert asked.read_text().splitlines() == ["--help", "map --help"]


def test_a_profile_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/tuned.conf").touch()
    assert offered("plan", "--profile", f"{tmp_path}/o") == {f"{tmp_path}/own"}
    assert offered("plan", "--profile", "=", f"{tmp_path}/own/") == {f"{tmp_path}/own/tuned.conf"}
    assert offered("plan", "--profile", "own", root=tmp_path) == set()


def test_devices_and_files(tmp_path: Path) -> None:
    assert "lo" in offered("map", "")
    assert offered("verify", "") == set() and offered("map", "--watch", "") == set()
    (tmp_path / "host.json").write_text("")
    assert offered("plan", "--snapshot", f"{tmp_path}/h") == {f"{tmp_path}/host.json"}
    assert offered("record", f"{tmp_path}/h") == {f"{tmp_path}/host.json"}
    assert offered("apply", "--state", f"{tmp_path}/h") == set()
