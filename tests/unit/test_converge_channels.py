# SPDX-License-Identifier: GPL-2.0-or-later
"""A kept layout whose channels another program changes, or whose driver does not change them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.applying import stages
from rxlane.converge import PEACE
from rxlane.journal import Store
from rxlane.keeping.events import Event
from rxlane.plan import WHOLE, Target
from rxlane.policy import Given, parse
from rxlane.verify import verify_journal
from unit import simhost
from unit.asking import asked
from unit.keeping import CHANNELS, UP, Bench
from unit.simhost import SimHost, tuned
from unit.tunable import host

SECOND = tuned(simhost.link("eth1", 4, ifindex=3, base=9193))


def modes(bench: Bench, device: str = "eth0") -> list[int | None]:
    return [napi.threaded for napi in bench.host.links[device].napis]


def lose(bench: Bench, device: str = "eth0") -> None:
    bench.host.links[device] = bench.host._reset(bench.host.links[device])


def two(folder: Path, channels: int) -> Bench:
    """eth0 is to have so many channels, in place of four, and NAPI threads as eth1 is."""
    sim = SimHost(host(tuned(simhost.link()), SECOND))
    rows = [
        Given("napi", "one", ("eth0",), {"channels": str(channels), "threaded": "on"}),
        Given("napi", "two", ("eth1",), {"threaded": "on"}),
    ]
    return Bench(sim, Store(folder / "state"), parse(rows), ("eth0", "eth1"))


@pytest.mark.parametrize("channels", [6, 2])
def test_the_queues_that_are_there_are_laid_out_while_channels_wait(
    tmp_path: Path, channels: int
) -> None:
    bench = two(tmp_path, channels)
    for _ in range(2):
        bench.host.write_tunables(bench.host.links["eth0"], {"channels-combined": 4})
        bench.happens(CHANNELS, after=1)
    assert modes(bench) == [1] * 4 and bench.host.links["eth0"].count("rx") == 4
    level, text = bench.log[-1]
    assert level == "warning" and text.startswith("put right after eth0 channels changed: 4 set")
    assert text.endswith(" s: eth0/all/channels-combined")
    lose(bench, "eth1")
    bench.happens(Event("went up", "eth1", 3), after=1)
    assert modes(bench, "eth1") == [1] * 4, "another device does not wait"
    wait = bench.converger.timeout()
    assert wait is not None and 0 < wait < PEACE
    bench.happens(after=wait)
    assert modes(bench) == [1] * channels, "what the channels cost comes with them"
    assert bench.converger.timeout() is None
    journal = bench.store.load()
    assert journal is not None
    assert verify_journal(journal, bench.host.observe()).drifted == ()
    bench.host.log.clear()
    bench.happens(UP)
    assert bench.host.log == []


@pytest.mark.parametrize("channels", ["6", "2"])
def test_a_device_is_kept_whose_driver_refuses_channels(tmp_path: Path, channels: str) -> None:
    """vmxnet3 shows its channels and sets none."""
    sim = SimHost(host(tuned(simhost.link())))
    sim.lacking = {"channels-combined"}
    policy = asked("eth0", channels=channels, threaded="on")
    bench = Bench(sim, Store(tmp_path / "state"), policy)
    for _ in range(3):
        bench.happens(UP, after=600)
        assert modes(bench) == [1] * 4 and bench.converger.timeout() is None
        lose(bench)
    journal = bench.store.load()
    assert journal is not None
    left = [str(skip) for skip in journal.left]
    assert left == ["eth0: channels-combined unsupported: Operation not supported"]
    assert {level for level, _ in bench.log} == {"info"}
    assert "rx4" not in "".join(text for _, text in bench.log)


def test_a_queue_that_is_named_waits_with_its_channels(tmp_path: Path) -> None:
    """The refusal is said, and the look after that finds the queue."""
    policy = asked("eth0", channels="6", threaded="on@5")
    bench = Bench(SimHost(host(tuned(simhost.link()))), Store(tmp_path / "state"), policy)
    for _ in range(2):
        bench.host.write_tunables(bench.host.links["eth0"], {"channels-combined": 4})
        bench.happens(CHANNELS, after=1)
    wait = bench.converger.timeout()
    assert wait is not None and 1 < wait < PEACE, bench.log
    bench.happens(after=wait)
    assert modes(bench) == [0] * 5 + [1]


def test_no_count_of_channels_stands_for_another() -> None:
    link = tuned(simhost.link(), pairs=False)
    both = replace(link, tunables=(*link.tunables, *tuned(simhost.link()).tunables))
    left = stages.without_tunables(host(both), [Target("eth0", WHOLE, "channels-combined")])
    assert not [t.item for t in left.links[0].tunables if t.item.startswith("channels")]
