# SPDX-License-Identifier: GPL-2.0-or-later
"""What is kept while its devices are renamed, swap names or are made anew at the wrong moment."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import journal
from rxlane.apply import apply
from rxlane.applying.rollback import bring_back
from rxlane.converge import Follower
from rxlane.errors import RxlaneError
from rxlane.items import ADAPTIVE_RX, RX_USECS
from rxlane.journal import Store
from rxlane.keeping import claims, watch
from rxlane.keeping.events import LOST, Event
from rxlane.model import Irq, Link, Snapshot
from rxlane.tuned import tuned_keep
from rxlane.tuned.tuned_compat import Adapter, Row
from rxlane.wire import rtnetlink
from unit import simhost
from unit.asking import FULL, SECOND, asked, policy
from unit.commands import Captured, root_of_a_host, run
from unit.daemon import Daemon, put_right, until
from unit.keeping import UP, Bench, Sources, Waiting
from unit.linkbench import POLL
from unit.linkbench import Bench as LinkBench
from unit.simhost import SimHost

THIRD = simhost.link("eth2", 4, ifindex=5, base=9500)


def swap(host: SimHost) -> None:
    host.rename("eth0", "lan0")
    host.rename("eth1", "eth0")
    host.rename("lan0", "eth1")


def made_anew(host: SimHost) -> None:
    del host.links["eth0"]
    host.links["eth0"] = simhost.link(ifindex=9, base=50)


def modes(host: SimHost, name: str) -> set[int | None]:
    return {napi.threaded for napi in host.links[name].napis}


def look(daemon: Daemon) -> None:
    daemon.sources[-1].links = Sources.of(daemon.host).links


def row(*names: str, instance: str = "napi", **more: str) -> Row:
    return Row(instance, frozenset(names), (("threaded", "on"), *more.items()))


def test_tuned_hears_late_of_a_device_that_is_back(daemon: Daemon, host: SimHost) -> None:
    daemon.joint.apply("napi", "napi")
    made_anew(host)
    daemon.joint.remove("napi", "eth0")
    assert daemon.store.load() is None
    look(daemon)
    daemon.sources[0].tell(Event("appeared", "eth0", 9))
    assert until(lambda: daemon.off() == {1})
    assert not daemon.joint._keeper.given_up


def test_the_journal_of_a_device_that_was_made_anew_is_ended_by_others(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot(simhost.link(), SECOND))
    for number in range(4):
        host.write_napi(9000 + number, {"threaded": "on"})
    bench = Bench(host, Store(tmp_path), policy("eth0", **FULL))
    assert bench.happens(UP)
    made_anew(host)
    apply(host, bench.store, policy("eth1", threaded="on"), {"eth1"})
    assert bench.store.load() is None
    assert bench.happens(Event("appeared", "eth0", 9))
    assert modes(host, "eth0") == {0, 1}


@pytest.fixture
def renamed(daemon: Daemon, host: SimHost) -> Daemon:
    """Two devices are kept, one of which has another name since."""
    host.links["eth2"] = THIRD
    daemon.rows = (row("eth0", "eth2"),)
    daemon.joint.apply("napi", "napi")
    host.rename("eth0", "lan0")
    look(daemon)
    daemon.rows = (row("lan0", "eth2"),)
    return daemon


def lan0_is_kept(daemon: Daemon) -> bool:
    daemon.host.write_napi(8194, {"threaded": "off"})
    daemon.sources[-1].tell(Event("went up", "lan0", 2))
    return until(lambda: modes(daemon.host, "lan0") == {1})


def test_refused_beside_one_that_was_renamed(renamed: Daemon, host: SimHost) -> None:
    renamed.rows = (*renamed.rows, row("eth1", instance="other", thread_cpus="99"))
    report = renamed.joint.add("napi", "other")
    assert report is not None and not report.ok
    assert lan0_is_kept(renamed)
    host.rename("lan0", "eth0")
    renamed.joint.forget("napi", "other")


def test_let_go_beside_one_that_was_renamed(renamed: Daemon, host: SimHost) -> None:
    renamed.rows = (row("lan0"),)
    renamed.joint.remove("napi", "eth2")
    assert modes(host, "eth2") == {0} and lan0_is_kept(renamed)
    # Under the name that it has now it is let go as well.
    renamed.rows = ()
    renamed.joint.remove("napi", "lan0")
    renamed.sources[-1].tell(Event("went up", "lan0", 2))
    time.sleep(0.5)
    assert modes(host, "lan0") == {0}
    host.rename("lan0", "eth0")


def test_a_name_that_became_anothers_while_a_look_waited(tmp_path: Path) -> None:
    host, store = SimHost(simhost.snapshot(simhost.link(), SECOND)), Waiting(tmp_path)
    bench = Bench(host, store, policy("eth0", **FULL))
    start = host.links["eth1"]
    store.then = lambda: swap(host)
    assert bench.happens(UP)
    assert bench.log == [
        ("error", "eth0 went up: eth0: the name is another interface's by now; try again")
    ]
    bench.happens(Event("renamed from eth0", "eth1", 2, reset=False), after=1)
    assert replace(host.links["eth0"], name="eth1") == start and modes(host, "eth1") == {0, 1}
    journal = store.load()
    assert journal is not None and {(e.device, e.ifindex) for e in journal.entries} == {("eth1", 2)}


@pytest.mark.parametrize("stopped", [True, False])
def test_a_service_that_ends_while_its_interface_is_renamed(tmp_path: Path, stopped: bool) -> None:
    bench = LinkBench(tmp_path)
    bench.store = store = Waiting(tmp_path / "state")
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    store.then = lambda: swap(bench.host)
    if stopped:
        bench.services["eth0"].end(bench.names)
    else:
        bench.properties("eth0")
        assert not bench.look("eth0")
    assert modes(bench.host, "eth1") == {0} and modes(bench.host, "eth0") == {1}


def test_a_look_during_a_rollback_claims_nothing_for_long(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon.joint._adapter, "_index", {"eth0": 2}.get)
    daemon.joint.apply("napi", "napi")
    # As `rxlane rollback` does it: claims go first.
    claims.update(daemon.store, "boot-1", claims.without(None))
    real = host.observe

    def slow(*arguments: object, **more: object) -> Snapshot:
        monkeypatch.setattr(host, "observe", real)
        daemon.sources[0].tell(UP)
        time.sleep(0.5)  # the look has begun, and waits for the lock
        return real()

    with daemon.store.lock():
        monkeypatch.setattr(host, "observe", slow)
        bring_back(host, daemon.store, None, for_good=True, forget=True)
    assert until(lambda: daemon.joint._keeper.given_up)
    assert until(lambda: not claims.load(daemon.store, "boot-1").tuned)


def test_what_one_device_could_not_have_its_successor_may(tmp_path: Path) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    host.managed = {q.irq for q in host.links["eth0"].queues if q.kind == "rx" and q.irq}
    bench = Bench(host, Store(tmp_path), asked("eth0", irq_cpus="2-3"))
    bench.happens(UP)
    assert bench.converger._unmovable
    host.links["eth0"] = simhost.wired(simhost.link(ifindex=9, base=50), 400)
    for queue in host.links["eth0"].queues:
        assert queue.irq is not None
        host.irqs[queue.irq] = Irq(queue.irq, f"nic-{queue.irq}", tuple(range(8)), (0,))
    # It is down at first.
    bench.sources = Sources.of(host)
    bench.converger.notice([Event("appeared", "eth0", 9)])
    bench.clock.now += 1
    assert bench.converger.run(lambda _: False)
    bench.happens(Event("went up", "eth0", 9))
    assert [host.irqs[400 + n].cpus for n in range(4)] == [(2,), (3,), (2,), (3,)]


def test_let_go_soon_after_another_instance_ended(
    daemon: Daemon, host: SimHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_keep, "SOON", 0.3)
    host.links["eth2"] = THIRD
    daemon.rows = (row("eth0", "eth1"), row("eth2", instance="other"))
    for instance in ("napi", "other"):
        daemon.joint.apply("napi", instance)
    daemon.joint.unapply("napi", "other", {"eth2"})
    daemon.rows = (row("eth0", "eth1"),)
    # To an instance of nobody's; the other goes to one that is applied.
    daemon.joint.remove("napi", "eth1")
    assert modes(host, "eth1") == {0}
    assert until(lambda: not daemon.joint._keeper._not_yet)
    assert put_right(daemon) and modes(host, "eth1") == {0}


def test_all_that_is_left_moves_soon_after_another_instance_ended(
    daemon: Daemon, host: SimHost
) -> None:
    daemon.rows = (row("eth0"), row("eth1", instance="other"))
    for instance in ("napi", "other"):
        daemon.joint.apply("napi", instance)
    daemon.joint.unapply("napi", "other", {"eth1"})
    daemon.joint.remove("napi", "eth0")
    daemon.rows = (row("eth0", instance="third"),)
    report = daemon.joint.add("napi", "third")
    assert report is not None and report.ok and modes(host, "eth0") == {1}
    daemon.joint.forget("napi", "third")


def test_let_go_under_a_name_that_was_not_heard_of(daemon: Daemon, host: SimHost) -> None:
    daemon.rows = (row("eth0", "eth1"),)
    daemon.joint.apply("napi", "napi")
    host.rename("eth0", "lan0")
    daemon.rows = (row("eth1"),)
    daemon.joint.remove("napi", "lan0")
    look(daemon)
    daemon.sources[-1].tell(Event("renamed from eth0", "lan0", 2, reset=False))
    assert not until(lambda: modes(host, "lan0") != {0}, seconds=0.5)
    host.rename("lan0", "eth0")


def test_removals_that_tuned_hears_before_the_keeper(daemon: Daemon, host: SimHost) -> None:
    """Its thread looks by names that are older than the journal."""
    daemon.rows = (row("eth0", "eth1"),)
    daemon.joint.apply("napi", "napi")
    for index, name in enumerate(("eth0", "eth1"), start=9):
        host.links[name] = simhost.link(name, 4, ifindex=index, base=1000 * index)
        daemon.joint.remove("napi", name)
    assert daemon.store.load() is None
    daemon.sources[-1].tell(UP)
    assert not until(lambda: daemon.joint._keeper.given_up, seconds=0.5)
    look(daemon)
    daemon.sources[-1].tell(Event("appeared", "eth0", 9))
    assert until(lambda: modes(host, "eth0") == modes(host, "eth1") == {1})


def test_an_apply_that_waits_is_of_the_nic_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    host, store = root_of_a_host(monkeypatch), Waiting(tmp_path)
    host.links["eth1"] = SECOND
    start = simhost.settings(host)
    monkeypatch.setattr(rtnetlink, "resolve", lambda _: None)
    monkeypatch.setattr(journal, "Store", lambda _: store)
    store.then = lambda: swap(host)
    status, _, err = run(capsys, "apply", "eth0", "-o", "threaded=on")
    assert status == 1 and "eth0: the name is another interface's by now; try again" in err
    swap(host)
    assert simhost.settings(host) == start


def test_a_watch_that_waits_is_of_the_nic_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, store = SimHost(simhost.snapshot(simhost.link(), SECOND)), Waiting(tmp_path)
    monkeypatch.setattr(watch, "Sources", lambda: Sources.of(host))
    store.then = lambda: swap(host)
    with pytest.raises(RxlaneError, match="the name is another interface's"):
        watch.watch(host, store, policy("eth0", **FULL), {"eth0": 2}, -1, print, print)
    assert modes(host, "eth0") == modes(host, "eth1") == {0}


def test_what_no_reset_costs_is_given_to_each_that_is_made_anew(tmp_path: Path) -> None:
    def nic(number: int) -> Link:
        return simhost.tuned(simhost.wired(simhost.link(ifindex=number, base=50 * number), 400))

    host = SimHost(simhost.snapshot(nic(2)))
    bench = Bench(host, Store(tmp_path), asked("eth0", rx_usecs="20", adaptive_rx="off"))
    for number in (9, 10):
        host.links["eth0"] = nic(number)
        bench.happens(Event("appeared", "eth0", number), Event("went up", "eth0", number), after=5)
        found = {t.item: t.value for t in host.links["eth0"].tunables}
        assert (found[RX_USECS], found[ADAPTIVE_RX]) == (20, 0)


def test_two_names_are_never_of_one_device() -> None:
    follower = Follower(["eth0", "eth1"], {2: "eth0", 3: "eth1"})
    follower.update({2: "eth1", 3: "eth0"})
    follower.update({9: "eth0"})
    follower.update({9: "eth0", 10: "eth1"})
    assert follower.indexes() == {"eth0": 9, "eth1": 10}


def test_what_could_not_be_had_is_tried_after_events_were_lost(tmp_path: Path) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    host.managed = {q.irq for q in host.links["eth0"].queues if q.kind == "rx" and q.irq}
    bench = Bench(host, Store(tmp_path), asked("eth0", irq_cpus="2-3"))
    bench.happens(UP)
    irqs, host.managed = host.managed, set()
    bench.happens(LOST)
    assert {host.irqs[irq].cpus for irq in irqs} == {(2,), (3,)}


def test_what_its_predecessor_could_not_have_is_compared(tmp_path: Path) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    irqs = {q.irq for q in host.links["eth0"].queues if q.kind == "rx" and q.irq}
    host.managed = irqs
    adapter = Adapter(tmp_path, lambda: host, {"eth0": 2}.get)
    rows = (Row("irq", frozenset({"eth0"}), (("irq_cpus", "2-3"),), "irq_layout"),)
    assert adapter.apply(rows).ok
    host.managed = set()
    adapter.keep(adapter.policy(rows), {"eth0": 2}, None)
    for irq in irqs:
        host.irqs[irq] = replace(host.irqs[irq], cpus=(0,), effective=(0,))
    assert not adapter.verify(rows, {"eth0"}).ok
