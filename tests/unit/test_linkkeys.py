# SPDX-License-Identifier: GPL-2.0-or-later
"""Properties of an interface: one table, the options' own grammar, nothing lost for a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import policy
from rxlane.errors import Kind, RxlaneError, with_notes
from rxlane.host import udevdb
from rxlane.linkfiles import linkkeys
from rxlane.linkfiles.linkkeys import KEYS, OF_HOST, OF_SYSTEMD
from rxlane.sysfs import Sysfs

TREE = Path(__file__).resolve().parents[2]
RULES = TREE / "plugins" / "udev" / "85-rxlane.rules"
WORDS = (
    *("off", "on", "busy-poll", "busy-poll@1-", "on@0,off@1-", "on@0,on@0", "auto", "one", "all"),
    *("fifo", "rr", "other", "idle", "1", "0", "50", "-5", "99", "2,4-7", "x", "", " 3 ", "9" * 30),
    *("numa-local", "rxqs", "1-", "\udcff", "a=b", "2-1"),
)
properties = st.dictionaries(
    st.one_of(st.sampled_from(sorted(KEYS)), st.sampled_from(["NAPI_X", "NAPI_", "ID_PATH"])),
    st.one_of(st.sampled_from(WORDS), st.text(max_size=8)),
    max_size=8,
)


def nowhere(name: str) -> str:
    return "a file"


def test_every_option_is_a_key_or_has_a_reason() -> None:
    """An option that comes anew is a key; the sets hold no name that is no option."""
    options = [(kind, name) for kind in policy.KINDS for name in policy.names(kind)]
    wanted = {(k.kind, k.option) for k in KEYS.values()}
    assert len(wanted) == len(KEYS)
    assert {name for kind, name in options if (kind, name) not in wanted} == OF_SYSTEMD | OF_HOST
    assert wanted < set(options) and OF_SYSTEMD | OF_HOST <= {name for _, name in options}


def test_the_rule_asks_for_every_key() -> None:
    asked = re.findall(r'^ENV\{(NAPI_\w+)\}=="\?\*", GOTO="rxlane_start"$', RULES.read_text(), re.M)
    kept = re.findall(r'^ENV\{(NAPI_\w+)\}=="", IMPORT\{db\}="(\w+)"$', RULES.read_text(), re.M)
    assert asked == list(KEYS) and kept == [(name, name) for name in KEYS]


@given(properties)
def test_wrong_ones_are_told_and_left_out(found: dict[str, str]) -> None:
    """What is left is taken by the options' grammar, and each that is not left has its error."""
    sections, errors = linkkeys.sections("eth0", found, nowhere)
    policy.parse(sections)
    left = {
        linkkeys.NAMES[linkkeys.Key(s.kind, option)]: value
        for s in sections
        for option, value in s.options.items()
    }
    wrong = {error.option: error for error in errors}
    assert left.keys() | wrong.keys() == linkkeys.given(found).keys()
    assert left.keys().isdisjoint(wrong) and len(wrong) == len(errors)
    for name, error in wrong.items():
        assert error.section == "a file" and error.value == found[str(name)]
    assert all(section.devices == ("eth0",) for section in sections)


@given(st.sampled_from(sorted(KEYS)), st.sampled_from(WORDS))
def test_no_second_grammar(name: str, value: str) -> None:
    """A value alone is wrong exactly if it is wrong as an option, and in the same words but for
    the names of options.
    """
    key = KEYS[name]
    said = ""
    try:
        policy.parse([policy.Given(key.kind, "x", ("eth0",), {key.option: value})])
    except RxlaneError as error:
        said = linkkeys.in_words(f"{error.problem} {error.remedy}", key.kind)
    _, errors = linkkeys.sections("eth0", {name: value}, nowhere)
    assert [f"{error.problem} {error.remedy}" for error in errors] == ([said] if said else [])


def test_what_needs_a_wrong_one_is_wrong() -> None:
    found = {
        "NAPI_THREADED": "on",
        "NAPI_THREAD_POLICY": "fifo",
        "NAPI_THREAD_PRIORITY": "lots",
        "NAPI_RPS": "off",
    }
    sections, errors = linkkeys.sections("eth0", found, nowhere)
    assert [e.option for e in errors] == ["NAPI_THREAD_PRIORITY", "NAPI_THREAD_POLICY"]
    assert [dict(s.options) for s in sections] == [{"threaded": "on"}, {"rps": "off"}]


def test_a_mistyped_name_has_a_suggestion() -> None:
    _, errors = linkkeys.sections("eth0", {"NAPI_THREDED": "on"}, lambda name: "/etc/x.link")
    text = "[/etc/x.link] NAPI_THREDED=on: unknown option; did you mean NAPI_THREADED?"
    assert [str(error) for error in errors] == [text]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("NAPI_RING_RX", "512", "systemd.link(5)"),
        ("NAPI_CHANNELS", "4", "systemd.link(5)"),
        ("NAPI_WORKQUEUE_CPUS", "auto", "the whole host's"),
        ("NAPI_FOO", "1", "`man 7 rxlane.link`"),
        ("NAPI_THREAD_POLICY", "fifo", "set NAPI_THREAD_PRIORITY to 1..98"),
        ("NAPI_IRQ_THREAD_SPREAD", "all", "needs NAPI_IRQ_THREAD_CPUS"),
    ],
)
def test_what_to_write_instead(name: str, value: str, told: str) -> None:
    _, (error,) = linkkeys.sections("eth0", {name: value}, nowhere)
    assert told in str(error) and "did you mean" not in str(error)


def test_the_database_and_its_files(tmp_path: Path) -> None:
    files = Sysfs(tmp_path)
    database = tmp_path / udevdb.DATABASE
    database.mkdir(parents=True)
    link, drop = "etc/systemd/network/10-a.link", "etc/systemd/network/10-a.link.d/b.conf"
    (tmp_path / link).parent.mkdir(parents=True)
    (tmp_path / drop).parent.mkdir()
    (tmp_path / link).write_text("[Link]\nProperty=NAPI_THREADED=on@0,busy-poll@1- NAPI_RPS=off\n")
    (tmp_path / drop).write_text("[Link]\nProperty=NAPI_RPS=auto\n")
    (database / "n3").write_text(
        "I:123\nE:NAPI_THREADED=on@0,busy-poll@1-\nE:NAPI_RPS=auto\nE:NAPI_XPS=a=b\n"
        f"E:ID_NET_LINK_FILE=/{link}\nE:ID_NET_LINK_FILE_DROPINS=/{drop}\nG:systemd\n"
    )
    (database / "n12").write_text("")
    (database / "b8:0").write_text("")
    known = udevdb.properties(files, 3)
    assert known is not None and udevdb.properties(files, 4) is None
    assert known["NAPI_THREADED"] == "on@0,busy-poll@1-" and known["NAPI_XPS"] == "a=b"
    where = {name: udevdb.origin(files, known, name) for name in linkkeys.given(known)}
    assert where == {
        "NAPI_THREADED": f"/{link}",
        "NAPI_RPS": f"/{drop}",
        "NAPI_XPS": udevdb.BY_RULE,
    }


@pytest.mark.parametrize(("text", "value", "own"), [
    ("Property=NAPI_RPS=auto", "auto", True),
    ("Property = NAPI_XPS=off NAPI_RPS=auto", "auto", True),
    ("Property=NAPI_XPS=off \\\n# between\n  NAPI_RPS=auto", "auto", True),
    ("# Property=NAPI_RPS=auto", "auto", False),
    (" ;Property=NAPI_RPS=auto", "auto", False),
    ("Description=NAPI_RPS=auto", "auto", False),
    ("[Match]\nProperty=NAPI_RPS=auto", "auto", False),
    ("Property=NAPI_RPS=off", "auto", False),
    ("Property=NAPI_RPS=automatic", "auto", False),
    ("Property=MY_NAPI_RPS=auto", "auto", False),
    ("Property=NAPI_RPS=auto\nProperty=", "auto", False),
    ("Property=\nProperty=NAPI_RPS=auto", "auto", True),
    ('Property="NAPI_RPS=1, 2"', "1, 2", True),
    ("Property='NAPI_RPS=1, 2'", "1, 2", True),
    ('Property=NAPI_RPS="1, 2" NAPI_XPS=off', "1, 2", True),
    ("Property=NAPI_RPS=1, 2", "1, 2", False),
    (r"""Property='NAPI_RPS=it\'s' NAPI_XPS="\"" """, "it's", True),
    ("Property=NAPI_RPS=auto 'NAPI_XPS=off", "auto", True),
    ("Property='NAPI_RPS=auto", "auto", False),
])  # fmt: skip
def test_a_file_has_what_it_says(tmp_path: Path, text: str, value: str, own: bool) -> None:
    """Anything else is of a rule: blaming a file for a comment leads nowhere."""
    path = "etc/systemd/network/10-a.link"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(f"[Link]\n{text}\n")
    known = {"NAPI_RPS": value, udevdb.FILE: f"/{path}"}
    wanted = f"/{path}" if own else udevdb.BY_RULE
    assert udevdb.origin(Sysfs(tmp_path), known, "NAPI_RPS") == wanted


def test_the_last_file_of_those_that_say_the_same(tmp_path: Path) -> None:
    names = ("a.link", "a.link.d/1.conf", "a.link.d/2.conf", "a.link.d/3.conf")
    (tmp_path / "a.link.d").mkdir()
    for name, value in zip(names, ("on", "on", "off", ""), strict=True):
        text = f"Property=NAPI_THREADED={value}\n" if value else "MTUBytes=9000\n"
        (tmp_path / name).write_text(f"[Link]\n{text}")
    dropins = ":".join(f"/{name}" for name in names[1:])
    known = {udevdb.FILE: f"/{names[0]}", udevdb.DROPINS: dropins, "NAPI_THREADED": "on"}
    files = Sysfs(tmp_path)
    assert udevdb.origin(files, known, "NAPI_THREADED") == f"/{names[1]}"
    (tmp_path / names[3]).write_text("[Link]\nProperty=\n")
    assert udevdb.origin(files, known, "NAPI_THREADED") == udevdb.BY_RULE


def test_a_refusal_is_traced_to_its_property() -> None:
    sections, _ = linkkeys.sections("eth0", {"NAPI_THREAD_CPUS": " 99 "}, nowhere)
    refused = RxlaneError(
        Kind.REFUSED, "CPU 99 does not exist", section="eth0", option="thread_cpus", value="99"
    )
    assert linkkeys.named(refused, sections) == ("NAPI_THREAD_CPUS", " 99 ")
    refused.option = "rps"
    assert linkkeys.named(refused, sections) is None


def test_a_failed_undo_is_told_with_the_property() -> None:
    error = RxlaneError(Kind.KERNEL, "not now")
    error.add_note("undo failed")
    assert with_notes(linkkeys.located(error, "NAPI_RPS", "auto", str))[1:] == ("undo failed",)


@pytest.mark.parametrize("name", ["NAPI_IRQ_THREADED", "NAPI_IRQ_SUSPEND_TIMEOUT"])
def test_names_that_both_kinds_could_have(name: str) -> None:
    kinds = {"NAPI_IRQ_THREADED": "irq_layout", "NAPI_IRQ_SUSPEND_TIMEOUT": "napi"}
    assert KEYS[name].kind == kinds[name]


def test_the_manual_has_every_key_with_its_option() -> None:
    text = (TREE / "plugins" / "doc" / "rxlane.link.7").read_text()
    rows = re.findall(r"^\.TP\n\.B (NAPI_\w+)\n(\w+) of \[(\w+)\]$", text, re.M)
    assert [(name, (kind, option)) for name, option, kind in rows] == [
        (name, (key.kind, key.option)) for name, key in KEYS.items()
    ]


def test_the_manual_matches_by_the_permanent_address() -> None:
    """A port of a bond has the bond's in sysfs, and what was changed there matches nothing."""
    text = (TREE / "plugins" / "doc" / "rxlane.link.7").read_text().replace("\\-", "-")
    (source,) = re.findall(r"PermanentMACAddress=\$\((.*)\)/", text)
    wanted, _, taken = source.partition(" | grep -o ")
    assert wanted == "ethtool -P eth0"
    said = {"Permanent address: 52:54:00:12:34:56": ["52:54:00:12:34:56"]}
    said["Permanent address: not set"] = []
    assert {line: re.findall(taken, line) for line in said} == said
