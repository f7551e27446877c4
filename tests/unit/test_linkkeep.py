# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces kept by their .link files, beside each other and beside the operator."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rxlane import cli
from rxlane.apply import apply
from rxlane.applying.rollback import RolledBack, rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.host import udevdb
from rxlane.items import FLOW_ENTRIES
from rxlane.journal import Pending, Sealed
from rxlane.keeping import claims, confirm
from rxlane.keeping.confirm import boottime
from rxlane.keeping.events import Event
from rxlane.linkfiles import linkkeep
from rxlane.plan import HOST
from rxlane.policy import parse_mixed
from unit import simhost
from unit.confirming import OLD, SELF
from unit.linkbench import FILE, POLL, ROW, Bench, same


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_queues_do_not_go_back_under_a_login_that_is_hidden(bench: Bench) -> None:
    """As without CAP_SYS_PTRACE: the devices of logins are not known, but that there are any."""
    bench.host.links["eth0"] = simhost.tuned(bench.host.links["eth0"])
    start = simhost.settings(bench.host)
    bench.start_service("eth0", **POLL)
    options = {"channels": "2", "netdev_max_backlog": "5000"}
    apply(bench.host, bench.store, parse_mixed(("eth0",), options), {"eth0", HOST})
    bench.host.hidden_logins = True
    assert bench.look("eth0") and bench.modes("eth0") == [0, 2]
    bench.host.write_napi(bench.host.links["eth0"].napis[1].napi_id, {"threaded": "off"})
    assert bench.look("eth0") and bench.modes("eth0") == [0, 2]
    assert [level for level, text in bench.log if "which device cannot be told" in text] == ["info"]
    bench.host.hidden_logins = False
    assert bench.look("eth0") and bench.host.links["eth0"].count("rx") == 4
    assert bench.modes("eth0") == [0, 2, 2, 2]
    bench.services["eth0"].end(bench.names)
    rollback(bench.host, bench.store)
    assert simhost.settings(bench.host) == start


def test_a_hidden_login_is_in_nobodys_way_else(bench: Bench) -> None:
    bench.host.hidden_logins = True
    bench.start_service("eth0", **POLL)
    assert bench.modes("eth0") == [0, 2, 2, 2]
    bench.host.write_napi(8194, {"threaded": "off"})
    assert bench.look("eth0") and bench.modes("eth0") == [0, 2, 2, 2]
    bench.services["eth0"].end(bench.names)
    assert bench.modes("eth0") == [0, 0, 0, 0]


def test_each_writes_its_own_and_they_share_the_cpus(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    assert bench.modes("eth0") == [0, 2, 2, 2] and bench.modes("eth1") == [0, 0, 0, 0]
    bench.start_service("eth1", **POLL)
    bench.look("eth0")
    cpus = [thread.cpus for thread in bench.host.threads.values()]
    assert len(cpus) == 6 and len(set(cpus)) == 6 and all(len(one) == 1 for one in cpus)
    writes = bench.host.writes
    assert bench.look("eth0") and bench.look("eth1")
    assert bench.host.writes == writes
    assert bench.log == []


def test_what_is_lost_is_put_right(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.host.write_napi(8194, {"threaded": "off"})
    assert bench.services["eth0"].relevant(Event("went up", "eth0", 2))
    assert not bench.services["eth0"].relevant(Event("went up", "eth1", 3))
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 2, 2, 2]


def test_ends_with_the_originals(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", **POLL)
    bench.services["eth0"].end(bench.names)
    assert bench.modes("eth0") == [0, 0, 0, 0] and bench.modes("eth1") == [0, 2, 2, 2]
    assert claims.load(bench.store, "boot-1").links == (3,)
    bench.services["eth1"].end(bench.names)
    assert same(bench.host.observe(), bench.start)
    assert bench.store.load() is None and not bench.store.claims.path.exists()


def test_other_properties_and_none(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    assert bench.look("eth0") and bench.anew == 1
    bench.properties("eth0", NAPI_THREADED="on", NAPI_GRO_FLUSH_TIMEOUT="5000")
    assert bench.look("eth0") and bench.anew == 2
    assert bench.modes("eth0") == [1, 1, 1, 1]
    assert {n.defer_hard_irqs for n in bench.host.links["eth0"].napis} == {0}
    bench.properties("eth0")
    assert not bench.look("eth0")
    assert same(bench.host.observe(), bench.start)
    assert "no NAPI_... properties any more" in bench.log[-1][1]


def test_a_wrong_one_changes_nothing_else(bench: Bench) -> None:
    bench.start_service("eth0", **POLL, NAPI_RPS="some", NAPI_THREDED="on")
    assert bench.modes("eth0") == [0, 2, 2, 2]
    bench.look("eth0")
    told = [text for level, text in bench.log if level == "error"]
    assert len(told) == 2, "told once"
    assert told[0].startswith(f"[{FILE}] NAPI_THREDED=on: unknown option")
    assert told[1].startswith(f"[{FILE}] NAPI_RPS=some: ")


def test_a_refusal_names_the_file_and_hinders_no_other(bench: Bench) -> None:
    bench.start_service("eth1", NAPI_THREADED="on")
    with pytest.raises(RxlaneError, match="CPU 99") as refused:
        bench.start_service("eth0", NAPI_THREADED="on", NAPI_THREAD_CPUS="99")
    assert str(refused.value).startswith(f"[{FILE}] NAPI_THREAD_CPUS=99: ")
    assert bench.modes("eth0") == [0, 0, 0, 0]
    bench.properties("eth1", NAPI_THREADED="busy-poll")
    assert bench.look("eth1")
    assert bench.modes("eth1") == [2, 2, 2, 2]


@pytest.mark.parametrize("argv", [["rollback"], ["rollback", "eth0"]])
def test_the_operator_rolls_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    monkeypatch.setattr("rxlane.kernel.Linux", lambda **_: bench.host)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert cli.main([*argv, "--state", str(bench.store.directory)]) == 0
    assert not bench.look("eth0"), "it ends"
    assert bench.look("eth1") == ("eth0" in argv)
    assert bench.modes("eth0") == [0, 0, 0, 0]


def test_waits_for_what_waits_to_be_confirmed(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    pending = Pending("boot-1", "token", boottime() + 10**12, (2,), OLD, SELF)
    bench.store.pending.save(pending)
    bench.host.write_napi(8194, {"threaded": "on"})
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 1, 2, 2]
    confirm.disarm(bench.store, pending)
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 2, 2, 2]


def test_waits_for_no_apply_that_never_had_a_guard(bench: Bench) -> None:
    """Killed while it was to start; nobody would end the wait."""
    bench.start_service("eth0", **POLL)
    bench.store.pending.save(Pending("boot-1", "token", boottime() + 10**12, (2,), OLD))
    bench.host.write_napi(8194, {"threaded": "on"})
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 2, 2, 2]


def test_the_host_s_flow_table_stays_as_long_as_one_uses_it(bench: Bench) -> None:
    name = "net.core.rps_sock_flow_entries"
    bench.start_service("eth0", NAPI_RFS="4096")
    bench.start_service("eth1", NAPI_RFS="4096")
    bench.services["eth0"].end(bench.names)
    assert bench.host.sysctls[name] == 4096
    bench.properties("eth1", NAPI_THREADED="off")
    assert bench.look("eth1")
    assert bench.host.sysctls[name] == 0


def test_the_flow_table_goes_after_a_refusal_too(bench: Bench) -> None:
    bench.start_service("eth0", NAPI_RFS="4096")
    bench.properties("eth0", NAPI_THREADED="on", NAPI_THREAD_CPUS="99")
    with pytest.raises(RxlaneError):
        bench.look("eth0")
    bench.services["eth0"].end(bench.names)
    assert same(bench.host.observe(), bench.start)


def test_renamed(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.host.links["lan0"] = replace(bench.host.links.pop("eth0"), name="lan0")
    bench.names = {2: "lan0", 3: "eth1"}
    bench.host.write_napi(8194, {"threaded": "off"})
    assert bench.look("eth0")
    assert bench.modes("lan0") == [0, 2, 2, 2]
    bench.services["eth0"].end(bench.names)
    assert bench.modes("lan0") == [0, 0, 0, 0]


def test_unplugged(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    del bench.names[2]
    assert bench.look("eth0") and bench.there[-2:] == [True, False]
    (bench.root / udevdb.DATABASE / udevdb.entry(2)).unlink()
    bench.names[2] = "eth0"
    assert bench.look("eth0") and bench.there[-1] is False, "udev is not ready with it"


def test_claims_of_another_boot_and_damaged_ones_say_nothing(bench: Bench) -> None:
    bench.start_service("eth0", NAPI_THREADED="on")
    assert claims.load(bench.store, "boot-2").links == ()
    bench.store.claims.path.write_text("{")
    assert claims.load(bench.store, "boot-1").links == ()
    assert "claim" in " ".join(confirm.discard_earlier(bench.host, bench.store))
    assert not bench.store.claims.path.exists()


def test_damaged_claims_end_nobody(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    bench.store.claims.path.write_text("{")
    assert bench.look("eth0") and bench.look("eth1")
    assert claims.load(bench.store, "boot-1").links == (2, 3)
    assert [text.rpartition("/")[2] for _, text in bench.log] == [
        "claims.json was damaged: claimed anew"
    ] * 2
    bench.services["eth1"].end(bench.names)
    assert bench.look("eth0") and claims.load(bench.store, "boot-1").links == (2,)


def test_after_damage_the_first_that_ends_ends_no_other(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    bench.store.claims.path.write_text("{")
    assert bench.look("eth0")
    bench.services["eth0"].end(bench.names)
    assert bench.look("eth1"), "not taken for rolled back"


@pytest.mark.parametrize("gone", [{2}, None])
def test_a_rollback_ends_services_also_after_damage(bench: Bench, gone: set[int] | None) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")
    bench.store.claims.path.write_text("{")
    claims.update(bench.store, "boot-1", claims.without(gone))
    assert not bench.look("eth0") and bench.look("eth1") == (gone is not None)
    bench.start_service("eth0", **POLL)
    assert bench.look("eth0") and 2 in claims.load(bench.store, "boot-1").links


def busy(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Another rxlane has the lock at the service's rollback of this number."""
    left = [number]

    def late(*args: Any) -> RolledBack:
        left[0] -= 1
        if left[0] == 0:
            raise RxlaneError(Kind.BUSY, "another rxlane holds the lock", remedy="try again")
        return rollback(*args)

    monkeypatch.setattr(linkkeep, "rollback", late)


def test_without_properties_while_the_interface_is_down(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.host.set_down("eth0")
    bench.properties("eth0")
    assert bench.look("eth0") and bench.look("eth0")
    (line,) = [text for _, text in bench.log if "eth0/rx1/threaded" in text]
    assert line.startswith("not put back: ")
    bench.host.set_up("eth0", shift=0)
    assert bench.services["eth0"].relevant(Event("went up", "eth0", 2))
    assert not bench.look("eth0")
    assert bench.modes("eth0") == [0, 0, 0, 0] and bench.store.load() is None


def test_properties_that_come_back_meanwhile(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    bench.host.set_down("eth0")
    bench.properties("eth0")
    assert bench.look("eth0")
    bench.properties("eth0", **POLL)
    bench.host.set_up("eth0")
    assert bench.look("eth0") and bench.modes("eth0") == [0, 2, 2, 2]


def test_properties_that_come_back_while_the_originals_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that udev's event brings finds the service there: no other one was started."""
    bench.start_service("eth0", **POLL)
    bench.properties("eth0")

    def slow(*args: Any) -> RolledBack:
        bench.properties("eth0", **POLL)
        return rollback(*args)

    monkeypatch.setattr(linkkeep, "rollback", slow)
    assert bench.look("eth0") and bench.modes("eth0") == [0, 0, 0, 0]
    assert bench.look("eth0") and bench.modes("eth0") == [0, 2, 2, 2]


def test_what_udev_has_while_it_renames_says_nothing(bench: Bench) -> None:
    bench.start_service("eth0", **POLL)
    path = bench.root / udevdb.DATABASE / udevdb.entry(2)
    path.write_text("I:1\nE:ID_RENAMING=1\n")
    assert bench.look("eth0") and bench.there[-1] is False
    assert bench.modes("eth0") == [0, 2, 2, 2]


@pytest.mark.parametrize("stopped", [True, False])
def test_unplugged_it_leaves_no_flow_table(bench: Bench, stopped: bool) -> None:
    """Stopped while it is away, or once it was for long."""
    bench.start_service("eth0", NAPI_RFS="512")
    del bench.host.links["eth0"], bench.names[2]
    (bench.root / udevdb.DATABASE / udevdb.entry(2)).unlink()
    assert bench.look("eth0")
    bench.services["eth0"].end(bench.names if stopped else {})
    assert bench.host.sysctls[FLOW_ENTRIES] == 0 and not bench.store.claims.path.exists()


def test_an_interface_of_another_s_former_name(bench: Bench) -> None:
    """Renamed, both of them, between the event that named it and the look."""
    bench.start_service("eth0", **POLL)
    bench.host.rename("eth0", "lan0")
    bench.host.rename("eth1", "eth0")
    folder = bench.root / "sys/class/net/eth0"
    folder.mkdir(parents=True)
    (folder / "ifindex").write_text("3\n")
    before = bench.modes("lan0")
    assert bench.look("eth0")
    assert bench.modes("eth0") == [0, 0, 0, 0] and bench.modes("lan0") == before
    bench.properties("eth0")
    assert bench.look("eth0"), "nor is anything brought back"
    assert bench.modes("lan0") == before


@pytest.mark.parametrize("number", [1, 2])  # of the interface, and of the flow table after it
def test_without_properties_it_ends_once_the_originals_are_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    bench.start_service("eth0", **POLL, NAPI_RFS="4096")
    bench.properties("eth0")
    busy(monkeypatch, number)
    with pytest.raises(RxlaneError, match="another rxlane"):
        bench.look("eth0")
    assert not bench.look("eth0")
    assert same(bench.host.observe(), bench.start) and bench.store.load() is None
    assert not bench.store.claims.path.exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_one_leaves_no_flow_table(bench: Bench, stopped: bool) -> None:
    """It starts again, and finds other properties or is stopped before it looks."""
    bench.start_service("eth0", NAPI_RFS="4096")
    bench.claim("eth0", NAPI_THREADED="on")
    assert stopped or bench.look("eth0")
    bench.services["eth0"].end(bench.names)
    assert same(bench.host.observe(), bench.start) and bench.store.load() is None


@pytest.mark.parametrize("busy_tries", [linkkeep.TRIES - 1, linkkeep.TRIES])
def test_stopped_it_waits_for_the_lock_more_than_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, busy_tries: int
) -> None:
    """Many are stopped at once, each of which has the lock for a while."""
    bench.start_service("eth0", **POLL)
    tries = list[object]()

    def late(*args: Any) -> RolledBack:
        tries.append(args)
        if len(tries) <= busy_tries:
            raise RxlaneError(Kind.BUSY, "another rxlane holds the lock", remedy="try again")
        return rollback(*args)

    monkeypatch.setattr(linkkeep, "rollback", late)
    with contextlib.suppress(RxlaneError):
        bench.services["eth0"].end(bench.names)
    assert len(tries) == linkkeep.TRIES
    assert same(bench.host.observe(), bench.start) == (busy_tries < linkkeep.TRIES)


def test_stopped_on_a_disk_that_takes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start_service("eth0", **POLL)
    bench.start_service("eth1", NAPI_THREADED="on")

    def fail(*_: object) -> None:
        raise RxlaneError(Kind.JOURNAL, "cannot be written: No space left on device")

    monkeypatch.setattr(Sealed, "save", fail)
    monkeypatch.setattr(Sealed, "remove", fail)
    with contextlib.suppress(RxlaneError):  # of the journal
        bench.services["eth0"].end(bench.names)
    assert bench.modes("eth0") == [0, 0, 0, 0]
    assert bench.log[-1][0] == "warning" and "claim on the interface stays" in bench.log[-1][1]


OFFERED = {
    "NAPI_THREADED": st.sampled_from(["on", "off", "busy-poll@1-", "on@0,busy-poll@2-"]),
    "NAPI_MANAGEMENT_QUEUES": st.sampled_from(["0", "1"]),
    "NAPI_THREAD_CPUS": st.sampled_from(["auto", "2-5", "6", "99"]),
    "NAPI_THREAD_POLICY": st.sampled_from(["fifo", "batch", "other"]),
    "NAPI_THREAD_PRIORITY": st.sampled_from(["5", "98"]),
    "NAPI_DEFER_HARD_IRQS": st.sampled_from(["0", "3", "-1"]),
    "NAPI_IRQ_CPUS": st.sampled_from(["auto", "3-4"]),
    "NAPI_IRQ_THREADED": st.sampled_from(["on", "off", "auto"]),
    "NAPI_RPS": st.sampled_from(["auto", "1-3", "off"]),
    "NAPI_RFS": st.sampled_from(["auto", "512", "off"]),
    "NAPI_XPS": st.sampled_from(["auto", "rxqs", "off"]),
}
FOUND = st.fixed_dictionaries({}, optional=OFFERED)


REFUSED = {  # beside threads on the same CPUs
    "NAPI_THREADED": "busy-poll@1-",
    "NAPI_THREAD_CPUS": "auto",
    "NAPI_THREAD_POLICY": "fifo",
    "NAPI_THREAD_PRIORITY": "5",
    "NAPI_RPS": "auto",
    "NAPI_RFS": "auto",
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["eth0", "eth1"]), FOUND), max_size=5), st.booleans())
# The flow table that a refused one asked for, written by the other's service.
@example(
    [
        ("eth0", {"NAPI_THREADED": "on", "NAPI_THREAD_CPUS": "2-5"}),
        ("eth1", REFUSED),
        ("eth0", {"NAPI_THREADED": "on"}),
    ],
    False,
)
def test_whatever_they_said_the_originals_come_back(
    rows: list[tuple[str, dict[str, str]]], tuned: bool
) -> None:
    """Services that get any properties, TuneD in between, all of them ended."""
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for device, found in rows:
            bench.properties(device, **found)
            try:
                if device in bench.services:
                    if not bench.look(device):
                        del bench.services[device]
                else:
                    bench.start_service(device, **found)
            except RxlaneError as error:
                assert error.kind.refused
        if tuned:
            adapter = bench.adapter()
            assert adapter.apply([ROW]).ok
            assert adapter.rollback().ok
        for service in bench.services.values():
            service.end(bench.names)
        assert same(bench.host.observe(), bench.start)
        assert bench.store.load() is None
