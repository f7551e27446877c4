# SPDX-License-Identifier: GPL-2.0-or-later
"""What a kept layout does after an event: when it looks, what it writes, what it leaves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import converge
from rxlane.apply import Applied
from rxlane.applying.rollback import rollback
from rxlane.converge import PEACE, RESETS, RETRIES, SETTLE, SETTLE_MOST, Choose, Converger
from rxlane.errors import Kind, RxlaneError
from rxlane.items import BUSY_READ
from rxlane.journal import Store
from rxlane.keeping.events import APPLIED, Event
from rxlane.model import Thread
from rxlane.plan import Change, Plan, Target
from rxlane.policy import Given, parse
from unit import keeping, simhost
from unit.asking import asked, policy
from unit.keeping import CHANNELS, FEATURES, UP, Bench, Clock
from unit.simhost import SimHost


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return keeping.full(tmp_path)


def lose(host: SimHost) -> None:
    """As a driver that makes its NAPIs anew."""
    for napi in (8194, 8195, 8196):
        host.write_napi(napi, {"threaded": "off", "defer-hard-irqs": 0})


def test_what_a_reset_lost_is_put_right_at_once(bench: Bench) -> None:
    during = simhost.settings(bench.host)
    lose(bench.host)
    bench.happens(UP)
    assert _but_pids(simhost.settings(bench.host)) == _but_pids(during)
    ((level, text),) = bench.log
    assert level == "info" and text.startswith("put right after eth0 went up: 12 settings (eth0/rx")
    assert "eth0/rx1/threaded off -> on" in text and "\n" not in text


def test_a_sysctl_that_was_as_wanted_keeps_its_original(tmp_path: Path) -> None:
    """TuneD's own plugin writes it after ours, and takes that back before ours takes back."""
    host = SimHost(simhost.whole(simhost.snapshot()))
    wanted = asked("eth0", threaded="on", busy_read=0)
    bench = Bench(host, Store(tmp_path / "state"), wanted)
    host.write_sysctl(BUSY_READ, 50)
    bench.happens(Event("net.core.busy_read written", None, None, reset=False))
    assert host.sysctls[BUSY_READ] == 0
    rollback(host, bench.store)
    assert host.sysctls[BUSY_READ] == 0 and bench.store.load() is None


def _but_pids(settings: dict[str, object]) -> dict[str, object]:
    """Threads compared by what they are set to: a new one has another pid and name."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        assert isinstance(value, tuple)
        found[key] = tuple(
            replace(v, pid=0, name="") if isinstance(v, Thread) else v for v in value
        )
    return found


def test_where_nothing_differs_nothing_is_written(bench: Bench) -> None:
    writes, journal = bench.host.writes, bench.store.path.read_bytes()
    bench.happens(UP, CHANNELS, Event("CPU 3 went online"))
    assert bench.host.writes == writes and bench.store.path.read_bytes() == journal
    assert bench.log == [] and bench.converger.timeout() is None


def test_a_burst_is_one_look() -> None:
    clock, looks = Clock(), list[float]()

    def replan(choose: Choose) -> Applied | None:
        looks.append(clock.now)
        return Applied(Plan())

    quiet = Converger(replan, lambda level, text: None, clock)
    start = clock.now
    for _ in range(20):  # a second
        quiet.notice([UP])
        clock.now += 0.05
        quiet.run()
    assert len(looks) == 1 and looks[0] - start == pytest.approx(SETTLE_MOST, abs=0.06)
    clock.now += SETTLE
    quiet.run()
    clock.now += 5
    quiet.run()
    assert len(looks) == 2


def test_a_link_that_is_down_by_now_is_left_alone(bench: Bench) -> None:
    """To plan without it might move what other devices have; it comes back with an event."""
    bench.host.write_napi(8194, {"threaded": "off"})
    bench.converger.notice([Event("thread of a queue ended", "eth0", 2, reset=False)])
    bench.clock.now += SETTLE
    assert bench.converger.run(lambda index: False)
    assert bench.host.links["eth0"].napis[1].threaded == 0 and bench.log == []
    bench.happens(UP)
    assert bench.host.links["eth0"].napis[1].threaded == 1


def test_a_fighting_writer_gets_one_rewrite_a_minute(bench: Bench) -> None:
    def fight() -> None:
        bench.host.write_napi(8194, {"defer-hard-irqs": 7})

    rewrites = 0
    for _ in range(120):  # a minute and a half, an announcement each 0.75 s
        fight()
        before = bench.host.writes
        bench.happens(FEATURES, after=0.75)
        rewrites += bench.host.writes - before
    assert rewrites == 2
    held = [text for level, text in bench.log if level == "warning"]
    assert len(held) <= 2 and "changed again by another program, left for" in held[0]


def test_what_is_fought_over_is_not_followed_until_its_turn(bench: Bench) -> None:
    (place,) = {f"sys/class/net/{name}" for name in bench.names}

    def followed() -> frozenset[str]:
        return bench.converger.folders[place].names

    bench.happens(APPLIED)
    assert followed() == {"threaded", "napi_defer_hard_irqs", "gro_flush_timeout"}
    for _ in range(2):
        for napi in bench.host.links["eth0"].napis:
            bench.host.write_napi(napi.napi_id, {"defer-hard-irqs": 7})
        bench.happens(FEATURES)
    assert followed() == {"threaded", "gro_flush_timeout"}
    bench.happens(after=PEACE)
    assert "napi_defer_hard_irqs" in followed()


def test_what_is_wanted_anew_does_not_wait(bench: Bench) -> None:
    for wait in (True, False):
        bench.host.write_napi(8194, {"defer-hard-irqs": 9})
        bench.happens(FEATURES, after=1)
        bench.host.write_napi(8194, {"defer-hard-irqs": 9})
        if not wait:
            bench.converger.anew()
        bench.happens(FEATURES, after=1)
        napi = bench.host.links["eth0"].napis[1]
        assert (napi.defer_hard_irqs == 9) == wait


def test_what_waited_is_put_right_without_another_event(bench: Bench) -> None:
    for _ in range(2):
        bench.host.write_napi(8194, {"defer-hard-irqs": 7})
        bench.happens(FEATURES)
    assert bench.host.links["eth0"].napis[1].defer_hard_irqs == 7
    wait = bench.converger.timeout()
    assert wait is not None and PEACE - 1 < wait <= PEACE
    bench.happens(after=wait)
    assert bench.host.links["eth0"].napis[1].defer_hard_irqs == 100
    assert bench.converger.timeout() is None


def test_resets_are_not_a_fight_until_they_are_many(bench: Bench) -> None:
    for number in range(RESETS + 2):
        bench.host.write_napi(8194, {"threaded": "off"})
        bench.happens(UP, after=1)
        on = bench.host.links["eth0"].napis[1].threaded == 1
        assert on == (number < RESETS), number


def test_a_reset_makes_nobody_wait_who_changes_it_once(bench: Bench) -> None:
    lose(bench.host)
    bench.happens(UP, after=1)
    for wanted in (1, 0):
        bench.host.write_napi(8194, {"threaded": "off"})
        bench.happens(FEATURES, after=1)
        assert bench.host.links["eth0"].napis[1].threaded == wanted


def test_one_device_of_two_was_reset(bench: Bench) -> None:
    change = Change(Target("eth1", 0, "threaded"), "off", "on")
    limiter = converge.Limiter(bench.clock)
    limiter.note([change], lambda target: False)
    assert limiter.due(change, reset=True) == 0.0
    assert limiter.due(change, reset=False) == PEACE
    channels = Change(Target("eth1", -1, "channels-combined"), 4, 8)
    limiter.note([channels], lambda target: True)
    assert limiter.due(channels, reset=True) == PEACE  # its announcement is the writer's own


def test_failures_are_tried_again_and_said_once(bench: Bench) -> None:
    lose(bench.host)
    bench.host.on_write = lambda: _raise(RxlaneError(Kind.KERNEL, "not now"))
    bench.happens(UP)
    waits = []
    while (seconds := bench.converger.timeout()) is not None:
        waits.append(seconds)
        bench.happens(after=seconds)
    assert waits == pytest.approx(list(RETRIES))
    assert len(bench.log) == 1 and "not now" in bench.log[0][1]
    bench.host.on_write = None
    bench.happens(UP, after=RETRIES[-1])
    assert bench.host.links["eth0"].napis[1].threaded == 1


def test_an_undo_that_failed_is_told(bench: Bench) -> None:
    lose(bench.host)
    first = bench.host.writes

    def refuse() -> None:
        if bench.host.writes > first + 1:
            raise RxlaneError(Kind.KERNEL, "not now")

    bench.host.on_write = refuse
    bench.happens(UP)
    ((level, text),) = bench.log
    assert level == "error" and "not now; undo failed, `rxlane rollback` tries again: eth0" in text


def test_what_another_is_in_the_way_of_is_tried_until_it_is_done(bench: Bench) -> None:
    lose(bench.host)
    bench.host.on_write = lambda: _raise(RxlaneError(Kind.BUSY, "another rxlane"))
    bench.happens(UP)
    for seconds in (*RETRIES, *RETRIES[-1:] * 3):
        bench.clock.now += seconds
        assert bench.converger.ripe and bench.converger.run()
    assert len(bench.log) == 1
    bench.host.on_write = None
    bench.clock.now += RETRIES[-1]
    assert bench.converger.run() and "put right" in bench.log[-1][1]


def test_what_another_is_in_the_way_of_uses_up_no_try(bench: Bench) -> None:
    """However long it is in the way: what fails after that is tried as often as ever."""
    lose(bench.host)
    failure = RxlaneError(Kind.BUSY, "another rxlane")
    bench.host.on_write = lambda: _raise(failure)
    bench.happens(UP)
    for wait in (*RETRIES, *RETRIES[-1:] * 3):
        bench.happens(after=wait)
    failure = RxlaneError(Kind.KERNEL, "not now")
    tries = 0
    while (seconds := bench.converger.timeout()) is not None:
        bench.happens(after=seconds)
        tries += 1
    assert tries == 1 + len(RETRIES)


def test_more_causes_of_the_same_failure_are_no_news(bench: Bench) -> None:
    lose(bench.host)
    bench.host.on_write = lambda: _raise(RxlaneError(Kind.KERNEL, "not now"))
    for seen in (UP, CHANNELS, FEATURES):
        bench.happens(seen, after=RETRIES[-1])
    ((_, text),) = bench.log
    assert text.startswith("eth0 went up: ") and "not now" in text


def test_what_is_written_in_vain_does_not_wake_itself(bench: Bench) -> None:
    """What was written and what undid it are announced, and are no reason to try at once."""
    looks: dict[float, None] = {}

    def fail() -> None:
        looks[bench.clock.now] = None
        raise RxlaneError(Kind.KERNEL, "not now")

    lose(bench.host)
    bench.host.on_write = fail
    end = bench.clock.now + 100
    while bench.clock.now < end:
        bench.happens(FEATURES)
    gaps = [late - early for early, late in itertools.pairwise(looks)]
    assert gaps == pytest.approx(list(RETRIES), abs=2 * SETTLE)
    bench.host.on_write = None
    bench.happens(FEATURES, after=RETRIES[-1])
    lose(bench.host)
    bench.happens(UP)
    assert bench.host.links["eth0"].napis[1].threaded == 1


def test_what_waits_survives_news_of_a_link_that_is_down(bench: Bench) -> None:
    for _ in range(2):
        bench.host.write_napi(8194, {"defer-hard-irqs": 7})
        bench.happens(FEATURES)
    wait = bench.converger.timeout()
    bench.converger.notice([Event("appeared", "eth1", 3)])
    bench.clock.now += SETTLE
    assert bench.converger.run(lambda index: index == 2)
    assert bench.converger.timeout() == pytest.approx((wait or 0) - SETTLE)
    bench.happens(after=wait or 0)
    assert bench.host.links["eth0"].napis[1].defer_hard_irqs == 100


def test_a_device_that_has_just_gone_is_no_error(bench: Bench) -> None:
    """Its thread's end may be heard of before its own."""
    away = bench.host.links.pop("eth0")
    bench.converger.notice([Event("thread of a queue ended", "eth0", 2, reset=False)])
    for lines in (0, 0, 1, 1):
        bench.clock.now += bench.converger.timeout() or 0.0
        bench.converger.run()
        assert len(bench.log) == lines
    assert "no such device" in bench.log[0][1]
    bench.host.links["eth0"] = away


def _raise(error: Exception) -> None:
    raise error


def test_a_refusal_waits_for_an_event(tmp_path: Path) -> None:
    """A CPU that is gone: nothing to retry until it is back."""
    host = SimHost(simhost.snapshot())
    bench = Bench(host, Store(tmp_path), policy("eth0", threaded="on", thread_cpus="3"))
    whole = host.topology
    host.topology = simhost.topology(offline=[3])
    bench.happens(Event("CPU 3 went offline"))
    assert bench.converger.timeout() is None and "CPU 3 is offline" in bench.log[0][1]
    host.topology = whole
    host.write_thread(1000, {"thread-cpus": "0-7"})
    bench.happens(Event("CPU 3 went online"))
    assert host.threads[1000].cpus == (3,)


def test_auto_finds_another_cpu(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    bench = Bench(host, Store(tmp_path), policy("eth0", threaded="on", thread_cpus="auto"))
    gone = next(iter(host.threads.values())).cpus[0]
    host.topology = simhost.topology(offline=[gone])
    bench.happens(Event(f"CPU {gone} went offline"))
    assert all(thread.cpus != (gone,) for thread in host.threads.values())


def test_unmovable_interrupts_are_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    host.managed = {41}
    given = parse([Given("irq_layout", "irq", ("eth0",), {"irq_cpus": "2-5"})])
    bench = Bench(host, Store(tmp_path), given)
    tried = list[int]()
    real = host.write_irq

    def write_irq(number: int, cpus: str) -> None:
        tried.append(number)
        real(number, cpus)

    monkeypatch.setattr(host, "write_irq", write_irq)
    for _ in range(4):
        bench.happens(UP, after=1)
    assert tried == [41] and bench.log == []


def test_what_keeps_failing_is_tried_ever_more_seldom(bench: Bench) -> None:
    error = OSError(12, "Cannot allocate memory")
    for wait in (*RETRIES, RETRIES[-1]):
        bench.converger.put_off("what is kept cannot be followed", error)
        assert bench.converger.timeout() == pytest.approx(wait)
        bench.converger.notice([UP])
        assert bench.converger.timeout() == pytest.approx(wait), "no event makes it sooner"
        bench.clock.now += wait
        assert bench.converger.run()
    assert len(bench.log) == 1
    bench.clock.now += 2 * PEACE
    bench.converger.put_off("what is kept cannot be followed", error)
    assert bench.converger.timeout() == pytest.approx(RETRIES[0]) and len(bench.log) == 2


def test_a_burst_that_fails_puts_off_one_look(bench: Bench) -> None:
    error = RxlaneError(Kind.FORMAT, "malformed netlink data")
    for _ in range(2 * len(RETRIES)):
        bench.converger.put_off("an event cannot be understood", error)
    assert bench.converger.timeout() == pytest.approx(RETRIES[0]) and len(bench.log) == 1


def test_failures_that_never_end_leave_a_look_a_minute(bench: Bench) -> None:
    error, looks = RxlaneError(Kind.FORMAT, "malformed netlink data"), 0
    for second in range(3600):
        bench.clock.now += 1
        if second % 50 == 0:
            bench.converger.put_off("an event cannot be understood", error)
        looks += bench.converger.ripe
        assert bench.converger.run()
    assert looks >= 3600 // (RETRIES[-1] + 50)


def test_what_fails_after_a_look_in_vain_makes_no_look_sooner(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RxlaneError(Kind.KERNEL, "refused")

    monkeypatch.setattr(bench.host, "write_napis", refuse)
    for _ in RETRIES:
        lose(bench.host)
        assert bench.happens(UP, after=RETRIES[-1])
    bench.converger.notice([UP])
    vain = bench.converger.timeout()
    assert vain is not None and vain > RETRIES[0]
    bench.converger.put_off("what is kept cannot be followed", OSError(12, "no memory"))
    assert bench.converger.timeout() == pytest.approx(vain)


def test_after_a_failed_look_announcements_settle_too() -> None:
    clock, looks = Clock(), list[float]()

    def damaged(_choose: Choose) -> Applied:
        looks.append(clock.now)
        raise RxlaneError(Kind.JOURNAL, "damaged")

    converger = Converger(damaged, lambda _level, _text: None, clock)
    for _ in range(1000):
        converger.notice([UP])
        clock.now += 0.01
        converger.run()
    assert 10 <= len(looks) <= 10 / SETTLE_MOST + 10
