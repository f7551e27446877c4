# SPDX-License-Identifier: GPL-2.0-or-later
"""Which devices a kept layout is of, whatever they are called by now, and when it ends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.apply import Applied, apply
from rxlane.applying.rollback import rollback
from rxlane.converge import LATE, Choose, Follower
from rxlane.errors import RxlaneError
from rxlane.journal import Store
from rxlane.keeping import confirm, watch
from rxlane.keeping.events import Event
from rxlane.model import Link, Thread
from rxlane.policy import parse_mixed
from rxlane.sections import Policy
from rxlane.sysfs import Sysfs
from unit import keeping, simhost
from unit.asking import FULL, SECOND, policy
from unit.confirming import arm
from unit.keeping import UP, Bench, Sources
from unit.simhost import SimHost


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return keeping.full(tmp_path)


def test_follower() -> None:
    follower = Follower(["eth0", "eth1", "late0"], {2: "eth0", 3: "eth1"})
    assert [follower.now(n) for n in ("eth0", "eth1", "late0")] == ["eth0", "eth1", None]
    follower.update({2: "lan0", 3: "eth1", 4: "late0"})
    assert [follower.now(n) for n in ("eth0", "late0")] == ["lan0", "late0"]
    follower.update({3: "eth1"})
    assert follower.now("eth0") is None
    follower.update({3: "eth1", 8: "eth0"})
    assert follower.now("eth0") == "eth0"
    assert follower.covers(Event("x", "eth0", 8)) and follower.covers(Event("x"))
    assert not follower.covers(Event("x", "docker0", 99))


def test_a_device_that_took_the_name_of_one_that_went() -> None:
    follower = Follower(["eth0", "eth1"], {2: "eth0", 3: "eth1"})
    follower.update({3: "eth0"})
    assert (follower.now("eth0"), follower.now("eth1")) == (None, "eth0")
    follower.update({3: "eth0", 9: "eth1"})
    assert (follower.now("eth0"), follower.now("eth1")) == (None, "eth0")


def test_a_veth_with_the_name_of_a_nic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    monkeypatch.setattr(watch, "Sysfs", lambda: Sysfs(tmp_path))
    host = SimHost(simhost.snapshot())
    bench = Bench(host, Store(tmp_path / "state"), policy("eth0", **FULL))
    (tmp_path / "sys/class/net/eth0/device").rmdir()
    host.links["eth0"] = simhost.link(ifindex=9, base=50)
    bench.happens(Event("appeared", "eth0", 9))
    assert all(n.threaded == 0 for n in host.links["eth0"].napis)


def test_sections_without_a_device_left_go() -> None:
    follower = Follower(["eth0"], {})
    assert follower.policy(policy("eth0", **FULL)).sections == ()
    follower.update({5: "eth0"})
    assert follower.policy(policy("eth0", **FULL)).sections[0].devices == ("eth0",)
    every = policy(**FULL)
    assert Follower([], {}).policy(every) == every


def test_links_of_containers_are_passed_over(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not bench.relevant(Event("appeared", "veth7", 70))
    assert bench.relevant(UP) and bench.relevant(Event("CPU 3 went online"))
    every = Bench(bench.host, Store(tmp_path / "all"), policy(**FULL), ())
    (tmp_path / "sys/class/net/eth5/device").mkdir(parents=True)
    monkeypatch.setattr(every.kept, "_sysfs", Sysfs(tmp_path))
    assert every.relevant(Event("appeared", "eth5", 70))
    assert not every.relevant(Event("appeared", "veth7", 70))


def test_taps_that_come_later_are_laid_out_with_the_rest(tmp_path: Path) -> None:
    """Their guests' threads start after them, and nothing announces that."""
    tap = Event("appeared", "tap0", 9, tun=True)
    start = SimHost(simhost.snapshot())
    plain = Bench(start, Store(tmp_path / "plain"), policy("eth0", **FULL))
    assert not plain.relevant(tap)
    asked = parse_mixed(["eth0"], {"vhost_cpus": "3"})
    bench = Bench(SimHost(simhost.snapshot()), Store(tmp_path / "taps"), asked)
    assert bench.relevant(tap) and not bench.relevant(Event("appeared", "veth7", 70))
    worker = Thread(900, "vhost-899", "other", 0, 0, tuple(range(8)))
    link = simhost.link("tap0", 1, ifindex=9, base=9000, physical=False)
    bench.host.links["tap0"] = replace(link, napis=(), tap=True)
    assert bench.happens(tap) and bench.converger.timeout() == LATE
    late = bench.clock.now + LATE
    assert bench.happens(Event("went up", "eth0", 2)), "what else happens does not make it forget"
    assert bench.converger.timeout() == pytest.approx(late - bench.clock.now)
    bench.host.links["tap0"] = replace(bench.host.links["tap0"], vhosts=(worker,))
    assert bench.happens(after=LATE)
    assert bench.host.links["tap0"].vhosts[0].cpus == (3,)
    assert bench.converger.timeout() is None, "one more look, no more"


# -- devices that go and come back ----------------------------------------------------------------


def test_renamed_device_is_followed_and_comes_back(bench: Bench) -> None:
    host = bench.host
    bench.host.rename("eth0", "lan0")
    host.write_napi(8194, {"threaded": "off"})
    bench.happens(Event("renamed from eth0", "lan0", 2, reset=False))
    assert host.links["lan0"].napis[1].threaded == 1
    rollback(host, bench.store)
    assert all(n.threaded == 0 and n.defer_hard_irqs == 0 for n in host.links["lan0"].napis)


def test_a_rename_that_sysfs_shows_before_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last look wrote is heard first, while the links read so far have the old name."""
    net = tmp_path / "sys/class/net"
    (net / "eth0/device").mkdir(parents=True)
    monkeypatch.setattr(watch, "Sysfs", lambda: Sysfs(tmp_path))
    bench = keeping.full(tmp_path)
    os.rename(net / "eth0", net / "lan0")
    bench.host.rename("eth0", "lan0")
    assert bench.relevant(Event("had rps_cpus written", "eth0", 2, reset=False))
    bench.host.write_napi(8194, {"threaded": "off"})
    bench.happens(Event("renamed from eth0", "lan0", 2, reset=False))
    assert bench.host.links["lan0"].napis[1].threaded == 1


def test_a_rollback_ends_what_found_all_as_wanted(tmp_path: Path) -> None:
    """There are no originals, but the operator has said it all the same."""
    host = SimHost(simhost.snapshot())
    for napi in host.links["eth0"].napis:
        host.write_napi(napi.napi_id, {"threaded": "on"})
    bench = Bench(host, Store(tmp_path / "state"), policy("eth0", threaded="on"))
    assert bench.store.load() is None
    rollback(host, bench.store, for_good=True)
    host.write_napi(8194, {"threaded": "off"})
    assert not bench.happens(Event("had threaded written", "eth0", 2, reset=False))
    assert host.links["eth0"].napis[1].threaded == 0


def test_device_made_anew_has_originals_of_its_own(bench: Bench) -> None:
    """Driver unbind and bind: another index, other NAPIs, another original."""
    host = bench.host
    again = simhost.link(ifindex=9, base=50)
    napis = tuple(replace(n, defer_hard_irqs=33) for n in again.napis)
    del host.links["eth0"]
    bench.happens(Event("CPU 3 went online"))
    assert bench.log == []
    host.links["eth0"] = replace(again, napis=napis)
    bench.happens(Event("appeared", "eth0", 9))
    assert [n.threaded for n in host.links["eth0"].napis] == [0, 1, 1, 1]
    rollback(host, bench.store)
    assert {n.defer_hard_irqs for n in host.links["eth0"].napis} == {33}
    assert bench.store.load() is None


@pytest.mark.parametrize("names", [("eth0",), ()])
def test_a_namespace_that_is_left_and_entered_again(tmp_path: Path, names: tuple[str, ...]) -> None:
    """The device kept our settings meanwhile: they must not pass for its originals."""
    two = simhost.link("eth1", ifindex=3, base=9000)
    host = SimHost(simhost.snapshot(simhost.link(), two))
    before = simhost.settings(host)
    bench = Bench(host, Store(tmp_path), policy(*names, **FULL), names)
    away = host.links.pop("eth0")
    bench.happens(Event("got another MTU", "eth1", 3))
    host.links["eth0"] = away
    bench.happens(Event("appeared", "eth0", 2))
    rollback(host, bench.store)
    assert simhost.settings(host) == before


def test_originals_wait_no_longer_once_the_name_is_taken(bench: Bench) -> None:
    for index in range(10, 15):
        bench.host.links["eth0"] = simhost.link(ifindex=index, base=100 * index)
        bench.happens(Event("appeared", "eth0", index))
    journal = bench.store.load()
    assert journal is not None and {e.ifindex for e in journal.entries} == {14}


def test_rollback_of_one_device_keeps_what_is_away(bench: Bench) -> None:
    two = simhost.link("eth1", ifindex=3, base=9000)
    away = bench.host.links.pop("eth0")
    bench.host.links["eth1"] = two
    rollback(bench.host, bench.store, ["eth0"])
    bench.host.links["eth0"] = away
    rollback(bench.host, bench.store)
    assert all(n.threaded == 0 for n in bench.host.links["eth0"].napis)


# -- the first apply, and a rollback --------------------------------------------------------------


def test_first_apply_is_told_and_its_error_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, stop, done = SimHost(simhost.snapshot()), os.eventfd(1), list[Applied]()
    monkeypatch.setattr(watch, "Sources", lambda: Sources.of(host))
    store, good = Store(tmp_path), policy("eth0", **FULL)
    watch.watch(host, store, good, {"eth0": 2}, stop, print, done.append)
    assert done[0].written == 17
    os.eventfd_write(stop, 1)
    bad = policy("eth0", threaded="on", thread_cpus="64")
    with pytest.raises(RxlaneError, match="CPU 64 does not exist"):
        watch.watch(host, store, bad, {"eth0": 2}, stop, print, done.append)
    assert apply(host, store, good, ["eth0"]).written == 0


def test_what_is_kept_waits_for_a_confirmation(bench: Bench) -> None:
    """Else the apply that is tried would be undone by the keeper, and both by its guard."""
    pending = arm(bench.host, bench.store)
    apply(bench.host, bench.store, policy("eth0", threaded="off"), ["eth0"])
    writes = bench.host.writes
    assert bench.happens(UP) and bench.host.writes == writes
    assert "nothing of the layout is written while an apply waits" in bench.log[0][1]
    confirm.disarm(bench.store, pending)
    assert bench.happens(after=LATE) and bench.host.links["eth0"].napis[1].threaded != 0


def test_what_is_kept_of_other_devices_waits_for_nobody(tmp_path: Path) -> None:
    host, own = SimHost(simhost.snapshot(simhost.link(), SECOND)), {"threaded": "on"}
    bench = Bench(host, Store(tmp_path), policy("eth1", **own), ("eth1",))
    pending = arm(host, bench.store, [2])
    host.links["eth1"] = without_modes(host.links["eth1"])
    writes = host.writes
    assert bench.happens(Event("went up", "eth1", 3)) and host.writes > writes
    confirm.disarm(bench.store, pending)
    arm(host, bench.store, [2, 3])
    host.links["eth1"] = without_modes(host.links["eth1"])
    writes = host.writes
    assert bench.happens(Event("went up", "eth1", 3)) and host.writes == writes


def without_modes(link: Link) -> Link:
    return replace(link, napis=tuple(replace(n, threaded=0) for n in link.napis))


def test_first_apply_that_was_overtaken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply with --confirm came between the question and the lock."""
    host, store = SimHost(simhost.snapshot()), Store(tmp_path)
    monkeypatch.setattr(watch, "Sources", lambda: Sources.of(host))
    arm(host, store)
    with pytest.raises(RxlaneError, match="waits to be confirmed"):
        watch.watch(host, store, policy("eth0", **FULL), {"eth0": 2}, os.eventfd(1), print, print)
    assert host.writes == 0


def test_rolled_back_while_the_look_waited_for_the_lock(bench: Bench) -> None:
    write = bench.kept._write

    def late(policy: Policy, scope: Mapping[str, int] | None, choose: Choose | None) -> Applied:
        rollback(bench.host, bench.store)
        return write(policy, scope, choose)

    bench.kept._write = late
    assert not bench.happens(UP)
    assert bench.host.links["eth0"].napis[1].threaded == 0
    assert "kept no longer" in bench.log[0][1]


def test_after_a_rollback_nothing_is_kept(bench: Bench) -> None:
    rollback(bench.host, bench.store)
    writes = bench.host.writes
    assert bench.happens(UP) is False
    assert bench.host.writes == writes and "kept no longer" in bench.log[0][1]
