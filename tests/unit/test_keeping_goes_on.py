# SPDX-License-Identifier: GPL-2.0-or-later
"""TuneD's keeper where something else fails or goes, or an operator rolls back in between."""

from dataclasses import replace

import pytest

from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.keeping.events import Sources
from rxlane.tuned import tuned_keep
from rxlane.tuned.tuned_compat import Row
from unit import simhost
from unit.daemon import Daemon, put_right, until
from unit.keeping import UP
from unit.simhost import SimHost

ROLLED_BACK = ("info", "the layout was rolled back: it is kept no longer")
OTHER = Row("second", frozenset({"eth1"}), (("threaded", "on"),))


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
