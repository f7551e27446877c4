# SPDX-License-Identifier: GPL-2.0-or-later
"""What the plugins applied is kept standing by a thread, which never crosses TuneD's own calls."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from rxlane import journal
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.keeping import claims, confirm
from rxlane.keeping.events import APPLIED, Event, Links
from rxlane.tuned import tuned_keep
from rxlane.tuned.tuned_compat import Row
from rxlane.wire.rtnetlink import LinkState
from unit import simhost
from unit.asking import policy
from unit.confirming import OLD, ready
from unit.daemon import WAIT, Daemon, put_right, until
from unit.keeping import UP
from unit.simhost import SimHost


def test_put_right_and_told(daemon: Daemon, host: SimHost) -> None:
    daemon.joint.apply("napi", "napi")
    host.write_napi(8194, {"threaded": "off"})
    daemon.sources[0].tell(UP)
    assert until(lambda: bool(daemon.log))
    assert host.links["eth0"].napis[1].threaded == 1
    assert daemon.log[0][0] == "info" and "after eth0 went up: 1 setting" in daemon.log[0][1]
    journal = daemon.store.load()
    assert journal is not None and journal.owner == "tuned"


def test_the_first_look_finds_what_to_follow(daemon: Daemon) -> None:
    daemon.joint.apply("napi", "napi")
    (source,) = daemon.sources
    assert source.announced == [APPLIED]
    source.tell(APPLIED)
    assert until(lambda: "sys/class/net/eth0" in source.followed[-1])


def test_one_thread_for_all_applies(daemon: Daemon) -> None:
    daemon.joint.apply("napi", "napi")
    daemon.rows = (replace(daemon.rows[0], options=(("threaded", "busy-poll"),)),)
    daemon.joint.apply("napi", "napi")
    assert len(daemon.sources) == 1
    daemon.host.write_napi(8194, {"threaded": "off"})
    daemon.sources[0].tell(UP)
    assert until(lambda: daemon.host.links["eth0"].napis[1].threaded == 2)


def test_switched_off_it_ends(daemon: Daemon, host: SimHost) -> None:
    before = simhost.settings(host)
    daemon.joint.apply("napi", "napi")
    daemon.joint.unapply("napi", "napi", {"eth0"})
    assert daemon.sources[0].closed.wait(WAIT) and simhost.settings(host) == before
    daemon.joint.apply("napi", "napi")
    assert len(daemon.sources) == 2


def test_between_two_profiles_nothing_is_kept(daemon: Daemon, host: SimHost) -> None:
    """TuneD takes a profile down section by section: what is down must stay down."""
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("irq_layout", "irq")
    daemon.joint.unapply("napi", "napi", {"eth0"})
    writes = host.writes
    daemon.sources[0].tell(UP)
    time.sleep(0.5)
    assert host.writes == writes and daemon.off() == {0}
    daemon.joint.unapply("irq_layout", "irq", {"eth0"})


def test_the_others_are_kept_when_one_is_destroyed(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by TuneD's D-Bus call instance_destroy, with no profile taken down."""
    monkeypatch.setattr(tuned_keep, "SOON", 0.1)
    other = Row("second", frozenset({"eth1"}), (("threaded", "on"),))
    daemon.rows += (other,)
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("napi", "second")
    daemon.joint.unapply("napi", "second", {"eth1"})
    assert until(lambda: daemon.sources[0].announced == [APPLIED, APPLIED])
    # Both are away from what was wanted; only what still stands comes back.
    host.write_napi(8194, {"threaded": "off"})
    daemon.sources[0].tell(UP)
    assert until(lambda: host.links["eth0"].napis[1].threaded == 1)
    assert {napi.threaded for napi in host.links["eth1"].napis} == {0}
    daemon.joint.forget("napi", "napi")


def test_the_others_are_not_kept_once_all_is_taken_down(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_keep, "SOON", 0.1)
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("irq_layout", "irq")
    daemon.joint.unapply("irq_layout", "irq", {"eth0"})
    daemon.joint.unapply("napi", "napi", {"eth0"})
    time.sleep(0.3)
    assert len(daemon.sources) == 1 and daemon.sources[0].closed.wait(WAIT)


def test_rolled_back_by_hand_it_ends_and_the_next_apply_starts_anew(daemon: Daemon) -> None:
    daemon.joint.apply("napi", "napi")
    rollback(daemon.host, daemon.store)
    daemon.sources[0].tell(UP)
    assert daemon.sources[0].closed.wait(WAIT) and daemon.off() == {0}
    assert "kept no longer" in daemon.log[0][1]
    daemon.rows = (replace(daemon.rows[0], options=(("threaded", "on"), ("thread_nice", "3"))),)
    daemon.joint.apply("napi", "napi")
    assert len(daemon.sources) == 2


def test_what_was_rolled_back_by_hand_comes_back_with_no_device(daemon: Daemon) -> None:
    daemon.joint.apply("napi", "napi")
    rollback(daemon.host, daemon.store)
    daemon.sources[0].tell(UP)
    assert until(lambda: daemon.joint._keeper.given_up)
    devices = frozenset({"eth0", "eth1"})
    daemon.rows = (replace(daemon.rows[0], devices=devices),)
    report = daemon.joint.add("napi", "napi")
    assert report is not None and not report.ok and "was rolled back" in report.lines[0][1]
    assert daemon.off() == {0} and len(daemon.sources) == 1
    # Nor when one of several sections goes, but with the next profile.
    daemon.joint.unapply("napi", "napi", {*devices})
    daemon.joint.apply("napi", "napi")
    assert daemon.off() == {1}


def test_where_tuned_leaves_all_as_it_is_nobody_goes_on_writing(daemon: Daemon) -> None:
    """Its rollback=not_on_exit: instances end without being taken down."""
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("irq_layout", "irq")
    daemon.joint.forget("napi", "napi")
    assert put_right(daemon), "another section stands"
    daemon.joint.forget("irq_layout", "irq")
    assert daemon.sources[0].closed.wait(WAIT)
    daemon.host.write_napi(8194, {"threaded": "off"})
    assert daemon.joint.apply("napi", "napi") is not None and daemon.off() == {1}


def test_a_device_that_leaves_takes_nothing_with_it(daemon: Daemon, host: SimHost) -> None:
    daemon.rows = (replace(daemon.rows[0], devices=frozenset({"eth0", "eth1"})),)
    daemon.joint.apply("napi", "napi")
    away = host.links.pop("eth1")
    daemon.joint.remove("napi", "eth1")
    daemon.sources[0].links = Links([LinkState(2, "eth0", True)])
    host.write_napi(8194, {"threaded": "off"})
    daemon.sources[0].tell(UP)
    assert until(lambda: host.links["eth0"].napis[1].threaded == 1)
    # Back from where it was, with our settings: its originals were kept.
    host.links["eth1"] = away
    daemon.joint.apply("napi", "napi")
    daemon.joint.unapply("napi", "napi", {"eth0", "eth1"})
    assert {n.threaded for n in host.links["eth1"].napis} == {0}


def test_a_driver_bound_again_is_kept_before_tuned_hears_of_it(
    daemon: Daemon, host: SimHost
) -> None:
    daemon.joint.apply("napi", "napi")
    del host.links["eth0"]
    daemon.joint.remove("napi", "eth0")
    host.links["eth0"] = simhost.link(ifindex=9, base=50)
    source = daemon.sources[0]
    source.links = Links(LinkState(li.ifindex, li.name, li.up) for li in host.links.values())
    source.tell(Event("went up", "eth0", 9))
    assert until(lambda: daemon.off() == {1})
    # Taken from its section while it is there, it is let go.
    daemon.rows = ()
    daemon.joint.remove("napi", "eth0")
    assert daemon.off() == {0}
    source.tell(Event("went up", "eth0", 9))
    time.sleep(0.5)
    assert daemon.off() == {0}


def test_renamed_before_tuned_heard_of_it(daemon: Daemon, host: SimHost) -> None:
    daemon.joint.apply("napi", "napi")
    host.rename("eth0", "lan0")
    host.write_napi(8194, {"threaded": "off"})
    source = daemon.sources[0]
    source.links = Links(LinkState(li.ifindex, li.name, li.up) for li in host.links.values())
    source.tell(Event("renamed from eth0", "lan0", 2, reset=False))
    assert until(lambda: host.links["lan0"].napis[1].threaded == 1)
    host.rename("lan0", "eth0")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.05)
    monkeypatch.setattr(journal, "LOCK_WAIT", 0.0)


@pytest.mark.usefixtures("impatient")
def test_applied_once_another_rxlane_is_done(daemon: Daemon) -> None:
    with Store(daemon.store.directory).lock():
        report = daemon.joint.apply("napi", "napi")
        assert report is not None and not report.ok
        time.sleep(0.2)
    assert until(lambda: len(daemon.sources) == 1) and daemon.off() == {1} and put_right(daemon)
    assert daemon.log[0] == ("info", "it is tried again until it can be done")
    assert "settings written" in daemon.log[1][1]
    assert daemon.joint.apply("napi", "napi") is None


@pytest.mark.usefixtures("impatient")
def test_switched_off_once_another_rxlane_is_done(daemon: Daemon, host: SimHost) -> None:
    before = simhost.settings(host)
    daemon.joint.apply("napi", "napi")
    with Store(daemon.store.directory).lock():
        assert not daemon.joint.unapply("napi", "napi", {"eth0"}).ok
        assert daemon.off() == {1}
    assert until(lambda: "settings put back" in daemon.log[-1][1])
    assert simhost.settings(host) == before and daemon.store.claims.load() is None


@pytest.mark.usefixtures("impatient")
def test_a_new_profile_takes_the_place_of_what_is_tried_again(daemon: Daemon) -> None:
    daemon.joint.apply("napi", "napi")
    with Store(daemon.store.directory).lock():
        daemon.joint.unapply("napi", "napi", {"eth0"})
    daemon.joint.apply("napi", "napi")
    time.sleep(0.3)
    assert daemon.off() == {1} and put_right(daemon)


@pytest.mark.usefixtures("impatient")
def test_a_profile_that_is_refused_leaves_the_rollback_before_it_due(
    daemon: Daemon, host: SimHost
) -> None:
    before = simhost.settings(host)
    daemon.joint.apply("napi", "napi")
    with daemon.joint._lock:  # no try comes between the two
        with Store(daemon.store.directory).lock():
            assert daemon.joint.unapply("napi", "napi", {"eth0"}).again
        daemon.rows = (replace(daemon.rows[0], options=(("threaded", "nonsense"),)),)
        report = daemon.joint.apply("napi", "napi")
        assert report is not None and not report.ok and not report.again
    assert until(lambda: simhost.settings(host) == before)


@pytest.mark.usefixtures("impatient")
def test_services_get_their_interfaces_once_another_rxlane_is_done(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, tries = claims.release_tuned, list[str]()

    def late(*args: Any) -> None:
        tries.append("")
        if len(tries) == 1:
            raise RxlaneError(Kind.BUSY, "another rxlane holds the lock", remedy="try again")
        release(*args)

    monkeypatch.setattr(claims, "release_tuned", late)
    daemon.joint.apply("napi", "napi")
    report = daemon.joint.unapply("napi", "napi", {"eth0"})
    assert report.ok and "still yield: another rxlane" in " ".join(t for _, t in report.lines)
    assert until(lambda: daemon.store.claims.load() is None)


WAITS = "nothing of the profile is written while an apply waits to be confirmed"


def test_a_profile_waits_for_a_confirmation(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its layout would go with the apply that is not confirmed, while TuneD has it on."""
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.05)
    pending = confirm.arm(host, daemon.store, OLD, 60, [2], ready)
    apply(host, daemon.store, policy("eth0", defer_hard_irqs="9"), ["eth0"])
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and report.again and daemon.off() == {0}
    assert WAITS in report.lines[0][1]
    confirm.expire(host, daemon.store, pending)
    assert until(lambda: daemon.off() == {1}) and put_right(daemon)


def test_what_is_kept_waits_for_a_confirmation(daemon: Daemon, host: SimHost) -> None:
    daemon.joint.apply("napi", "napi")
    pending = confirm.arm(host, daemon.store, OLD, 60, [2], ready)
    apply(host, daemon.store, policy("eth0", threaded="off"), ["eth0"])
    daemon.sources[0].tell(UP)
    assert until(lambda: bool(daemon.log)) and daemon.off() == {0}
    assert WAITS in daemon.log[0][1]
    confirm.disarm(daemon.store, pending)
    assert until(lambda: daemon.off() == {1})
    assert [WAITS in text for _, text in daemon.log].count(True) == 1
