# SPDX-License-Identifier: GPL-2.0-or-later
"""A journal is of one network namespace; elsewhere nothing that it knows is given up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.apply import apply
from rxlane.applying.present import load_current, refuse_elsewhere
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.host.session import Login
from rxlane.journal import Store
from rxlane.keeping import confirm
from rxlane.kernel import Linux
from unit import simhost
from unit.asking import FULL, policy
from unit.simhost import SimHost

LOGIN = Login(audit=3, newest=5, sid=100, tty=34816, started=10, at=1000)
ELSEWHERE = 4026532500


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


@pytest.fixture
def host() -> SimHost:
    return SimHost(simhost.whole(simhost.snapshot()))


@pytest.fixture
def pair() -> SimHost:
    """A host with two devices that are told by their folders, too."""
    two = simhost.link("eth1", ifindex=3, base=9000)
    made = SimHost(simhost.whole(simhost.snapshot(simhost.link(), two)))
    made.folders = {"eth0": 1176270, "eth1": 1176271}
    return made


def other_space(host: SimHost) -> SimHost:
    """The same host as a process in another network namespace sees it: without the devices."""
    there = SimHost(simhost.snapshot(), boot=host.boot)
    there.links = {}
    there.namespaces["self"] = ELSEWHERE
    return there


def test_rollback_elsewhere_gives_nothing_up(host: SimHost, store: Store) -> None:
    before = simhost.settings(host)
    apply(host, store, policy(**FULL))
    kept = store.load()
    with pytest.raises(RxlaneError) as caught:
        rollback(other_space(host), store)
    assert caught.value.kind is Kind.REFUSED
    line = str(caught.value)
    assert "another network namespace" in line and str(host.namespaces["self"]) in line
    assert str(store.path) in line and "\n" not in line
    assert store.load() == kept
    rollback(host, store)
    assert simhost.settings(host) == before and store.load() is None


def test_apply_elsewhere_changes_nothing(host: SimHost, store: Store) -> None:
    apply(host, store, policy(**FULL))
    kept = store.load()
    there = other_space(host)
    with pytest.raises(RxlaneError, match="another network namespace"):
        apply(there, store, policy(threaded="off"))
    assert there.writes == 0 and store.load() == kept


@pytest.mark.parametrize(("noted", "here"), [(0, ELSEWHERE), (ELSEWHERE, 0), (5, 5)])
def test_unknown_and_same_are_taken(host: SimHost, store: Store, noted: int, here: int) -> None:
    host.namespaces["self"] = noted
    apply(host, store, policy(**FULL))
    host.namespaces["self"] = here
    assert load_current(store, host) == (store.load(), ())


def test_another_boot_is_not_refused(host: SimHost, store: Store) -> None:
    """Numbers of namespaces are of one boot, as the settings are."""
    apply(host, store, policy(**FULL))
    later = other_space(host)
    later.boot = "boot-2"
    refuse_elsewhere(store, store.load(), later)
    assert load_current(store, later)[0] is None and store.load() is None


def test_confirm_needs_a_service_that_sees_the_devices(host: SimHost, store: Store) -> None:
    host.namespaces["self"] = ELSEWHERE
    with pytest.raises(RxlaneError) as caught:
        confirm.arm(host, store, LOGIN, 60, None, lambda *_: pytest.fail("started"))
    assert caught.value.kind is Kind.REFUSED and "PID 1" in str(caught.value)
    with store.lock():
        assert store.pending.load() is None


def test_the_number_is_that_of_proc(tmp_path: Path) -> None:
    assert Linux().netns() == Path("/proc/self/ns/net").stat().st_ino
    assert Linux(tmp_path).netns() == 0


def test_an_inode_that_is_used_again_is_no_namespace(host: SimHost, store: Store) -> None:
    host.cookie = 9468
    apply(host, store, policy(**FULL))
    host.cookie = 9469
    with pytest.raises(RxlaneError, match="if that namespace is gone"):
        load_current(store, host)
    host.cookie = 0  # not told: the inode has to do
    assert load_current(store, host) == (store.load(), ())


def test_no_two_namespaces_have_one_cookie() -> None:
    assert Linux().netns_cookie() == Linux().netns_cookie() != 0


@pytest.mark.parametrize(
    ("spaces", "outside", "refused"),
    [(("1", "2"), True, True), (("1", "1"), True, False), (("1", "2"), False, False)],
)
def test_a_sys_of_another_namespace(
    tmp_path: Path, spaces: tuple[str, str], outside: bool, refused: bool
) -> None:
    """As nsenter -n leaves it; files of one tree stand for the namespaces and their /sys."""
    for number in {"0", *spaces}:
        (tmp_path / number).touch()
    for process, number in zip(("self", "1"), spaces, strict=True):
        (tmp_path / "proc" / process / "ns").mkdir(parents=True)
        (tmp_path / "proc" / process / "ns/net").symlink_to(tmp_path / number)
    (tmp_path / "sys").mkdir()
    if outside:  # else PID 1 is not ours to look at
        (tmp_path / "proc/1/root/sys").mkdir(parents=True)
    if refused:
        with pytest.raises(RxlaneError, match="/sys is of another network namespace") as caught:
            Linux(tmp_path)
        assert caught.value.kind is Kind.REFUSED and "ip netns exec" in str(caught.value)
    else:
        Linux(tmp_path).close()


def test_without_a_boot_id_no_journal_is_of_another_boot(
    host: SimHost, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(host, store, policy(**FULL))
    kept = store.load()
    monkeypatch.setattr(host, "boot_id", Linux(tmp_path).boot_id)
    with pytest.raises(RxlaneError, match="boot_id cannot be read"):
        rollback(host, store)
    assert store.load() == kept


@pytest.mark.parametrize("laid_out_again", [False, True])
def test_back_with_another_index_it_is_the_same_device(
    host: SimHost, store: Store, laid_out_again: bool
) -> None:
    """Where it was, a container's own eth0 had its index; our settings came back with it."""
    before = simhost.settings(host)
    host.folders["eth0"] = 1176270
    apply(host, store, policy(**FULL))
    away = host.links.pop("eth0")
    host.links["eth0"] = replace(away, ifindex=away.ifindex + 4)
    if laid_out_again:
        assert apply(host, store, policy(**FULL)).written == 0
    back = rollback(host, store)
    assert back.written and simhost.settings(host) == before and store.load() is None


def test_others_may_be_laid_out_while_it_is_away(pair: SimHost, store: Store) -> None:
    before = simhost.settings(pair)
    apply(pair, store, policy(**FULL))
    away = pair.links.pop("eth0")
    apply(pair, store, policy(**{**FULL, "thread_nice": "6"}))
    pair.links["eth0"] = replace(away, ifindex=away.ifindex + 4)
    apply(pair, store, policy(**FULL))
    assert not rollback(pair, store).pending and simhost.settings(pair) == before


def test_another_device_of_that_name_is_not_the_same(host: SimHost, store: Store) -> None:
    host.folders["eth0"] = 1176270
    apply(host, store, policy(**FULL))
    away = host.links.pop("eth0")
    host.links["eth0"], host.folders["eth0"] = replace(away, ifindex=away.ifindex + 4), 1176842
    ours = simhost.settings(host)
    assert rollback(host, store).written == 0 and simhost.settings(host) == ours


def test_another_device_has_the_index_of_one_that_is_away(pair: SimHost, store: Store) -> None:
    """Both were away; the first one back has the index that was the other's."""
    before = simhost.settings(pair)
    apply(pair, store, policy(**FULL))
    away = {name: pair.links.pop(name) for name in ("eth0", "eth1")}
    pair.links["eth0"] = replace(away["eth0"], ifindex=3)
    rollback(pair, store, {"eth0"})
    pair.links["eth1"] = replace(away["eth1"], ifindex=7)
    assert not rollback(pair, store).pending and simhost.settings(pair) == before


def test_twice_away_and_back(pair: SimHost, store: Store) -> None:
    before = simhost.settings(pair)
    apply(pair, store, policy(**FULL))
    for index in (5, 7):
        pair.links["eth0"] = replace(pair.links["eth0"], ifindex=index)
        rollback(pair, store, {"eth1"})
    assert not rollback(pair, store).pending and simhost.settings(pair) == before
