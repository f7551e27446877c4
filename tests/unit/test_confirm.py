# SPDX-License-Identifier: GPL-2.0-or-later
"""An apply that is undone unless a new login confirms it, on a simulated kernel."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.host.session import Login, ticks
from rxlane.journal import Pending, Store
from rxlane.keeping import confirm
from rxlane.plan import HOST_INDEX
from rxlane.policy import parse_mixed
from unit import simhost
from unit.asking import FULL, SECOND, policy
from unit.confirming import NEW, OLD, SELF, arm, ready
from unit.simhost import SimHost
from unit.simwrites import Killed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


@pytest.fixture
def host() -> SimHost:
    return SimHost(simhost.snapshot())


def test_confirmed_apply_stays(host: SimHost, store: Store) -> None:
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    during = simhost.settings(host)
    with pytest.raises(RxlaneError, match="log in anew") as caught:
        confirm.confirm(host, store, OLD)
    assert caught.value.kind is Kind.REFUSED
    confirm.confirm(host, store, NEW)
    assert confirm.expire(host, store, pending) is None
    assert simhost.settings(host) == during
    with pytest.raises(RxlaneError, match="no apply waits"):
        confirm.confirm(host, store, NEW)


def test_unconfirmed_apply_is_undone(host: SimHost, store: Store) -> None:
    before = simhost.settings(host)
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    done = confirm.expire(host, store, pending)
    assert done is not None and done.written > 0
    assert simhost.settings(host) == before
    assert store.load() is None and store.pending.load() is None


def test_no_disk_is_needed_before_the_originals_are_back(
    host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs, such as one behind the network that the layout cut off."""
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    steps = list[str]()
    monkeypatch.setattr(os, "fsync", lambda _: steps.append("disk"))
    host.on_write = lambda: steps.append("original")
    confirm.expire(host, store, pending)
    assert steps == sorted(steps, reverse=True) and {*steps} == {"original", "disk"}
    assert store.given_up.load() is not None


def test_killed_at_every_write_the_originals_come_back(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, Store(tmp_path / "count"), policy(**FULL))
    for number in range(host.writes):
        one, store = SimHost(simhost.snapshot()), Store(tmp_path / str(number))
        before = simhost.settings(one)
        pending = arm(one, store)
        one.kill_at = number
        with pytest.raises(Killed):
            apply(one, store, policy(**FULL))
        confirm.expire(one, store, pending)
        assert simhost.settings(one) == before


def test_only_the_devices_of_that_apply(store: Store) -> None:
    """Also under another name; what was confirmed of other devices stays."""
    host = SimHost(simhost.snapshot(simhost.link(), SECOND))
    apply(host, store, policy("eth0", threaded="on"), ["eth0"])
    pending = arm(host, store, [3])
    apply(host, store, policy("eth1", threaded="on"), ["eth1"])
    host.rename("eth1", "lan1")
    confirm.expire(host, store, pending)
    assert all(n.threaded == 0 for n in host.links["lan1"].napis)
    assert all(n.threaded == 1 for n in host.links["eth0"].napis)


@pytest.mark.parametrize("taken", [False, True])
def test_a_device_that_came_back_under_another_index(store: Store, taken: bool) -> None:
    """From another namespace, for example; what has its index by then is another device."""
    host = SimHost(simhost.snapshot(simhost.link("eth0", 4, ifindex=2), SECOND))
    host.folders = {"eth0": 1002, "eth1": 1003}
    apply(host, store, policy("eth1", threaded="on"), ["eth1"])
    pending = arm(host, store, [2])
    apply(host, store, policy("eth0", threaded="on"), ["eth0"])
    host.links["eth0"] = replace(host.links["eth0"], ifindex=77)
    if taken:
        host.links["eth2"] = replace(simhost.link("eth2", 4, ifindex=2, base=12000))
        host.folders["eth2"] = 2002
        host.write_device(host.links["eth2"], {"gro-flush-timeout": 7000})
    done = confirm.expire(host, store, pending)
    assert done is not None and done.pending == () and store.pending.load() is None
    assert [n.threaded for n in host.links["eth0"].napis] == [0] * 4
    assert [n.threaded for n in host.links["eth1"].napis] == [1] * 4


def test_settings_of_the_host_come_back_with_the_apply_that_wrote_them(store: Store) -> None:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.link(), SECOND)))
    backlog = host.sysctls["net.core.netdev_max_backlog"]
    apply(host, store, parse_mixed(("eth0",), {"netdev_max_backlog": "5000"}), {"eth0"})
    pending = arm(host, store, [3])
    apply(host, store, policy("eth1", threaded="on"), {"eth1"})
    confirm.expire(host, store, pending)
    assert host.sysctls["net.core.netdev_max_backlog"] == 5000
    confirm.expire(host, store, arm(host, store, [HOST_INDEX]))
    assert host.sysctls["net.core.netdev_max_backlog"] == backlog


def test_of_two_at_once_one_is_refused(host: SimHost, store: Store) -> None:
    """Both asked before either waited."""
    confirm.refuse_second(host, store)
    first = arm(host, store)
    with pytest.raises(RxlaneError, match="an earlier apply waits"):
        arm(host, store)
    assert store.pending.load() == first


@pytest.mark.parametrize("started", [False, True])
def test_interrupted_while_the_guard_starts(
    host: SimHost, store: Store, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(confirm, "_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        confirm.arm(host, store, OLD, 60, None, ready if started else interrupt)
    assert store.pending.load() is None


def killed_while_arming(host: SimHost, store: Store, login: Login) -> Pending:
    def start(*_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        confirm.arm(host, store, login, 60, None, start)
    left = store.pending.load()
    assert left is not None
    return left


def test_killed_before_a_guard_was_ready(host: SimHost, store: Store) -> None:
    """Nothing was written, so nothing waits once no guard can be on its way."""
    killed_while_arming(host, store, replace(OLD, at=ticks()))
    with pytest.raises(RxlaneError, match="s are left"):
        confirm.refuse_second(host, store)
    confirm.cancel(store)

    left = killed_while_arming(host, store, OLD)
    assert confirm.waiting(host, store) is None
    with pytest.raises(RxlaneError, match="no apply waits"):
        confirm.confirm(host, store, NEW)
    assert store.pending.load() is None, "packages wait for it"
    assert confirm.register(store, left.token, SELF) is None, "a guard that comes late"


@pytest.mark.parametrize(
    ("about", "back", "ends"),
    [
        ([2], {2}, True),
        ([2], {2, 3}, True),
        ([2, 3], {2}, False),
        ([HOST_INDEX, 2], {2}, False),
        (None, {2}, False),
        (None, None, True),
    ],
)
def test_a_rollback_of_all_it_is_about_ends_the_wait(
    host: SimHost, store: Store, about: list[int] | None, back: set[int] | None, ends: bool
) -> None:
    arm(host, store, about)
    confirm.cancel(store, back)
    assert (store.pending.load() is None) == ends


def test_too_late(host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = arm(host, store)
    monkeypatch.setattr(confirm, "boottime", lambda: pending.deadline)
    with pytest.raises(RxlaneError, match="is gone.*rxlane rollback"):
        confirm.confirm(host, store, NEW)
    with pytest.raises(RxlaneError, match="is gone; run `rxlane rollback`"):
        confirm.refuse_second(host, store)
    monkeypatch.setattr(confirm, "start_of", lambda *_: SELF.started)
    with pytest.raises(RxlaneError, match="not confirmed in time: its originals come back"):
        confirm.confirm(host, store, NEW)
    with pytest.raises(RxlaneError, match="not confirmed in time: its originals come back"):
        confirm.refuse_second(host, store)


def test_second_apply_must_wait(host: SimHost, store: Store) -> None:
    confirm.refuse_second(host, store)
    arm(host, store)
    with pytest.raises(RxlaneError, match="s are left"):
        confirm.refuse_second(host, store)
    rollback(host, store)
    confirm.cancel(store)
    confirm.refuse_second(host, store)


def test_guard_that_cannot_wait(host: SimHost, store: Store) -> None:
    def fail(store: Store, token: str) -> None:
        confirm.register(store, token, None, "locking memory: no")

    with pytest.raises(RxlaneError, match="locking memory: no"):
        confirm.arm(host, store, OLD, 60, None, fail)
    assert store.pending.load() is None


def test_guard_that_never_comes(
    host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "READY_WAIT", 0.05)
    with pytest.raises(RxlaneError, match="nothing was changed"):
        confirm.arm(host, store, OLD, 60, None, lambda store, token: None)
    assert store.pending.load() is None


def test_record_of_another_boot_counts_for_nothing(host: SimHost, store: Store) -> None:
    arm(host, store)
    apply(host, store, policy(**FULL))
    again = SimHost(simhost.snapshot(), boot="boot-2")
    confirm.refuse_second(again, store)
    assert store.pending.load() is None


def test_at_boot_everything_earlier_goes(host: SimHost, store: Store) -> None:
    arm(host, store)
    apply(host, store, policy(**FULL))
    assert confirm.discard_earlier(host, store) == () and store.load() is not None
    again = SimHost(simhost.snapshot(), boot="boot-2")
    assert len(confirm.discard_earlier(again, store)) == 2
    assert store.load() is None and store.pending.load() is None
    store.path.write_text("{")
    assert "damaged" in confirm.discard_earlier(again, store)[0] and not store.path.exists()
    assert again.writes == 0


@pytest.mark.parametrize("text", ["", "{}", '{"pending": {}, "crc32": "0"}'])
def test_damaged_record_confirms_nothing(host: SimHost, store: Store, text: str) -> None:
    before = simhost.settings(host)
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    store.pending.path.write_text(text)
    with pytest.raises(RxlaneError, match="rxlane rollback"):
        confirm.confirm(host, store, NEW)
    confirm.expire(host, store, pending)
    assert simhost.settings(host) == before and not store.pending.path.exists()


def test_an_apply_that_was_overtaken_is_refused(tmp_path: Path) -> None:
    """Another one with --confirm came between the question and the lock."""
    host, store = SimHost(simhost.snapshot(simhost.link())), Store(tmp_path)
    arm(host, store)
    with pytest.raises(RxlaneError) as refused:
        apply(host, store, policy("eth0", threaded="on"), {"eth0"},
              choose=lambda plan: confirm.unguarded(host, store, plan))  # fmt: skip
    assert refused.value.kind is Kind.REFUSED and "waits to be confirmed" in str(refused.value)
    assert {napi.threaded for napi in host.links["eth0"].napis} == {0}
