# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupt moderation of drivers that refuse other numbers while adaptive mode is on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import policy
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.deciding import moderation
from rxlane.errors import RxlaneError
from rxlane.items import Value
from rxlane.model import Snapshot
from rxlane.sections import Policy
from rxlane.verify import verify
from unit import simhost
from unit.faults import WAYS, all_comes_back
from unit.simhost import MemoryStore, SimHost


def asked(**options: object) -> Policy:
    return policy.parse_mixed((), {n: str(v) for n, v in options.items()})


def host(adaptive: int = 1, usecs: int = 50) -> Snapshot:
    """Both directions alike."""
    link = simhost.tuned(
        simhost.link(),
        adaptive_rx=adaptive,
        adaptive_tx=adaptive,
        rx_usecs=usecs,
        tx_usecs=usecs,
        rx_frames=0,
    )
    return simhost.whole(simhost.snapshot(link))


def strict(start: Snapshot) -> SimHost:
    sim = SimHost(start)
    sim.strict_moderation = True
    return sim


# What net-low-latency asks for.
LOW = {"adaptive_rx": "off", "adaptive_tx": "off", "rx_usecs": 0, "tx_usecs": 0}


@pytest.mark.parametrize(
    ("values", "requests"),
    [
        ({"rx-usecs": 50}, [{"rx-usecs": 50}]),
        ({"adaptive-rx": "on"}, [{"adaptive-rx": "on"}]),
        ({"adaptive-rx": "off", "rx-usecs": 0}, [{"adaptive-rx": "off", "rx-usecs": 0}]),
        ({"adaptive-rx": "on", "rx-usecs": 50}, [{"rx-usecs": 50}, {"adaptive-rx": "on"}]),
        (
            {"adaptive-rx": "off", "adaptive-tx": "on", "rx-usecs": 0, "tx-usecs": 9},
            [{"adaptive-rx": "off", "rx-usecs": 0, "tx-usecs": 9}, {"adaptive-tx": "on"}],
        ),
    ],
)
def test_switches_that_go_on_come_last(
    values: dict[str, Value], requests: list[dict[str, Value]]
) -> None:
    assert list(moderation.in_order(values)) == requests


def test_low_latency_and_back() -> None:
    sim, store = strict(host()), MemoryStore()
    before = simhost.settings(sim)
    done = apply(sim, store, asked(**LOW))
    assert done.written == 4 and len(sim.log) == 1, "what goes off is one request with its numbers"
    assert apply(sim, store, asked(**LOW)).written == 0
    back = rollback(sim, store)
    assert (back.written, back.pending, back.notes) == (4, (), ())
    assert [line.partition("{")[2] for line in sim.log[1:]] == [
        "'rx-usecs': 50, 'tx-usecs': 50}",
        "'adaptive-rx': 'on', 'adaptive-tx': 'on'}",
    ]
    assert simhost.settings(sim) == before and store.text is None


def test_drivers_that_take_it_get_one_request() -> None:
    """The kernel asks those that set numbers anew with the mode twice, but only then."""
    sim, store = SimHost(host()), MemoryStore()
    apply(sim, store, asked(**LOW))
    rollback(sim, store)
    assert len(sim.log) == 2


def test_numbers_beside_adaptive_mode_are_refused() -> None:
    """Switching it off for a while would be in no journal."""
    sim, store = strict(host()), MemoryStore()
    with pytest.raises(RxlaneError, match="eth0: coalescing of eth0: Invalid argument"):
        apply(sim, store, asked(rx_usecs=7))
    assert sim.log == [] and store.text is None


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_at_any_write_comes_back(way: str) -> None:
    all_comes_back(way, host(), asked(**LOW), strict)
    all_comes_back(way, host(0, 1), asked(adaptive_rx="on", rx_usecs=9), strict)


ONE_WAY = st.sampled_from(
    [{}, {"adaptive": "on"}, *({"adaptive": "off", "usecs": n} for n in (0, 9))]
)
ROWS = st.lists(st.fixed_dictionaries({"rx": ONE_WAY, "tx": ONE_WAY}), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1), st.sampled_from([0, 9, 50]), ROWS, st.booleans())
def test_any_moderation_comes_back(
    adaptive: int, usecs: int, rows: list[dict[str, dict[str, object]]], refusing: bool
) -> None:
    sim, store = SimHost(host(adaptive, usecs)), MemoryStore()
    sim.strict_moderation = refusing
    before = simhost.settings(sim)
    for row in rows:
        options = {
            f"adaptive_{way}" if name == "adaptive" else f"{way}_{name}": value
            for way, own in row.items()
            for name, value in own.items()
        }
        done = apply(sim, store, asked(threaded="on", **options))
        assert verify(done.plan, sim.observe()) == ()
        assert apply(sim, store, asked(threaded="on", **options)).written == 0
    back = rollback(sim, store)
    assert (back.pending, back.notes) == ((), ())
    assert simhost.settings(sim) == before and store.text is None


# -- drivers that make another number of an original ----------------------------------------------


@pytest.mark.parametrize(("original", "made"), [(163, 162), (63, 64), (1, 0), (80, 70), (80, 90)])
def test_an_original_that_no_number_gives_is_as_near_as_it_gets(original: int, made: int) -> None:
    """stmmac: its clock's ticks are rounded down when they are set and when they are read."""
    sim, store = SimHost(host(adaptive=0, usecs=original)), MemoryStore()
    apply(sim, store, asked(rx_usecs=200))
    sim.rounds = {"rx-usecs": lambda _: made}
    back = rollback(sim, store)
    assert back.pending == () and store.text is None
    assert back.notes == (f"eth0/all/rx-usecs: was {original}, of which the driver makes {made}",)


@pytest.mark.parametrize("made", [25, 69, 91])
def test_another_number_than_the_original_waits(made: int) -> None:
    sim, store = SimHost(host(adaptive=0, usecs=80)), MemoryStore()
    apply(sim, store, asked(rx_usecs=8))
    sim.rounds = {"rx-usecs": lambda _: made}
    assert rollback(sim, store).pending == (f"eth0/all/rx-usecs: is {made}, was 80",)


def test_what_a_driver_ignores_waits() -> None:
    sim, store = SimHost(host(adaptive=0, usecs=9)), MemoryStore()
    apply(sim, store, asked(rx_usecs=8))
    sim.rounds = {"rx-usecs": lambda _: 8}
    assert rollback(sim, store).pending == ("eth0/all/rx-usecs: is 8, was 9",)
    sim.rounds = {}
    assert rollback(sim, store).pending == ()
