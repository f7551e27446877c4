# SPDX-License-Identifier: GPL-2.0-or-later
"""What the plugins applied is kept standing by a thread, which never crosses TuneD's own calls."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rxlane import claims, confirm, journal, rtnetlink, tuned_keep
from rxlane.apply import apply
from rxlane.errors import Kind, RxlaneError
from rxlane.events import APPLIED, Event, Links, Sources
from rxlane.journal import Store
from rxlane.places import Folder
from rxlane.rollback import rollback
from rxlane.rtnetlink import LinkRow, LinkState
from rxlane.tuned_compat import Adapter, Row
from rxlane.tuned_facet import Joint
from rxlane.tuned_keep import Keeper
from unit import simhost
from unit.asking import policy
from unit.confirming import OLD, ready
from unit.simhost import SimHost

UP = Event("went up", "eth0", 2)
WAIT = 10.0  # seconds; the thread takes a fifth of one


class Fake(Sources):
    """Sources that the test speaks through."""

    def __init__(self, host: SimHost) -> None:
        self._out, self._into = os.pipe()
        self.links = Links(LinkState(li.ifindex, li.name, li.up) for li in host.links.values())
        self.events = list[Event]()
        self.announced = list[Event]()
        self.followed = list[dict[str, Folder]]()
        self.closed = threading.Event()

    def close(self) -> None:
        os.close(self._out)
        self.closed.set()

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._out,)

    def renew(self) -> None: ...

    def refresh(self, folders: Mapping[str, Folder]) -> None:
        self.followed.append(dict(folders))

    def announce(self, event: Event) -> None:
        self.announced.append(event)

    def read(self, descriptor: int) -> list[Event]:
        os.read(descriptor, 1)
        return [self.events.pop(0)]

    def tell(self, event: Event) -> None:
        self.events.append(event)
        os.write(self._into, b"x")


class Daemon:
    """The part of TuneD's process that is ours."""

    def __init__(self, host: SimHost, state: Path) -> None:
        self.host = host
        self.store = Store(state)
        self.sources = list[Fake]()
        self.log = list[tuple[str, str]]()
        self.rows: tuple[Row, ...] = (Row("napi", frozenset({"eth0"}), (("threaded", "on"),)),)
        self.joint = Joint(lambda: Adapter(state, lambda: host), self._keeper)
        self.joint.register("napi", lambda: self.rows, self._say)

    def _keeper(self, adapter: Adapter, lock: threading.RLock) -> Keeper:
        return Keeper(adapter, lock, self._open)

    def _open(self) -> Fake:
        self.sources.append(Fake(self.host))
        return self.sources[-1]

    def _say(self, level: str, text: str) -> None:
        self.log.append((level, text))

    def off(self) -> set[int | None]:
        return {n.threaded for n in self.host.links["eth0"].napis}


def until(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()


@pytest.fixture
def host() -> SimHost:
    two = simhost.link("eth1", ifindex=3, base=9000)
    return SimHost(simhost.snapshot(simhost.link(), two))


@pytest.fixture
def daemon(host: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    def links() -> list[LinkRow]:
        return [LinkRow(li.ifindex, li.name, li.up) for li in host.links.values()]

    monkeypatch.setattr(rtnetlink, "links", links)
    made = Daemon(host, tmp_path / "state")
    yield made
    made.joint.unapply("napi", "napi", {"eth0"})
    assert all(source.closed.wait(WAIT) for source in made.sources)


def test_put_right_and_told(daemon: Daemon, host: SimHost) -> None:
    daemon.joint.apply("napi", "napi")
    host.write_napi(8194, {"threaded": "off"})
    daemon.sources[0].tell(UP)
    assert until(lambda: bool(daemon.log))
    assert host.links["eth0"].napis[1].threaded == 1
    assert daemon.log[0][0] == "info" and "after eth0 went up: 1 settings" in daemon.log[0][1]
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


def test_a_failed_apply_is_not_kept(daemon: Daemon) -> None:
    daemon.rows = (replace(daemon.rows[0], options=(("threaded", "nonsense"),)),)
    report = daemon.joint.apply("napi", "napi")
    assert report is not None and not report.ok and daemon.sources == []


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


def break_down(daemon: Daemon, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that keeps what is applied ends by a failure."""

    def fail(descriptor: int) -> list[Event]:
        raise failure

    if not daemon.sources:
        daemon.joint.apply("napi", "napi")
    source, said = daemon.sources[-1], len(daemon.log)
    monkeypatch.setattr(source, "read", fail)
    source.tell(UP)
    assert source.closed.wait(WAIT) and until(lambda: len(daemon.log) > said)


def put_right(daemon: Daemon) -> bool:
    with daemon.joint._lock:  # an apply in a thread may have written, and keep nothing yet
        daemon.host.write_napi(8194, {"threaded": "off"})
        daemon.sources[-1].tell(UP)
    return until(lambda: daemon.off() == {1})


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
    monkeypatch.setattr(keeper, "_wait", lambda seconds, then: waits.append(seconds))
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
    monkeypatch.setattr(keeper, "_wait", lambda seconds, then: waits.append(seconds))
    keeper.hold(daemon.rows)
    assert waits == [1.0] and daemon.log == []


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
