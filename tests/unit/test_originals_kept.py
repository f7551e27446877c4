# SPDX-License-Identifier: GPL-2.0-or-later
"""Originals outlive what comes in the way of putting them back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from rxlane.apply import apply, foresee
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Link, Snapshot
from rxlane.plan import Target
from rxlane.policy import Given, parse, parse_mixed, parse_section
from rxlane.sections import Policy
from rxlane.settings import View
from rxlane.verify import verify_journal
from unit import asking, simhost
from unit.asking import SECOND
from unit.simhost import MemoryStore, SimHost
from unit.simwrites import Killed

OPTIONS = {"threaded": "on", "thread_cpus": "2-3", "defer_hard_irqs": "100"}


def policy(**options: str) -> Policy:
    return Policy((parse_section("napi", ("eth0",), options),))


class Active(SimHost):
    """sched_getaffinity() leaves out CPUs that are offline."""

    def observe(
        self, names: Collection[str] | None = None, items: Collection[str] | None = None
    ) -> Snapshot:
        found = super().observe(names, items)
        online = self.topology.online
        return replace(
            found,
            threads=tuple(
                replace(t, cpus=tuple(c for c in t.cpus if c in online)) for t in found.threads
            ),
        )


def test_a_device_that_goes_down_while_it_is_laid_out(store: MemoryStore) -> None:
    """Down it has no value to be put back; up again it has what the apply gave it."""
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)

    def go_down() -> None:
        if host.writes > 4:
            host.on_write = None
            host.set_down("eth0")

    host.on_write = go_down
    with pytest.raises(RxlaneError) as caught:
        apply(host, store, policy(**OPTIONS))
    assert "rxlane rollback" in caught.value.__notes__[0]
    host.set_up("eth0")
    assert simhost.settings(host) != before
    rollback(host, store)
    assert simhost.settings(host) == before and store.load() is None


def test_an_undo_that_cannot_look(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error told is the first one, and that of the undo beside it."""
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)
    look = host.observe

    def refuse() -> None:
        if host.writes > 4:
            monkeypatch.setattr(host, "observe", blind)
            raise RxlaneError(Kind.KERNEL, "refused")

    def blind(*_: object) -> Snapshot:
        raise RxlaneError(Kind.KERNEL, "nothing to be seen")

    host.on_write = refuse
    with pytest.raises(RxlaneError, match="refused") as caught:
        apply(host, store, policy(**OPTIONS))
    assert "nothing to be seen" in caught.value.__notes__[0]
    host.on_write = None
    monkeypatch.setattr(host, "observe", look)
    rollback(host, store)
    assert simhost.settings(host) == before


def test_an_interrupted_apply_is_undone(store: MemoryStore) -> None:
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)

    def interrupt() -> None:
        if host.writes > 4:
            host.on_write = None
            raise KeyboardInterrupt

    host.on_write = interrupt
    with pytest.raises(KeyboardInterrupt):
        apply(host, store, policy(**OPTIONS))
    assert simhost.settings(host) == before and store.load() is None


def test_a_mode_that_did_not_come_back_keeps_its_threads_originals(store: MemoryStore) -> None:
    host = SimHost(simhost.snapshot())
    host.write_napi(8194, {"threaded": "on"})
    (pid,) = host.threads
    host.write_thread(pid, {"thread-cpus": "7", "thread-sched": "fifo:10"})
    before = simhost.settings(host)
    apply(host, store, policy(threaded="off@1"))
    host.fail_at = host.writes
    assert rollback(host, store).pending
    assert rollback(host, store).pending == ()
    assert simhost.settings(host) == before


@pytest.mark.parametrize(
    "lost", [OSError("No buffer space available"), RxlaneError(Kind.KERNEL, "no answer")]
)
def test_napis_that_cannot_be_reached_hold_up_nothing_else(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    """What is of no NAPI is back after the first rollback, the rest waits with its reason."""
    host = SimHost(simhost.whole(simhost.snapshot()))
    before = simhost.settings(host)
    more = {"irq_cpus": "2", "rps": "1-2", "netdev_max_backlog": "4096", "timer_migration": "0"}
    apply(host, store, parse_mixed(("eth0",), OPTIONS | more))

    def lose(_: object) -> dict[int, RxlaneError]:
        raise lost

    with monkeypatch.context() as patch:
        patch.setattr(host, "write_napis", lose)
        waiting = rollback(host, store)
    assert waiting.notes == (str(lost),)
    assert {line.split(":")[0].split("/")[2] for line in waiting.pending} == {
        "threaded",
        "defer-hard-irqs",
    }
    assert host.sysctls == simhost.SYSCTLS
    assert {irq.cpus for irq in host.irqs.values()} == {host.topology.online}
    assert rollback(host, store).pending == ()
    assert simhost.settings(host) == before and store.text is None


def test_a_cpu_that_went_offline_since(store: MemoryStore) -> None:
    """What threads had before counts as back without the CPU that none can have now."""
    host = Active(simhost.snapshot())
    apply(host, store, policy(threaded="on", thread_cpus="2-3"))
    host.topology = simhost.topology(offline=[7])
    apply(host, store, policy(threaded="on", defer_hard_irqs="100"))
    assert {t.cpus for t in host.threads.values()} == {tuple(range(8))}
    assert apply(host, store, policy(threaded="on", defer_hard_irqs="100")).written == 0
    assert rollback(host, store).pending == () and store.load() is None


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def two_nics() -> SimHost:
    """eth0 has rings."""
    altered = simhost.tuned(simhost.link(queues=2))
    other = simhost.link("eth1", 1, ifindex=3, base=9000)
    return SimHost(simhost.whole(simhost.snapshot(altered, other)))


def polling(host: SimHost, cpus: str, sched: str) -> None:
    """Somebody has the first queue of eth0 poll busily."""
    host.write_napi(host.links["eth0"].napis[0].napi_id, {"threaded": "busy-poll"})
    pid = host.links["eth0"].napis[0].pid
    assert pid is not None
    host.write_thread(pid, {"thread-cpus": cpus, "thread-sched": sched})


def test_what_a_reset_took_is_not_planned_with_while_it_stays_away(store: MemoryStore) -> None:
    """The thread that polls now counts, not the one that comes back with the rings."""
    host = two_nics()
    polling(host, "3", "other:0")
    before = simhost.settings(host)
    rings = Given("napi", "rings", ("eth0",), {"ring_rx": "512"})
    apply(host, store, parse([rings]))
    polling(host, "2", "fifo:60")
    options = {"threaded": "on", "thread_policy": "fifo", "thread_priority": "50"}

    def fifo(cpu: str) -> Given:
        return Given("napi", "fifo", ("eth1",), {**options, "thread_cpus": cpu})

    with pytest.raises(RxlaneError, match="on CPU 2 a busy-polling thread of priority 60"):
        apply(host, store, parse([rings, fifo("2")]))
    apply(host, store, parse([rings, fifo("3")]))
    assert rollback(host, store).pending == ()
    assert simhost.restored(host, before)


def test_what_a_reset_took_is_planned_with_once_the_rings_are_back(store: MemoryStore) -> None:
    host = two_nics()
    polling(host, "3", "fifo:60")
    before = simhost.settings(host)
    apply(host, store, parse([Given("napi", "rings", ("eth0",), {"ring_rx": "512"})]))
    options = {"threaded": "on", "thread_policy": "fifo", "thread_priority": "50"}
    with pytest.raises(RxlaneError, match="CPU 3"):
        apply(host, store, parse([Given("napi", "x", ("eth1",), {**options, "thread_cpus": "3"})]))
    assert rollback(host, store).pending == ()
    assert simhost.restored(host, before)


def by_hand() -> SimHost:
    """Interrupts on a CPU each, which every reset of the queues sends everywhere."""
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    for queue in range(4):
        host.write_irq(40 + queue, str(queue + 1))
    return host


@pytest.mark.parametrize("reset", [{"channels": "6"}, {"ring_rx": "512"}])
def test_a_reset_that_is_refused_once_takes_no_originals(
    store: MemoryStore, reset: dict[str, str]
) -> None:
    """ethtool -L or -G: EBUSY, ENOMEM, XDP in the way."""
    host = by_hand()
    before = simhost.settings(host)
    apply(host, store, parse_mixed(("eth0",), reset))
    host.fail_at = host.writes
    assert [line.split(":")[0] for line in rollback(host, store).pending] == [
        "eth0/all/channels-combined" if "channels" in reset else "eth0/all/ring-rx"
    ]
    assert rollback(host, store).pending == ()
    assert simhost.settings(host) == before and store.text is None


def test_what_is_back_already_is_known_to_a_reset(store: MemoryStore) -> None:
    """Killed once the interrupts were back; the next apply, for rings, sends them everywhere."""
    host = by_hand()
    before = simhost.settings(host)
    apply(host, store, parse_mixed(("eth0",), {"irq_cpus": "6"}))
    host.kill_at = host.writes + 3
    with pytest.raises(Killed):
        apply(host, store, parse_mixed(("eth0",), {"defer_hard_irqs": "9"}))
    assert simhost.settings(host) == before
    apply(host, store, parse_mixed(("eth0",), {"ring_rx": "512"}))
    assert simhost.settings(host) != before
    assert rollback(host, store).pending == ()
    assert simhost.settings(host) == before and store.text is None


def by_index(host: SimHost) -> dict[int, list[tuple[int | None, int | None]]]:
    return {
        link.ifindex: [(n.threaded, n.defer_hard_irqs) for n in link.napis]
        for link in host.links.values()
    }


@pytest.mark.parametrize("back", [True, False])
def test_names_that_are_swapped_while_it_is_laid_out(store: MemoryStore, back: bool) -> None:
    """The undo finds the device under its new name, and one that is gone leaves its originals."""
    two = simhost.link("eth1", ifindex=3, base=9000)
    host = SimHost(simhost.snapshot(simhost.link(), two))
    for napi in host.links["eth1"].napis:
        host.write_napi(napi.napi_id, {"defer-hard-irqs": 55})
    before, laid_out, away = by_index(host), host.writes, list[Link]()

    def swap() -> None:
        if host.writes == laid_out + 4:
            host.on_write = None
            host.rename("eth0", "old")
            host.rename("eth1", "eth0")
            if back:
                host.rename("old", "eth1")
            else:
                away.append(replace(host.links.pop("old"), name="eth1"))
            raise RxlaneError(Kind.KERNEL, "refused")

    host.on_write = swap
    with pytest.raises(RxlaneError, match="refused") as caught:
        apply(host, store, parse_mixed(("eth0",), OPTIONS), ["eth0"])
    notes = getattr(caught.value, "__notes__", [])
    assert (store.load() is None, notes == []) == (back, back)
    if not back:
        assert "device is gone" in notes[0]
        host.links["eth1"] = away[0]
        rollback(host, store)
    assert by_index(host) == before and store.load() is None


def test_a_device_that_came_back_is_verified_again() -> None:
    """With its settings, from a namespace, after an apply to another one."""
    host, store = SimHost(simhost.snapshot(simhost.link(), SECOND)), MemoryStore()
    apply(host, store, asking.policy("eth0", threaded="on"), {"eth0"})
    away = host.links.pop("eth0")
    apply(host, store, asking.policy("eth1", threaded="on"), {"eth1"})
    journal = store.load()
    assert journal is not None
    assert {e.after for e in journal.entries if e.device == "eth0"} == {None}
    host.links["eth0"] = away
    apply(host, store, asking.policy("eth0", threaded="on"), {"eth0"})
    host.write_napi(8194, {"threaded": "off"})
    journal = store.load()
    assert journal is not None
    drifted = {row.target for row in verify_journal(journal, host.observe()).drifted}
    assert Target("eth0", 1, "threaded") in drifted


def test_what_went_back_is_planned_for_as_the_next_plan_does(store: MemoryStore) -> None:
    """RPS keeps off where an interrupt comes to, which one of many CPUs says better than all."""
    rows = [simhost.link(f"eth{n}", 4, ifindex=n + 2, base=8193 + 1000 * n) for n in range(2)]
    host = SimHost(simhost.whole(simhost.snapshot(*rows)))
    apply(host, store, asking.asked(irq_cpus="2"))
    apply(host, store, asking.asked(rps="auto"))
    writes = host.writes
    assert apply(host, store, asking.asked(rps="auto")).written == 0 and host.writes == writes


def test_interrupts_do_not_follow_threads_that_nobody_pins_any_more(store: MemoryStore) -> None:
    """These go where they may run anywhere, so the plan for interrupts is that of the next look."""
    host = SimHost(asking.host(simhost.link("eth0", 1)))
    apply(host, store, asking.asked(threaded="on", thread_cpus="3"))
    then = asking.asked(threaded="on", irq_cpus="auto")
    shown = foresee(host, store.load(), host.observe(), then, None).changes
    apply(host, store, then)
    view = View.of(host.observe())
    placed = {c.target: c.after for c in shown if c.target.item == "irq-cpus"}
    assert placed and all(view.read(target) == cpus for target, cpus in placed.items())


def test_a_device_that_was_renamed_is_waited_for_by_its_new_name(store: MemoryStore) -> None:
    """Though nothing was written since, and another one came under the old name meanwhile."""
    host = SimHost(asking.host(simhost.link("eth0", 2)))
    before = simhost.settings(host)
    wanted = asking.asked(threaded="on")
    apply(host, store, wanted)
    host.rename("eth0", "lan0")
    assert apply(host, store, wanted).written == 0
    away = host.links.pop("lan0")
    other = asking.host(simhost.link("eth0", 2, ifindex=9, base=9193))
    host.links["eth0"] = SimHost(other).links["eth0"]
    assert apply(host, store, wanted).written == 2
    host.links.pop("eth0")
    assert rollback(host, store).away == ((2, "lan0"), (9, "eth0"))
    host.links["lan0"] = away
    rollback(host, store)
    host.rename("lan0", "eth0")
    assert simhost.restored(host, before)
