# SPDX-License-Identifier: GPL-2.0-or-later
"""What had the wanted value before rxlane came has its original, too, once a reset took it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.plan import Entry, Target
from rxlane.settings import View
from unit import asking, simhost
from unit.asking import SECOND
from unit.simhost import MemoryStore, SimHost

# What stands already, and something to write beside it.
STANDS = {"threaded": "on@1", "thread_cpus": "2", "irq_cpus": "2", "defer_hard_irqs": "9"}
ASKED = {**STANDS, "gro_flush_timeout": "15000"}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def stood(store: MemoryStore) -> tuple[Entry, ...]:
    journal = store.load()
    return () if journal is None else journal.stood


def laid_out(store: MemoryStore, *devices: str) -> SimHost:
    """A host where most of what is asked for had been set by hand."""
    links = [simhost.link(), SECOND][: len(devices) or 1]
    host = SimHost(simhost.whole(simhost.snapshot(*links)))
    host.folders = {link.name: 100 + link.ifindex for link in links}
    for device in devices or ("eth0",):
        apply(host, MemoryStore(), asking.asked(device, **STANDS))
    for device in devices or ("eth0",):
        apply(host, store, asking.asked(device, **ASKED), {device})
    return host


def reset(host: SimHost, device: str = "eth0") -> None:
    """A driver forgets what it was told about a queue, and the queue's thread is another."""
    link = host.links[device]
    napi = next(n for n in link.napis if n.napi_id == link.queues[1].napi_id)
    host.write_napi(napi.napi_id, {"threaded": "off", "defer-hard-irqs": 0})
    assert link.queues[1].irq is not None
    host.write_irq(link.queues[1].irq, "0-7")


def test_what_a_reset_took_goes_back_to_where_it_stood(store: MemoryStore) -> None:
    host = laid_out(store)
    again = apply(host, store, asking.asked("eth0", **ASKED))
    assert again.written == 0 and stood(store)
    reset(host)
    assert apply(host, store, asking.asked("eth0", **ASKED)).written >= 3
    kept = {entry.target for entry in stood(store)}
    assert Target("eth0", 1, "irq-cpus") not in kept, "in the journal's entries now"
    assert rollback(host, store).pending == () and store.text is None
    view = View.of(host.observe())
    found = [
        view.read(Target("eth0", 1, item))
        for item in ("threaded", "thread-cpus", "irq-cpus", "defer-hard-irqs", "gro-flush-timeout")
    ]
    assert found == ["on", "2", "2", 9, 0]


def test_before_it_is_written_a_rollback_leaves_it_alone(store: MemoryStore) -> None:
    """What somebody else did to it is theirs, and no reason to wait for a device that is down."""
    host = laid_out(store)
    reset(host)
    before = View.of(host.observe()).read(Target("eth0", 1, "irq-cpus"))
    assert rollback(host, store).pending == () and store.text is None
    assert View.of(host.observe()).read(Target("eth0", 1, "irq-cpus")) == before == "0-7"


def test_nothing_is_kept_where_nothing_was_written(store: MemoryStore) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    apply(host, MemoryStore(), asking.asked("eth0", **STANDS))
    assert apply(host, store, asking.asked("eth0", **STANDS)).written == 0 and store.text is None


def test_what_nobody_wants_any_more_is_forgotten(store: MemoryStore) -> None:
    host = laid_out(store)
    apply(host, store, asking.asked("eth0", irq_cpus="2", gro_flush_timeout="15000"))
    assert {entry.item for entry in stood(store)} == {"irq-cpus"}


def test_what_was_given_up_is_whose_who_sets_it_next(store: MemoryStore) -> None:
    """A rollback of one device, or of one kind of settings, forgets what stood of that alone."""
    host = laid_out(store, "eth0", "eth1")
    assert {entry.device for entry in stood(store)} == {"eth0", "eth1"}
    rollback(host, store, {"eth0"})
    assert {entry.device for entry in stood(store)} == {"eth1"}
    host.write_irq(41, "6")
    apply(host, store, asking.asked("eth0", **ASKED), {"eth0"})
    assert View.of(host.observe()).read(Target("eth0", 1, "irq-cpus")) == "2"
    rollback(host, store, None, {"defer-hard-irqs"})
    assert "defer-hard-irqs" not in {entry.item for entry in stood(store)}
    rollback(host, store)
    assert View.of(host.observe()).read(Target("eth0", 1, "irq-cpus")) == "6"


def test_another_policy_takes_what_it_finds(store: MemoryStore) -> None:
    """Who asks for what somebody else has set meanwhile goes back to that."""
    host = laid_out(store)
    host.write_irq(41, "5")
    options = {**ASKED, "irq_cpus": "5"}
    apply(host, store, asking.asked("eth0", **options))
    host.write_irq(41, "0-7")
    apply(host, store, asking.asked("eth0", **options))
    rollback(host, store)
    assert View.of(host.observe()).read(Target("eth0", 1, "irq-cpus")) == "5"


@pytest.mark.parametrize("index", [2, 7])
def test_it_is_known_under_another_name_and_index(store: MemoryStore, index: int) -> None:
    """Renamed while it is here, or back from another namespace."""
    host = laid_out(store, "eth0", "eth1")
    away = host.links.pop("eth0")
    if index != away.ifindex:
        apply(host, store, asking.asked("eth1", **ASKED), {"eth1"})
    host.links["lan0"] = replace(away, name="lan0", ifindex=index)
    host.folders["lan0"] = host.folders.pop("eth0")
    reset(host, "lan0")
    apply(host, store, asking.asked("lan0", **ASKED), {"lan0"})
    rollback(host, store)
    assert View.of(host.observe()).read(Target("lan0", 1, "irq-cpus")) == "2"


def test_rings_reset_what_stood_and_was_lost_already(store: MemoryStore) -> None:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    apply(host, MemoryStore(), asking.asked("eth0", **STANDS))
    apply(host, store, asking.asked("eth0", **ASKED))
    reset(host)
    apply(host, store, asking.asked("eth0", **ASKED, ring_rx="512"))
    assert rollback(host, store).pending == () and store.text is None
    assert View.of(host.observe()).read(Target("eth0", 1, "irq-cpus")) == "2"


def test_a_failed_apply_leaves_what_was_known(store: MemoryStore) -> None:
    host = laid_out(store)
    known = stood(store)
    reset(host)
    host.fail_at = host.writes + 1
    with pytest.raises(RxlaneError) as caught:
        apply(host, store, asking.asked("eth0", **ASKED))
    assert caught.value.kind is Kind.KERNEL and stood(store) == known


def read(host: SimHost, queue: int, item: str) -> object:
    return View.of(host.observe()).read(Target("eth0", queue, item))


def test_rings_take_nothing_that_was_given_up(store: MemoryStore) -> None:
    """What is reset with the rings goes back to what it was then."""
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    apply(host, MemoryStore(), asking.asked("eth0", **STANDS))
    apply(host, store, asking.asked("eth0", **ASKED))
    host.write_irq(41, "6")
    apply(host, store, asking.asked("eth0", gro_flush_timeout="15000", ring_rx="512"))
    assert rollback(host, store).pending == ()
    assert read(host, 1, "irq-cpus") == "6"


def test_a_link_that_is_down_for_a_while_keeps_its_own(store: MemoryStore) -> None:
    host = laid_out(store)
    host.set_down("eth0")
    apply(host, store, asking.asked("eth0", **ASKED))
    host.set_up("eth0")
    reset(host)
    apply(host, store, asking.asked("eth0", **ASKED))
    rollback(host, store)
    assert [read(host, 1, item) for item in ("threaded", "irq-cpus")] == ["on", "2"]


def test_a_queue_that_is_gone_for_a_while_keeps_its_own(store: MemoryStore) -> None:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    options = {"irq_cpus": "2", "defer_hard_irqs": "9"}
    apply(host, MemoryStore(), asking.asked("eth0", **options))
    options["gro_flush_timeout"] = "15000"
    apply(host, store, asking.asked("eth0", **options))
    for channels in (2, 4):
        host.write_tunables(host.links["eth0"], {"channels-combined": channels})
        apply(host, store, asking.asked("eth0", **options))
    assert rollback(host, store).pending == ()
    assert [read(host, 3, "irq-cpus"), read(host, 3, "defer-hard-irqs")] == ["2", 9]


def test_a_full_disk_fails_nothing_that_only_stands(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = laid_out(store, "eth0", "eth1")
    rollback(host, store, {"eth1"})
    apply(host, MemoryStore(), asking.asked("eth1", **STANDS))

    def full(_: object) -> None:
        raise RxlaneError(Kind.JOURNAL, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "save", full)
        assert apply(host, store, asking.asked("eth1", **STANDS), {"eth1"}).written == 0
        with pytest.raises(RxlaneError, match="No space left"):
            apply(host, store, asking.asked("eth1", **ASKED), {"eth1"})
    assert {entry.device for entry in stood(store)} == {"eth0"}
    apply(host, store, asking.asked("eth1", **STANDS), {"eth1"})
    assert {entry.device for entry in stood(store)} == {"eth0", "eth1"}


@pytest.mark.parametrize("first", ["0-7", "2"])
def test_what_cannot_be_moved_holds_up_no_rollback(store: MemoryStore, first: str) -> None:
    """Whoever else moves it: rxlane never did. first: where it was, as wanted or not."""
    host = SimHost(simhost.whole(simhost.snapshot()))
    host.write_irq(41, first)
    host.managed = {41} if first != "2" else set()
    apply(host, store, asking.asked("eth0", irq_cpus="2", defer_hard_irqs="9"))
    host.managed = set()
    host.write_irq(41, "5")
    host.managed = {41}
    again = apply(host, store, asking.asked("eth0", irq_cpus="2", defer_hard_irqs="9"))
    assert {str(target) for target in again.refused} == {"eth0/rx1/irq-cpus"}
    back = rollback(host, store)
    assert back.pending == () and store.text is None
    assert back.notes == ("eth0/rx1/irq-cpus: IRQ 41 is managed",)
    assert read(host, 1, "irq-cpus") == "5"


def test_what_cannot_be_moved_back_waits(store: MemoryStore) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    apply(host, store, asking.asked("eth0", irq_cpus="2"))
    host.managed = {41}
    assert [line.split(":")[0] for line in rollback(host, store).pending] == ["eth0/rx1/irq-cpus"]
    assert store.text is not None


def test_what_one_queue_had_is_not_kept_for_another(store: MemoryStore) -> None:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    apply(host, MemoryStore(), asking.asked("eth0", threaded="on@1-"))
    apply(host, store, asking.asked("eth0", threaded="on@1-", defer_hard_irqs="9"))
    host.write_napi(host.links["eth0"].napis[1].napi_id, {"threaded": "off"})
    options = {"threaded": "on@2-", "defer_hard_irqs": "9"}
    apply(host, store, asking.asked("eth0", **options))
    apply(host, store, asking.asked("eth0", **options, ring_rx="512"))
    rollback(host, store)
    assert [read(host, queue, "threaded") for queue in range(4)] == ["off", "off", "on", "on"]


def test_what_stood_is_whole_though_a_cpu_goes_offline(store: MemoryStore) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    apply(host, MemoryStore(), asking.asked("eth0", rps="2-3"))
    options = {"rps": "2-3", "defer_hard_irqs": "9"}
    apply(host, store, asking.asked("eth0", **options))
    for offline in ([3], []):
        host.topology = simhost.topology(offline=offline)
        apply(host, store, asking.asked("eth0", **options))
    host.write_queue(host.links["eth0"], 1, {"rps-cpus": "off"})
    apply(host, store, asking.asked("eth0", **options))
    assert rollback(host, store).pending == ()
    assert read(host, 1, "rps-cpus") == "2-3"


def test_only_what_a_drivers_reset_costs(store: MemoryStore) -> None:
    """Not what ethtool sets, nor the host's, nor what virtual devices have."""
    virtual = replace(simhost.link("veth0", 1, ifindex=3, base=9000), physical=False)
    links = (simhost.tuned(simhost.link()), virtual)
    host = SimHost(simhost.whole(simhost.snapshot(*links)))
    stands = {"channels": "4", "rfs": "4096", "defer_hard_irqs": "9"}
    for device in ("eth0", "veth0"):
        apply(host, MemoryStore(), asking.asked(device, defer_hard_irqs="9", rfs="4096"))
    done = apply(host, store, asking.asked("eth0", **stands, gro_flush_timeout="15000"))
    done = apply(host, store, asking.asked("veth0", defer_hard_irqs="9"), {"veth0"})
    assert {held.target.item for held in done.plan.holds} == {"defer-hard-irqs"}
    assert {e.item for e in stood(store)} == {"rps-flow-cnt", "defer-hard-irqs"}
    assert {e.device for e in stood(store)} == {"eth0"}
