# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels, rings and coalescing: written in which order, and undone."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rxlane.apply import apply, foresee
from rxlane.applying.rollback import rollback
from rxlane.errors import RxlaneError
from rxlane.model import Capabilities
from rxlane.plan import WHOLE, Target
from rxlane.settings import View
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.asking import asked
from unit.faults import WAYS, all_comes_back
from unit.simhost import MemoryStore, SimHost, tuned
from unit.tunable import framed, host, skipped

FULL = {
    "channels": "6",
    "ring_rx": "512",
    "rx_usecs": "0",
    "adaptive_rx": "off",
    "threaded": "on@1-",
    "thread_cpus": "auto",
    "thread_nice": "-3",
    "irq_cpus": "auto",
    "rps": "auto",
    "xps": "auto",
}


def test_the_one_order() -> None:
    sim = SimHost(host())
    done = apply(sim, MemoryStore(), asked(**FULL))
    kinds = [line.split()[0] for line in sim.log]
    order = ["tunables", "irq", "napi", "thread", "queue"]
    assert list(dict.fromkeys(kinds)) == order and kinds == sorted(kinds, key=order.index)
    first, second, third = sim.log[:3]
    assert "channels-combined" in first and "ring-rx" in second and "rx-usecs" in third
    assert verify(done.plan, sim.observe()) == () and sim.links["eth0"].count("rx") == 6
    assert {n.threaded for n in sim.links["eth0"].napis[1:]} == {1}


@pytest.mark.parametrize("count", [1, 2, 6, 8])
def test_growing_and_shrinking_comes_back(count: int) -> None:
    """Also what the driver reset on its way: threads, interrupts and XPS of every queue."""
    sim, store = SimHost(host()), MemoryStore()
    foreign = asked(threaded="on@3", thread_cpus="5", thread_nice=4, irq_cpus="2,3", rps="1-2")
    apply(sim, MemoryStore(), foreign)
    before = simhost.settings(sim)
    done = apply(sim, store, asked(**(FULL | {"channels": str(count)})))
    assert verify(done.plan, sim.observe()) == ()
    journal = store.load()
    assert journal is not None and not verify_journal(journal, sim.observe()).drifted
    assert apply(sim, store, asked(**(FULL | {"channels": str(count)}))).written == 0
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("channels", ["2", "6"])
def test_whatever_happens_at_any_write_comes_back(way: str, channels: str) -> None:
    all_comes_back(way, host(), asked(**(FULL | {"channels": channels})))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", [simhost.STOCK, simhost.TIMERS_ONLY])
def test_whatever_happens_where_modes_are_whole_devices(way: str, kernel: Capabilities) -> None:
    wanted = FULL | {"threaded": "on", "netdev_max_backlog": "4096", "timer_migration": "0"}
    all_comes_back(way, host(kernel=kernel), asked(**wanted))


@pytest.mark.parametrize("kernel", [simhost.STOCK, simhost.TIMERS_ONLY])
def test_rings_where_modes_are_whole_devices(kernel: Capabilities) -> None:
    """No queue has a mode that could be kept for it; applied again, threads stay on their CPUs."""
    sim, store = SimHost(host(kernel=kernel)), MemoryStore()
    before = simhost.settings(sim)
    wanted = asked(ring_rx=512, threaded="on", thread_cpus="2-5", netdev_max_backlog=4096)
    apply(sim, store, wanted)
    journal, count = store.load(), sim.writes
    assert journal is not None
    assert [e.queue for e in journal.entries if e.item == "threaded"] == [WHOLE]
    assert apply(sim, store, wanted).written == 0 and sim.writes == count
    apply(sim, store, asked(rx_usecs=5))
    assert simhost.settings(sim) == before | {"eth0/rx-usecs": 5}
    apply(sim, store, wanted)
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None


def test_modes_that_others_set_beside_rings_end_no_threads() -> None:
    """The modes of before the reset are kept, and do not come back while the rings are ours."""
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    wanted = asked(ring_rx=512, thread_cpus="2-5", thread_nice=-5)
    apply(sim, store, wanted)
    sim.write_napis([(n.napi_id, {"threaded": "on"}) for n in sim.links["eth0"].napis])
    done = apply(sim, store, wanted)
    assert done.written == 8 and apply(sim, store, wanted).written == 0
    assert verify(done.plan, sim.observe()) == ()
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None


def test_a_policy_without_channels_brings_them_back() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, asked(channels=6, threaded="on", thread_nice=-2, rps="1-2"))
    apply(sim, store, asked(channels=2, threaded="on", thread_nice=-2))
    assert sim.links["eth0"].count("rx") == 2
    apply(sim, store, asked(rx_usecs=5))
    assert sim.links["eth0"].count("rx") == 4
    assert simhost.settings(sim) == before | {"eth0/rx-usecs": 5}
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_packets_and_microseconds_are_one_request_there_and_back() -> None:
    """r8169 refuses 0 microseconds beside packets above 1, others 0 beside 0."""
    sim, store = SimHost(framed()), MemoryStore()
    before = simhost.settings(sim)
    assert apply(sim, store, asked(rx_usecs=0)).written == 2
    assert apply(sim, store, asked(rx_usecs=0)).written == 0
    journal = store.load()
    assert journal is not None and verify_journal(journal, sim.observe()).drifted == ()
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None
    assert [line.partition("{")[2] for line in sim.log] == [
        "'rx-usecs': 0, 'rx-frames': 1}",
        "'rx-usecs': 20, 'rx-frames': 5}",
    ]
    apply(sim, store, asked(rx_usecs=0))
    apply(sim, store, asked(rx_usecs=9))
    assert simhost.settings(sim) == before | {"eth0/rx-usecs": 9}, "packets count again"


def test_a_driver_that_refuses_is_reported_and_the_rest_is_done() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    sim.lacking = {"channels-combined", "rx-usecs"}
    done = apply(sim, store, asked(channels=6, rx_usecs=0, ring_rx=512, threaded="on"))
    assert "eth0: channels-combined unsupported: Operation not supported" in skipped(done.plan)
    assert "eth0: rx-usecs unsupported: Operation not supported" in skipped(done.plan)
    assert sim.links["eth0"].count("rx") == 4 and done.written == 5
    assert verify(done.plan, sim.observe()) == ()
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_nothing_is_left_of_the_plan_for_channels_that_did_not_come() -> None:
    """One queue would have had RPS, the four that stay have none: the journal knows of these."""
    sim, store = SimHost(host(topology=simhost.topology(4))), MemoryStore()
    before = simhost.settings(sim)
    sim.lacking = {"channels-combined"}
    many = {"channels": 1, "rps": "auto", "threaded": "on", "thread_cpus": "auto"}
    apply(sim, store, asked(**many))
    journal = store.load()
    assert journal is not None and verify_journal(journal, sim.observe()).drifted == ()
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_refused_channels_cost_nothing_the_second_time() -> None:
    """Six queues would have gone: what they have went back, and was written again."""
    sim, store = SimHost(host(tuned(simhost.link(queues=8)))), MemoryStore()
    before = simhost.settings(sim)
    sim.lacking = {"channels-combined"}
    policy = asked(channels=2, ring_rx=512, management_queues=2, threaded="on", xps="auto")
    done = apply(sim, store, policy)
    assert {n.threaded for n in sim.links["eth0"].napis[2:]} == {1}
    sim.log.clear()
    foreseen = foresee(sim, store.load(), sim.observe(), policy, None)
    again = apply(sim, store, policy)
    assert sim.log == [] and again.written == 0 and foreseen.changes == ()
    assert skipped(again.plan) == skipped(done.plan) == skipped(foreseen)
    assert apply(sim, store, asked(ring_rx=512)).plan.skips == (), "nobody asks for them any more"
    rollback(sim, store)
    assert simhost.settings(sim) == before
    sim.lacking = set()
    assert apply(sim, store, policy).written and sim.links["eth0"].count("rx") == 2


@pytest.mark.parametrize("pairs", [True, False])
def test_what_is_refused_of_returning_queues_is_refused_at_once(pairs: bool) -> None:
    """Their link would go down and up twice, for the channels to come and go again."""
    start = host(tuned(simhost.link(queues=4), pairs=pairs), topology=simhost.topology(3))
    sim, store = SimHost(start), MemoryStore()
    apply(sim, store, asked(channels=1, threaded="on"))
    sim.log.clear()
    wanted = asked(threaded="busy-poll")
    for attempt in (
        lambda: apply(sim, store, wanted),
        lambda: foresee(sim, store.load(), sim.observe(), wanted, None),
    ):
        with pytest.raises(RxlaneError, match="4 busy-polling threads for 3 CPUs"):
            attempt()
    assert sim.log == [] and sim.links["eth0"].count("rx") == 1


def test_queues_that_will_go_refuse_nothing() -> None:
    """They go with the channels that nobody asks for any more."""
    sim = SimHost(host(tuned(simhost.link(queues=2)), topology=simhost.topology(3)))
    store, before = MemoryStore(), simhost.settings(sim)
    apply(sim, store, asked(channels=4, threaded="on"))
    assert sim.links["eth0"].count("rx") == 4
    wanted = asked(threaded="busy-poll")
    seen = {c.target for c in foresee(sim, store.load(), sim.observe(), wanted, None).changes}
    apply(sim, store, wanted)
    assert [napi.threaded for napi in sim.links["eth0"].napis] == [2, 2]
    assert {Target("eth0", queue, "threaded") for queue in range(2)} <= seen
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_a_plan_shows_what_returning_queues_get() -> None:
    sim, store = SimHost(host(tuned(simhost.link(queues=4)))), MemoryStore()
    apply(sim, store, asked(channels=1, threaded="on"))
    wanted = asked(threaded="busy-poll", thread_cpus="1-4")
    shown = foresee(sim, store.load(), sim.observe(), wanted, None).changes
    apply(sim, store, wanted)
    view = View.of(sim.observe())
    assert {c.target.queue for c in shown if c.target.item == "threaded"} == {0, 1, 2, 3}
    assert all(view.read(c.target) == c.after for c in shown)


def test_queues_that_a_driver_keeps_away_refuse_nothing() -> None:
    """It does not let its channels go back: what is asked is asked of the queues that there are."""
    start = host(tuned(simhost.link(queues=4)), topology=simhost.topology(3))
    sim, store = SimHost(start), MemoryStore()
    apply(sim, store, asked(channels=1, threaded="on"))
    sim.lacking = {"channels-combined"}
    apply(sim, store, asked(threaded="on"))
    wanted = asked(threaded="busy-poll")
    assert apply(sim, store, wanted).written == 1
    assert apply(sim, store, wanted).written == 0


def kept_away(queues: int, channels: int, cpus: int = 8) -> tuple[SimHost, MemoryStore]:
    """A NIC of so many queues whose driver refused to give up the channels it was once given."""
    start = host(tuned(simhost.link(queues=queues)), topology=simhost.topology(cpus))
    sim, store = SimHost(start), MemoryStore()
    apply(sim, store, asked(channels=channels, threaded="on"))
    sim.lacking = {"channels-combined"}
    apply(sim, store, asked(threaded="on"))
    sim.log.clear()
    return sim, store


def test_queues_that_a_driver_keeps_are_left_as_they_are_meanwhile() -> None:
    """What else comes back of them takes a round of its own, after which that is still known."""
    sim, store = kept_away(2, 4)
    apply(sim, store, asked(threaded="on", rps="1"))
    sim.log.clear()
    apply(sim, store, asked(threaded="on"))
    assert sim.log and all(line.startswith("queue eth0 ") for line in sim.log)
    assert [napi.threaded for napi in sim.links["eth0"].napis] == [1, 1, 1, 1]


def test_a_driver_that_refused_is_known_by_its_devices_new_name() -> None:
    sim, store = kept_away(2, 4)
    sim.rename("eth0", "lan0")
    assert apply(sim, store, asked(threaded="on")).written == 0 and sim.log == []
    sim, store = kept_away(4, 1, 3)
    sim.rename("eth0", "lan0")
    assert apply(sim, store, asked(threaded="busy-poll")).written == 1


def test_a_renamed_device_keeps_what_was_known_in_every_round() -> None:
    sim, store = kept_away(2, 4)
    apply(sim, store, asked(threaded="on", rps="1"))
    sim.rename("eth0", "lan0")
    sim.log.clear()
    apply(sim, store, asked(threaded="on"))
    assert sim.log and all(line.startswith("queue lan0 ") for line in sim.log)


def test_a_driver_that_gave_channels_after_all_is_known_to_do_so() -> None:
    """Even if what was asked of the queues that came was refused, and they went again."""
    sim, store = kept_away(4, 1, 3)
    sim.lacking = set()
    for first in (True, False):
        sim.log.clear()
        with pytest.raises(RxlaneError, match="4 busy-polling threads for 3 CPUs"):
            apply(sim, store, asked(threaded="busy-poll"))
        assert bool(sim.log) == first
    apply(sim, store, asked(threaded="on"))
    assert sim.links["eth0"].count("rx") == 4


def test_what_a_driver_refused_is_not_told_of_the_next_device_of_that_name() -> None:
    links = (tuned(simhost.link(queues=4)), tuned(simhost.link("eth1", 4, ifindex=3, base=9193)))
    sim, store = SimHost(host(*links)), MemoryStore()
    apply(sim, store, asked(channels=2, threaded="on"))
    sim.lacking = {"channels-combined"}
    apply(sim, store, asked("eth1", threaded="on"), ["eth1"])
    sim.lacking = set()
    sim.links.pop("eth1")
    apply(sim, store, asked(channels=2, threaded="on"))
    sim.rename("eth0", "eth1")
    apply(sim, store, asked(channels=3, threaded="on"))
    assert sim.links["eth1"].count("rx") == 3


def test_what_an_apply_that_was_refused_learned_of_a_driver_is_kept() -> None:
    """Else each attempt would set rings up anew to be refused once more."""
    sim, store = SimHost(host(tuned(simhost.link(queues=4)))), MemoryStore()
    apply(sim, store, asked(channels=1, threaded="on"))
    before, sim.lacking = simhost.settings(sim), {"channels-combined"}
    for first in (True, False):
        sim.log.clear()
        with pytest.raises(RxlaneError, match="the device has RX queues 0-0"):
            apply(sim, store, asked(ring_rx=512, threaded="on@2"))
        assert simhost.settings(sim) == before and bool(sim.log) == first


def test_modes_that_go_back_are_no_pollers() -> None:
    """A section without modes places the threads that stay."""
    sim, store = SimHost(host(tuned(simhost.link(queues=4)))), MemoryStore()
    apply(sim, store, asked(threaded="busy-poll"))
    apply(sim, store, asked(thread_cpus="1-2"))
    assert [napi.threaded for napi in sim.links["eth0"].napis] == [0, 0, 0, 0]


def test_a_value_that_another_set_meanwhile_is_the_wanted_one() -> None:
    sim, store = SimHost(host()), MemoryStore()
    apply(sim, store, asked(rps="0-3"))
    apply(sim, MemoryStore(), asked(rps="off"))
    apply(sim, store, asked(rps="off", threaded="on"))
    journal = store.load()
    assert journal is not None and verify_journal(journal, sim.observe()).drifted == ()


def test_what_a_reset_took_is_found_and_mended() -> None:
    sim, store = SimHost(host()), MemoryStore()
    done = apply(sim, store, asked(**FULL))
    sim.write_tunables(sim.links["eth0"], {"ring-rx": 512})
    assert {m.target.item for m in verify(done.plan, sim.observe())} >= {"threaded", "irq-cpus"}
    assert apply(sim, store, asked(**FULL)).written > 0
    assert verify(done.plan, sim.observe()) == ()


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "channels": st.sampled_from(["1", "2", "5", "8", "max", "9"]),
        "ring_rx": st.sampled_from(["64", "max"]),
        "adaptive_rx": st.sampled_from(["on", "off"]),
        "rx_usecs": st.sampled_from(["0", "50"]),
        "threaded": st.sampled_from(["on@1-", "off", "on"]),
        "thread_cpus": st.sampled_from(["auto", "4-7"]),
        "thread_nice": st.sampled_from(["-5", "3"]),
        "defer_hard_irqs": st.sampled_from(["0", "100"]),
        "irq_cpus": st.sampled_from(["auto", "1-3"]),
        "rps": st.sampled_from(["off", "auto", "1-2"]),
        "rfs": st.sampled_from(["off", "auto"]),
        "xps": st.sampled_from(["off", "auto", "rxqs"]),
    },
)


# Kernels, and whether their threads end with the mode: stock Debian 6.12 is the first.
KERNELS = st.sampled_from(
    [(simhost.STOCK, False), (simhost.TIMERS_ONLY, True), (simhost.BUSY_POLL, True)]
)
DEVICES = st.tuples(st.integers(1, 8), st.booleans(), st.booleans())


@settings(max_examples=120, deadline=None)
@given(
    KERNELS,
    st.lists(DEVICES, min_size=1, max_size=2),
    st.lists(OPTIONS, min_size=1, max_size=3),
)
# The queue that goes with its channels is planned elsewhere once its thread is as it was.
@example(
    (simhost.STOCK, False),
    [(1, False, False)],
    [
        {
            "channels": "2",
            "threaded": "on",
            "thread_cpus": "4-7",
            "thread_nice": "-5",
            "irq_cpus": "auto",
            "rps": "auto",
        },
        {"thread_nice": "-5", "irq_cpus": "auto"},
    ],
)
def test_any_channels_on_any_host_come_back(
    kernel: tuple[Capabilities, bool],
    devices: list[tuple[int, bool, bool]],
    rows: list[dict[str, str]],
) -> None:
    """Devices with pairs of queues or without, whose own file says threaded or not."""
    able, ends = kernel
    links = [
        tuned(
            simhost.link(f"eth{n}", queues, ifindex=n + 2, base=8193 + 1000 * n, kernel=able),
            pairs=pairs,
            rx_frames=5,
        )
        for n, (queues, pairs, _) in enumerate(devices)
    ]
    sim, store = SimHost(host(*links, kernel=able), ends_threads=ends), MemoryStore()
    for n, (_, _, threaded) in enumerate(devices):
        if threaded and able.max_threaded == 0:
            sim.write_device(sim.links[f"eth{n}"], {"threaded": "on"})
    before = simhost.settings(sim)
    for options in rows:
        done = apply(sim, store, asked(**options))
        assert verify(done.plan, sim.observe()) == ()
        assert apply(sim, store, asked(**options)).written == 0
    assert rollback(sim, store).pending == ()
    assert simhost.restored(sim, before) and store.text is None


@pytest.mark.parametrize(
    ("option", "value", "has", "says"),
    [
        (
            "ring_rx",
            1000,
            512,
            "was set to 1000 and reads 512; the driver rounds it: give ring_rx=512",
        ),
        ("rx_usecs", 9, 10, "was set to 9 and reads 10; the driver rounds it: give rx_usecs=10"),
        ("ring_rx", 512, 256, "was set to 512 and reads 256"),  # what it had: ignored
    ],
)
def test_a_number_that_a_driver_rounds(option: str, value: int, has: int, says: str) -> None:
    item = option.replace("_", "-")
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    sim.rounds[item] = lambda number: has if number == value else number
    with pytest.raises(RxlaneError) as caught:
        apply(sim, store, asked(threaded="on", **{option: value}))
    assert str(caught.value) == f"eth0: {item} {says}"
    assert simhost.settings(sim) == before and store.text is None
