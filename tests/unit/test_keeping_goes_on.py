# SPDX-License-Identifier: GPL-2.0-or-later
"""TuneD's keeper where something else fails or goes, or an operator rolls back in between."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from rxlane import journal
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.keeping import claims
from rxlane.keeping.events import Event, Sources
from rxlane.tuned import tuned_keep
from rxlane.tuned.tuned_compat import Row
from unit import keeping, simhost
from unit.daemon import Daemon, put_right, until
from unit.keeping import UP, Waiting
from unit.simhost import SimHost
from unit.turned import World

ROLLED_BACK = ("info", "the layout was rolled back: it is kept no longer")
OTHER = Row("second", frozenset({"eth1"}), (("threaded", "on"),))
THIRD = Row("third", frozenset({"eth1"}), (("defer_hard_irqs", "7"),))
REFUSED = Row("second", frozenset({"eth1"}), (("threaded", "on"), ("thread_cpus", "99")))


def with_eth1(daemon: Daemon) -> tuple[Row, ...]:
    return (replace(daemon.rows[0], devices=frozenset({"eth0", "eth1"})),)


def loses_a_thread(daemon: Daemon) -> None:
    daemon.host.write_napi(8194, {"threaded": "off"})
    daemon.sources[-1].tell(UP)


def test_a_device_that_has_gone_when_it_is_laid_out(daemon: Daemon, host: SimHost) -> None:
    """As a virtual function that a container took before TuneD heard of it."""
    before, _ = daemon.rows, daemon.joint.apply("napi", "napi")
    assert put_right(daemon)
    del host.links["eth1"]
    daemon.rows = with_eth1(daemon)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and not report.ok and "eth1: no such device" in report.lines[0][1]
    daemon.rows = before
    daemon.joint.remove("napi", "eth1")
    loses_a_thread(daemon)
    assert until(lambda: daemon.off() == {1})


def test_a_failure_at_one_more_device(daemon: Daemon, host: SimHost) -> None:
    daemon.joint.apply("napi", "napi")
    daemon.rows = with_eth1(daemon)

    def fail(*_: object) -> None:
        host.on_write = None
        raise RxlaneError(Kind.KERNEL, "once")

    host.on_write = fail
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and not report.ok
    loses_a_thread(daemon)
    assert until(lambda: daemon.off() == {1})


def test_a_rollback_while_nothing_can_be_kept(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where inotify's instances are used up, which another process ends."""
    before, limited = simhost.settings(host), [True]
    can = daemon.joint._keeper._open

    def opened() -> Sources:
        if limited:
            raise OSError(24, "Too many open files")
        return can()

    monkeypatch.setattr(daemon.joint._keeper, "_open", opened)
    daemon.joint.apply("napi", "napi")
    assert rollback(host, daemon.store, for_good=True, forget=True).written
    limited.clear()
    assert until(lambda: bool(daemon.sources and daemon.sources[0].announced))
    daemon.sources[0].tell(UP)
    assert until(lambda: ROLLED_BACK in daemon.log)
    assert simhost.settings(host) == before


def test_a_rollback_before_what_is_left_is_kept(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_keep, "SOON", 0.3)
    daemon.rows += (OTHER,)
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("napi", "second")
    daemon.joint.unapply("napi", "second", {"eth1"})
    rollback(host, daemon.store, for_good=True, forget=True)
    said = len(daemon.sources[0].announced)
    assert until(lambda: len(daemon.sources[0].announced) > said)
    daemon.sources[0].tell(UP)
    assert until(lambda: ROLLED_BACK in daemon.log)
    assert daemon.off() == {0}


@pytest.mark.parametrize("heard", [True, False])
def test_a_refusal_after_a_rollback_brings_nothing_back(
    daemon: Daemon, host: SimHost, heard: bool
) -> None:
    """Whether the look that hears of it came first or did not."""
    daemon.joint.apply("napi", "napi")
    rollback(host, daemon.store, for_good=True, forget=True)
    if heard:
        daemon.sources[0].tell(UP)
        assert until(lambda: daemon.joint._keeper.given_up)
    daemon.rows = (daemon.rows[0], REFUSED)
    report = daemon.joint.apply("napi", "second")
    assert report is not None and not report.ok and daemon.joint._keeper.given_up
    daemon.joint.forget("napi", "second")
    assert not until(lambda: daemon.off() != {0}, seconds=0.5)


def test_a_rollback_while_one_more_device_is_added(daemon: Daemon, host: SimHost) -> None:
    """The rollback has the lock that the write for that device waits for."""
    daemon.joint.apply("napi", "napi")
    store = Waiting(daemon.store.directory)
    daemon.joint._adapter.store = store
    # The first one to wait claims the device.
    store.then = lambda: setattr(store, "then", taken_back)

    def taken_back() -> None:
        rollback(host, daemon.store, for_good=True, forget=True)

    daemon.rows = with_eth1(daemon)
    report = daemon.joint.add("napi", "napi")
    assert report is not None and "was rolled back" in report.lines[0][1]
    assert daemon.joint._keeper.given_up and daemon.off() == {0}
    assert claims.load(daemon.store, "boot-1").tuned == ()


def test_a_rollback_while_a_device_waits_to_be_added(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.joint.apply("napi", "napi")
    daemon.rows = with_eth1(daemon)
    with daemon.store.lock(), monkeypatch.context() as impatient:
        impatient.setattr(journal, "LOCK_WAIT", 0.0)
        report = daemon.joint.add("napi", "napi")
        assert report is not None and report.again
    # What stands is kept meanwhile.
    assert put_right(daemon)
    rollback(host, daemon.store, for_good=True, forget=True)
    assert until(lambda: daemon.joint._keeper.given_up)
    assert not until(lambda: daemon.off() != {0}, seconds=1.5)


def test_while_another_has_the_lock_it_is_tried_ever_more_seldom(tmp_path: Path) -> None:
    world = World(tmp_path)
    adapter = world.joint._adapter
    with world.running(), mock.patch.object(adapter, "apply", wraps=adapter.apply) as tried:
        world.joint._applied = None
        with world.store.lock():
            world.joint.add("napi", "napi")
            for _ in range(300):
                world.look(2)
    assert 10 < tried.call_count < 20


def test_a_rollback_between_two_that_are_destroyed(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_keep, "SOON", 0.3)
    daemon.rows += (OTHER, THIRD)
    for name in ("napi", "second", "third"):
        daemon.joint.apply("napi", name)
    daemon.joint.unapply("napi", "third", set())
    rollback(host, daemon.store, for_good=True, forget=True)
    daemon.joint.unapply("napi", "second", {"eth1"})
    assert not until(lambda: daemon.off() != {0}, seconds=1.0)
    assert daemon.joint._keeper.given_up


def test_one_is_destroyed_beside_one_that_was_renamed(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which TuneD has not heard of yet."""
    monkeypatch.setattr(tuned_keep, "SOON", 0.1)
    daemon.rows += (OTHER,)
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("napi", "second")
    host.rename("eth0", "lan0")
    daemon.joint.unapply("napi", "second", {"eth1"})
    assert until(lambda: daemon.joint._keeper._kept is not None)
    host.write_napi(8194, {"threaded": "off"})
    daemon.sources[-1].links = keeping.Sources.of(host).links
    daemon.sources[-1].tell(Event("went up", "lan0", 2))
    assert until(lambda: {napi.threaded for napi in host.links["lan0"].napis} == {1})
    host.rename("lan0", "eth0")


def test_one_section_that_lets_a_device_go_with_the_last_originals(daemon: Daemon) -> None:
    """What the other one wants was so already: that no journal is left is nobody's rollback."""
    other = Row("second", frozenset({"eth0"}), (("busy_read", "0"),), "flow_steering")
    daemon.rows = (Row("napi", frozenset({"eth0"}), (("threaded", "on"),)), other)
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("flow_steering", "second")
    daemon.rows = (other,)
    daemon.joint.remove("napi", "eth0")
    assert daemon.store.load() is None
    loses_a_thread(daemon)
    assert not until(lambda: ROLLED_BACK in daemon.log, seconds=1.0)
    assert daemon.joint._keeper._rows == (other,)
    daemon.joint.unapply("flow_steering", "second", {"eth0"})
