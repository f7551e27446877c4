# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbers that a driver rounds: accepted, told, kept in the journal, and not written again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import policy, rounding
from rxlane.apply import Applied, apply
from rxlane.converge import Converger
from rxlane.errors import Kind, RxlaneError
from rxlane.events import APPLIED
from rxlane.plan import Change, Journal, Target
from rxlane.rollback import rollback
from rxlane.sections import Policy
from rxlane.tuned_compat import Adapter, Row
from rxlane.verify import verify, verify_journal
from unit import simhost
from unit.faults import WAYS, all_comes_back
from unit.simhost import MemoryStore, SimHost


def asked(**options: object) -> Policy:
    return policy.parse_mixed("x", (), {n: str(v) for n, v in options.items()})


def even(number: int) -> int:
    return number + number % 2


def in_32s(number: int) -> int:
    return -(-number // 32) * 32


def power(number: int) -> int:
    """Of two, the one below, as ena has it."""
    return 1 << max(6, number.bit_length() - 1)


Rounds = Mapping[str, Callable[[int], int]]
INTEL: Rounds = {"rx-usecs": even, "tx-usecs": even, "ring-rx": in_32s, "ring-tx": in_32s}
ENA: Rounds = {"ring-rx": power, "ring-tx": power}


def host(rounds: Rounds) -> SimHost:
    link = simhost.tuned(simhost.link(), adaptive_rx=0, rx_usecs=50, tx_usecs=8)
    sim = SimHost(simhost.whole(simhost.snapshot(link)))
    sim.rounds = dict(rounds)
    return sim


def number(sim: SimHost, item: str) -> int | None:
    found = sim.links["eth0"].tunable(item)
    return None if found is None else found.value


def journal(store: MemoryStore) -> Journal:
    found = store.load()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rounds", "option", "value", "has"),
    [
        (INTEL, "rx_usecs", 5, 6),
        (INTEL, "rx_usecs", 49, 50),  # what it had before
        (INTEL, "ring_rx", 1000, 1024),
        (INTEL, "ring_rx", 250, 256),
        (ENA, "ring_rx", 1000, 512),
        (ENA, "ring_tx", 1000, 512),
    ],
)
def test_rounded(rounds: Rounds, option: str, value: int, has: int) -> None:
    sim, store = host(rounds), MemoryStore()
    before, item = simhost.settings(sim), option.replace("_", "-")
    wanted = asked(threaded="on", **{option: value})
    done = apply(sim, store, wanted)
    warning = f"eth0: {item}: {value} was asked for, the driver has {has}"
    assert done.plan.warnings == (warning,)
    assert verify(done.plan, sim.observe()) == () and number(sim, item) == has
    (entry,) = (e for e in journal(store).entries if e.item == item and e.after is not None)
    assert (entry.after, entry.asked) == (has, value)
    assert verify_journal(journal(store), sim.observe()).drifted == ()
    wrote, text = sim.writes, store.text
    again = apply(sim, store, wanted)
    assert (again.written, sim.writes, store.text) == (0, wrote, text)
    assert again.plan.warnings == (warning,) and again.plan.changes == ()
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None


def test_another_number_is_written_and_so_is_one_that_another_program_changed() -> None:
    sim, store = host(ENA), MemoryStore()
    apply(sim, store, asked(ring_rx=1000))
    assert apply(sim, store, asked(ring_rx=1024)).plan.warnings == ()
    assert number(sim, "ring-rx") == 1024
    apply(sim, store, asked(ring_rx=1000))
    sim.write_tunables(sim.links["eth0"], {"ring-rx": 64})
    assert [str(m.target) for m in verify_journal(journal(store), sim.observe()).drifted] == [
        "eth0/all/ring-rx"
    ]
    assert "1000 was asked for" in apply(sim, store, asked(ring_rx=1000)).plan.warnings[0]
    assert number(sim, "ring-rx") == 512
    assert apply(sim, store, asked(ring_rx=1000)).written == 0


@pytest.mark.parametrize(
    ("option", "value", "has", "problem"),
    [
        ("ring_rx", 512, 256, "was set to 512 and reads 256; the driver kept that"),
        ("rx_usecs", 500, 50, "was set to 500 and reads 50; the driver kept that"),
        ("rx_usecs", 0, 2, "was set to 0 and reads 2; give rx_usecs=2"),
        ("ring_rx", 16, 80, "was set to 16 and reads 80; give ring_rx=80"),
        ("adaptive_rx", "on", 0, "was set to on and reads off"),
    ],
)
def test_what_is_no_rounding_fails(option: str, value: object, has: int, problem: str) -> None:
    item = option.replace("_", "-")
    sim, store = host({item: lambda _: has}), MemoryStore()
    before = simhost.settings(sim)
    with pytest.raises(RxlaneError) as caught:
        apply(sim, store, asked(threaded="on", **{option: value}))
    assert caught.value.kind is Kind.KERNEL
    assert str(caught.value).startswith(f"eth0: {item} {problem}")
    if has in (0, 50, 256):
        assert simhost.settings(sim) == before and store.text is None


def test_only_numbers_of_rings_and_moderation() -> None:
    channels = Change(Target("eth0", -1, "channels-combined"), 4, 6)
    assert not rounding.accepted(channels, 5) and rounding.remedy(channels, 5) is None
    usecs = Change(Target("eth0", -1, "rx-usecs"), 4, 6)
    assert not rounding.accepted(usecs, None) and rounding.remedy(usecs, None) is None


def test_a_kept_layout_stands() -> None:
    sim, store, log = host(INTEL), MemoryStore(), list[str]()
    wanted = asked(threaded="on", ring_rx=1000, rx_usecs=5)
    apply(sim, store, wanted)
    wrote = sim.writes

    def replan(choose: Callable[..., object]) -> Applied:
        return apply(sim, store, wanted, choose=choose)  # type: ignore[arg-type]

    now = [0.0]
    converger = Converger(replan, lambda _, text: log.append(text), lambda: now[0])
    for _ in range(3):
        converger.notice([APPLIED])
        now[0] += 10
        assert converger.run()
    assert sim.writes == wrote and log == []


def test_tuned_warns_and_verifies(tmp_path: Path) -> None:
    sim = host(INTEL)
    work = Adapter(tmp_path / "state", lambda: sim)
    rows = [Row("napi", frozenset({"eth0"}), (("rx_usecs", "5"), ("threaded", "on")))]
    report = work.apply(rows)
    assert report.ok
    assert ("warning", "eth0: rx-usecs: 5 was asked for, the driver has 6") in report.lines
    checked = work.verify(rows, {"eth0"})
    assert checked.ok and ("info", "verify: passed: eth0/all/rx-usecs = 6") in checked.lines
    sim.write_tunables(sim.links["eth0"], {"rx-usecs": 80})
    assert not work.verify(rows, {"eth0"}).ok


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_at_any_write_comes_back(way: str) -> None:
    def make(_: object) -> SimHost:
        return host(INTEL)

    wanted = asked(threaded="on", ring_rx=1000, rx_usecs=5, tx_usecs=77)
    all_comes_back(way, host(INTEL).observe(), wanted, make)


OPTIONS = st.fixed_dictionaries(
    {"threaded": st.sampled_from(["on", "off"])},
    optional={
        "ring_rx": st.sampled_from(["100", "700", "1024"]),
        "rx_usecs": st.sampled_from(["0", "5", "51"]),
        "tx_usecs": st.sampled_from(["7", "8"]),
        "channels": st.sampled_from(["2", "6"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([INTEL, ENA]), st.lists(OPTIONS, min_size=1, max_size=4))
def test_any_numbers_stand_and_come_back(rounds: Rounds, rows: list[dict[str, str]]) -> None:
    sim, store = host(rounds), MemoryStore()
    before = simhost.settings(sim)
    for options in rows:
        done = apply(sim, store, asked(**options))
        assert verify(done.plan, sim.observe()) == ()
        kept = store.load()
        assert kept is None or verify_journal(kept, sim.observe()).drifted == ()
        assert apply(sim, store, asked(**options)).written == 0
    assert rollback(sim, store).pending == ()
    assert simhost.settings(sim) == before and store.text is None
