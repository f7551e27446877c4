# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading a TuneD profile for `rxlane plan --profile`, with TuneD's rules and without TuneD."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rxlane import codec, policy
from rxlane.command import request
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.model import Link
from rxlane.policy import Given
from rxlane.tuned import profile, variables
from rxlane.tuned.profilefile import profile_file
from unit import simhost
from unit.commands import Captured, run

TREE = Path(__file__).resolve().parents[2]
LINKS = (
    simhost.link("eth0"),
    simhost.link("eth1", ifindex=3, base=9000),
    simhost.link("veth0", ifindex=4, base=9100, physical=False),
)
USR, ETC = variables.FOLDERS


def loaded(names: str, **files: str) -> profile.Profile:
    """Load with these profiles: NAME below /usr/lib, etc_NAME below /etc, FILE_vars beside."""
    texts = {}
    for name, text in files.items():
        if name.endswith("_vars"):
            texts[f"/etc/tuned/{name}"] = text
        elif name.startswith("etc_"):
            texts[f"{ETC}/{name[4:]}/tuned.conf"] = text
        else:
            texts[f"{USR}/{name}/tuned.conf"] = text
    return profile.load(names, texts.get)


def sections(names: str, **files: str) -> tuple[Given, ...]:
    return loaded(names, **files).sections(LINKS)


def options(names: str, **files: str) -> dict[str, str]:
    (one,) = sections(names, **files)
    return dict(one.options)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (None, ()),
        ("", ()),
        ("*", ()),
        ("eth0", ("eth0",)),
        ("eth0, veth1 !eth2 ens*", ("eth0", "veth1")),
        ("eth[01] eth?", ()),
    ],
)
def test_exact_names(expression: str | None, names: tuple[str, ...]) -> None:
    assert profile.exact_names(expression) == names


@pytest.mark.parametrize(
    ("expression", "name", "hit"),
    [
        ("*", "eth0", True),
        ("eth*", "eth0", True),
        ("eth*,!eth1", "eth1", False),
        ("!eth1", "eth0", True),
        ("!eth1", "eth1", False),
        ("eth1 veth0", "veth0", True),
        ("ETH*", "eth0", False),
    ],
)
def test_devices_expressions(expression: str, name: str, hit: bool) -> None:
    assert profile.matches(expression, name) == hit


def test_variables_and_their_file() -> None:
    text = """
[variables]
mode=on  # a comment
cpus=2-3
list=${cpus},5
include=/etc/tuned/p_vars
[napi]
threaded = ${mode}
thread_cpus="${list}"
thread_nice=
"""
    assert options("p", p=text, p_vars="mode=busy-poll\nbare\n") == {
        "threaded": "busy-poll",
        "thread_cpus": "2-3,5",
        "thread_nice": "",
    }
    found = loaded("p", p=text)
    assert found.units[0].options["threaded"] == "on"
    assert found.notes == ["/etc/tuned/p_vars is not there: the profile's own defaults hold"]


def test_the_administrators_profile_wins() -> None:
    files = {"p": "[napi]\nthreaded=on\n", "etc_p": "[napi]\nthreaded=off\n"}
    assert options("p", **files) == {"threaded": "off"}


def test_children_change_single_options() -> None:
    parent = "[variables]\nmode=on\n[napi]\nthreaded=${mode}\nthread_nice=5\ndevices=eth0\n"
    child = "[main]\ninclude=parent\n[variables]\nmode=off\n[napi]\nthread_cpus=auto\n"
    rows = sections("child", parent=parent, child=child)
    # TuneD takes devices from the newer section, which names none: all.
    assert rows[0].devices == ("eth0", "eth1")
    assert rows[0].options == {"threaded": "off", "thread_nice": "5", "thread_cpus": "auto"}
    dropping = "[main]\ninclude=parent\n[napi]\ndrop=thread_nice, threaded\nthread_cpus=1\n"
    assert options("child", parent=parent, child=dropping) == {"thread_cpus": "1"}
    replacing = "[main]\ninclude=parent\n[napi]\nreplace=1\nthreaded=on\n"
    assert options("child", parent=parent, child=replacing) == {"threaded": "on"}


def test_several_profiles_and_missing_parents() -> None:
    files = {
        "a": "[main]\ninclude=-gone, b\n[napi]\nthreaded=on\n",
        "b": "[main]\ninclude=a\n[irq_layout]\nirq_cpus=auto\n[sysctl]\nvm.swappiness=1\n",
        "c": "[napi]\nthreaded=off\n",
    }
    rows = sections("a c", **files)
    assert [(r.kind, dict(r.options)) for r in rows] == [
        ("irq_layout", {"irq_cpus": "auto"}),
        ("napi", {"threaded": "off"}),
    ]


def test_sections_share_the_devices() -> None:
    text = """
[rest]
type=napi
priority=5
threaded=off
[fast]
type=napi
devices=eth0, veth0
threaded=on
[off]
type=napi
enabled=false
nonsense=1
[steer]
type=flow_steering
devices=!eth0
rps=off
"""
    rows = sections("p", p=text)
    assert [(r.name, r.devices) for r in rows] == [
        ("fast", ("eth0", "veth0")),
        ("steer", ("eth1",)),
        ("rest", ("eth1",)),
    ]


def test_a_named_device_that_is_not_there_fails_the_plan() -> None:
    rows = sections("p", p="[napi]\ndevices=eth9\nthreaded=on\n")
    with pytest.raises(RxlaneError, match=r"\[napi\] eth9: no such device"):
        decide(simhost.snapshot(*LINKS), policy.parse(rows))


def test_a_section_without_devices_is_told() -> None:
    found = loaded("p", p="[napi]\ndevices=lan*\nthreaded=on\n")
    assert found.sections(LINKS) == () and found.notes == ["[napi]: no matching device"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[napi]\nthreaded=${mode}\n", "variable mode is not set"),
        ("[napi]\nthread_cpus=${f:cpulist_online:0-3}\n", "built-in function"),
        ("[variables]\nx=${f:exec:id}\n[napi]\nthread_cpus=${x}\n", "built-in function"),
        ("[napi]\nuname_regex=x86\nthreaded=on\n", "uname_regex"),
        ("[napi]\ndevices_udev_regex=x\nthreaded=on\n", "devices_udev_regex"),
        ("[napi]\npriority=high\nthreaded=on\n", "priority is no number"),
        ("[main]\ninclude=gone\n", "gone: is not there"),
        ("[main]\ninclude=${f:virt_check:a:b}\n", "only TuneD can tell"),
        ("[sysctl]\nx=1\n", "nothing to plan"),
        ("no section\n", "no section headers"),
        ("[napi]\nbare\n", "line 2 is no NAME=VALUE: 'bare"),
    ],
)
def test_what_cannot_be_known_is_refused(text: str, problem: str) -> None:
    with pytest.raises(RxlaneError) as caught:
        loaded("p", p=text)
    assert problem in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_unused_functions_do_not_matter() -> None:
    text = "[variables]\nx=${f:exec:id}\n[napi]\nthreaded=on\n[script]\nscript=${x}\n"
    assert options("p", p=text) == {"threaded": "on"}


def test_no_name() -> None:
    with pytest.raises(RxlaneError, match="no profile is named"):
        loaded(" ")


@pytest.mark.parametrize("name", ["net-low-latency", "net-forwarding", "net-vm-host"])
def test_our_profiles(
    name: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder, on a recorded host, through the command: it plans and says what it lacks."""
    read = profile_file
    # Whatever is installed on the machine that runs the tests.
    monkeypatch.setattr(
        request, "profile_file", lambda at: None if at.startswith("/etc/") else read(at)
    )
    links: tuple[Link, ...] = LINKS[:2]
    host = simhost.whole(simhost.snapshot(*links))
    (tmp_path / "host.json").write_text(codec.dumps(host))
    folder = str(TREE / "tuned-profiles" / name)
    argv = ("plan", "--profile", folder, "--snapshot", str(tmp_path / "host.json"))
    status, out, err = run(capsys, *argv, "--json")
    assert status == 0 and json.loads(out)["changes"]
    assert err == f"note: /etc/tuned/{name}-variables.conf is not there: the profile's own" + (
        " defaults hold\n"
    )
    values = f"/etc/tuned/{name}-variables.conf"
    monkeypatch.setattr(request, "profile_file", lambda at: "" if at == values else read(at))
    status, _, err = run(capsys, *argv)
    assert (status, err) == (0, f"note: values are those of {values} of this machine\n")
    status, _, err = run(capsys, *argv, "-o", "threaded=on")
    assert status == 2 and "leave DEV and --option out" in err
    status, _, err = run(capsys, "plan", "--profile", "no-such-profile", *argv[3:])
    assert status == 2 and "no-such-profile: is not there" in err and len(err.splitlines()) == 1


def test_no_file_has_a_path_with_a_zero_byte(capsys: Captured, tmp_path: Path) -> None:
    argv = ("plan", "--profile", str(tmp_path))
    (tmp_path / "tuned.conf").write_text("[main]\ninclude=a\0b\n[napi]\nthreaded=on\n")
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "") and err.startswith("rxlane: profile a?b: is not there; ")
    text = "[variables]\ninclude=/a\0b\n[napi]\nthreaded=on\n"
    (tmp_path / "tuned.conf").write_text(text)
    status, _, err = run(capsys, *argv, "--snapshot", _host(tmp_path))
    assert status == 0
    assert err == "note: /a?b is not there: the profile's own defaults hold\n"


def _host(folder: Path) -> str:
    file = folder / "host.json"
    file.write_text(codec.dumps(simhost.snapshot()))
    return str(file)
