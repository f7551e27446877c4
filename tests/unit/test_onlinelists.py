# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU lists of which some CPUs are offline, on their own and in a layout that is kept."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from rxlane import cpulist
from rxlane.decide import decide
from rxlane.deciding import onlinelists
from rxlane.deciding.onlinelists import LISTS
from rxlane.errors import Kind
from rxlane.journal import Store
from rxlane.keeping.events import Event
from rxlane.policy import Given, parse
from unit import simhost
from unit.asking import SECOND, asked, refusal
from unit.asking import host as of_links
from unit.keeping import Bench
from unit.simhost import SimHost

OPTIONS = [
    "thread_cpus",
    "irq_cpus",
    "irq_layout.thread_cpus",
    "workqueue_cpus",
    "rps",
    "rx_thread_cpus",
    "vhost_cpus",
    "tap_rps",
]
GONE = simhost.topology(8, offline=(5,))


def test_every_list_is_known() -> None:
    for kind, lists in LISTS.items():
        own = {f.name for f in fields(kind) if str(f.type).startswith("tuple[int, ...]")}
        assert own == {field for field, _ in lists}


@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_offline_is_left_out_of_a_list(option: str) -> None:
    policy, warnings = onlinelists.reduced(asked(**{option: "4-6"}), GONE)
    (section,) = policy.all
    name = option.rpartition(".")[2]
    assert (4, 6) in [cpus for _, _, cpus in onlinelists._lists(section)]
    where = f"{name}=4-6 in [{section.name}]"
    assert warnings == [f"{where}: CPU 5 is offline and left out"]
    assert onlinelists.reduced(asked(**{option: "4-6"}), simhost.topology(8)) == (
        asked(**{option: "4-6"}),
        [],
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [("5", "CPU 5 is offline"), ("4-5,99", "CPU 99 does not exist")],
)
def test_what_is_refused_all_the_same(given: str, words: str) -> None:
    error = refusal(of_links(cpus=GONE), irq_cpus=given)
    assert error.kind is Kind.REFUSED and words in str(error)


def test_a_cpu_that_goes_offline_moves_only_what_was_on_it(tmp_path: Path) -> None:
    """And ends nothing, of no other section either; its lanes return with it."""
    rows = [
        Given("napi", "one", ("eth0",), {"threaded": "on", "thread_cpus": "2-5"}),
        Given("irq_layout", "irqs", ("eth0",), {"irq_cpus": "2-5"}),
        Given("napi", "two", ("eth1",), {"threaded": "on"}),
    ]
    sim = SimHost(of_links(simhost.link(), SECOND))
    bench = Bench(sim, Store(tmp_path), parse(rows), ("eth0", "eth1"))
    start = settings(bench)
    sim.topology = GONE
    bench.happens(Event("CPU 5 went offline"))
    found = settings(bench)
    moved = {key for key, cpus in start.items() if found[key] != cpus}
    assert moved and all(5 in cpulist.parse(start[key]) for key in moved), bench.log
    assert not any(5 in cpulist.parse(cpus) for cpus in found.values())
    sim.write_napi(9001, {"threaded": "off"})
    bench.happens(Event("went up", "eth1", 3))
    assert [napi.threaded for napi in sim.links["eth1"].napis] == [1] * 4
    sim.topology = simhost.topology(8)
    bench.happens(Event("CPU 5 went online"))
    assert settings(bench) == start
    assert {level for level, _ in bench.log} == {"info"}


def settings(bench: Bench) -> dict[str, str]:
    """Return the CPUs that the host has, which are those of a plan."""
    plan = decide(bench.host.observe(), bench.policy)
    assert plan.changes == ()
    return {str(c.target): str(c.after) for c in plan.holds if "cpus" in c.target.item}
