# SPDX-License-Identifier: GPL-2.0-or-later
"""apply, rollback and the journal between them, on simulated kernels of both kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.model import Capabilities
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.asking import FULL, policy
from unit.simhost import MemoryStore, SimHost
from unit.simwrites import MODES, Killed


def _no_journal(store: Store) -> bool:
    return store.load() is None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


def test_apply_verify_rollback(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)
    done = apply(host, store, policy(**FULL))
    assert done.written == 3 + 8 + 6
    assert verify(done.plan, host.observe()) == ()
    undone = rollback(host, store)
    assert undone.pending == () and simhost.settings(host) == before
    assert _no_journal(store)


def test_second_apply_writes_nothing(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    writes, journal = host.writes, store.path.read_bytes()
    assert apply(host, store, policy(**FULL)).written == 0
    assert host.writes == writes and store.path.read_bytes() == journal


def test_a_journal_cut_short_is_in_everybodys_way(store: Store) -> None:
    """At every byte: neither a rollback nor an apply does anything before it is looked after."""
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    writes, whole = host.writes, store.path.read_bytes()
    for length in range(len(whole) - 1):
        cut = whole[:length]
        store.path.write_bytes(cut)
        for act in (
            lambda: rollback(host, store),
            lambda: apply(host, store, policy(threaded="on")),
        ):
            with pytest.raises(RxlaneError) as caught:
                act()
            assert caught.value.kind is Kind.JOURNAL
        assert host.writes == writes and store.path.read_bytes() == cut


def test_one_message_for_all_of_a_napi(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    assert len([line for line in host.log if line.startswith("napi")]) == 4
    assert len([line for line in host.log if line.startswith("thread")]) == 3


def test_journal_is_on_disk_before_the_first_write(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    seen: list[bool] = []
    host.on_write = lambda: seen.append(store.load() is not None)
    apply(host, store, policy(**FULL))
    assert seen and all(seen)


def test_stock_kernel_keeps_its_threads_and_gets_them_back_as_born(store: Store) -> None:
    """Stock 6.12 ends no thread: what stays must not stay pinned or niced."""
    host = SimHost(simhost.snapshot(capabilities=simhost.STOCK), ends_threads=False)
    apply(host, store, policy(threaded="on", thread_cpus="2", thread_nice="5"))
    assert {t.sched for t in host.threads.values()} == {"other:5"}
    rollback(host, store)
    assert host.links["eth0"].threaded == 0 and len(host.threads) == 4
    assert {(t.sched, t.cpus) for t in host.threads.values()} == {("other:0", tuple(range(8)))}


def test_nice_level_below_a_real_time_class_comes_back(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    host.write_napi(8194, {"threaded": "on"})
    host.write_thread(1000, {"thread-sched": "fifo:10:-7"})
    apply(host, store, policy(threaded="on@1", thread_nice="5"))
    assert host.threads[1000].sched == "other:5"
    rollback(host, store)
    assert (host.threads[1000].priority, host.threads[1000].nice) == (10, -7)


@pytest.mark.parametrize("ends", [True, False])
def test_threads_that_existed_get_their_settings_back(store: Store, ends: bool) -> None:
    """Also where switching off ended the thread, so that a new one takes them."""
    host = SimHost(simhost.snapshot(), ends_threads=ends)
    host.write_napi(8194, {"threaded": "on"})
    pid = host.links["eth0"].napis[1].pid
    assert pid is not None
    host.write_thread(pid, {"thread-cpus": "7", "thread-sched": "fifo:10"})
    before = simhost.settings(host)
    apply(host, store, policy(threaded="off@1"))
    assert simhost.settings(host) != before
    rollback(host, store)
    assert simhost.settings(host) == before


def count_writes(options: dict[str, str]) -> int:
    host = SimHost(simhost.snapshot())
    apply(host, MemoryStore(), policy(**options))
    return host.writes


@pytest.mark.parametrize("way", ["fail_at", "lie_at"])
def test_failure_at_every_write_undoes_all(way: str) -> None:
    for number in range(count_writes(FULL)):
        host = SimHost(simhost.snapshot())
        before = simhost.settings(host)
        setattr(host, way, number)
        store = MemoryStore()
        with pytest.raises(RxlaneError) as caught:
            apply(host, store, policy(**FULL))
        assert caught.value.kind is Kind.KERNEL and caught.value.device == "eth0"
        assert simhost.settings(host) == before, number
        assert _no_journal(store)


def test_kill_at_every_write_leaves_the_originals_on_disk() -> None:
    for number in range(count_writes(FULL)):
        host = SimHost(simhost.snapshot())
        before = simhost.settings(host)
        host.kill_at = number
        store = MemoryStore()
        with pytest.raises(Killed):
            apply(host, store, policy(**FULL))
        rollback(host, store)
        assert simhost.settings(host) == before, number


@pytest.mark.parametrize("ends", [True, False])
def test_apply_after_a_kill_carries_the_true_originals(ends: bool) -> None:
    for number in range(count_writes(FULL)):
        host = SimHost(simhost.snapshot(), ends_threads=ends)
        before = simhost.settings(host)
        host.kill_at = number
        store = MemoryStore()
        with pytest.raises(Killed):
            apply(host, store, policy(**FULL))
        done = apply(host, store, policy(threaded="busy-poll@2-", thread_cpus="4-5"))
        assert verify(done.plan, host.observe()) == ()
        modes = [n.threaded for n in host.links["eth0"].napis]
        assert modes == [0, 0, 2, 2]
        assert {n.defer_hard_irqs for n in host.links["eth0"].napis} == {0}
        rollback(host, store)
        assert simhost.restored(host, before)


def test_failed_second_apply_returns_to_the_first(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    original = simhost.settings(host)
    apply(host, store, policy(**FULL))
    first, journal = simhost.settings(host), store.load()
    host.fail_at = host.writes + 2
    with pytest.raises(RxlaneError):
        apply(host, store, policy(threaded="off@1,busy-poll@2-", thread_cpus="5-6"))
    assert simhost.settings(host) == first and store.load() == journal
    host.fail_at = None
    rollback(host, store)
    assert simhost.settings(host) == original


def test_scope_leaves_other_devices_as_they_are(store: Store) -> None:
    two = simhost.link("eth1", ifindex=3, base=9000)
    host = SimHost(simhost.snapshot(simhost.link(), two))
    before = simhost.settings(host)
    apply(host, store, policy("eth0", threaded="on"), ["eth0"])
    apply(host, store, policy("eth1", threaded="on"), ["eth1"])
    assert all(n.threaded == 1 for n in host.links["eth0"].napis)
    rollback(host, store, ["eth0"])
    assert all(n.threaded == 0 for n in host.links["eth0"].napis)
    assert all(n.threaded == 1 for n in host.links["eth1"].napis)
    rollback(host, store)
    assert simhost.settings(host) == before


def test_refused_policy_writes_nothing(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    with pytest.raises(RxlaneError):
        apply(host, store, policy(threaded="on", thread_cpus="64"))
    assert host.writes == 0 and not store.path.exists()


def test_new_napi_ids_after_down_and_up(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)
    apply(host, store, policy(**FULL))
    host.set_down("eth0")
    waiting = rollback(host, store)
    assert len(waiting.pending) == 11 + 6 and "interface is down" in waiting.pending[0]
    host.set_up("eth0")
    assert rollback(host, store).pending == ()
    assert simhost.settings(host) == before and not store.path.exists()


def test_renamed_device_is_followed(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    host.rename("eth0", "lan0")
    journal = store.load()
    assert journal is not None and not verify_journal(journal, host.observe()).drifted
    rollback(host, store)
    assert all(n.threaded == 0 for n in host.links["lan0"].napis)


def test_another_device_of_the_same_name_is_left_alone(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    host.links["eth0"] = replace(simhost.link(ifindex=77, base=50))
    writes = host.writes
    done = rollback(host, store)
    assert host.writes == writes and "gone" in done.notes[0] and not store.path.exists()


def test_journal_of_another_boot_is_discarded(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    again = SimHost(simhost.snapshot(), boot="boot-2")
    done = rollback(again, store)
    assert again.writes == 0 and "another boot" in done.notes[0]


def test_undo_that_fails_keeps_the_journal(store: Store) -> None:
    """The kernel refuses every write from the third on: the error says so, originals stay."""
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)

    def refuse() -> None:
        if host.writes > 2:
            raise RxlaneError(Kind.KERNEL, "refused for good")

    host.on_write = refuse
    with pytest.raises(RxlaneError) as caught:
        apply(host, store, policy(**FULL))
    assert "rxlane rollback" in caught.value.__notes__[0]
    host.on_write = None
    rollback(host, store)
    assert simhost.settings(host) == before


def test_drift_is_restored_by_apply(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, store, policy(**FULL))
    host.write_napi(8194, {"threaded": "off"})
    done = apply(host, store, policy(**FULL))
    assert done.written == 3 and verify(done.plan, host.observe()) == ()


SETS = st.fixed_dictionaries(
    {
        "threaded": st.sampled_from(
            ["", "", "off", "on", "on@1-", "busy-poll@2-,on@1", "off@1,on@2-"]
        ),
        "management_queues": st.sampled_from(["0", "1", "9"]),
        "thread_cpus": st.sampled_from(["", "auto", "4-7"]),
        "thread_nice": st.sampled_from(["", "-3", "7"]),
        "defer_hard_irqs": st.sampled_from(["", "0", "50"]),
        "gro_flush_timeout": st.sampled_from(["", "20000"]),
    }
)
KERNELS = st.sampled_from(
    [
        (simhost.STOCK, False),
        (simhost.TIMERS_ONLY, False),
        (simhost.TIMERS_ONLY, True),
        (simhost.BUSY_POLL, True),
    ]
)


@settings(max_examples=120, deadline=None)
@given(st.lists(SETS, min_size=1, max_size=3), KERNELS, st.lists(st.integers(0, 2), max_size=4))
def test_any_row_of_policies_comes_back(
    rows: list[dict[str, str]], kernel: tuple[Capabilities, bool], modes: list[int]
) -> None:
    """Whatever the start and however many applies, one rollback restores what was there first."""
    capabilities, ends = kernel
    host = SimHost(simhost.snapshot(capabilities=capabilities), ends_threads=ends)
    if 8 in capabilities.settable:
        for index, mode in enumerate(modes):
            host.write_napi(8193 + index, {"threaded": MODES[mode]})
    elif any(modes):
        host.write_device(host.links["eth0"], {"threaded": "on"})
    before = simhost.settings(host)
    store = MemoryStore()
    for options in rows:
        done = apply(host, store, policy(**options))
        assert verify(done.plan, host.observe()) == ()
        assert apply(host, store, policy(**options)).written == 0
    rollback(host, store)
    assert simhost.restored(host, before)
    assert _no_journal(store)
