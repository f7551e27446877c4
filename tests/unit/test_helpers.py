# SPDX-License-Identifier: GPL-2.0-or-later
"""rx threads of a device: applied, kept, brought back, read, written, recorded."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import codec, uapi
from rxlane.apply import apply
from rxlane.applying import stages
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.host import helpers, processors, threads
from rxlane.items import RFS, RPS, RX_THREADS, SEPARATION_ITEMS
from rxlane.journal import Store
from rxlane.keeping.events import Event
from rxlane.kernel import Linux
from rxlane.model import Handled, Helper, Link, Snapshot, Thread
from rxlane.policy import Given, parse
from rxlane.settings import View
from rxlane.sysfs import Sysfs
from rxlane.verify import NO_HELPER, verify
from unit import simhost
from unit.filetree import stat_line, tree
from unit.keeping import UP, Bench
from unit.separated import asked, cpus_of, host, steered
from unit.simhost import MemoryStore, SimHost
from unit.simwrites import Killed

# -- applying ---------------------------------------------------------------------------------

ALL = {"rx_threads": "3", "rx_thread_cpus": "auto", "rx_thread_nice": "-5"}


def test_apply_verify_and_back() -> None:
    sim, store = SimHost(host()), MemoryStore()
    before = simhost.settings(sim)
    done = apply(sim, store, asked(**ALL))
    assert verify(done.plan, sim.observe()) == ()
    assert {h.thread.sched for h in sim.links["eth0"].helpers if h.thread} == {"other:-5"}
    count = sim.writes
    assert apply(sim, store, asked(**ALL)).written == 0 and sim.writes == count
    assert rollback(sim, store).pending == () and simhost.settings(sim) == before


def test_threads_that_were_there_get_theirs_back() -> None:
    start = host(2)
    first = start.links[0].helpers[0]
    own = Thread(77, "rx0/eth0", "rr", 7, 0, (6,))
    start = replace(
        start,
        links=(
            replace(
                start.links[0],
                helpers=(replace(first, thread=own, reserved=None), start.links[0].helpers[1]),
            ),
        ),
    )
    for count in ("1", "2", "4", "off"):
        sim, store = SimHost(start), MemoryStore()
        before = simhost.settings(sim)
        apply(sim, store, asked(**(ALL | {"rx_threads": count})))
        rollback(sim, store)
        assert simhost.settings(sim) == before, count


def test_fewer_threads_leave_nothing_to_the_next() -> None:
    """What a thread was given it gets back before it ends: the kernel gives it to the next one."""
    sim, store = SimHost(host()), MemoryStore()
    apply(sim, store, asked(**(ALL | {"rx_threads": "4"})))
    apply(sim, store, asked(**(ALL | {"rx_threads": "2"})))
    assert simhost.settings(sim)["eth0/rx-thread3"] == ("kernel", "other:0")
    rollback(sim, store)
    assert simhost.settings(sim)["eth0/rx-thread0"] == ("kernel", "other:0")


@pytest.mark.parametrize("at", range(8))
def test_a_failure_undoes_it_all(at: int) -> None:
    """RPS of two queues, their number, and each of five threads: so many are the writes."""
    sim, store = SimHost(steered(host())), MemoryStore()
    before = simhost.settings(sim)
    sim.fail_at = at
    with pytest.raises(RxlaneError, match="refused by the test"):
        apply(sim, store, asked(**(ALL | {"rx_threads": "5"})))
    assert simhost.settings(sim) == before and store.text is None


@pytest.mark.parametrize("at", range(6))
def test_killed_at_any_write(at: int) -> None:
    sim, store = SimHost(steered(host())), MemoryStore()
    before = simhost.settings(sim)
    sim.kill_at = at
    with pytest.raises(Killed):
        apply(sim, store, asked(**ALL))
    sim.kill_at = None
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_what_the_kernel_ignores_fails_and_names_the_thread() -> None:
    sim = SimHost(host())
    sim.lie_at = 1
    with pytest.raises(RxlaneError, match="eth0: rx thread 0: rx-thread-cpus was set to . and"):
        apply(sim, MemoryStore(), asked(rx_threads="2", rx_thread_cpus="auto"))
    assert sim.links["eth0"].rx_threads == 0


def test_drift_is_seen() -> None:
    sim = SimHost(host())
    done = apply(sim, MemoryStore(), asked(**ALL))
    sim.write_device(sim.links["eth0"], {"rx-threads": 2})
    found = {str(m.target): (m.found, m.cause) for m in verify(done.plan, sim.observe())}
    assert found["eth0/all/rx-threads"][0] == 2
    assert found["eth0/rx-thread2/rx-thread-cpus"] == (None, NO_HELPER)


def test_channels_lose_none_of_it() -> None:
    """Fewer queues than threads: these are of the device, and stay."""
    start = host()
    start = replace(start, links=(simhost.tuned(start.links[0]),))
    sim, store = SimHost(start), MemoryStore()
    before = simhost.settings(sim)
    rows = [
        Given("napi", "napi", (), {"channels": "1"}),
        Given("flow_steering", "flows", (), {"rx_threads": "4", "rx_thread_cpus": "1-4"}),
    ]
    apply(sim, store, parse(rows))
    assert sim.links["eth0"].count("rx") == 1 and len(sim.links["eth0"].helpers) == 4
    rollback(sim, store)
    assert simhost.settings(sim) == before


def test_they_are_kept_standing(tmp_path: Path) -> None:
    bench = Bench(SimHost(host()), Store(tmp_path / "state"), asked(**ALL))
    during = simhost.settings(bench.host)
    bench.happens(UP)
    assert simhost.settings(bench.host) == during and bench.log == []
    bench.host.write_device(bench.host.links["eth0"], {"rx-threads": 0})
    bench.happens(UP)
    assert simhost.settings(bench.host) == during
    assert "eth0/all/rx-threads 0 -> 3" in bench.log[0][1]
    gone = cpus_of(decide(bench.host.observe(), asked(**ALL)))[0]
    cpus = (replace(c, online=str(c.number) != gone) for c in bench.host.topology.cpus)
    bench.host.topology = replace(bench.host.topology, cpus=tuple(cpus))
    bench.happens(Event(f"CPU {gone} went offline"))
    left = cpus_of(decide(bench.host.observe(), asked(**ALL)))
    before = [name for name in during if name.startswith("eth0/rx-thread")]
    assert len(before) == 8 and gone not in left and len(left) == 3
    assert len(bench.log) == 2 and "rx-thread0/rx-thread-cpus" in bench.log[1][1]
    assert bench.log[1][1].startswith(f"put right after CPU {gone} went offline: 1 setting")


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "rx_threads": st.sampled_from(["off", "auto", "1", "3", "8"]),
        "rx_thread_cpus": st.sampled_from(["auto", "kernel", "2,5", "0-7", "one-per-core"]),
        "rx_thread_nice": st.sampled_from(["-5", "0", "7"]),
        "rps": st.sampled_from(["off", "1-3"]),
        "rfs": st.sampled_from(["off", "512"]),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.booleans(), st.lists(OPTIONS, min_size=1, max_size=3))
def test_any_row_of_policies_comes_back(
    threads: int, rps: bool, rows: list[dict[str, str]]
) -> None:
    start = steered(host()) if rps else host(threads)
    sim, store = SimHost(start), MemoryStore()
    before = simhost.settings(sim)
    for options in rows:
        if options.get("rx_threads", "off") != "off":
            options = {n: v for n, v in options.items() if n not in ("rps", "rfs")}
        done = apply(sim, store, asked(**options))
        assert verify(done.plan, sim.observe()) == ()
        assert apply(sim, store, asked(**options)).written == 0
        view = View.of(sim.observe())
        assert not (view.links["eth0"].rx_threads and view.links["eth0"].queues[0].rps_cpus)
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


# -- reading and writing ----------------------------------------------------------------------


def test_they_are_read_where_they_matter() -> None:
    everything = {*SEPARATION_ITEMS, RPS, RFS}
    assert everything <= stages.reads(asked(rx_thread_nice="1"), ())
    assert RX_THREADS in stages.reads(asked(rps="auto"), ())
    assert RX_THREADS in stages.reads(asked(tap_rps="off"), ())
    assert RX_THREADS not in stages.reads(asked(xps="auto"), ())
    assert RX_THREADS in stages.reads(asked(xps="auto"), (RX_THREADS,))


NIC = "sys/class/net/eth0"


def files(pid: int, cpu: str = "3") -> dict[str, str]:
    """A device of one rx thread, for which this process stands, so that its class can be asked."""
    counters = ("packets", "batches", "wakeups", "dropped", "backlog", "backlog_bytes", "flows")
    return {
        f"{NIC}/rx_threads": "1\n",
        f"{NIC}/ifindex": "2\n",
        f"{NIC}/rx_thread/0/pid": f"{pid}\n",
        f"{NIC}/rx_thread/0/cpu": f"{cpu}\n",
        **{f"{NIC}/rx_thread/0/{name}": f"{n}\n" for n, name in enumerate(counters)},
        f"proc/{pid}/stat": stat_line("rx0/eth0", uapi.PF_KTHREAD, 0, 0, 0),
        "sys/devices/system/cpu/possible": "0-7\n",
    }


BARE = Link("eth0", 2, True, True)


def test_they_are_read(tmp_path: Path) -> None:
    pid = os.getpid()
    sysfs = tree(tmp_path, files(pid))
    (helper,) = helpers.with_helpers(sysfs, BARE, counted=True).helpers
    assert helper.reserved == 3 and helper.thread is not None and helper.thread.pid == pid
    assert helper.handled == Handled(*range(7))
    assert helpers.with_helpers(sysfs, BARE).helpers[0].handled is None
    assert processors.possible(sysfs) == tuple(range(8))


def test_a_user_has_its_cpus_and_another_namespace_its_pid(tmp_path: Path) -> None:
    found = helpers.with_helpers(tree(tmp_path / "a", files(os.getpid(), "-1")), BARE)
    assert found.helpers[0].reserved is None
    away = files(1) | {f"{NIC}/rx_thread/0/pid": "0\n"}
    found = helpers.with_helpers(tree(tmp_path / "b", away), BARE)
    assert found.helpers[0].thread is None and found.rx_threads == 1
    old = helpers.with_helpers(tree(tmp_path / "c", {f"{NIC}/ifindex": "2\n"}), BARE)
    assert (old.rx_threads, old.helpers) == (None, ())


def test_a_process_that_took_the_pid_is_none(tmp_path: Path) -> None:
    pid = os.getpid()
    tree(tmp_path, files(pid) | {f"proc/{pid}/stat": stat_line("rx0/eth0", 0, 0, 0, 0)})
    with pytest.raises(RxlaneError, match="no NAPI's, IRQ's or rx thread any more"):
        Linux(tmp_path).write_thread(pid, {"rx-thread-cpus": "0"})


def test_all_cpus_leave_the_choice_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, written = os.getpid(), list[tuple[int, ...]]()
    tree(tmp_path, files(pid))
    monkeypatch.setattr(threads, "set_cpus", lambda pid, cpus: written.append(tuple(cpus)))
    linux = Linux(tmp_path)
    linux.write_thread(pid, {"rx-thread-cpus": "kernel"})
    linux.write_thread(pid, {"rx-thread-cpus": "2"})
    assert written == [tuple(range(8)), (2,)]


def test_the_count_is_written(tmp_path: Path) -> None:
    tree(tmp_path, files(os.getpid()))
    Linux(tmp_path).write_device(BARE, {RX_THREADS: 4})
    assert (tmp_path / NIC / "rx_threads").read_text().startswith("4")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EBUSY, "switch RPS and RFS of each of the device's receive queues off first"),
        (errno.ERANGE, "as CPUs are online"),
        (errno.EPERM, "CAP_NET_ADMIN"),
        (errno.ENOMEM, "give fewer"),
        (errno.EINVAL, "Invalid argument"),
    ],
)
def test_what_the_kernel_refuses(number: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = refusing(number, monkeypatch)
    with pytest.raises(RxlaneError) as raised:
        helpers.write_count(sysfs, "eth0", 4)
    assert raised.value.kind is Kind.KERNEL and words in str(raised.value)
    assert "writing 4 to /sys/class/net/eth0/rx_threads" in str(raised.value)


def refusing(number: int, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    def fail(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    return Sysfs("/nowhere")


def test_a_kernel_that_lost_the_file(tmp_path: Path) -> None:
    with pytest.raises(RxlaneError) as raised:
        helpers.write_count(Sysfs(tmp_path), "eth0", 4)
    assert raised.value.kind is Kind.UNSUPPORTED


def test_rps_beside_rx_threads_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, files(os.getpid()))
    linux = Linux(tmp_path)
    linux._check(BARE)
    refusing(errno.EBUSY, monkeypatch)
    with pytest.raises(RxlaneError, match="write 0 to /sys/class/net/eth0/rx_threads first"):
        linux.write_queue(BARE, 0, {RPS: "1"})


# -- recordings -------------------------------------------------------------------------------


def test_a_recording_holds_them_and_an_old_one_reads() -> None:
    start = host(2)
    text = codec.dumps(start)
    assert codec.loads(Snapshot, text, "s") == start
    plain = json.loads(text)
    for name in ("rx_threads", "helpers"):
        del plain["links"][0][name]
    old = codec.loads(Snapshot, json.dumps(plain), "s").links[0]
    assert (old.rx_threads, old.helpers) == (None, ())
    plain["links"][0]["helpers"] = [{"number": 0}]
    (bare,) = codec.loads(Snapshot, json.dumps(plain), "s").links[0].helpers
    assert bare == Helper(0, thread=None, reserved=None, handled=None)
    assert "rx_threads" not in codec.dumps(simhost.snapshot())
