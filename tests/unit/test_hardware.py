# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels, rings and coalescing: what is planned, and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rxlane import codec
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Snapshot, Tunable
from rxlane.policy import Given, parse
from rxlane.revert import revert
from rxlane.sections import Policy
from unit import simhost
from unit.asking import asked
from unit.simhost import MemoryStore, SimHost, tuned
from unit.tunable import after, framed, host, skipped


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


def test_a_permission_for_hardware_is_none_for_a_virtual_device() -> None:
    virtual = replace(tuned(simhost.link()), physical=False)
    given = [Given("napi", "all", (), {"allow_session_reset": "1"}),
             Given("napi", "virt", ("eth0",), {"channels": "2"})]  # fmt: skip
    assert "[virt] channels=2 eth0:" in refusal(host(virtual, sessions=("eth0",)), parse(given))


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
        " use `rxlane apply --confirm` or set allow_session_reset=1 in [napi]"
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


# -- recordings ---------------------------------------------------------------------------------


def test_recordings_say_only_what_is_there() -> None:
    plain = codec.to_plain(simhost.snapshot())
    assert "sessions" not in plain and "tunables" not in plain["links"][0]
    start = host(sessions=("eth0",))
    assert codec.loads(Snapshot, codec.dumps(start), "x") == start
    assert start.links[0].tunable("ring-rx") == Tunable("ring-rx", 256, 1024)
