# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads of TuneD's daemon that fail, or cannot be had: another keeps what the plugins applied."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from rxlane import converge
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.items import Value
from rxlane.keeping.events import APPLIED
from rxlane.tuned import tuned_facet, tuned_keep
from rxlane.tuned.tuned_keep import Keeper
from rxlane.wire import rtnetlink
from unit import simhost
from unit.asking import policy
from unit.daemon import WAIT, Daemon, Fake, break_down, put_right, until
from unit.keeping import UP
from unit.simhost import SimHost


def flap(host: SimHost, monkeypatch: pytest.MonkeyPatch, name: str = "eth0") -> None:
    """The link goes down and up before the first write."""
    write = host.write_napi

    def late(napi: int, values: Mapping[str, Value]) -> None:
        monkeypatch.setattr(host, "write_napi", write)
        host.set_down(name)
        host.set_up(name)
        write(napi, values)

    monkeypatch.setattr(host, "write_napi", late)


def test_a_failed_apply_is_not_kept(daemon: Daemon) -> None:
    daemon.rows = (replace(daemon.rows[0], options=(("threaded", "nonsense"),)),)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and not report.ok and daemon.sources == []


def test_a_link_that_went_down_and_up_while_it_was_laid_out(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NAPIs are others then, and TuneD applies a profile once."""
    flap(host, monkeypatch)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and not report.ok and "NAPI" in report.lines[0][1]
    (source,) = daemon.sources
    assert source.announced == [APPLIED] and daemon.off() == {0}
    source.tell(APPLIED)
    assert until(lambda: daemon.off() == {1})


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Kind.UNSUPPORTED, "/proc/irq/40/threaded does not exist"), (Kind.NO_DEVICE, "is gone")],
)
def test_what_went_between_the_look_and_the_write(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch, kind: Kind, words: str
) -> None:
    write = host.write_napi

    def gone(napi: int, values: Mapping[str, Value]) -> None:
        monkeypatch.setattr(host, "write_napi", write)
        raise RxlaneError(kind, words)

    monkeypatch.setattr(host, "write_napi", gone)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and not report.ok and words in report.lines[0][1]
    daemon.sources[0].tell(APPLIED)
    assert until(lambda: daemon.off() == {1})


def test_a_device_beside_others_that_failed_in_passing(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.joint.apply("napi", "napi")
    host.links["eth1"] = simhost.link("eth1", 1, ifindex=3, base=9000)
    daemon.rows = (replace(daemon.rows[0], devices=frozenset({"eth0", "eth1"})),)
    flap(host, monkeypatch, "eth1")
    report = daemon.joint.add("napi", "napi")
    assert report is not None and not report.ok
    assert until(lambda: host.links["eth1"].napis[0].threaded == 1) and daemon.off() == {1}


@pytest.mark.parametrize("name", ["eth0", "eth1"])
def test_what_fails_again_and_again_is_tried_so_often(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(converge, "RETRIES", (0.02, 0.02))
    monkeypatch.setattr(tuned_facet, "RETRIES", (0.02, 0.02))
    if name == "eth1":
        daemon.joint.apply("napi", "napi")
        host.links["eth1"] = simhost.link("eth1", 1, ifindex=3, base=9000)
        daemon.rows = (replace(daemon.rows[0], devices=frozenset({"eth0", "eth1"})),)
    tries = list[int]()

    def refuse(napi: int, values: object) -> None:
        tries.append(napi)
        raise RxlaneError(Kind.KERNEL, "Invalid argument")

    monkeypatch.setattr(host, "write_napi", refuse)
    daemon.joint.apply("napi", "napi")
    daemon.sources[0].tell(APPLIED)
    assert until(lambda: tries.count(tries[0]) >= 3)
    time.sleep(0.5)
    assert tries.count(tries[0]) <= 4


def test_what_was_down_when_it_was_switched_off_comes_back_later(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.05)
    before = simhost.settings(host)
    daemon.joint.apply("napi", "napi")
    host.set_down("eth0")
    report = daemon.joint.unapply("napi", "napi", {"eth0"})
    assert not report.ok and "interface is down" in report.lines[0][1]
    host.set_up("eth0", shift=0)
    assert until(lambda: daemon.store.load() is None) and simhost.settings(host) == before


def test_what_somebody_else_laid_out_since_is_not_taken_back(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.05)
    host.links["eth1"] = simhost.link("eth1", 1, ifindex=3, base=9000)
    daemon.joint.apply("napi", "napi")
    host.set_down("eth0")
    assert not daemon.joint.unapply("napi", "napi", {"eth0"}).ok
    apply(host, daemon.store, policy("eth1", threaded="on"), ("eth1",))
    host.set_up("eth0", shift=0)
    time.sleep(0.5)
    assert host.links["eth1"].napis[0].threaded == 1


def test_sockets_that_cannot_be_opened(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[float]()

    def fail() -> Fake:
        tries.append(time.monotonic())
        raise RxlaneError(Kind.KERNEL, "no netlink")

    monkeypatch.setattr(daemon.joint._keeper, "_open", fail)
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.01)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and report.ok
    assert until(lambda: len(tries) == 3)
    monkeypatch.setattr(daemon.joint._keeper, "_open", daemon._open)
    assert until(lambda: len(daemon.sources) == 1) and put_right(daemon)
    said = [text for level, text in daemon.log if level == "error"]
    assert said == ["the layout is applied, but cannot be kept: no netlink"]


def test_a_thread_that_cannot_be_had(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, list[str]()

    def few(thread: threading.Thread) -> None:
        if thread.name == "rxlane" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.01)
    daemon.joint.apply("napi", "napi")
    assert until(lambda: len(daemon.sources) == 3) and put_right(daemon)
    assert all(source.closed.is_set() for source in daemon.sources[:2])
    said = [text for level, text in daemon.log if level == "error"]
    why = "no thread for it: can't start new thread"
    assert said == [f"the layout is applied, but cannot be kept: {why}"]


def test_no_thread_can_be_had_at_all(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and report.ok
    assert daemon.log[-1] == ("error", "the layout is kept no longer: can't start new thread")


FAILURES = {
    "OSError": (OSError(24, "Too many open files"), "[Errno 24] Too many open files"),
    "unforeseen": (ValueError("two\nlines"), "ValueError: two?lines"),
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_another_thread_takes_over_from_one_that_fails(
    daemon: Daemon, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure, said = FAILURES[name]
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.01)
    break_down(daemon, failure, monkeypatch)
    assert until(lambda: len(daemon.sources) == 2) and put_right(daemon)
    assert daemon.sources[1].announced == [APPLIED], "what happened meanwhile is looked for"
    assert daemon.log[0] == ("error", f"the layout is not kept for now: {said}")


@pytest.fixture
def broken(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A thread has failed, and long before the next is due TuneD or somebody says something."""
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.5)
    break_down(daemon, OSError(24, "Too many open files"), monkeypatch)
    return daemon


def test_applied_before_the_next_thread_is_due(broken: Daemon) -> None:
    broken.rows = (replace(broken.rows[0], options=(("threaded", "on"), ("thread_nice", "3"))),)
    broken.joint.apply("napi", "napi")
    assert len(broken.sources) == 2 and put_right(broken)
    time.sleep(0.7)
    assert len(broken.sources) == 2


def test_taken_down_before_the_next_thread_is_due(broken: Daemon) -> None:
    broken.joint.unapply("napi", "napi", {"eth0"})
    time.sleep(0.7)
    assert len(broken.sources) == 1 and broken.off() == {0}


def test_without_devices_before_the_next_thread_is_due(broken: Daemon) -> None:
    broken.rows = ()
    broken.joint.remove("napi", "eth0")
    time.sleep(0.7)
    assert len(broken.sources) == 1 and broken.off() == {0}


@pytest.mark.parametrize("thread", [True, False])
def test_a_device_is_taken_out_while_nothing_can_be_opened(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch, thread: bool
) -> None:
    """With a thread that keeps, and before the first one could be started."""

    def full() -> Fake:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(tuned_keep, "AGAIN", 0.1)
    keeper, links = daemon.joint._keeper, rtnetlink.links
    daemon.rows = (replace(daemon.rows[0], devices=frozenset({"eth0", "eth1"})),)
    if not thread:
        monkeypatch.setattr(keeper, "_open", full)
    daemon.joint.apply("napi", "napi")
    monkeypatch.setattr(rtnetlink, "links", full)
    daemon.rows = (replace(daemon.rows[0], devices=frozenset({"eth0"})),)
    assert daemon.joint.remove("napi", "eth1").ok and keeper._kept is None
    monkeypatch.setattr(rtnetlink, "links", links)
    monkeypatch.setattr(keeper, "_open", daemon._open)
    assert until(lambda: keeper._kept is not None) and put_right(daemon)
    assert {napi.threaded for napi in host.links["eth1"].napis} == {0}


def test_rolled_back_before_the_next_thread_is_due(broken: Daemon) -> None:
    rollback(broken.host, broken.store, for_good=True)
    assert until(lambda: len(broken.sources) == 2)
    broken.sources[1].tell(UP)
    assert broken.sources[1].closed.wait(WAIT) and broken.off() == {0}
    time.sleep(0.7)
    assert len(broken.sources) == 2


def test_each_failure_waits_longer(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, waits = daemon.joint._keeper, list[float]()
    monkeypatch.setattr(keeper._then, "do", lambda seconds, what: waits.append(seconds))
    monkeypatch.setattr(keeper, "_open", unable)
    daemon.joint.apply("napi", "napi")
    for _ in range(7):
        keeper._go_on()
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] and len(daemon.log) == 1
    keeper.hold(daemon.rows)
    assert waits[-1] == 1.0 and len(daemon.log) == 2


def test_after_a_while_the_same_failure_is_news(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = OSError(24, "Too many open files")
    monkeypatch.setattr(tuned_keep, "AGAIN", 0.01)
    monkeypatch.setattr(tuned_keep, "AGAIN_MOST", 0.0)
    break_down(daemon, failure, monkeypatch)
    assert until(lambda: len(daemon.sources) == 2)
    break_down(daemon, failure, monkeypatch)
    assert until(lambda: len(daemon.sources) == 3)
    assert [level for level, _ in daemon.log] == ["error", "error"]


def unable() -> Fake:
    raise RxlaneError(Kind.KERNEL, "no netlink")


def test_without_a_log_nothing_breaks(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that nobody is told of is tried again as any other."""
    keeper, waits = Keeper(daemon.joint._adapter, threading.RLock(), unable), list[float]()
    monkeypatch.setattr(keeper._then, "do", lambda seconds, what: waits.append(seconds))
    keeper.hold(daemon.rows)
    assert waits == [1.0] and daemon.log == []
