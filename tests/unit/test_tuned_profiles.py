# SPDX-License-Identifier: GPL-2.0-or-later
"""What TuneD applies at its next start, from its files; and what then comes back of a dead one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rxlane import cli, kernel
from rxlane.journal import Store
from rxlane.plan import TUNED
from rxlane.sysfs import Sysfs
from rxlane.tuned import tuned_profiles
from rxlane.tuned.tuned_compat import Adapter, Row
from unit import simhost
from unit.simhost import SimHost

LANES = "[main]\nsummary=lanes\n[napi]\nthreaded=on\n"


class Tuned:
    """The files of a TuneD in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "etc" / "tuned").mkdir(parents=True)
        self.profile("lanes", LANES)
        self.profile("balanced", "[main]\nsummary=balanced\n[cpu]\ngovernor=schedutil\n")

    def profile(self, name: str, text: str, place: str = "usr/lib/tuned/profiles") -> None:
        folder = self.root / place / name
        folder.mkdir(parents=True)
        (folder / "tuned.conf").write_text(text)

    def say(self, name: str, text: str) -> None:
        (self.root / "etc" / "tuned" / name).write_text(text + "\n")


def at_start(root: Path) -> frozenset[str]:
    return tuned_profiles.at_start(Sysfs(root))


@pytest.fixture
def tuned(tmp_path: Path) -> Tuned:
    return Tuned(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LANES, {"napi"}),
        ("[main]\ninclude=lanes\n", {"napi"}),
        ("[main]\ninclude = balanced ; -lanes\n[irq_layout]\n", {"napi", "irq_layout"}),
        ("[steer]\ntype=flow_steering # comment\n", {"flow_steering"}),
        ("[main]\ninclude=lanes\n[napi]\nenabled=false\n", set()),
        ("[main]\ninclude=lanes\n[napi]\ntype=net\n", set()),
        ("[main]\ninclude=mine\n[napi]\n", {"napi"}),  # includes itself
        ("[main]\ninclude=${f:choose}\n", set()),
        ("[main]\ninclude=../../etc/passwd, gone\n", set()),
        ("[napi\nthreaded", set()),
        ("no section\n", set()),
        ("[napi]\nthreaded\n", set()),  # TuneD does not load it either
        ("[napi]\nthreaded=%(x)s\n[napi]\n", {"napi"}),
        ("", set()),
    ],
)
def test_kinds_of_a_profile(tuned: Tuned, text: str, found: set[str]) -> None:
    tuned.profile("mine", text, "etc/tuned/profiles")
    tuned.say("active_profile", "balanced mine")
    assert at_start(tuned.root) == found


def test_own_profile_shadows_the_shipped(tuned: Tuned) -> None:
    tuned.profile("lanes", "[main]\nsummary=own\n", "etc/tuned/profiles")
    tuned.say("active_profile", "lanes")
    assert not at_start(tuned.root)


def test_no_profile_and_no_tuned(tuned: Tuned, tmp_path: Path) -> None:
    assert not at_start(tuned.root)
    assert not at_start(tmp_path / "nowhere")


def test_a_chosen_profile_is_not_foreseen(tuned: Tuned) -> None:
    tuned.say("active_profile", "lanes")
    tuned.say("profile_mode", "auto")
    assert not at_start(tuned.root)
    tuned.say("post_loaded_profile", "lanes")
    assert at_start(tuned.root) == {"napi"}


# -- rollback --orphaned ----------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimHost:
    simulated = SimHost(simhost.snapshot())
    monkeypatch.setattr(kernel, "Linux", lambda brief=False: simulated)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return simulated


def starts(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    monkeypatch.setattr(tuned_profiles, "at_start", lambda: frozenset(found))


def orphaned(state: Path) -> int:
    return cli.main(["rollback", "--orphaned", "--state", str(state)])


def test_without_a_journal_nothing_is_said(
    host: SimHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert orphaned(tmp_path / "state") == 0
    assert capsys.readouterr() == ("", "")


def test_what_a_dead_tuned_left(
    host: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = simhost.settings(host)
    row = Row("napi", frozenset({"eth0"}), (("threaded", "on"),))
    assert Adapter(tmp_path, lambda: host).apply([row]).ok
    during = simhost.settings(host)
    starts(monkeypatch, "napi")
    assert orphaned(tmp_path) == 0 and simhost.settings(host) == during
    starts(monkeypatch)
    assert orphaned(tmp_path) == 0 and simhost.settings(host) == before


def test_what_the_operator_applied_stays(
    host: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["apply", "-o", "threaded=on", "--state", str(tmp_path)]) == 0
    starts(monkeypatch)
    during = simhost.settings(host)
    assert orphaned(tmp_path) == 0 and simhost.settings(host) == during


def test_tuned_stays_the_owner(host: SimHost, tmp_path: Path) -> None:
    """An apply of the operator's, and a rollback of one device, leave TuneD's share TuneD's."""
    row = Row("napi", frozenset({"eth0"}), (("threaded", "on"), ("defer_hard_irqs", "3")))
    assert Adapter(tmp_path, lambda: host).apply([row]).ok
    assert cli.main(["apply", "-o", "threaded=on", "--state", str(tmp_path)]) == 0
    journal = Store(tmp_path).load()
    assert journal is not None and journal.owner == TUNED


def test_what_only_waits_for_its_device_makes_tuned_no_owner(host: SimHost, tmp_path: Path) -> None:
    """Or what the operator applied would go when TuneD starts with another profile."""
    host.links["eth1"] = simhost.link("eth1", ifindex=3, base=9000)
    adapter = Adapter(tmp_path, lambda: host)
    assert adapter.apply([Row("napi", frozenset({"eth0"}), (("threaded", "on"),))]).ok
    del host.links["eth0"]
    assert adapter.rollback().ok
    assert cli.main(["apply", "eth1", "-o", "threaded=on", "--state", str(tmp_path)]) == 0
    journal = Store(tmp_path).load()
    assert journal is not None and {e.device for e in journal.entries} == {"eth0", "eth1"}
    assert journal.owner == ""
