# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels, rings and coalescing: what is planned, refused, written in which order, and undone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rxlane import codec, policy
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Capabilities, Link, Snapshot, Tunable
from rxlane.plan import WHOLE, Plan
from rxlane.revert import revert
from rxlane.rollback import rollback
from rxlane.sections import Policy
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.faults import WAYS, all_comes_back
from unit.simhost import MemoryStore, SimHost, tuned


def asked(*devices: str, **options: object) -> Policy:
    return policy.parse_mixed(devices, {n: str(v) for n, v in options.items()})


def host(*links: Link, kernel: Capabilities = simhost.BUSY_POLL, **more: object) -> Snapshot:
    own = links or (tuned(simhost.link(kernel=kernel)),)
    start = simhost.whole(simhost.snapshot(*own, capabilities=kernel))
    return replace(start, **more)  # type: ignore[arg-type]


def after(plan: Plan, item: str = "") -> dict[str, object]:
    return {str(c.target): c.after for c in plan.changes if item in c.target.item}


def skipped(plan: Plan) -> list[str]:
    return [str(s) for s in plan.skips]


def refusal(start: Snapshot, wanted: Policy) -> str:
    with pytest.raises(RxlaneError) as caught:
        decide(start, wanted)
    assert caught.value.kind is Kind.REFUSED and "\n" not in str(caught.value)
    return str(caught.value)


# -- plan ---------------------------------------------------------------------------------------


def test_pairs_where_the_driver_has_pairs() -> None:
    assert after(decide(host(), asked(channels=2))) == {"eth0/all/channels-combined": 2}
    apart = host(tuned(simhost.link(), pairs=False))
    wanted = {"eth0/all/channels-rx": 1, "eth0/all/channels-tx": 1}
    assert after(decide(apart, asked(channels=1))) == wanted
    assert after(decide(host(), asked(channels="max"))) == {"eth0/all/channels-combined": 8}


def test_lanes_are_planned_for_the_queues_to_come() -> None:
    plan = decide(host(), asked(channels=6, threaded="on@1-", thread_cpus="auto", irq_cpus="auto"))
    assert list(after(plan, "threaded")) == [f"eth0/rx{n}/threaded" for n in range(1, 6)]
    assert len(set(after(plan, "thread-cpus").values())) == 5
    assert len(after(plan, "irq-cpus")) == 6
    unborn = [c for c in plan.changes if c.target.queue > 3]
    assert unborn and all(c.before is None for c in unborn)
    assert all("-" not in c.reason.partition("IRQ ")[2] for c in plan.changes)


def test_lanes_of_queues_that_go_are_not_planned() -> None:
    plan = decide(host(), asked(channels=2, threaded="on", rps="1", xps="rxqs"))
    assert {c.target.queue for c in plan.changes} == {-1, 0, 1}
    assert not plan.skips
    assert "device has RX queues 0-1" in _bad(asked(channels=2, threaded="on@3"))


def _bad(wanted: Policy) -> str:
    with pytest.raises(RxlaneError) as caught:
        decide(host(), wanted)
    return str(caught.value)


def test_network_manager_is_told_of_where_it_sets_the_same() -> None:
    start = replace(host(), writers=("NetworkManager",))
    (warning,) = decide(start, asked(rx_usecs=9)).warnings
    assert "NetworkManager runs" in warning and "eth0" in warning
    assert decide(start, asked(threaded="on")).warnings == ()


def test_what_holds_is_not_written() -> None:
    plan = decide(host(), asked(channels=4, ring_rx=256, adaptive_rx="on", rx_usecs=3))
    assert plan.changes == () and len(plan.holds) == 4


def test_rings_and_coalescing() -> None:
    options = {"ring_rx": "max", "ring_tx": 512, "adaptive_rx": "off", "rx_usecs": 0}
    plan = decide(host(), asked(**options))
    assert after(plan) == {
        "eth0/all/ring-rx": 1024,
        "eth0/all/ring-tx": 512,
        "eth0/all/adaptive-rx": "off",
        "eth0/all/rx-usecs": 0,
    }
    assert [c.before for c in plan.changes] == [256, 256, "on", 3]
    assert "ring_rx=max in [napi]" in plan.changes[0].reason


def framed(driver: str = "r8169", usecs: int = 20) -> Snapshot:
    link = tuned(simhost.link(), rx_usecs=usecs, tx_usecs=72, rx_frames=5, tx_frames=53)
    return host(replace(link, driver=driver))


@pytest.mark.parametrize("usecs", [20, 0])
def test_no_packet_waits_for_others_without_a_limit_of_time(usecs: int) -> None:
    plan = decide(framed(usecs=usecs), asked(rx_usecs=0))
    frames = plan.changes[-1]
    assert (str(frames.target), frames.before, frames.after) == ("eth0/all/rx-frames", 5, 1)
    assert (
        frames.reason.startswith("rx_usecs=0 in [napi]: ") and "until there are 5" in frames.reason
    )
    both = decide(framed(), asked(rx_usecs=0, tx_usecs=0))
    assert after(both, "frames") == {"eth0/all/rx-frames": 1, "eth0/all/tx-frames": 1}


@pytest.mark.parametrize(
    ("start", "options"),
    [
        (framed(), {"rx_usecs": 9}),
        (framed(), {"rx_usecs": 0, "rx_frames": 5}),
        (framed("fsl_enetc"), {"rx_usecs": 0}),
        (host(tuned(simhost.link(), rx_frames=0)), {"rx_usecs": 0}),
        (host(tuned(simhost.link(), rx_frames=1)), {"rx_usecs": 0}),
        (host(), {"rx_usecs": 0}),
    ],
)
def test_numbers_of_packets_that_stay(start: Snapshot, options: dict[str, object]) -> None:
    assert after(decide(start, asked(**options)), "frames") == {}


@pytest.mark.parametrize(
    ("driver", "price", "moderation"),
    [
        ("virtio_net", "queue-pause", "none"),
        ("e1000e", "link-reset", "none"),
        ("ixgbe", "link-reset", "link-reset"),
        ("bnx2", "link-reset", "link-reset"),
        ("fsl_enetc", "link-reset", "queue-pause"),
    ],
)
def test_disruption(driver: str, price: str, moderation: str) -> None:
    start = host(replace(tuned(simhost.link()), driver=driver))
    plan = decide(start, asked(channels=2, ring_rx=512, rx_usecs=9, threaded="on"))
    found = {c.target.item: c.disruption for c in plan.changes}
    assert found == {
        "channels-combined": price,
        "ring-rx": price,
        "rx-usecs": moderation,
        "threaded": "thread-restart",
    }
    undone = {c.target.item: c.disruption for c in revert(plan, start).changes}
    assert undone == found


def test_what_the_device_has_not_is_reported() -> None:
    bare = simhost.link(), tuned(simhost.link("eth1", ifindex=3, base=9000))
    plan = decide(host(*bare), asked(channels=9, ring_rx=4096, rx_frames=1))
    assert plan.changes == ()
    assert skipped(plan) == [
        "eth0: channels unsupported: driver virtio_net does not let its queues be counted",
        "eth0: ring-rx unsupported: driver virtio_net does not have it",
        "eth0: rx-frames unsupported: driver virtio_net does not have it",
        "eth1: channels unsupported: channels=9: the device has at most 8; give up to 8, or max",
        "eth1: ring-rx unsupported: ring_rx=4096: the device takes at most 1024;"
        " give up to 1024, or max",
        "eth1: rx-frames unsupported: driver virtio_net does not have it",
    ]


def test_a_maximum_that_the_driver_does_not_tell() -> None:
    link = replace(simhost.link(), tunables=(Tunable("ring-rx", 256),))
    (text,) = skipped(decide(host(link), asked(ring_rx="max")))
    assert text.endswith("ring_rx=max: driver virtio_net does not tell its maximum; give a number")


def test_device_that_is_down() -> None:
    plan = decide(host(tuned(simhost.link(up=False))), asked(channels=2, ring_rx=512))
    assert plan.changes == () and "channels, ring-rx down" in skipped(plan)[0]


# -- the login ----------------------------------------------------------------------------------


def test_new_queues_under_a_login_are_refused() -> None:
    start = host(sessions=("eth0",))
    assert "logged in over this device" in refusal(start, asked(channels=2))
    assert refusal(start, asked(channels=2)).startswith("[napi] channels=2 eth0:")
    assert after(decide(start, asked(channels=2, allow_session_reset=1)))
    assert after(decide(start, replace(asked(channels=2), confirmed=True)))
    assert after(decide(host(sessions=("eth7",)), asked(channels=2)))


def test_no_refusal_where_nothing_is_cut() -> None:
    start = host(sessions=("eth0",))
    assert decide(start, asked(channels=4)).changes == ()
    assert after(decide(start, asked(ring_rx=512, rx_usecs=0)))
    wired = replace(start, links=(replace(start.links[0], driver="e1000e"),))
    assert "ring_rx=512" in refusal(wired, asked(ring_rx=512))
    assert after(decide(wired, asked(rx_usecs=0)))


def wired(driver: str, *sessions: str) -> Snapshot:
    link = tuned(simhost.link(), rx_frames=5)
    return host(replace(link, driver=driver), sessions=sessions)


def test_coalescing_that_resets_the_link_of_a_login_is_left_alone() -> None:
    """It is no refusal: net-low-latency asks for it on whatever NIC there is."""
    start, low = wired("ixgbe", "eth0"), {"adaptive_rx": "off", "rx_usecs": 0}
    plan = decide(start, asked(threaded="on", **low))
    assert {c.target.item for c in plan.changes} == {"threaded"}
    assert skipped(plan) == [
        "eth0: adaptive-rx, rx-usecs, rx-frames left-alone: adaptive_rx=off rx_usecs=0 in [napi]:"
        " somebody is logged in over this device, and driver ixgbe resets the link for it;"
        " use `rxlane apply --confirm` or set allow_session_reset=1"
    ]
    for where, wanted in (
        (start, asked(**low, allow_session_reset=1)),
        (start, replace(asked(**low), confirmed=True)),
        (wired("ixgbe", "eth7"), asked(**low)),
        (wired("e1000e", "eth0"), asked(**low)),
    ):
        assert len(after(decide(where, wanted))) == 3
    assert decide(start, asked(rx_usecs=3)).skips == (), "what holds cuts nobody off"


def test_coalescing_that_came_before_the_login_stays() -> None:
    sim, store = SimHost(wired("ixgbe")), MemoryStore()
    before = simhost.settings(sim)
    low = asked(rx_usecs=0, threaded="on")
    apply(sim, store, low)
    sim.sessions = ("eth0",)
    again = apply(sim, store, low)
    assert again.written == 0 and again.plan.skips == ()
    less = apply(sim, store, asked(threaded="on"))
    assert less.written == 0 and "going back to 3 could cut that off" in skipped(less.plan)[0]
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None


# -- apply --------------------------------------------------------------------------------------

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


# -- recordings ---------------------------------------------------------------------------------


def test_recordings_say_only_what_is_there() -> None:
    plain = codec.to_plain(simhost.snapshot())
    assert "sessions" not in plain and "tunables" not in plain["links"][0]
    start = host(sessions=("eth0",))
    assert codec.loads(Snapshot, codec.dumps(start), "x") == start
    assert start.links[0].tunable("ring-rx") == Tunable("ring-rx", 256, 1024)
