# SPDX-License-Identifier: GPL-2.0-or-later
"""A kept layout of which something fails for good after its link was reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from rxlane.converge import IN_VAIN
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.keeping.events import Event
from unit import simhost
from unit.asking import policy
from unit.keeping import Bench
from unit.simhost import SimHost, tuned

RINGS = Event("rings changed", "eth0", 2)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """eth0, whose ring another program changes, which costs its thread's class as well."""
    sim = SimHost(simhost.whole(simhost.snapshot(tuned(simhost.link()))))
    wanted = policy("eth0", threaded="on", thread_nice="-5", ring_rx="512")
    found = Bench(sim, Store(tmp_path / "state"), wanted)
    sim.write_tunables(sim.links["eth0"], {"ring-rx": 256})
    sim.log.clear()
    return found


def rings(bench: Bench) -> int:
    return sum("ring-rx" in line for line in bench.host.log)


def pass_by(bench: Bench, seconds: float) -> None:
    """Time passes; what is written of the rings is announced, as the kernel does it."""
    end, seen = bench.clock.now + seconds, rings(bench)
    while bench.clock.now < end:
        wait = bench.converger.timeout()
        bench.happens(after=min(10.0, 10.0 if wait is None else wait + 0.001))
        if rings(bench) != seen:
            seen = rings(bench)
            bench.converger.notice([RINGS])


def test_a_link_is_not_reset_in_vain_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = bench.host.write_thread

    def refuse(*_: object) -> None:
        raise RxlaneError(Kind.KERNEL, "Operation not permitted")

    monkeypatch.setattr(bench.host, "write_thread", refuse)
    bench.converger.notice([RINGS])
    pass_by(bench, 3600)
    assert 0 < rings(bench) <= 2 * len(IN_VAIN), "each is undone"
    assert [text for _, text in bench.log if "not permitted" in text]
    monkeypatch.setattr(bench.host, "write_thread", write)
    bench.converger.notice([Event("went up", "eth0", 2)])
    pass_by(bench, 90)
    assert {t.nice for t in bench.host.threads.values()} == {-5}, "what resets nothing is written"
    assert "set in vain, left for" in bench.log[-1][1]
    pass_by(bench, 3600)
    found = {t.item: t.value for t in bench.host.links["eth0"].tunables}
    assert found["ring-rx"] == 512 and bench.converger.timeout() is None


def test_one_failure_costs_a_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = bench.host.write_thread

    def once(*args: object) -> None:
        monkeypatch.setattr(bench.host, "write_thread", write)
        raise RxlaneError(Kind.KERNEL, "No such process")

    monkeypatch.setattr(bench.host, "write_thread", once)
    bench.converger.notice([RINGS])
    pass_by(bench, 2)
    found = {t.item: t.value for t in bench.host.links["eth0"].tunables}
    assert found["ring-rx"] == 512 and bench.converger.timeout() is None
