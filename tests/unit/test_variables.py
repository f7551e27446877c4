# SPDX-License-Identifier: GPL-2.0-or-later
"""Variables files of profiles, alone and with the files and variables of others beside them."""

from __future__ import annotations

import pytest

from rxlane.errors import Kind, RxlaneError
from rxlane.tuned import profile, variables
from rxlane.tuned.variables import Variables

OURS = """
[variables]
mode=${f:rxlane_variable:ours:mode:on}
cpus=${f:rxlane_variable:ours:cpus:auto}
nice=${f:rxlane_variable:ours:nice:}
[napi]
threaded=${mode}
thread_cpus=${cpus}
thread_nice=${nice}
"""
# As cpu-partitioning, realtime and others have it.
THEIRS = """
[variables]
include=/etc/tuned/theirs-variables.conf
isolated_cores=${isolated_cores}
[sysctl]
kernel.hung_task_timeout_secs=600
"""


def options(names: str, files: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Options of [napi] with these profiles by name and files below /etc/tuned, and the notes."""
    paths = {
        f"/etc/tuned/{name}"
        if name.endswith(".conf")
        else f"{variables.FOLDERS[0]}/{name}/tuned.conf": text
        for name, text in files.items()
    }
    found = profile.load(names, paths.get)
    return found.units[0].options, found.notes


def test_defaults_and_the_file() -> None:
    found, notes = options("ours", {"ours": OURS})
    assert found == {"threaded": "on", "thread_cpus": "auto", "thread_nice": ""}
    assert notes == ["/etc/tuned/ours-variables.conf is not there: the profile's own defaults hold"]
    text = "# all of it\nmode = off  # a comment\nnice=\ncpus=2-3,5\n"
    found, notes = options("ours", {"ours": OURS, "ours-variables.conf": text})
    assert found == {"threaded": "off", "thread_cpus": "2-3,5", "thread_nice": ""} and not notes


@pytest.mark.parametrize("names", ["ours theirs", "theirs ours"])
def test_beside_a_profile_with_a_file_of_its_own(names: str) -> None:
    """TuneD reads one include of all profiles; the file of each counts all the same."""
    files = {
        "ours": OURS,
        "theirs": THEIRS,
        "ours-variables.conf": "mode=off\ncpus=${isolated_cores}\n",
        "theirs-variables.conf": "isolated_cores=4-7\n",
    }
    found, notes = options(names, files)
    assert found == {"threaded": "off", "thread_cpus": "4-7", "thread_nice": ""} and not notes


def test_a_child_profile_has_the_last_word() -> None:
    child = "[main]\ninclude=ours\n[variables]\nmode=busy-poll@0\n"
    files = {"ours": OURS, "ours-variables.conf": "mode=off\nnice=5\n", "child": child}
    found, notes = options("child", files)
    assert found["threaded"] == "busy-poll@0" and found["thread_nice"] == "5" and not notes


def test_variables_of_the_file_itself() -> None:
    files = {"ours": OURS, "ours-variables.conf": "mine=2-7\ncpus=${mine},9\n"}
    found, notes = options("ours", files)
    assert found["thread_cpus"] == "2-7,9" and not notes


def test_a_name_that_nobody_reads_is_told() -> None:
    _, notes = options("ours", {"ours": OURS, "ours-variables.conf": "mdoe=off\nxyzzy=1\n"})
    file, said = "/etc/tuned/ours-variables.conf", "has no effect, the profile does not read it"
    assert notes == [f"{file}: mdoe {said}; did you mean mode?", f"{file}: xyzzy {said}"]


def test_what_sets_nothing_is_told() -> None:
    text = "mode: off\nnice 3\nmode=on\n[rx]\ncpus=2\n"
    found, notes = options("ours", {"ours": OURS, "ours-variables.conf": text})
    assert found == {"threaded": "on", "thread_cpus": "auto", "thread_nice": ""}
    file = "/etc/tuned/ours-variables.conf"
    said = "has no effect, it has no value: write NAME=VALUE"
    assert notes == [
        f"{file}: mode: off {said}",
        f"{file}: nice 3 {said}",
        f"{file}: cpus has no effect, it stands below [rx]",
    ]


def test_notes_are_told_once() -> None:
    asked = Variables(lambda _path: None)
    assert asked.value("ours", "mode", "on") == "on" and len(asked.notes()) == 1
    assert asked.notes() == []


@pytest.mark.parametrize(
    ("name", "text", "kind", "words"),
    [
        ("../x", "", Kind.OPTION, "../x is no name of a profile"),
        ("ours", "[broken\n=\n", Kind.FORMAT, "/etc/tuned/ours-variables.conf"),
        ("ours", "bare\n  5\n", Kind.FORMAT, "/etc/tuned/ours-variables.conf"),
        ("ours", "mode=on\n=5\n", Kind.FORMAT, "-variables.conf: line 2 is no NAME=VALUE: '=5"),
    ],
)
def test_what_cannot_be_read(name: str, text: str, kind: Kind, words: str) -> None:
    with pytest.raises(RxlaneError) as caught:
        Variables(lambda _path: text).value(name, "mode", "on")
    assert caught.value.kind is kind and words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_escaped_call_is_text() -> None:
    asked = Variables(lambda _path: "mode=off\n")
    call = "${f:rxlane_variable:ours:mode:on}"
    assert asked.expand(f"{call},{call}") == "off,off"
    assert asked.expand("\\" + call) == "\\" + call


@pytest.mark.parametrize(
    ("default", "value"),
    [("${isolated_cores}", "4-7"), ("a\\:b", "a:b"), ("", "")],
)
def test_defaults_as_tuned_reads_them(default: str, value: str) -> None:
    call = f"${{f:rxlane_variable:ours:cpus:{default}}}"
    text = f"[variables]\ncpus={call}\nisolated_cores=4-7\n[napi]\nthread_cpus=${{cpus}}\n"
    assert options("ours", {"ours": text})[0] == {"thread_cpus": value}


@pytest.mark.parametrize("default", ["a:b", "${f:strip:on}"])
def test_what_only_tuned_can_tell_is_refused(default: str) -> None:
    text = f"[napi]\nthreaded=${{f:rxlane_variable:ours:mode:{default}}}\n"
    with pytest.raises(RxlaneError, match="needs a built-in function"):
        options("ours", {"ours": text})


def test_devices_are_expanded_once_as_tuned_does() -> None:
    text = "[variables]\nn=${f:rxlane_variable:ours:n:}\no=eth0\n[napi]\ndevices=${n}\n"
    files = {"ours": f"{text}threaded=on\n", "ours-variables.conf": "n=${o}\n"}
    with pytest.raises(RxlaneError, match="devices: variable o is not set"):
        options("ours", files)


def test_one_failure_is_told_once() -> None:
    asked = Variables(lambda _path: None)
    assert [asked.is_news("x"), asked.is_news("x"), asked.is_news("y")] == [True, False, True]
    asked.notes()
    assert asked.is_news("x")


def test_values_that_name_each_other_end() -> None:
    values = {"a": "${b}x", "b": "${a}y"}
    found = variables.settled("${a}", lambda text: variables.expand(text, values))
    assert "${" in found and len(found) < 100
