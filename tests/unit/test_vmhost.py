# SPDX-License-Identifier: GPL-2.0-or-later
"""A host of virtual machines: taps, their vhost threads, and the CPUs of their vCPUs."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import uapi
from rxlane.apply import apply
from rxlane.applying import stages
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.host import threads, vms
from rxlane.items import VHOST_CPUS
from rxlane.journal import Store
from rxlane.kernel import Linux
from rxlane.model import Link, Snapshot
from rxlane.plan import Target
from rxlane.policy import parse_mixed
from rxlane.sections import Policy
from rxlane.settings import View
from rxlane.tuned.tuned_compat import Adapter, Row
from rxlane.verify import verify, verify_journal
from unit.filetree import stat_line, tree
from unit.keeping import UP, Bench
from unit.simhost import MemoryStore, SimHost
from unit.taps import QEMU, host, tap

VCPU = 2**22 + 1  # beyond the kernel's PID_MAX_LIMIT: no host has such a thread


def asked(**options: str) -> Policy:
    return parse_mixed([], options)


def wanted(start: Snapshot, **options: str) -> dict[str, object]:
    plan = decide(start, asked(**options))
    return {str(c.target): c.after for c in (*plan.changes, *plan.holds)}


def test_threads_and_rps_go_to_the_cpus_given() -> None:
    found = wanted(host(tap()), vhost_cpus="0-3", tap_rps="0-3")
    assert found == {
        "tap0/vhost0/vhost-cpus": "0-3",
        "tap0/vhost1/vhost-cpus": "0-3",
        "tap0/rx0/rps-cpus": "0-3",
    }
    assert wanted(host(tap()), tap_rps="off") == {"tap0/rx0/rps-cpus": "off"}


def test_auto_leaves_the_cpus_of_vcpus_out() -> None:
    start = host(tap(count=1), vcpus=(2, 3, 4, 5))
    assert wanted(start, vhost_cpus="auto") == {"tap0/vhost0/vhost-cpus": "0-1,6-7"}
    plan = decide(start, asked(vhost_cpus="1-2"))
    assert "vCPUs are bound to 2 as well" in plan.warnings[0]
    full = decide(host(tap(), vcpus=tuple(range(8))), asked(vhost_cpus="auto"))
    assert full.changes == () and "every housekeeping CPU" in str(full.skips[0])


def test_what_is_placed_by_itself_stays_off_the_cpus_of_vcpus() -> None:
    start = host(tap(), vcpus=(2, 3, 4, 5))
    alone = decide(start, parse_mixed(["eth0"], {"threaded": "on", "thread_cpus": "auto"}))
    shared = {"threaded": "on", "thread_cpus": "auto", "thread_spread": "all", "irq_cpus": "auto"}
    both = decide(start, parse_mixed(["eth0"], shared))
    found: dict[str, list[object]] = {c.target.item: [] for c in (*alone.changes, *both.changes)}
    for change in (*alone.changes, *both.changes):
        found[change.target.item].append(change.after)
    assert {*found["thread-cpus"]} == {"0", "1", "6", "7", "0-1,6-7"}
    assert {*found["irq-cpus"]} == {"0", "1", "6", "7"}


def test_threads_on_the_cpus_of_vcpus_are_warned_of_where_there_are_no_others() -> None:
    start = host(tap(), vcpus=tuple(range(8)))
    napi = {"threaded": "on", "thread_cpus": "auto"}
    words = "vCPUs are bound to {} as well, and no CPU that it chooses from is without"
    shared = decide(start, asked(**napi, thread_spread="all")).warnings
    assert shared == (f"thread_cpus=auto in [napi]: {words.format('0-7')}",)
    alone = decide(start, asked(**napi)).warnings
    assert alone == (f"thread_cpus=auto in [napi]: {words.format('1-4')}",)
    irqs = tuple(replace(irq, threaded=0) for irq in start.irqs)
    handlers = {"irq_layout.threaded": "on", "irq_layout.thread_cpus": "auto"}
    switched = decide(replace(start, irqs=irqs), asked(**handlers)).warnings
    assert switched == (f"thread_cpus=auto in [irq_layout]: {words.format('0-7')}",)
    links = tuple(replace(link, rx_threads=0) for link in start.links)
    helpers = {"rx_threads": "2", "rx_thread_cpus": "auto"}
    (one,) = decide(replace(start, links=links), asked(**helpers)).warnings
    assert one.startswith("rx_thread_cpus=auto in [flow_steering]: vCPUs are bound to")
    for options in ({"threaded": "on", "thread_cpus": "2-3"}, {"threaded": "on"}):
        assert decide(start, asked(**options)).warnings == ()
    assert decide(host(tap(), vcpus=tuple(range(7))), asked(**napi)).warnings == ()


def test_busy_pollers_that_are_named_onto_the_cpus_of_vcpus_are_warned_of() -> None:
    start = host(tap(), vcpus=(2, 3, 4, 5))
    named = {"threaded": "busy-poll@0-1,on@2-", "thread_cpus": "1,3-6"}
    (warning,) = decide(start, asked(**named)).warnings
    assert warning == (
        "thread_cpus=1,3-6 in [napi]: vCPUs are bound to 3 and get what busy-polling threads"
        " leave: name other CPUs"
    )
    assert decide(start, asked(threaded="busy-poll@0-2", thread_cpus="1,6-7")).warnings == ()
    assert VHOST_CPUS in stages.reads(asked(**named), ()), "vCPUs are looked for"
    assert VHOST_CPUS not in stages.reads(asked(threaded="on", thread_cpus="1"), ())


def test_without_a_guest_it_is_reported_and_fails_nothing() -> None:
    plan = decide(host(), asked(vhost_cpus="0-1", tap_rps="0-1"))
    assert plan.changes == () and plan.warnings == ()
    assert [s.kind for s in plan.skips] == ["left-alone", "left-alone"]
    assert "no vhost thread" in str(plan.skips[0]) and "no tap" in str(plan.skips[1])


@pytest.mark.parametrize(
    "options", [{"vhost_cpus": "64"}, {"tap_rps": "9"}, {"vhost_cpus": "x"}, {"tap_rps": "auto"}]
)
def test_bad_lists_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(RxlaneError) as raised:
        decide(host(tap()), asked(**options))
    assert raised.value.kind.refused and raised.value.option == next(iter(options))


def test_rps_takes_no_isolated_cpu() -> None:
    start = host(tap())
    start = replace(start, topology=replace(start.topology, isolated=(3,)))
    with pytest.raises(RxlaneError, match="isolated"):
        decide(start, asked(tap_rps="2-3"))


def test_apply_verify_and_back() -> None:
    sim, store = SimHost(host(tap())), MemoryStore()
    before = sim.observe()
    policy = asked(vhost_cpus="0-1", tap_rps="1")
    done = apply(sim, store, policy)
    assert done.written == 3 and sim.links["tap0"].vhosts[1].cpus == (0, 1)
    assert verify(done.plan, sim.observe()) == () and apply(sim, store, policy).written == 0
    assert rollback(sim, store).pending == () and sim.observe() == before


def test_a_guest_that_ended_needs_nothing() -> None:
    sim, store = SimHost(host(tap())), MemoryStore()
    apply(sim, store, asked(vhost_cpus="0-1"))
    sim.links["tap0"] = replace(sim.links["tap0"], vhosts=())
    assert rollback(sim, store).pending == () and store.load() is None


# -- guests with CPUs of their own ----------------------------------------------------------------


def confined(link: Link, *cpus: int) -> Link:
    """The tap of a guest whose control group has these CPUs, to which they are all bound."""
    own = (replace(thread, cpus=cpus, allowed=cpus) for thread in link.vhosts)
    return replace(link, vhosts=tuple(own))


def cpus_of(sim: SimHost, name: str) -> tuple[int, ...]:
    return sim.links[name].vhosts[0].cpus


def test_guests_that_come_and_go_leave_nothing_behind() -> None:
    """libvirt counts their taps' names up: none comes back, and the journal would grow for ever."""
    sim, store = SimHost(host(tap("vnet0", 10), vcpus=(3,))), MemoryStore()
    asked_for = asked(vhost_cpus="auto")
    apply(sim, store, asked_for)
    for number in (1, 2):
        del sim.links[f"vnet{number - 1}"]
        journal = store.load()
        assert journal is not None and not verify_journal(journal, sim.observe()).drifted
        sim.links[f"vnet{number}"] = tap(f"vnet{number}", 10 + number)
        sim.threads |= {thread.pid: thread for thread in sim.links[f"vnet{number}"].vhosts}
        apply(sim, store, asked_for)
    journal = store.load()
    assert journal is not None
    assert {entry.device for entry in journal.entries} == {"vnet2"}
    back = rollback(sim, store)
    assert (back.pending, back.away, store.text) == ((), (), None)


def test_a_thread_gets_what_its_control_group_has() -> None:
    start = host(confined(tap(count=1), 4, 5, 6, 7), tap("tap1", 10, count=1))
    sim, store = SimHost(start), MemoryStore()
    before = sim.observe()
    done = apply(sim, store, asked(vhost_cpus="2-5"))
    assert cpus_of(sim, "tap0") == (4, 5)
    assert cpus_of(sim, "tap1") == (2, 3, 4, 5)
    assert verify(done.plan, sim.observe()) == () and done.plan.skips == ()
    assert apply(sim, store, asked(vhost_cpus="2-5")).written == 0
    assert rollback(sim, store).pending == () and sim.observe() == before


def test_a_thread_whose_control_group_has_none_is_left_alone() -> None:
    start = host(confined(tap(count=1), 4, 5, 6, 7), tap("tap1", 10, count=1))
    sim = SimHost(start)
    done = apply(sim, MemoryStore(), asked(vhost_cpus="0-3"))
    auto = decide(replace(start, vcpus=(4, 5, 6, 7)), asked(vhost_cpus="auto"))
    for plan in (done.plan, auto):
        assert [str(skip) for skip in plan.skips] == [
            f"tap0 vhost thread 0: vhost-cpus left-alone: the control group of vhost-{QEMU} has"
            " CPUs 4-7 only"
        ]
        assert [(c.target.device, c.after) for c in plan.changes] == [("tap1", "0-3")]
    assert cpus_of(sim, "tap0") == (4, 5, 6, 7)
    assert cpus_of(sim, "tap1") == (0, 1, 2, 3)


def test_a_control_group_that_changes_meanwhile() -> None:
    """The guest's tasks are moved between the look and the write, or before the rollback."""
    sim, store = SimHost(host(tap(count=1), tap("tap1", 10, count=1))), MemoryStore()

    def moved() -> None:
        sim.links["tap0"] = confined(sim.links["tap0"], 4, 5, 6, 7)
        sim.on_write = None

    sim.on_write = moved
    done = apply(sim, store, asked(vhost_cpus="0-3"))
    assert [(s.device, s.kind) for s in done.plan.skips] == [("tap0", "unsupported")]
    assert done.refused == {Target("tap0", 0, VHOST_CPUS)} and not done.unmovable
    assert cpus_of(sim, "tap1") == (0, 1, 2, 3)
    again = apply(sim, store, asked(vhost_cpus="4-5"))
    assert again.plan.skips == () and cpus_of(sim, "tap0") == (4, 5)
    back = rollback(sim, store)
    assert back.pending == () and cpus_of(sim, "tap0") == (4, 5, 6, 7)


@pytest.mark.parametrize("apply_first", [True, False])
def test_cpus_that_a_control_group_has_no_more_are_not_waited_for(apply_first: bool) -> None:
    """Those of the new group are the thread's own, and were not of our doing."""
    sim, store = SimHost(host(confined(tap(count=1), 0, 1, 2, 3))), MemoryStore()
    apply(sim, store, asked(vhost_cpus="0-1"))
    sim.links["tap0"], writes = confined(sim.links["tap0"], 4, 5, 6, 7), sim.writes
    if apply_first:
        assert apply(sim, store, asked()).plan.skips == ()
    assert rollback(sim, store).pending == () and store.load() is None
    assert sim.writes == writes and cpus_of(sim, "tap0") == (4, 5, 6, 7)


def test_cpus_that_are_offline_are_waited_for() -> None:
    start = host(confined(tap(count=1), 4, 5, 6))
    cpus = (replace(cpu, online=cpu.number != 3) for cpu in start.topology.cpus)
    view = View.of(replace(start, topology=replace(start.topology, cpus=tuple(cpus))))
    thread = Target("tap0", 0, VHOST_CPUS)
    assert not view.is_back(thread, "3") and view.is_back(thread, "1-2")


def test_a_refusal_is_no_cause_to_leave_the_next_guest_alone(tmp_path: Path) -> None:
    both = parse_mixed(["eth0"], {"threaded": "on", "vhost_cpus": "0-3"})
    bench = Bench(SimHost(host(tap(count=1))), Store(tmp_path), both)
    sim = bench.host
    sim.links["tap0"] = tap(count=1)

    def moved() -> None:
        sim.links["tap0"] = confined(sim.links["tap0"], 4, 5, 6, 7)
        sim.on_write = None

    sim.on_write = moved
    bench.happens(UP)
    assert cpus_of(sim, "tap0") == (4, 5, 6, 7)
    sim.links["tap0"] = tap(count=1)
    bench.happens(UP)
    assert cpus_of(sim, "tap0") == (0, 1, 2, 3)


def test_a_refusal_is_no_cause_to_pass_what_somebody_moves_later(tmp_path: Path) -> None:
    sim = SimHost(host(tap(count=1)))

    def moved() -> None:
        sim.links["tap0"] = confined(sim.links["tap0"], 4, 5, 6, 7)
        sim.on_write = None

    sim.on_write = moved
    adapter = Adapter(tmp_path / "state", lambda: sim)
    options = (("vhost_cpus", "0-3"),)
    rows = [Row("vms", frozenset({"eth0"}), options, "flow_steering")]
    assert adapter.apply(rows).ok and cpus_of(sim, "tap0") == (4, 5, 6, 7)
    sim.links["tap0"] = tap(count=1)
    adapter.keep(adapter.policy(rows), None, None)
    assert cpus_of(sim, "tap0") == (0, 1, 2, 3) and adapter.verify(rows, {"eth0"}).ok
    sim.write_thread(sim.links["tap0"].vhosts[0].pid, {VHOST_CPUS: "7"})
    report = adapter.verify(rows, {"eth0"})
    assert not report.ok and "tap0/vhost0/vhost-cpus is 7, expected 0-3" in report.lines[0][1]


def test_they_are_read_where_they_matter() -> None:
    assert VHOST_CPUS in stages.reads(asked(vhost_cpus="auto"), ())
    assert VHOST_CPUS in stages.reads(asked(tap_rps="off"), ())
    assert VHOST_CPUS in stages.reads(asked(rps="auto"), ())
    assert VHOST_CPUS not in stages.reads(asked(rps="0-1"), ())
    assert VHOST_CPUS in stages.reads(asked(rps="0-1"), (VHOST_CPUS,))


# -- reading --------------------------------------------------------------------------------------


def machines(pid: int, flags: int = uapi.PF_USER_WORKER) -> dict[str, str]:
    """A QEMU whose vhost thread has a live pid, so that its affinity can be asked."""
    return {
        "sys/class/net/tap0/tun_flags": "0x5002\n",
        "sys/class/net/tap1/tun_flags": "0x5002\n",
        "sys/devices/system/cpu/online": "0-4095\n",
        f"proc/{QEMU}/comm": "qemu-system-x86\n",
        f"proc/{QEMU}/task/{QEMU}/comm": "qemu-system-x86\n",
        f"proc/{QEMU}/task/{pid}/comm": f"vhost-{QEMU}\n",
        f"proc/{QEMU}/task/{VCPU}/comm": "CPU 0/KVM\n",
        f"proc/{QEMU}/fdinfo/3": "pos:\t0\n",
        f"proc/{QEMU}/fdinfo/20": "pos:\t0\nflags:\t0104002\nmnt_id:\t9\niff:\ttap0\n",
        f"proc/{pid}/stat": stat_line(f"vhost-{QEMU}", flags, 0, 0, 0),
        "proc/1/comm": "systemd\n",
    }


def test_taps_have_the_threads_of_their_process(tmp_path: Path) -> None:
    pid = os.getpid()
    sysfs = tree(tmp_path, machines(pid))
    assert vms.is_tap(sysfs, "tap0") and not vms.is_tap(sysfs, "eth0")
    assert vms.find(sysfs) == vms.Machines({QEMU: [pid]}, [VCPU])
    bare = tuple(Link(n, i, True, False, tap=n != "eth0") for i, n in enumerate(("tap0", "tap1")))
    links, vcpus = vms.with_machines(sysfs, bare)
    assert [t.pid for t in links[0].vhosts] == [pid] and links[1].vhosts == ()
    assert vcpus == (), "the vCPU's thread is gone"
    assert vms.with_machines(sysfs, [Link("eth0", 2, True, True)])[1] == ()


@pytest.mark.parametrize(("users", "looked"), [("1", True), ("0", False), (None, False)])
def test_machines_without_taps_are_looked_for_where_kvm_has_users(
    users: str | None, looked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their networks may be macvtaps, vhost-user or devices that they were given."""
    monkeypatch.setattr(threads, "affinity", lambda pid: (3,) if pid == VCPU else None)
    files = machines(os.getpid())
    if users is not None:
        files["sys/module/kvm_intel/refcnt"] = f"{users}\n"
    found = vms.with_machines(tree(tmp_path, files), [Link("eth0", 2, True, True)])
    assert found == ((Link("eth0", 2, True, True),), (3,) if looked else ())


@pytest.mark.parametrize(
    "file",
    ["machine.slice/vm/cpuset.cpus.effective", "cpuset/machine.slice/vm/cpuset.effective_cpus"],
)
def test_cpus_of_the_control_group(tmp_path: Path, file: str) -> None:
    pid = os.getpid()
    sysfs = tree(tmp_path, machines(pid))
    assert vms.workers(sysfs, [pid])[0].allowed == ()
    tree(tmp_path, {f"proc/{pid}/cpuset": "/machine.slice/vm\n", f"sys/fs/cgroup/{file}": "4-7\n"})
    assert vms.workers(sysfs, [pid])[0].allowed == (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EINVAL, Kind.UNSUPPORTED), (errno.EPERM, Kind.KERNEL)]
)
def test_what_the_kernel_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: Kind
) -> None:
    def refuse(pid: int, cpus: object) -> None:
        raise OSError(number, os.strerror(number))

    pid = os.getpid()
    tree(tmp_path, machines(pid))
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(RxlaneError, match=f"thread {pid}") as raised:
        Linux(tmp_path).write_thread(pid, {VHOST_CPUS: "0-3"})
    assert raised.value.kind is kind


def test_messages_name_the_thread() -> None:
    sim = SimHost(host(tap()))
    sim.fail_at = 1
    with pytest.raises(RxlaneError) as raised:
        apply(sim, MemoryStore(), asked(vhost_cpus="0-3"))
    assert str(raised.value) == "tap0: vhost thread 1: refused by the test"


def test_kernel_threads_of_older_kernels(tmp_path: Path) -> None:
    files = {"proc/77/comm": f"vhost-{QEMU}\n", f"proc/{QEMU}/comm": "kvm\n"}
    assert vms.find(tree(tmp_path, files)).workers == {QEMU: [77]}


def test_bound_vcpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stands for a vCPU: on a host with more CPUs than it may use, it is bound."""
    sysfs = tree(tmp_path, machines(1))
    assert vms._bound(sysfs, [os.getpid()]) == tuple(sorted(os.sched_getaffinity(0)))
    few = tree(tmp_path, {"sys/devices/system/cpu/online": "0\n"})
    assert vms._bound(few, [os.getpid()]) == ()
    # As with isolcpus=: init keeps off those, and so does a guest that nobody has bound.
    apart = tree(tmp_path, {"sys/devices/system/cpu/online": "0-4095\n",
                            "sys/devices/system/cpu/isolated": "1024-4095\n"})  # fmt: skip
    monkeypatch.setattr(threads, "affinity", lambda pid: tuple(range(pid)))
    assert vms._bound(apart, [1024]) == ()
    assert vms._bound(apart, [1023]) == tuple(range(1023))


def test_a_process_that_took_the_name_is_no_vhost_thread(tmp_path: Path) -> None:
    pid = os.getpid()
    sysfs = tree(tmp_path, machines(pid, flags=0))
    assert threads.read(sysfs, pid, threads.VHOST) is None
    with pytest.raises(RxlaneError, match="no vhost thread"):
        Linux(tmp_path).write_thread(pid, {VHOST_CPUS: "0"})
    assert Target("tap0", 0, VHOST_CPUS) < Target("tap0", 1, VHOST_CPUS)
