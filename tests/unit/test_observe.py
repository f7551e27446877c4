# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading /sys and /proc trees: files, CPUs, steering, threads and other programs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import observe
from rxlane.errors import RxlaneError
from rxlane.host import devices, hostfiles, interrupts, processors, slices, threads, udevdb
from rxlane.model import (
    Capabilities,
    Helper,
    Irq,
    IrqThread,
    Link,
    Queue,
    Snapshot,
    Sysctl,
    Thread,
)
from rxlane.sysfs import Sysfs
from unit import simhost
from unit.filetree import tree


def test_topology(tmp_path: Path) -> None:
    base = "sys/devices/system/cpu"
    files = {f"{base}/online": "0-2\n", f"{base}/present": "0-3\n", f"{base}/isolated": "2\n"}
    for n in range(4):
        files[f"{base}/cpu{n}/topology/physical_package_id"] = f"{n // 2}\n"
        files[f"{base}/cpu{n}/topology/core_id"] = f"{n // 2}\n"
        files[f"{base}/cpu{n}/topology/thread_siblings_list"] = f"{n - n % 2}-{n - n % 2 + 1}\n"
    files["sys/devices/system/node/node0/cpulist"] = "0-1\n"
    files["sys/devices/system/node/node1/cpulist"] = "2\n"
    files["sys/devices/system/node/node1/cpu3/online"] = "0\n"
    found = processors.topology(tree(tmp_path, files))
    assert found.online == (0, 1, 2) and found.isolated == (2,) and found.nohz_full == ()
    assert found.housekeeping == (0, 1)
    two = found.cpu(2)
    assert two is not None
    assert (two.package, two.core, two.node, two.siblings) == (1, 1, 1, (2, 3))
    assert [c.node for c in found.cpus] == [0, 0, 1, 1], "an offline CPU keeps its node"


def test_kinds_of_cores(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/online": "0-3", f"{cpu}/present": "0-3"}
    files |= {f"{cpu}/cpu{n}/cpu_capacity": str(size) for n, size in enumerate((1024, 1024, 600))}
    told = processors.topology(tree(tmp_path, files))
    assert [c.capacity for c in told.cpus] == [1024, 1024, 600, None]
    assert {c.kind for c in told.cpus} == {""}
    files = {"sys/devices/cpu_core/cpus": "0-1\n", "sys/devices/cpu_atom/cpus": "2-3\n"}
    assert [c.kind for c in processors.topology(tree(tmp_path, files)).cpus] == [
        *("core", "core", "atom", "atom")
    ]


def test_topology_of_a_bare_tree(tmp_path: Path) -> None:
    """No NUMA, no topology files, nohz_full says (null): nothing crashes."""
    base = "sys/devices/system/cpu"
    found = processors.topology(
        tree(tmp_path, {f"{base}/online": "0", f"{base}/nohz_full": "(null)"})
    )
    assert found.online == (0,) and found.cpus[0].siblings == (0,)


def test_unreadable_files_are_absent(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {"a": "text", "b": "7\n", "c": "3-1"})
    assert sysfs.read("nothing") is None and sysfs.number("a") is None and sysfs.number("b") == 7
    assert sysfs.cpus("c") == () and sysfs.names("nothing") == [] and sysfs.folders("a") == []


def test_failing_writes_name_the_file(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {"dir/x": ""})
    with pytest.raises(RxlaneError) as caught:
        sysfs.write("nothing", "1")
    assert caught.value.kind.unsupported
    with pytest.raises(RxlaneError, match="/dir: Is a directory"):
        sysfs.write("dir", "1")
    sysfs.write("dir/x", "5")
    assert sysfs.read("dir/x") == "5"


# Of a guest with 4 CPUs and a virtio NIC of 2 queues, with RPS, RFS and XPS set by hand.
STEERED = {
    "sys/class/net/eth0/queues/rx-0/rps_cpus": "c\n",
    "sys/class/net/eth0/queues/rx-0/rps_flow_cnt": "2048\n",
    "sys/class/net/eth0/queues/tx-1/xps_cpus": "a\n",
    "sys/class/net/eth0/queues/tx-1/xps_rxqs": "0\n",
}


def test_files_that_stay_open(tmp_path: Path) -> None:
    """They follow what they were opened for; once that is gone, the name is looked up anew."""
    sysfs = Sysfs(tree(tmp_path, {"sys/a": "1", "sys/b": "2"}).path(""), keep=1)
    assert [sysfs.number_again("sys/a"), sysfs.mask_again("sys/b")] == [1, (1,)], "room for one"
    (tmp_path / "sys/a").write_text("5")
    assert sysfs.number_again("sys/a") == 5
    sysfs.write("sys/a", "7")
    assert (tmp_path / "sys/a").read_text() == "7" and sysfs.number_again("sys/a") == 7
    sysfs.close()
    sysfs._kept["sys/a"] = os.open(tmp_path / "sys/b", os.O_RDONLY)
    sysfs.write("sys/a", "8")
    assert (tmp_path / "sys/a").read_text() == "8", "written by its name"
    sysfs._kept["sys/a"] = os.open(tmp_path, os.O_RDONLY)
    assert sysfs.read_again("sys/a") == "8", "what cannot be read is looked up anew"
    assert sysfs.read_again("sys/none") is None
    sysfs.close()
    assert not sysfs._kept


def test_long_files_are_read_to_their_end(tmp_path: Path) -> None:
    sysfs = Sysfs(tree(tmp_path, {"sys/a": "1" * 8192, "sys/b": ""}).path(""), keep=9)
    assert sysfs.read_again("sys/a") == "1" * 8192 and sysfs.read_again("sys/b") == ""


def test_steering_of_queues(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, STEERED)
    receiving = devices.steering(sysfs, "eth0", Queue("rx", 0))
    assert (receiving.rps_cpus, receiving.rps_flow_cnt) == ((2, 3), 2048)
    sending = devices.steering(sysfs, "eth0", Queue("tx", 1))
    assert (sending.xps_cpus, sending.xps_rxqs) == ((1, 3), ())
    # A device's only TX queue answers ENOENT, a kernel without RPS has no such files.
    assert devices.steering(sysfs, "eth0", Queue("tx", 0)) == Queue("tx", 0)
    assert devices.steering(sysfs, "eth1", Queue("rx", 0)) == Queue("rx", 0)


def test_what_cannot_be_told_of_a_host(tmp_path: Path) -> None:
    (text,) = hostfiles.notes(Sysfs(tmp_path), Capabilities(netdev=True))
    assert text.startswith("/sys is not mounted")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    assert hostfiles.notes(Sysfs(tmp_path), Capabilities(netdev=True)) == ()
    assert hostfiles.notes(Sysfs(tmp_path), Capabilities()) == (
        "kernel has no netdev netlink family",
    )


def test_sysctls_and_other_writers(tmp_path: Path) -> None:
    files = {
        "proc/sys/net/core/busy_read": "50\n",
        "proc/sys/net/core/rps_sock_flow_entries": "0\n",
        "run/irqbalance/irqbalance77.sock": "",
        "proc/77/comm": "irqbalance\n",
    }
    sysfs = tree(tmp_path, files)
    assert hostfiles.sysctls(sysfs) == (
        Sysctl("net.core.rps_sock_flow_entries", 0),
        Sysctl("net.core.busy_read", 50),
    )
    assert hostfiles.writers(sysfs) == ("irqbalance",)
    (tmp_path / "proc/77/comm").write_text("bash")
    assert hostfiles.writers(sysfs) == (), "its pid went to another process"


@pytest.mark.parametrize("tree_of", slices.TREES)
def test_writers_by_their_services(tmp_path: Path, tree_of: str) -> None:
    groups = f"{tree_of}/system.slice"
    files = {
        f"{groups}/NetworkManager.service/cgroup.procs": "612\n",
        f"{groups}/google-guest-agent.service/cgroup.procs": "700\n701\n",
        f"{groups}/irqbalance.service/cgroup.procs": "",
        f"{groups}/ssh.service/cgroup.procs": "800\n",
    }
    found = hostfiles.writers(tree(tmp_path, files))
    assert found == ("google-guest-agent", "NetworkManager")


@pytest.mark.parametrize(
    ("isolated", "groups", "expected"),
    [
        # isolcpus=2, an isolated partition of 6 and 7: as 6.12 tells it, and as 7.2 does.
        ("2", {"isolated": "2,6-7", "effective": "0-5"}, ((2,), (6, 7))),
        ("2,6-7", {"isolated": "2,6-7", "effective": "0-5"}, ((2,), (6, 7))),
        # A partition that takes an isolated CPU, and one that isolates nothing.
        ("2", {"isolated": "2", "effective": "0-1,3-7"}, ((), (2,))),
        ("", {"isolated": "", "effective": "0-5"}, ((), (6, 7))),
        # No partition; no such controller; the group of a container.
        ("2", {"isolated": "2", "effective": "0-7"}, ((2,), ())),
        ("2", {}, ((2,), ())),
        ("2", {"effective": "0-3", "events": ""}, ((2,), ())),
    ],
)
def test_cpus_of_partitions_are_not_as_isolated_ones(
    tmp_path: Path,
    isolated: str,
    groups: dict[str, str],
    expected: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    base, group = "sys/devices/system/cpu", "sys/fs/cgroup"
    files = {f"{base}/{name}": "0-7\n" for name in ("online", "present")}
    files[f"{base}/isolated"] = f"{isolated}\n"
    for name, text in groups.items():
        file = "cgroup.events" if name == "events" else f"cpuset.cpus.{name}"
        files[f"{group}/{file}"] = f"{text}\n"
    found = processors.topology(tree(tmp_path, files))
    assert (found.isolated, found.partitioned) == expected
    assert {*found.housekeeping} == {*range(8)} - {*expected[0]} - {*expected[1]}


def test_an_irq_that_nobody_may_write_is_unmovable(tmp_path: Path) -> None:
    base = "proc/irq/41"
    files = {f"{base}/smp_affinity_list": "0-3", f"{base}/effective_affinity_list": "2"}
    sysfs = tree(tmp_path, files)
    (tmp_path / base / "virtio0-input.0").mkdir()
    found = interrupts._irq(sysfs, 41)
    assert (found.cpus, found.effective, found.movable) == ((0, 1, 2, 3), (2,), True)
    (tmp_path / base / "smp_affinity_list").chmod(0o444)
    assert not interrupts._irq(sysfs, 41).movable


# -- what planning alone needs ------------------------------------------------------------------


def test_last_level_caches(tmp_path: Path) -> None:
    """CPUs 0-1 and 2-3 share the highest cache each; CPU 4 tells of none."""
    tree(tmp_path, {"sys/devices/system/cpu/online": "0-4"})
    for number in range(4):
        base = f"sys/devices/system/cpu/cpu{number}/cache"
        tree(tmp_path, {f"{base}/index0/shared_cpu_list": str(number)})
        tree(tmp_path, {f"{base}/index3/shared_cpu_list": "0-1" if number < 2 else "2-3"})
    found = processors.topology(Sysfs(tmp_path))
    assert [cpu.llc for cpu in found.cpus] == [0, 0, 2, 2, None]


def test_threads_of_interrupts(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/2/task/2/children": f"7 {os.getpid()} 9 "})
    tree(tmp_path, {f"proc/{os.getpid()}/comm": "irq/41-nic-3\n"})
    tree(tmp_path, {"proc/9/comm": "irq/42-nic\n"})
    found = interrupts.all_threads(Sysfs(tmp_path), {9})
    cpus, nice = tuple(sorted(os.sched_getaffinity(0))), os.getpriority(os.PRIO_PROCESS, 0)
    names = {os.SCHED_OTHER: "other", os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle"}
    own = names[os.sched_getscheduler(0)]
    assert found == (IrqThread(41, cpus, f"{own}:{nice}"),)


def test_names_of_threads_that_messages_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names cost more to read than all else, and only those are in messages."""
    files, pid = Sysfs(tmp_path), os.getpid()
    named = Thread(pid, "irq/41-nic", "deadline", 0, 0, (0,))
    monkeypatch.setattr(threads, "read", lambda *_: named)
    tree(tmp_path, {"proc/2/task/2/children": str(pid), f"proc/{pid}/comm": "irq/41-nic\n"})
    for policy, name in (("deadline", "irq/41-nic"), ("ext", "irq/41-nic"), ("fifo", "")):
        bare = replace(named, name="", policy=policy)
        monkeypatch.setattr(threads, "glance", lambda _, bare=bare: bare)
        found = threads.look(files, pid)
        assert found is not None and found.name == name
        (row,) = interrupts.all_threads(files, ())
        assert (row.pid, row.name) == ((pid, name) if name else (0, ""))


def test_link_files_that_place_interrupts(tmp_path: Path) -> None:
    database = "run/udev/data/n2"
    tree(tmp_path, {database: "I:1\nE:ID_NET_LINK_FILE=/usr/lib/systemd/network/99.link\n"})
    tree(tmp_path, {"usr/lib/systemd/network/99.link": "[Link]\nNamePolicy=keep\n"})
    files = Sysfs(tmp_path)
    assert not udevdb.moves_interrupts(files, [2, 3])
    dropin = "etc/systemd/network/99.link.d/irq.conf"
    more = f"E:ID_NET_LINK_FILE_DROPINS=/{dropin}\n"
    tree(tmp_path, {database: f"{files.read(database)}\n{more}"})
    for text, moves in (
        ("[Link]\n#IRQAffinity=0-3\n", False),
        ("[Link]\nIRQAffinity=\n", False),
        ("[Link]\nIRQAffinity=0-3\n", True),
        ("[Link]\nIRQAffinityPolicy=spread\n", True),
    ):
        tree(tmp_path, {dropin: text})
        assert udevdb.moves_interrupts(files, [2, 3]) is moves, text
        assert not udevdb.moves_interrupts(files, [3])


@pytest.mark.parametrize(("texts", "moves"), [
    (("IRQAffinity=0-3\n",), True),
    (("IRQAffinity=0-3\nIRQAffinity=\n",), False),
    (("IRQAffinity=0-3\n", "IRQAffinity=\n"), False),
    (("IRQAffinity=\n", "IRQAffinity = 0-3\n"), True),
    (("IRQAffinity=0-3\n", "IRQAffinity=\n", "IRQAffinity=1\n"), True),
    (("IRQAffinity=0-3\n", "IRQAffinityPolicy=\n"), True),
    (("IRQAffinity=0-3\n", "  ;IRQAffinity=\n"), True),
    (("IRQAffinity=\\\n # a comment between\n  0-3\n",), True),
    (("Description=a \\\nIRQAffinity=0-3\n",), False),
    (("Description=a\\\\\nIRQAffinity=0-3\n",), True),
    (("[Match]\nIRQAffinity=0-3\n",), False),
])  # fmt: skip
def test_what_is_said_last_of_interrupts_counts(
    tmp_path: Path, texts: tuple[str, ...], moves: bool
) -> None:
    """The file, then its drop-ins in their order, as systemd reads them."""
    base = "usr/lib/systemd/network/99.link"
    paths = [base, *(f"etc/systemd/network/99.link.d/{n}.conf" for n in range(len(texts) - 1))]
    tree(tmp_path, {path: f"[Link]\n{text}" for path, text in zip(paths, texts, strict=True)})
    dropins = ":".join(f"/{path}" for path in paths[1:])
    rows = f"E:{udevdb.FILE}=/{base}\nE:{udevdb.DROPINS}={dropins}\n"
    tree(tmp_path, {f"{udevdb.DATABASE}/{udevdb.entry(2)}": rows})
    assert udevdb.moves_interrupts(Sysfs(tmp_path), [2]) is moves


def test_time_for_other_tasks(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    assert hostfiles.unreserved(sysfs, (0, 1)) == ()
    tree(tmp_path, {"proc/sys/kernel/sched_rt_runtime_us": "-1"})
    assert hostfiles.unreserved(sysfs, (0, 1)) == (0, 1)
    for limit, none in (("950000", False), ("1000000", True)):
        tree(tmp_path, {"proc/sys/kernel/sched_rt_period_us": "1000000",
                        "proc/sys/kernel/sched_rt_runtime_us": limit})  # fmt: skip
        assert hostfiles.unreserved(sysfs, (0, 1)) == ((0, 1) if none else ())
    for number, runtime in enumerate(("50000000", "0")):
        tree(tmp_path, {f"sys/kernel/debug/sched/fair_server/cpu{number}/runtime": runtime})
    assert hostfiles.unreserved(sysfs, (0, 1)) == (1,), "the fair server counts, not the limit"


@pytest.mark.parametrize(("offline", "cpus"), [((), (0,)), ((3,), (0, 3))])
def test_every_kind_of_thread_has_its_offline_cpus(
    tmp_path: Path, offline: tuple[int, ...], cpus: tuple[int, ...]
) -> None:
    sysfs = tree(tmp_path, {"proc/7/status": "Cpus_allowed_list:\t0,3\n"})
    thread = Thread(7, "a thread", "other", 0, 0, (0,))
    link = Link("eth0", 2, True, True, helpers=(Helper(0, thread),), vhosts=(thread,))
    start = Snapshot(
        Capabilities(),
        simhost.topology(4, offline=offline),
        (link,),
        (Irq(5, "nic", (0,), (0,), thread=thread), Irq(6, "other", (0,), (0,))),
        (thread,),
    )
    found = observe._with_offline(sysfs, start)
    own = (*found.threads, found.irqs[0].thread, *found.links[0].vhosts)
    helper = found.links[0].helpers[0].thread
    assert [t.cpus for t in (*own, helper) if t is not None] == [cpus] * 4
    assert found.irqs[1].thread is None
