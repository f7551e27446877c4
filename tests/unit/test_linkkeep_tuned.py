# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces kept by their .link files beside TuneD, which wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rxlane import cli
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.items import FLOW_ENTRIES
from rxlane.keeping import claims, confirm
from rxlane.model import Snapshot
from rxlane.plan import TUNED
from rxlane.policy import parse_mixed
from rxlane.tuned.tuned_compat import Row
from unit.confirming import arm
from unit.keeping import Waiting
from unit.linkbench import POLL, ROW, Bench, same


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_tuned_wins_and_gives_back(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    before = bench.of("eth0")
    adapter = bench.adapter()
    assert adapter.apply([ROW]).ok
    assert bench.modes("eth0") == [1, 1, 1, 1]
    assert bench.modes("eth1") == [1, 1, 1, 1], "what the profile does not have stays"
    assert bench.look("eth0") and bench.look("eth1")
    assert bench.modes("eth0") == [1, 1, 1, 1]
    assert adapter.rollback().ok
    assert bench.modes("eth0") == [0, 0, 0, 0] and bench.modes("eth1") == [1, 1, 1, 1]
    assert bench.anew == 2 and bench.look("eth0") and bench.anew == 3
    assert bench.of("eth0").links[0].napis[0] == before.links[0].napis[0]
    assert bench.modes("eth0") == [0, 2, 2, 2]
    journal = bench.store.load()
    assert journal is not None and journal.owner == "", "a TuneD that starts takes nothing back"


def test_a_profile_that_is_refused_takes_nothing(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    wrong = Row("napi", frozenset({"eth0"}), (("threaded", "on"), ("thread_cpus", "99")))
    assert not bench.adapter().apply([wrong]).ok
    bench.host.write_napi(8194, {"threaded": "off"})
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 2, 2, 2]


def test_tuned_between_the_look_and_the_lock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start_service("eth0", **POLL)
    bench.host.write_napi(8194, {"threaded": "off"})
    observe = bench.host.observe

    def meanwhile(*args: object) -> Snapshot:
        monkeypatch.setattr(bench.host, "observe", observe)
        change = claims.with_tuned({2})(claims.load(bench.store, "boot-1"))
        bench.store.claims.save(change)
        return observe()

    monkeypatch.setattr(bench.host, "observe", meanwhile)
    writes = bench.host.writes
    assert bench.look("eth0")
    assert bench.host.writes == writes


def test_stopped_while_tuned_has_it(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    assert bench.adapter().apply([ROW]).ok
    bench.services["eth0"].end(bench.names)
    assert bench.modes("eth0") == [1, 1, 1, 1]
    assert bench.adapter().rollback().ok
    assert same(bench.host.observe(), bench.start)


@pytest.fixture
def roll_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`rxlane rollback` with an option, by a root whose TuneD would apply these kinds next."""
    monkeypatch.setattr("rxlane.kernel.Linux", lambda **_: bench.host)
    monkeypatch.setattr("os.geteuid", lambda: 0)

    def run(option: str, *kinds: str) -> int:
        monkeypatch.setattr("rxlane.tuned.tuned_profiles.at_start", lambda: frozenset(kinds))
        return cli.main(["rollback", option, "--state", str(bench.store.directory)])

    return run


def test_a_dead_tuned_takes_only_its_own_with_it(
    bench: Bench, roll_back: Callable[..., int]
) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    assert bench.adapter().apply([ROW]).ok
    assert roll_back("--orphaned") == 0
    assert bench.modes("eth0") == [0, 0, 0, 0] and bench.modes("eth1") == [1, 1, 1, 1]
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 2, 2, 2]


def test_plugins_that_are_removed_take_only_tuneds_with_them(
    bench: Bench, roll_back: Callable[..., int]
) -> None:
    """Also where its profile files still name the profile, for no daemon could be told."""
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    assert bench.adapter().apply([ROW]).ok
    assert roll_back("--tuned", "napi") == 0
    assert bench.modes("eth0") == [0, 0, 0, 0] and bench.modes("eth1") == [1, 1, 1, 1]
    assert bench.look("eth0") and bench.look("eth1")
    during = bench.host.observe()
    assert bench.modes("eth0") == [0, 2, 2, 2]
    assert roll_back("--tuned", "napi") == 0
    assert same(bench.host.observe(), during), "they are the services'"


def test_a_dead_tuned_that_had_nothing_to_write_leaves_the_interface(
    bench: Bench, roll_back: Callable[..., int]
) -> None:
    """All was as its profile wants it, so no journal tells of it."""
    assert bench.adapter().apply([Row("napi", frozenset({"eth0"}), (("threaded", "off"),))]).ok
    bench.start_service("eth0", **POLL)
    assert bench.modes("eth0") == [0, 0, 0, 0]
    assert roll_back("--orphaned", "napi") == 0 and bench.look("eth0")
    assert bench.modes("eth0") == [0, 0, 0, 0], "the next one takes it"
    assert roll_back("--orphaned") == 0 and bench.look("eth0")
    assert bench.modes("eth0") == [0, 2, 2, 2]


@pytest.mark.parametrize(
    ("tuned", "link"),
    [("1024", "4096"), ("4096", "1024"), ("1024", "auto"), ("auto", "auto"), ("auto", "32768")],
)
def test_one_of_two_that_steer_has_the_flow_table(bench: Bench, tuned: str, link: str) -> None:
    """Each plans without the other; it is TuneD's as long as its profile asks for one."""
    adapter = bench.adapter()
    rows = [Row("steer", frozenset({"eth0"}), (("rfs", tuned),), "flow_steering")]
    assert adapter.apply(rows).ok
    entries = bench.host.sysctls[FLOW_ENTRIES]
    bench.start_service("eth1", NAPI_RFS=link)
    for _ in range(2):
        adapter.keep(adapter.policy(rows), None, lambda plan: plan)
        assert bench.host.sysctls[FLOW_ENTRIES] == entries
        bench.look("eth1")
    assert bench.host.sysctls[FLOW_ENTRIES] == entries


def test_tuned_leaves_the_flow_table_of_others_alone(bench: Bench) -> None:
    """Its profile is about another device, and has no use for it."""
    name = "net.core.rps_sock_flow_entries"
    bench.start_service("eth1", NAPI_RFS="4096")
    entries = bench.host.sysctls[name]
    adapter = bench.adapter()
    assert entries and adapter.apply([ROW]).ok
    assert bench.host.sysctls[name] == entries
    adapter.rollback()
    assert bench.host.sysctls[name] == entries


def test_a_failed_apply_leaves_tuned_s_name_on_what_it_wrote(bench: Bench) -> None:
    """So that its settings go where it is killed and starts with another profile."""
    bench.start_service("eth1", NAPI_DEFER_HARD_IRQS="7")
    adapter = bench.adapter()
    bad = Row("other", frozenset({"eth9"}), (("threaded", "on"),))
    assert adapter.apply([ROW]).ok and not adapter.apply([ROW, bad]).ok
    journal = bench.store.load()
    assert journal is not None and journal.owner == TUNED
    adapter.rollback()
    journal = bench.store.load()
    assert journal is not None and journal.owner == ""


def test_the_flow_table_is_left_to_tuned(bench: Bench) -> None:
    name = "net.core.rps_sock_flow_entries"
    bench.start_service("eth0", NAPI_RFS="4096")
    row = Row("flow", frozenset({"eth1"}), (("rfs", "512"),), "flow_steering")
    assert bench.adapter().apply([row]).ok
    bench.services["eth0"].end(bench.names)
    assert bench.host.sysctls[name] == 512
    assert bench.adapter().rollback().ok
    assert same(bench.host.observe(), bench.start)


@pytest.mark.parametrize("stopped", [True, False])
def test_tuned_has_the_lock_that_one_which_ends_waits_for(bench: Bench, stopped: bool) -> None:
    bench.start_service("eth0", **POLL)
    adapter, store = bench.adapter(), Waiting(bench.store.directory)
    bench.services["eth0"]._store = store

    def applied() -> None:
        assert adapter.apply([ROW]).ok

    store.then = applied
    ends(bench, "eth0", stopped)
    assert bench.modes("eth0") == [1, 1, 1, 1]


@pytest.mark.parametrize("stopped", [True, False])
def test_the_flow_table_goes_while_tuned_has_another_that_does_not_steer(
    bench: Bench, stopped: bool
) -> None:
    table = bench.host.sysctls[FLOW_ENTRIES]
    bench.start_service("eth1", NAPI_RFS="4096")
    assert bench.host.sysctls[FLOW_ENTRIES] != table
    assert bench.adapter().apply([ROW]).ok
    ends(bench, "eth1", stopped)
    assert bench.host.sysctls[FLOW_ENTRIES] == table and bench.modes("eth0") == [1, 1, 1, 1]


def ends(bench: Bench, device: str, stopped: bool) -> None:
    if stopped:
        bench.services[device].end(bench.names)
    else:
        bench.properties(device)
        bench.look(device)


@pytest.mark.parametrize("confirmed", [True, False])
def test_the_flow_table_goes_when_one_is_stopped_while_an_apply_waits(
    bench: Bench, confirmed: bool
) -> None:
    table = bench.host.sysctls[FLOW_ENTRIES]
    bench.start_service("eth0", NAPI_RFS="4096")
    pending = arm(bench.host, bench.store, [2])
    apply(bench.host, bench.store, parse_mixed(("eth0",), {"threaded": "on"}), {"eth0"})
    bench.services["eth0"].end(bench.names)
    if confirmed:
        confirm.disarm(bench.store, pending)
        assert bench.host.sysctls[FLOW_ENTRIES] == table
    else:
        confirm.expire(bench.host, bench.store, pending)
    rollback(bench.host, bench.store, {"eth0"}, for_good=True)
    bench.start_service("eth1", NAPI_THREADED="on")
    assert bench.host.sysctls[FLOW_ENTRIES] == table


def test_the_flow_table_goes_when_the_last_that_steers_is_rolled_back(bench: Bench) -> None:
    table = bench.host.sysctls[FLOW_ENTRIES]
    bench.start_service("eth0", NAPI_RFS="4096")
    claims.update(bench.store, bench.host.boot_id(), claims.without({2}))
    rollback(bench.host, bench.store, {"eth0"}, for_good=True)
    assert not bench.look("eth0")
    assert bench.host.sysctls[FLOW_ENTRIES] == table and bench.store.load() is None
