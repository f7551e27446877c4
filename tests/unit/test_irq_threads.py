# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts in threaded mode: planned, refused, applied, kept, brought back, shown."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.deciding.irqthreads import BUSY, HOPS, NO_FILE, TWICE
from rxlane.errors import Kind, RxlaneError
from rxlane.host import threads
from rxlane.kernel import Linux
from rxlane.model import Irq, Napi, Queue, Snapshot, Thread
from rxlane.observe import observe
from rxlane.plan import WHOLE, Plan
from rxlane.policy import Given, parse, parse_mixed
from rxlane.sections import Policy
from rxlane.showing import mapjson, marks, table
from rxlane.showing.svg import render
from rxlane.stored import FORMAT
from rxlane.sysfs import Sysfs
from rxlane.verify import verify
from unit import simhost
from unit.asking import in_threads
from unit.simhost import MemoryStore, SimHost


def host(threaded: int | None = 0, **more: object) -> Snapshot:
    """Eight CPUs and a NIC of four queues whose interrupts are in this mode."""
    found = simhost.whole(simhost.snapshot())
    irqs = tuple(replace(irq, threaded=threaded) for irq in found.irqs)
    return replace(found, irqs=irqs, **more)  # type: ignore[arg-type]


def policy(irq: dict[str, str], napi: dict[str, str] | None = None) -> Policy:
    rows = [Given("irq_layout", "irqs", (), irq)]
    return parse([Given("napi", "napi", (), napi), *rows] if napi else rows)


def planned(plan: Plan) -> dict[str, object]:
    return {str(c.target): c.after for c in (*plan.changes, *plan.holds)}


def skipped(plan: Plan) -> list[tuple[int, str, str]]:
    return [(s.queue, s.kind, s.reason) for s in plan.skips if s.item == "irq-threaded"]


# -- planning ---------------------------------------------------------------------------------


def test_modes_by_queue_and_threads_with_their_interrupts() -> None:
    options = {"threaded": "on@1-2,off@3", "irq_cpus": "auto", "thread_cpus": "auto"}
    plan = decide(host(), policy(options | {"thread_nice": "-5"}))
    found = planned(plan)
    assert [found.get(f"eth0/rx{n}/irq-threaded") for n in range(4)] == [None, "on", "on", "off"]
    for queue in (1, 2):
        own = f"eth0/rx{queue}"
        assert found[f"{own}/irq-thread-cpus"] == found[f"{own}/irq-cpus"]
        assert found[f"{own}/irq-thread-sched"] == "other:-5"
    assert "eth0/rx3/irq-thread-cpus" not in found and "eth0/rx0/irq-thread-sched" not in found
    (change,) = [c for c in plan.changes if str(c.target) == "eth0/rx1/irq-threaded"]
    assert (change.before, change.disruption) == ("off", "thread-restart")
    assert change.reason == "threaded=on@1-2,off@3 in [irqs], IRQ 41"


def test_a_list_of_cpus_is_gone_round() -> None:
    plan = decide(host(), policy({"threaded": "on", "thread_cpus": "2,5"}))
    found = planned(plan)
    assert [found[f"eth0/rx{n}/irq-thread-cpus"] for n in range(4)] == ["2", "5", "2", "5"]


def test_all_threads_on_all_of_a_list() -> None:
    plan = decide(host(), policy({"threaded": "on", "thread_cpus": "2,5", "thread_spread": "all"}))
    found = planned(plan)
    assert {found[f"eth0/rx{n}/irq-thread-cpus"] for n in range(4)} == {"2,5"}


def test_all_threads_on_all_cpus_near() -> None:
    """Whatever CPUs their interrupts have; real-time threads on those that these may have."""
    options = {"threaded": "on", "thread_cpus": "auto", "thread_spread": "all"}
    near = replace(host(), topology=simhost.topology(8, nodes=2))
    near = replace(near, links=(replace(near.links[0], node=1),))
    for start, more, cpus in (
        (host(), {"irq_cpus": "auto"}, "0-7"),
        (replace(host(), vcpus=(2, 3, 4)), {"irq_cpus": "auto"}, "0-1,5-7"),
        (near, {}, "4-7"),
        (replace(near, vcpus=(4, 5, 6, 7)), {}, "0-3"),
        (host(), {"thread_policy": "fifo", "thread_priority": "1"}, "2-7"),
    ):
        found = planned(decide(start, policy(options | more)))
        assert {found[f"eth0/rx{n}/irq-thread-cpus"] for n in range(4)} == {cpus}


@pytest.mark.parametrize(
    ("word", "cpus", "beside"),
    [("auto", "0-7", "0-1,3-4,6-7"), ("one-per-core", "1-2,4,6", "1,4,6")],
)
def test_all_threads_by_placement_and_beside_pollers(word: str, cpus: str, beside: str) -> None:
    """As the threads of NAPIs, which have the same words."""
    two = simhost.link("eth1", 2, ifindex=3, base=9000)
    start = simhost.whole(simhost.snapshot(simhost.link(), two, cpus=simhost.topology(8, smt=2)))
    start = replace(start, irqs=tuple(replace(irq, threaded=0) for irq in start.irqs))
    wide = {"threaded": "on", "thread_cpus": word, "thread_spread": "all"}
    polling = Given("napi", "p", ("eth1",), {"threaded": "busy-poll", "thread_cpus": "2,5"})
    for kind, item in (("irq_layout", "irq-thread-cpus"), ("napi", "thread-cpus")):
        one = Given(kind, "w", ("eth0",), wide)
        for rows, where in (([one], cpus), ([polling, one], beside)):
            found = planned(decide(start, parse(rows)))
            assert {found[f"eth0/rx{n}/{item}"] for n in range(4)} == {where}


def test_threads_keep_off_the_cpus_of_vcpus() -> None:
    """On those of the interrupt that are left, else on the host's."""
    options = policy({"threaded": "on", "thread_cpus": "auto"})
    own = {40: (1, 2), 41: (2,), 42: (0,), 43: (3, 4)}
    start = replace(host(), vcpus=(2, 3, 4))
    irqs = tuple(replace(irq, cpus=own.get(irq.number, irq.cpus)) for irq in start.irqs)
    found = planned(decide(replace(start, irqs=irqs), options))
    cpus = [found[f"eth0/rx{n}/irq-thread-cpus"] for n in range(4)]
    assert cpus == ["1", "0-1,5-7", "0", "0-1,5-7"]


def test_placements_take_of_the_interrupts_cpus() -> None:
    """As of those of NAPIs' threads, for which one variable of a profile may be."""
    near = replace(host().links[0], node=1)
    start = replace(host(), links=(near,), topology=simhost.topology(8, nodes=2, smt=2))
    for word, cpus in (("numa-local", "4-7"), ("one-per-core", "0,2,4,6"), ("spread-llc", "0-7")):
        found = planned(decide(start, policy({"threaded": "on", "thread_cpus": word})))
        assert {found[f"eth0/rx{n}/irq-thread-cpus"] for n in range(4)} == {cpus}


def test_management_queues_keep_their_interrupts_mode() -> None:
    napi = {"management_queues": "2", "defer_hard_irqs": "1"}
    found = planned(decide(host(), policy({"threaded": "on"}, napi)))
    modes = [name for name in found if name.endswith("irq-threaded")]
    assert modes == ["eth0/rx2/irq-threaded", "eth0/rx3/irq-threaded"]


def test_a_kernel_without_it_is_one_line_and_off_is_none() -> None:
    plan = decide(host(None), policy({"threaded": "on"}))
    assert skipped(plan) == [(WHOLE, "unsupported", NO_FILE)] and not plan.changes
    assert skipped(decide(host(None), policy({"threaded": "off"}))) == []


def test_one_interrupt_without_it_is_named() -> None:
    start = host()
    irqs = tuple(replace(i, threaded=None) if i.number == 42 else i for i in start.irqs)
    plan = decide(replace(start, irqs=irqs), policy({"threaded": "on"}))
    assert skipped(plan) == [(2, "unsupported", NO_FILE)] and len(plan.changes) == 3


def test_threaded_napis_beside_cost_two_hops() -> None:
    plan = decide(host(), policy({"threaded": "on"}, {"threaded": "on@1-"}))
    assert plan.warnings == (f"eth0 queues 1-3: {HOPS}",)
    assert planned(plan)["eth0/rx1/irq-threaded"] == "on"


def test_interrupts_that_are_in_threads_already_cost_two_hops_too() -> None:
    start, napi = in_threads(host()), {"threaded": "on@1-"}
    assert decide(start, parse([Given("napi", "n", (), napi)])).warnings == (
        f"eth0 queues 1-3: {HOPS}",
    )
    # Asked for of some: each queue is named once. Switched off, or busy-polled: none.
    plan = decide(start, policy({"threaded": "on@1"}, napi))
    assert plan.warnings == (f"eth0 queues 1: {HOPS}", f"eth0 queues 2-3: {HOPS}")
    assert decide(start, policy({"threaded": "off"}, napi)).warnings == ()
    busy = {"threaded": "busy-poll", "thread_cpus": "2-5"}
    assert HOPS not in str(decide(start, policy({"thread_nice": "7"}, busy)).warnings)


def test_auto_leaves_the_poll_to_the_napis_own_thread() -> None:
    plan = decide(host(), policy({"threaded": "auto"}, {"threaded": "on@0-1,off@2-"}))
    assert skipped(plan) == [(0, "left-alone", TWICE), (1, "left-alone", TWICE)]
    modes = {k: v for k, v in planned(plan).items() if k.endswith("irq-threaded")}
    assert modes == {"eth0/rx2/irq-threaded": "on", "eth0/rx3/irq-threaded": "on"}
    assert plan.warnings == ()


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_busy_polling_needs_no_interrupt(mode: str) -> None:
    napi = {"threaded": "busy-poll", "thread_cpus": "auto"}
    plan = decide(host(), policy({"threaded": mode}, napi))
    assert skipped(plan) == [(WHOLE, "left-alone", BUSY)]
    assert not any("irq-threaded" in name for name in planned(plan))


def test_without_a_mode_the_threads_that_are_there_are_placed() -> None:
    start = in_threads(host())
    found = planned(decide(start, policy({"thread_cpus": "3", "thread_nice": "7"})))
    assert found["eth0/rx0/irq-thread-cpus"] == "3"
    assert found["eth0/rx0/irq-thread-sched"] == "other:7"
    assert planned(decide(host(), policy({"thread_nice": "7"}))) == {}


def test_threads_that_the_modes_do_not_ask_for_stay_as_they_are() -> None:
    """Forced threads of a real-time kernel, where the NAPIs' own threads poll."""
    start = in_threads(host(), ("fifo", 50))
    plan = decide(start, policy({"threaded": "auto", "thread_nice": "0"}, {"threaded": "on"}))
    assert not [name for name in planned(plan) if "irq-thread" in name]


def test_a_thread_that_ends_leaves_nothing_to_the_next() -> None:
    """What is still asked of threads holds until the mode that nobody asks for any more goes back.

    The next thread is given what the last one had, so that must be the originals.
    """
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, policy({"threaded": "on", "thread_nice": "-5"}))
    apply(sim, store, policy({"thread_nice": "-5"}))
    rollback(sim, store)
    assert simhost.settings(sim) == before


# -- refusals ---------------------------------------------------------------------------------


def refused(start: Snapshot, irq: dict[str, str], napi: dict[str, str] | None = None) -> str:
    with pytest.raises(RxlaneError) as caught:
        decide(start, policy(irq, napi))
    assert caught.value.kind in (Kind.REFUSED, Kind.OPTION)
    return str(caught.value)


FIFO = {"threaded": "on", "thread_policy": "fifo", "thread_priority": "40"}


def test_real_time_handlers_are_as_dangerous_as_real_time_pollers() -> None:
    assert "CPU 0" in refused(host(), FIFO)
    assert "CPU 0" in refused(host(), {**FIFO, "thread_cpus": "0-1"})
    permitted = {**FIFO, "thread_cpus": "0-1", "allow_realtime_cpu0": "1"}
    assert decide(host(), policy(permitted)).changes
    assert "leave only CPU 0" in refused(
        replace(host(), topology=simhost.topology(4)), {**FIFO, "thread_cpus": "1-3"}
    )
    bare = host(unreserved=(2,))
    assert "nothing keeps time" in refused(bare, {**FIFO, "thread_cpus": "2"})


def test_those_of_threads_and_of_napis_count_together() -> None:
    """Three CPUs for each are fine alone; together they leave one of seven to the host."""
    seven = replace(host(), topology=simhost.topology(7))
    napi = {"threaded": "on", "thread_policy": "fifo", "thread_priority": "40"}
    irq = {**FIFO, "threaded": "on@0-2", "thread_cpus": "1-3"}
    poll = {**napi, "thread_cpus": "4-6", "threaded": "on@1-"}
    assert decide(seven, policy(irq)) and decide(seven, policy({"irq_cpus": "auto"}, poll))
    assert "leave only CPU 0" in refused(seven, irq, poll)


@pytest.mark.parametrize("present", [False, True], ids=["planned", "present"])
def test_from_priority_50_no_handler_over_another(present: bool) -> None:
    """The first plan is refused for the same reason as the second would be."""
    start = in_threads(host()) if present else host()
    high = {**FIFO, "thread_priority": "50"}
    assert "would hold up the thread of IRQ" in refused(start, {**high, "thread_cpus": "1-3"})
    assert decide(start, policy({**high, "thread_cpus": "1-4"})).changes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threaded": "busy-poll"}, "give off, on, auto or MODE@QUEUES"),
        ({"threaded": "on@0-1,off@1"}, "queue 1 is named twice"),
        ({"threaded": "on", "thread_cpus": "near"}, "spread-llc or a CPU list"),
        ({"threaded": "on", "thread_cpus": "77"}, "CPU 77 does not exist"),
        ({"threaded": "on", "thread_priority": "5"}, "needs a real-time class"),
    ],
)
def test_bad_options(options: dict[str, str], words: str) -> None:
    assert words in refused(host(), options)


def test_on_the_command_line_the_kind_comes_first() -> None:
    found = parse_mixed(("eth0",), {"threaded": "off", "irq_layout.threaded": "on@1-"})
    assert [r.mode for r in found.sections[0].modes] == ["off"]
    assert [r.mode for r in found.irq[0].modes] == ["on"]
    with pytest.raises(RxlaneError, match="unknown option"):
        parse_mixed((), {"napi.threaded": "on"})


# -- applying ---------------------------------------------------------------------------------

PLACED = {"threaded": "on", "irq_cpus": "auto", "thread_cpus": "auto", "thread_nice": "-5"}


def test_applied_twice_verified_and_back() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    applied = apply(sim, store, policy(PLACED))
    assert verify(applied.plan, sim.observe()) == () and applied.written == 16
    order = [line.split()[0] for line in sim.log]
    assert order == ["irq", "irq-mode"] * 4 + ["thread"] * 4
    assert apply(sim, store, policy(PLACED)).written == 0
    sim.irqs[41] = replace(sim.irqs[41], threaded=0, thread=None)
    drifted = {str(m.target): m.found for m in verify(applied.plan, sim.observe())}
    assert drifted == {
        "eth0/rx1/irq-threaded": "off",
        "eth0/rx1/irq-thread-cpus": None,
        "eth0/rx1/irq-thread-sched": None,
    }
    apply(sim, store, policy(PLACED))
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


def test_another_profile_brings_the_mode_back() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    apply(sim, store, policy(PLACED))
    apply(sim, store, policy({"workqueue_cpus": "0-3"}))
    assert all(irq.threaded == 0 for irq in sim.irqs.values())
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_an_interrupt_that_refuses_is_reported_and_the_rest_is_done() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    sim.fixed_mode = {42}
    applied = apply(sim, store, policy(PLACED))
    reason = "IRQ 42 cannot be switched on"
    assert skipped(applied.plan) == [(2, "unsupported", reason)]
    assert [sim.irqs[n].threaded for n in range(40, 44)] == [1, 1, 0, 1]
    assert verify(applied.plan, sim.observe()) == ()
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


@pytest.mark.parametrize("write", range(12))
def test_a_failed_apply_undoes_all(write: int) -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    sim.fail_at = write
    with pytest.raises(RxlaneError, match="refused by the test"):
        apply(sim, store, policy(PLACED))
    assert simhost.settings(sim) == before and store.text is None


# -- the running kernel -----------------------------------------------------------------------


def irq_tree(root: Path, number: int, threaded: str | None, actions: int = 1) -> Path:
    base = root / "proc" / "irq" / str(number)
    for n in range(actions):
        (base / f"eth0-rx-{n}").mkdir(parents=True)
        if threaded is not None:
            (base / f"eth0-rx-{n}" / "threaded").write_text(f"{threaded}\n")
    (base / "smp_affinity_list").write_text("0-3\n")
    return base


class Netdev:
    """Two queues of a device, with interrupts 30 and 31."""

    def napis(self) -> list[tuple[int, Napi]]:
        return [(1, Napi(8193, 30, threaded=0)), (1, Napi(8194, 31, threaded=0))]

    def queues(self) -> list[object]:
        return []


def test_mode_and_thread_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    irq_tree(tmp_path, 30, "1")
    irq_tree(tmp_path, 31, None)
    sysfs = Sysfs(tmp_path)
    rx = tmp_path / "sys/class/net/lo/queues"
    for name in ("rx-0", "rx-1"):
        (rx / name).mkdir(parents=True)
    (tmp_path / "proc/2/task/2").mkdir(parents=True)
    (tmp_path / "proc/2/task/2/children").write_text("7 8 9\n")
    for pid, name in ((7, "kworker/0:1"), (8, "irq/30-s-eth0-rx-0"), (9, "irq/30-eth0-rx-0")):
        (tmp_path / f"proc/{pid}").mkdir()
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
        fields = ["S", "2", *["0"] * 4, str(0x00200000), *["0"] * 9, "-3", *["0"] * 20, "0", "0"]
        (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    monkeypatch.setattr(threads, "affinity", lambda pid: (2,))
    start = simhost.snapshot()
    found = observe(sysfs, Netdev(), start.capabilities, start.topology, ["lo"])  # type: ignore[arg-type]
    first, second = found.irqs
    assert (first.threaded, second.threaded, second.thread) == (1, None, None)
    assert first.thread == Thread(9, "irq/30-eth0-rx-0", "other", 0, -3, (2,))


def test_switching_writes_the_actions_file(tmp_path: Path) -> None:
    base = irq_tree(tmp_path, 30, "0")
    kernel = Linux(tmp_path)
    kernel.write_irq_mode(30, "on")
    assert (base / "eth0-rx-0" / "threaded").read_text() == "1\n"
    irq_tree(tmp_path, 31, "0", actions=2)
    with pytest.raises(RxlaneError, match="IRQ 31 has 2 actions") as caught:
        kernel.write_irq_mode(31, "on")
    assert caught.value.kind is Kind.UNSUPPORTED
    kernel.close()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EOPNOTSUPP, Kind.UNSUPPORTED),
        (errno.EROFS, Kind.UNSUPPORTED),  # in a container
        (errno.EIO, Kind.KERNEL),
    ],
)
def test_what_the_kernel_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: Kind
) -> None:
    irq_tree(tmp_path, 30, "0")
    kernel = Linux(tmp_path)

    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr("rxlane.sysfs.os.write", fail)
    with pytest.raises(RxlaneError) as caught:
        kernel.write_irq_mode(30, "on")
    assert caught.value.kind is kind
    kernel.close()


# -- showing ----------------------------------------------------------------------------------


def test_the_map_shows_the_interrupts_thread() -> None:
    start = in_threads(host(), ("fifo", 50))
    text = table.map_text(start, start.links)
    assert "irq-thread 500" in text and "fifo/50" in text
    lane = json.loads(mapjson.map_json(start, start.links))["devices"][0]["lanes"][0]
    assert lane["irq-threaded"] is True and lane["irq-thread"]["priority"] == 50
    assert "4 irq-thread" in render(start, start.links)


def test_a_thread_that_wakes_a_thread_is_marked() -> None:
    start = in_threads(host())
    sim, store = SimHost(start), MemoryStore()
    apply(sim, store, policy({"workqueue_cpus": "auto"}, {"threaded": "on@0"}))
    found = [m for m in marks.find(sim.observe()) if m.kind == marks.HOP]
    assert [(m.queue, m.text) for m in found] == [
        (0, "the thread of IRQ 40 only wakes the NAPI's thread")
    ]


def test_older_recordings_stay_what_they_are() -> None:
    from rxlane.codec import to_plain

    assert set(to_plain(Irq(1, "x"))) == {"number", "name", "cpus", "effective", "movable"}
    assert FORMAT == 1 and Queue("rx", 0).irq is None
