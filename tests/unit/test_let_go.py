# SPDX-License-Identifier: GPL-2.0-or-later
"""TuneD's keeper where devices are let go, instances end and others want the same lock."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import journal
from rxlane.applying.rollback import rollback
from rxlane.converge import Converger
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.keeping import watch
from rxlane.keeping.events import APPLIED, Event
from rxlane.model import Irq
from rxlane.tuned import tuned_keep
from rxlane.tuned.tuned_compat import Adapter, Report, Row
from unit import simhost
from unit.asking import FULL, SECOND, policy
from unit.daemon import Daemon, put_right, until
from unit.keeping import UP, Sources, Waiting
from unit.simhost import SimHost
from unit.test_other_names import THIRD, look, modes, row

BAD = row("eth1", instance="bad", thread_cpus="99")
IRQS = Row("irq", frozenset({"eth0"}), (("irq_cpus", "2-3"),), "irq_layout")


@pytest.fixture
def two(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Two instances have a device each, and what goes on after one ended does so soon."""
    monkeypatch.setattr(tuned_keep, "SOON", 0.3)
    daemon.rows = (row("eth0"), row("eth1", instance="other"))
    daemon.joint.apply("napi", "napi")
    daemon.joint.apply("napi", "other")
    return daemon


def other_ends(daemon: Daemon) -> None:
    daemon.rows = (row("eth0"),)
    daemon.joint.unapply("napi", "other", {"eth1"})


def rolled_back_meanwhile(daemon: Daemon) -> None:
    """An operator's rollback has the lock that TuneD waits for next."""
    store = Waiting(daemon.store.directory)
    daemon.joint._adapter.store = store

    def then() -> None:
        rollback(daemon.host, daemon.store, for_good=True, forget=True)

    store.then = then


def stays_off(daemon: Daemon) -> bool:
    look(daemon)
    daemon.sources[-1].tell(UP)
    return not until(lambda: daemon.off() != {0}, seconds=1)


# -- rolled back while TuneD waits for the lock ---------------------------------------------------


def test_to_let_a_device_go(two: Daemon) -> None:
    rolled_back_meanwhile(two)
    two.rows = (row("eth0"),)
    two.joint.remove("napi", "eth1")
    assert stays_off(two) and two.joint._keeper.given_up
    two.joint.forget("napi", "other")


def test_to_end_an_instance(two: Daemon) -> None:
    rolled_back_meanwhile(two)
    other_ends(two)
    assert stays_off(two) and two.joint._keeper.given_up


def test_to_refuse_another_soon_after_one_ended(two: Daemon) -> None:
    other_ends(two)
    two.rows = (row("eth0"), BAD)
    rolled_back_meanwhile(two)
    report = two.joint.add("napi", "bad")
    assert report is not None and not report.ok
    assert stays_off(two)
    two.joint.forget("napi", "bad")


def test_applied_anew_once_a_look_has_found_the_rollback(daemon: Daemon, host: SimHost) -> None:
    """Its line in the log is written without the lock."""
    done = list[Report | None]()

    def apply() -> None:
        daemon.joint._applied = None
        done.append(daemon.joint.apply("napi", "napi"))

    def say(_level: str, text: str) -> None:
        if "rolled back" in text and not done:
            thread = threading.Thread(target=apply)
            thread.start()
            thread.join()

    daemon.joint.register("napi", lambda: daemon.rows, say)
    daemon.joint.apply("napi", "napi")
    rollback(host, daemon.store, for_good=True, forget=True)
    daemon.sources[0].tell(UP)
    assert until(lambda: bool(done)) and daemon.off() == {1}
    assert until(daemon.sources[0].closed.is_set)
    assert not daemon.joint._keeper.given_up and put_right(daemon)


def test_a_watch_whose_first_apply_is_rolled_back_while_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, store = SimHost(simhost.snapshot()), Store(tmp_path)
    start, kept = simhost.settings(host), list[bool]()
    monkeypatch.setattr(watch, "Sources", lambda: Sources.of(host))
    monkeypatch.setattr(watch, "keep", lambda _, converger, *more: kept.append(look_now(converger)))

    def look_now(converger: Converger) -> bool:
        converger._due = 0.0
        return converger.run()

    def begun(_: object) -> None:
        rollback(host, store, for_good=True, forget=True)

    watch.watch(host, store, policy("eth0", **FULL), {"eth0": 2}, -1, print, begun)
    assert kept == [False] and simhost.settings(host) == start


# -- one thing is in the way of another -----------------------------------------------------------


def test_refused_beside_what_stands_when_another_ends(two: Daemon, host: SimHost) -> None:
    host.links["eth2"] = THIRD
    bad = replace(BAD, devices=frozenset({"eth2"}))
    two.rows = (*two.rows, bad)
    report = two.joint.add("napi", "bad")
    assert report is not None and not report.ok
    two.rows = (row("eth0"), bad)
    two.joint.unapply("napi", "other", {"eth1"})
    assert until(lambda: not two.joint._keeper._not_yet) and put_right(two)
    two.joint.forget("napi", "bad")


@pytest.mark.parametrize("refused", [True, False])
def test_what_waits_for_the_lock_is_not_forgotten(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """By a refusal, or when the last device that is kept goes."""
    daemon.rows = (row("eth1"),)
    daemon.joint.apply("napi", "napi")
    daemon.rows = (row("eth1"), row("eth0", instance="more"))
    with daemon.store.lock(), monkeypatch.context() as impatient:
        impatient.setattr(journal, "LOCK_WAIT", 0.0)
        report = daemon.joint.add("napi", "more")
        assert report is not None and report.again
    if refused:
        good, daemon.rows = daemon.rows, (*daemon.rows, BAD)
        daemon.joint.apply("napi", "bad")
        daemon.rows = good
        daemon.joint.forget("napi", "bad")
    else:
        daemon.rows = (row("eth0", instance="more"),)
        daemon.joint.remove("napi", "eth1")
    assert until(lambda: daemon.off() == {1})
    daemon.joint.forget("napi", "more")


def test_a_disk_that_fails_when_one_more_device_comes(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.joint.apply("napi", "napi")
    daemon.rows = (row("eth0", "eth1"),)

    def full(*_: object) -> None:
        raise RxlaneError(Kind.JOURNAL, "no space left")

    with monkeypatch.context() as failing:
        failing.setattr(daemon.joint._adapter.store._journal, "save", full)
        report = daemon.joint.add("napi", "napi")
        assert report is not None and not report.ok
    assert until(lambda: modes(host, "eth1") == {1})


# -- originals of what was let go -----------------------------------------------------------------


def test_the_last_one_while_another_has_the_lock(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.joint.apply("napi", "napi")
    with daemon.store.lock(), monkeypatch.context() as impatient:
        impatient.setattr(journal, "LOCK_WAIT", 0.0)
        daemon.rows = ()
        assert daemon.joint.remove("napi", "eth0").again
    assert until(lambda: daemon.off() == {0})


@pytest.mark.parametrize("more", [(), ("eth1",)])
def test_one_that_is_down(daemon: Daemon, host: SimHost, more: tuple[str, ...]) -> None:
    daemon.rows = (row("eth0", *more),)
    daemon.joint.apply("napi", "napi")
    host.set_down("eth0")
    daemon.rows = (row(*more),) if more else ()
    assert daemon.joint.remove("napi", "eth0").waiting
    host.set_up("eth0", shift=0)
    assert modes(host, "eth0") == {1}
    look(daemon)
    daemon.sources[-1].tell(UP)
    assert until(lambda: modes(host, "eth0") == {0})
    assert all(modes(host, name) == {1} for name in more)


# -- what could not be had ------------------------------------------------------------------------


def managed(host: SimHost) -> list[int]:
    whole = SimHost(simhost.whole(simhost.snapshot(simhost.link(), SECOND)))
    host.links, host.irqs = whole.links, whole.irqs
    irqs = [q.irq for q in host.links["eth0"].queues if q.kind == "rx" and q.irq]
    host.managed = set(irqs)
    return irqs


def test_its_successor_comes_soon_after_another_instance_ended(two: Daemon, host: SimHost) -> None:
    managed(host)
    two.rows = (row("eth0"), IRQS, row("eth1", instance="other"))
    two.joint.apply("irq_layout", "irq")
    two.sources[-1].tell(APPLIED)
    assert until(lambda: len(two.sources[-1].followed) > 1)
    two.rows = (row("eth0"), IRQS)
    two.joint.unapply("napi", "other", {"eth1"})
    host.managed = set()
    host.links["eth0"] = simhost.wired(simhost.link(ifindex=9, base=50), 400)
    for queue in host.links["eth0"].queues:
        assert queue.irq is not None
        host.irqs[queue.irq] = Irq(queue.irq, f"nic-{queue.irq}", tuple(range(8)), (0,))
    look(two)
    two.sources[-1].tell(Event("appeared", "eth0", 9))
    assert until(lambda: not two.joint._keeper._not_yet)
    two.sources[-1].tell(APPLIED)
    assert until(lambda: {host.irqs[400 + n].cpus for n in range(4)} == {(2,), (3,)}), two.log
    two.joint.forget("irq_layout", "irq")


def test_its_successor_has_it_already(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    irqs = managed(host)
    adapter = Adapter(tmp_path, lambda: host, {"eth0": 2}.get)
    rows = (replace(IRQS, options=(("irq_cpus", "2"),)),)
    assert adapter.apply(rows).ok

    def moved(cpu: int) -> None:
        for irq in irqs:
            host.irqs[irq] = replace(host.irqs[irq], cpus=(cpu,), effective=(cpu,))

    host.managed = set()
    moved(2)
    adapter.keep(adapter.policy(rows), {"eth0": 2}, None)
    assert adapter.verify(rows, {"eth0"}).ok
    moved(0)
    assert not adapter.verify(rows, {"eth0"}).ok
