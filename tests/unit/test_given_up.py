# SPDX-License-Identifier: GPL-2.0-or-later
"""What is given back in parts, or while somebody keeps it, comes back and stays back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rxlane.apply import Applied, apply
from rxlane.applying.rollback import rollback
from rxlane.converge import Choose
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.keeping import confirm
from rxlane.keeping.watch import Kept
from rxlane.policy import Given, parse, parse_mixed, parse_section
from rxlane.sections import Policy
from rxlane.tuned.tuned_compat import Adapter, Report, Row
from rxlane.tuned.tuned_facet import Joint
from unit import simhost
from unit.confirming import NEW, OLD, ready
from unit.simhost import SimHost
from unit.taps import host as vm_host
from unit.taps import tap

TWO = {2: "eth0", 3: "eth1"}
SECTIONS = {
    "napi": {"channels": "2"},
    "irq_layout": {"irq_cpus": "5"},
    "flow_steering": {"rps": "off"},
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


class NotKept:
    """In place of the Keeper: nothing is kept."""

    given_up = False

    def lost(self, ended: bool = True) -> bool:
        return False

    def called_now(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        return tuple(rows)

    def hold(self, *_: object) -> None: ...
    def hold_later(self, *_: object) -> None: ...
    def retry(self, *_: object) -> None: ...
    def left(self, *_: object) -> None: ...
    def pause(self) -> None: ...
    def end(self) -> None: ...


def joint_of(host: SimHost, state: Path, rows: Mapping[str, Row]) -> Joint:
    indexes = {link.name: link.ifindex for link in host.links.values()}
    keeper = cast(Any, lambda *_: NotKept())
    made = Joint(lambda: Adapter(state, lambda: host, indexes.get), keeper)
    for kind, one in rows.items():
        made.register(kind, partial(tuple, [one]), lambda *_: None)
    return made


def row(kind: str, options: Mapping[str, str]) -> Row:
    return Row(kind, frozenset({"eth0"}), tuple(options.items()), kind)


def laid_out_by_hand() -> SimHost:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    for queue in range(4):
        host.write_irq(40 + queue, str(queue))
        host.write_queue(host.links["eth0"], queue, {"rps-cpus": str(7 - queue)})
        host.write_queue(host.links["eth0"], queue, {"xps-cpus": str(queue + 4)})
    return host


@pytest.mark.parametrize("order", list(itertools.permutations(SECTIONS)))
@pytest.mark.parametrize("napi", [{"channels": "2"}, {"ring_rx": "512"}], ids=["channels", "ring"])
def test_sections_end_one_by_one(
    tmp_path: Path, order: tuple[str, ...], napi: dict[str, str]
) -> None:
    """Channels and rings that come back last reset what came back before them."""
    host = laid_out_by_hand()
    before = simhost.settings(host)
    rows = {kind: row(kind, given) for kind, given in {**SECTIONS, "napi": napi}.items()}
    joint = joint_of(host, tmp_path / "state", rows)
    first = [report for kind in rows if (report := joint.apply(kind, kind)) is not None]
    assert [report.ok for report in first] == [True]
    for kind in order:
        report = joint.unapply(kind, kind, {"eth0"})
        assert report.ok and {level for level, _ in report.lines} == {"info"}, report
    assert simhost.settings(host) == before


@pytest.mark.parametrize("order", list(itertools.permutations(SECTIONS)))
def test_nothing_of_queues_that_are_gone_waits(tmp_path: Path, order: tuple[str, ...]) -> None:
    """The section that had more channels may end first; no queue comes back for the others."""
    host = laid_out_by_hand()
    before = simhost.settings(host)
    more = SECTIONS | {"napi": {"channels": "6"}, "flow_steering": {"rps": "0-1"}}
    rows = {kind: row(kind, given) for kind, given in more.items()}
    joint = joint_of(host, tmp_path / "state", rows)
    for kind in rows:
        joint.apply(kind, kind)
    for kind in order:
        report = joint.unapply(kind, kind, {"eth0"})
        assert report.ok and {level for level, _ in report.lines} == {"info"}, report
    assert simhost.settings(host) == before and Store(tmp_path / "state").load() is None


def two_links() -> SimHost:
    other = simhost.link("eth1", 2, ifindex=3, base=9000)
    return SimHost(simhost.snapshot(simhost.link("eth0", 2, ifindex=2), other))


def keep(host: SimHost, store: Store, *names: str) -> Kept:
    policy = Policy((parse_section("napi", names, {"threaded": "on"}),))

    def write(policy: Policy, scope: Any, choose: Choose | None) -> Applied:
        return apply(host, store, policy, scope, choose=choose)

    write(policy, names, None)
    return Kept(write, store, policy, names, TWO, lambda: TWO)


@pytest.mark.parametrize("devices", [None, {"eth0"}])
def test_a_rollback_ends_who_keeps_it_though_some_is_pending(
    store: Store, devices: set[str] | None
) -> None:
    host = two_links()
    kept = keep(host, store, "eth0", "eth1")
    host.set_down("eth1")
    assert rollback(host, store, devices, for_good=True).written
    assert store.load() is not None
    assert kept.replan(TWO) is None
    assert [napi.threaded for napi in host.links["eth0"].napis] == [0, 0]


def test_a_rollback_of_another_device_ends_nothing(store: Store) -> None:
    host = two_links()
    apply(host, store, Policy((parse_section("napi", ("eth1",), {"threaded": "on"}),)), {"eth1"})
    kept = keep(host, store, "eth0")
    rollback(host, store, {"eth1"}, for_good=True)
    assert kept.replan(TWO) is not None and kept.replan(TWO) is not None


def test_two_rollbacks_in_a_row_end_both(store: Store) -> None:
    """The second comes before anybody has looked for the first, and there are originals left."""
    host = two_links()
    host.links["eth2"] = simhost.link("eth2", 2, ifindex=4, base=9100)
    apply(host, store, parse_mixed(("eth2",), {"defer_hard_irqs": "7"}), {"eth2"})
    kept = {name: keep(host, store, name) for name in ("eth0", "eth1")}
    for name in kept:
        rollback(host, store, {name}, for_good=True)
    assert store.load() is not None
    assert [one.replan(TWO) for one in kept.values()] == [None, None]
    assert not any(napi.threaded for link in host.links.values() for napi in link.napis)


def test_a_journal_of_others_that_goes_ends_nothing(store: Store) -> None:
    """A device that is down has nothing in it yet."""
    host = two_links()
    host.set_down("eth0")
    kept = {name: keep(host, store, name) for name in ("eth1", "eth0")}
    rollback(host, store, {"eth1"}, for_good=True)
    assert store.load() is None
    host.links["eth0"] = two_links().links["eth0"]
    assert kept["eth0"].replan(TWO) is not None
    assert [napi.threaded for napi in host.links["eth0"].napis] == [1, 1]


def test_what_waits_to_come_back_is_wanted_no_more(store: Store) -> None:
    host = two_links()
    keep(host, store, "eth0", "eth1")
    host.set_down("eth1")
    rollback(host, store)
    journal = store.load()
    assert journal is not None and {entry.after for entry in journal.entries} == {None}


def of_session() -> SimHost:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    host.sessions = ("eth0",)
    return host


def test_an_option_that_is_dropped_does_not_cut_off_a_login(store: Store) -> None:
    host = of_session()
    asked = parse_mixed(("eth0",), {"channels": "2"})
    apply(host, store, replace(asked, confirmed=True), ["eth0"])
    other = parse_mixed(("eth0",), {"threaded": "on"})
    done = apply(host, store, other, ["eth0"])
    assert [napi.threaded for napi in host.links["eth0"].napis] == [1, 1]
    assert [str(skip) for skip in done.plan.skips] == [
        "eth0: channels-combined left-alone: somebody is logged in over this device, and going back"
        " to 4 could cut that off; use `rxlane apply --confirm`, or keep the option"
    ]
    journal = store.load()
    assert journal is not None and journal.left == done.plan.skips
    assert apply(host, store, other, ["eth0"]).written == 0 and store.load() == journal
    done = apply(host, store, replace(other, confirmed=True), ["eth0"])
    assert host.links["eth0"].count("rx") == 4 and done.plan.skips == ()
    assert [napi.threaded for napi in host.links["eth0"].napis] == [1, 1, 1, 1]


def test_hidden_logins_count_for_what_goes_back_only(store: Store) -> None:
    """Who asks for new queues knows of them; the host's settings cut off nobody."""
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    host.hidden_logins = True
    asked = parse_mixed(("eth0",), {"channels": "2", "netdev_max_backlog": "5000"})
    apply(host, store, asked)
    apply(host, store, parse_mixed(("eth0",), {"channels": "2"}))
    done = apply(host, store, parse_mixed(("eth0",), {"threaded": "off"}))
    assert [(s.item, s.kind) for s in done.plan.skips] == [("channels-combined", "left-alone")]
    assert host.links["eth0"].count("rx") == 2


def test_confirmed_is_said_only_of_what_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes as soon as confirm() has found that all is well."""
    host = SimHost(simhost.snapshot())
    pending = confirm.arm(host, store, OLD, 60, None, ready)
    apply(host, store, Policy((parse_section("napi", (), {"threaded": "on"}),)))
    expire = partial(confirm.expire, host, store, pending)
    monkeypatch.setattr(confirm, "disarm", lambda *_: expire())
    confirm.confirm(host, store, NEW)
    assert expire() is None
    assert [napi.threaded for napi in host.links["eth0"].napis] == [1, 1, 1, 1]


TAPS = {"vhost_cpus": "0-1", "tap_rps": "1"}


def test_taps_are_verified_with_the_section_that_laid_them_out(tmp_path: Path) -> None:
    host = SimHost(vm_host(tap()))
    work = Adapter(tmp_path / "state", lambda: host, {"eth0": 2, "tap0": 9}.get)
    rows = [row("flow_steering", TAPS)]
    assert work.apply(rows).ok and work.verify(rows, {"eth0"}, "flow_steering").ok
    host.write_queue(host.links["tap0"], 0, {"rps-cpus": "off"})
    report = work.verify(rows, {"eth0"}, "flow_steering")
    assert not report.ok and "tap0/rx0/rps-cpus" in report.lines[0][1]
    assert work.verify(rows, {"eth0"}, "napi").ok


def test_who_was_too_late_for_the_lock_is_tried_again(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    rows = {"napi": row("napi", {"threaded": "on"}), "irq_layout": row("irq_layout", {})}
    joint = joint_of(host, tmp_path / "state", rows)
    done = parse([Given("napi", "napi", ("eth0",), {"threaded": "on"})])
    busy = RxlaneError(Kind.BUSY, "another rxlane holds the lock")

    def late(*_: object) -> None:
        host.on_write = None
        raise busy

    host.on_write = late
    first = joint.apply("napi", "napi")
    assert isinstance(first, Report) and not first.ok and first.again
    second = joint.apply("irq_layout", "irq_layout")
    assert second is not None and second.ok and decide(host.observe(), done).changes == ()


def test_what_came_back_is_left_to_who_sets_it_next(store: Store) -> None:
    """Such as irqbalance: an option that is asked for no more is put back once."""
    host = SimHost(simhost.whole(simhost.snapshot()))
    apply(host, store, parse_mixed(("eth0",), {"threaded": "on", "irq_cpus": "2-3"}))
    less = parse_mixed(("eth0",), {"threaded": "on"})
    for _ in range(2):
        apply(host, store, less)
    host.write_irq(40, "5")
    assert apply(host, store, less).written == 0
    rollback(host, store)
    assert host.irqs[40].cpus == (5,) and store.load() is None


def test_a_journal_of_nothing_is_none(store: Store) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    apply(host, store, parse_mixed(("eth0",), {"irq_cpus": "2-3"}))
    for _ in range(2):
        apply(host, store, parse_mixed(("eth0",), {"threaded": "off"}))
    assert store.load() is None


def test_pollers_that_go_back_with_the_plan_do_not_count(store: Store) -> None:
    """As a profile for other devices does: what it no longer names makes room."""
    host = two_links()
    poll = {
        "threaded": "busy-poll@0",
        "thread_policy": "fifo",
        "thread_priority": "40",
        "thread_cpus": "2",
    }
    for name in ("eth0", "eth1"):
        apply(host, store, Policy((parse_section("napi", (name,), poll),)))
    assert [napi.threaded for link in host.links.values() for napi in link.napis] == [0, 0, 2, 0]


def test_a_damaged_word_to_keepers_is_replaced(store: Store) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    apply(host, store, parse_mixed(("eth0",), {"threaded": "on"}))
    word = store.given_up.path
    word.write_text("{")
    with pytest.raises(RxlaneError, match="given-up.json"):
        store.given_up.load()
    rollback(host, store, for_good=True)
    assert store.given_up.load() is not None
