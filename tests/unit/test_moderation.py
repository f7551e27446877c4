# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupt moderation of drivers that refuse other numbers while adaptive mode is on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import moderation, policy
from rxlane.apply import apply
from rxlane.errors import RxlaneError
from rxlane.items import Value
from rxlane.model import Link, Snapshot
from rxlane.rollback import rollback
from rxlane.sections import Policy
from rxlane.settings import read_device
from rxlane.verify import verify
from unit import simhost
from unit.faults import WAYS, all_comes_back
from unit.simhost import MemoryStore, SimHost


def asked(**options: object) -> Policy:
    return policy.parse_mixed("x", (), {n: str(v) for n, v in options.items()})


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


# -- drivers that count ticks ---------------------------------------------------------------------


class Ticking(SimHost):
    """stmmac: a tick is 256 cycles of a clock of so many MHz; both ways are rounded down.

    What a request leaves out ethnl_set_coalesce() fills in with what is read.
    """

    mhz = 250

    def write_tunables(self, link: Link, values: Mapping[str, int | str]) -> None:
        self.rounds = {"rx-usecs": self.reads}
        held = {t.item: t.value for t in self.links[link.name].tunables}
        super().write_tunables(link, {"rx-usecs": held["rx-usecs"], **values})

    def reads(self, usecs: int) -> int:
        return self.of_ticks(usecs * self.mhz // 256)

    def of_ticks(self, ticks: int) -> int:
        return ticks * 256 // self.mhz


def ticking(mhz: int = 250, ticks: int = 0xA0) -> Ticking:
    """At first the driver has ticks of its own: 163 usecs, which give 162."""
    sim = Ticking(host(adaptive=0))
    sim.mhz = mhz
    link = simhost.tuned(
        simhost.link(), adaptive_rx=0, adaptive_tx=0, rx_usecs=sim.of_ticks(ticks), tx_usecs=1000
    )
    sim.links = {"eth0": simhost.wired(link)}
    return sim


def usecs(sim: SimHost) -> Value | None:
    return read_device(sim.links["eth0"], "rx-usecs")


def test_what_a_clock_rounds_down_comes_back() -> None:
    sim, store = ticking(), MemoryStore()
    before = simhost.settings(sim)
    assert usecs(sim) == 163 and sim.reads(163) == 162
    apply(sim, store, asked(rx_usecs=100))
    assert usecs(sim) == 100
    back = rollback(sim, store)
    assert (back.pending, back.notes) == ((), ())
    assert simhost.settings(sim) == before and store.text is None


def test_a_number_that_was_not_asked_for_stays() -> None:
    sim, store = ticking(), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, asked(tx_usecs=7))
    assert usecs(sim) == 163
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None


def test_the_number_that_the_driver_makes_can_be_asked_for() -> None:
    sim, store = ticking(), MemoryStore()
    sim.mhz = 100  # 2.56 usecs a tick
    with pytest.raises(RxlaneError, match="reads 48; the driver rounds it: give rx_usecs=48"):
        apply(sim, store, asked(rx_usecs=50))
    apply(sim, store, asked(rx_usecs=48))
    assert usecs(sim) == 48 and sim.reads(48) == 46


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_where_a_clock_rounds(way: str) -> None:
    all_comes_back(way, ticking().observe(), asked(rx_usecs=100, tx_usecs=9), Ticking)


def test_an_original_that_no_number_gives() -> None:
    """Of 300 MHz: 63 gives 62, and 64 gives 64."""
    sim, store = ticking(300, 74), MemoryStore()
    assert (usecs(sim), sim.reads(63), sim.reads(64)) == (63, 62, 64)
    apply(sim, store, asked(rx_usecs=100))
    back = rollback(sim, store)
    assert back.pending == () and store.text is None
    assert back.notes == ("eth0/all/rx-usecs: was 63, of which the driver makes 64",)


def test_an_original_that_no_number_gives_is_not_planned_back() -> None:
    sim, store = ticking(300, 74), MemoryStore()
    apply(sim, store, asked(threaded="on", rx_usecs=100))
    with pytest.raises(RxlaneError, match="64; `rxlane rollback eth0` takes what the driver makes"):
        apply(sim, store, asked(threaded="on"))
    assert usecs(sim) == 100
    assert rollback(sim, store).pending == ()
    assert usecs(sim) == 64


def test_what_a_driver_ignores_waits() -> None:
    sim, store = SimHost(host(adaptive=0, usecs=9)), MemoryStore()
    apply(sim, store, asked(rx_usecs=8))
    sim.rounds = {"rx-usecs": lambda _: 8}
    assert rollback(sim, store).pending == ("eth0/all/rx-usecs: is 8, was 9",)
    sim.rounds = {}
    assert rollback(sim, store).pending == ()


def test_another_number_than_the_original_waits() -> None:
    sim, store = SimHost(host(adaptive=0, usecs=50)), MemoryStore()
    apply(sim, store, asked(rx_usecs=8))
    sim.rounds = {"rx-usecs": lambda _: 25}
    assert rollback(sim, store).pending == ("eth0/all/rx-usecs: is 25, was 50",)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([50, 62, 100, 125, 150, 250, 300, 400, 500]),
    st.integers(0x10, 0xFF),
    st.integers(0x10, 0xFF),
)
def test_any_ticks_come_back(mhz: int, ticks: int, others: int) -> None:
    sim, store = ticking(mhz, ticks), MemoryStore()
    original, wanted = usecs(sim), sim.of_ticks(others)
    try:
        apply(sim, store, asked(rx_usecs=wanted))
    except RxlaneError:
        assert mhz > 256, "with slower clocks any number that is ever read can be had"
        return
    back = rollback(sim, store)
    assert back.pending == () and store.text is None
    assert usecs(sim) == original or (mhz > 256 and len(back.notes) == 1)
