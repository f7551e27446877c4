# SPDX-License-Identifier: GPL-2.0-or-later
"""Reading /sys and /proc trees, and joining queues, NAPIs and IRQs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import devices, hostfiles, interrupts, observe, processors, threads, udevdb
from rxlane.errors import RxlaneError
from rxlane.model import (
    Capabilities,
    Helper,
    Irq,
    IrqThread,
    Link,
    Napi,
    Queue,
    Snapshot,
    Sysctl,
    Thread,
)
from rxlane.netdev import QueueRow
from rxlane.rtnetlink import LinkRow
from rxlane.sysfs import Sysfs
from unit import simhost
from unit.filetree import tree


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("virtio0-input.3", ("rx", 3)),
        ("virtio0-output.3", ("tx", 3)),
        ("virtio0-config", None),
        ("eth0-rx-0", ("rx", 0)),
        ("eth0-tx-0", ("tx", 0)),
        ("eth0-TxRx-12", ("rx", 12)),
        ("ens1f0-rxtx-2", ("rx", 2)),
        ("eth0-Tx-Rx-1", ("rx", 1)),
        ("mlx5_comp5@pci:0000:3b:00.0", ("rx", 5)),
        ("eth0-fp-3", ("rx", 3)),
        ("i40e-eth0-TxRx-3", ("rx", 3)),
        ("i40e-0000:5e:00.0:fdir-TxRx-0", None),
        ("ice-0000:5e:00.0:ctrl-TxRx-0", None),
        ("mlx5_sf_comp0@pci:0000:3b:00.0", None),
        ("eth0", None),
        ("nvme0q1", None),
    ],
)
def test_irq_names(name: str, queue: tuple[str, int] | None) -> None:
    assert devices.irq_queue(name) == queue


def test_links_of_queue_get_win() -> None:
    rows = [QueueRow(2, "rx", 0, 12), QueueRow(2, "rx", 1, 11), QueueRow(2, "tx", 0, None)]
    napis = [Napi(11, 40), Napi(12, None)]
    queues = devices.link_queues({"rx": [0, 1], "tx": [0]}, rows, napis, {("rx", 0): [50]})
    assert [(q.kind, q.index, q.napi_id, q.napi_source) for q in queues] == [
        ("rx", 0, 12, "netdev"),
        ("rx", 1, 11, "netdev"),
        ("tx", 0, None, "unknown"),
    ]
    assert [(q.irq, q.irq_source) for q in queues[:2]] == [(50, "irq-name"), (40, "netdev")]


def test_order_only_when_the_counts_fit() -> None:
    """Stock 6.12 links nothing for virtio_net: ids ascend in queue order."""
    rows = [QueueRow(2, "rx", n, None) for n in range(3)]
    counts = {"rx": range(3), "tx": range(3)}
    napis = [Napi(n) for n in (8195, 8193, 8194)]
    found = devices.link_queues(counts, rows, napis, {})
    assert [(q.napi_id, q.napi_source) for q in found] == [
        (8193, "order"),
        (8194, "order"),
        (8195, "order"),
    ]
    assert {q.napi_id for q in devices.link_queues(counts, rows, napis[:2], {})} == {None}
    spare = [Napi(n) for n in (8193, 8194, 8195, 8196)]
    assert {q.napi_id for q in devices.link_queues(counts, rows, spare, {})} == {None}
    four = devices.link_queues(counts, rows, spare, {}, allocated=4)
    assert [(q.napi_id, q.napi_source) for q in four] == [(n, "order") for n in range(8193, 8196)]
    assert {q.napi_id for q in devices.link_queues(counts, rows, spare, {}, 5)} == {None}
    partly = [QueueRow(2, "rx", 0, 8193), *rows[1:]]
    assert [q.napi_id for q in devices.link_queues(counts, partly, napis, {})] == [8193, None, None]


TG3 = {("rx", n): [40 + n] for n in range(1, 5)}  # eth0-txrx-1, or eth0-rx-1, to eth0-rx-4


def linked(
    receive: int, send: int, napis: int, irqs: dict[devices.Named, list[int]]
) -> dict[str, tuple[int | None, int | None]]:
    """Queues that no queue-get links, with the NAPI and the IRQ that each is found to have."""
    rows = [QueueRow(2, "rx", n, None) for n in range(receive)]
    rows += [QueueRow(2, "tx", n, None) for n in range(send)]
    own = [Napi(8193 + n) for n in range(napis)]
    found = devices.link_queues({}, rows, own, irqs)
    return {f"{q.kind}{q.index}": (q.napi_id, q.irq) for q in found}


def test_names_that_count_from_one() -> None:
    """tg3 with RSS: the first vector, and its NAPI, receive nothing."""
    receivers = {f"rx{n}": (8194 + n, 41 + n) for n in range(4)}
    assert linked(4, 1, 5, TG3 | {("tx", 0): [40]}) == receivers | {"tx0": (None, 40)}
    assert linked(4, 0, 5, TG3) == receivers
    assert linked(4, 0, 4, TG3) == {f"rx{n}": (8193 + n, 41 + n) for n in range(4)}
    more = {("rx", 1): [41], ("rx", 2): [42], ("tx", 3): [43], ("tx", 4): [44]}
    known = linked(2, 4, 5, more)
    assert [known[f"rx{n}"] for n in range(2)] == [(None, 41), (None, 42)]
    assert [known[f"tx{n}"][1] for n in range(4)] == [None, None, 43, 44]


def test_names_that_count_from_zero() -> None:
    named: dict[devices.Named, list[int]] = {("rx", n): [40 + n] for n in range(8)}
    first = {f"rx{n}": (8193 + n, 40 + n) for n in range(4)}
    assert linked(4, 0, 4, named) == first, "interrupts of queues that are not in use"
    del named["rx", 0]
    assert linked(4, 0, 4, named) == first | {"rx0": (8193, None)}
    assert linked(4, 0, 5, named)["rx1"] == (None, 41)


def device(root: Path, driver: str, napis: int) -> Link:
    """A NIC of four RX queues, of the five that its driver could use."""
    tree(root, {f"drivers/{driver}/uevent": "", "sys/class/net/eth0/device/uevent": ""})
    (root / "sys/class/net/eth0/device/driver").symlink_to(root / "drivers" / driver)
    rows = [QueueRow(2, "rx", n, None) for n in range(4)]
    own = [Napi(8193 + n) for n in range(napis)]
    row = LinkRow(2, "eth0", up=True, rx_allocated=5)
    return devices.read(Sysfs(root), row, own, rows, (), wide=False)


def test_napis_beyond_the_queues_in_use(tmp_path: Path) -> None:
    virtio, igb, tg3 = (device(tmp_path / d, d, 5) for d in ("virtio_net", "igb", "tg3"))
    assert [q.napi_id for q in virtio.queues] == [8193, 8194, 8195, 8196]
    assert igb.queues == virtio.queues
    assert (tg3.driver, {q.napi_source for q in tg3.queues}) == ("tg3", {"unknown"})


def test_two_irqs_of_one_name_are_no_link() -> None:
    queues = devices.link_queues({"rx": [0]}, [], [Napi(5)], {("rx", 0): [40, 41]})
    assert (queues[0].irq, queues[0].irq_source) == (None, "unknown")


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


def test_devices_below(tmp_path: Path) -> None:
    base = "sys/class/net/bond0"
    sysfs = tree(tmp_path, {f"{base}/lower_eth0": "", f"{base}/lower_eth1": "", f"{base}/mtu": ""})
    assert devices._below(sysfs, "bond0") == ("eth0", "eth1")
    assert devices._below(sysfs, "veth0") == ()


def test_physical_and_virtual_devices(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {"sys/class/net/veth0/ifindex": "3"})
    for bus, name in (("virtio", "eth0"), ("netdevsim", "eni1")):
        (tmp_path / "sys/bus" / bus / "drivers" / f"{bus}_drv").mkdir(parents=True)
        device = tmp_path / "sys/class/net" / name / "device"
        device.mkdir(parents=True)
        (device / "subsystem").symlink_to(tmp_path / "sys/bus" / bus)
        (device / "driver").symlink_to(tmp_path / "sys/bus" / bus / "drivers" / f"{bus}_drv")
    assert devices._is_physical(sysfs, "eth0")
    assert not devices._is_physical(sysfs, "eni1")
    assert not devices._is_physical(sysfs, "veth0")
    rows = (LinkRow(2, "eth0", True), LinkRow(3, "veth0", True, kind="veth"))
    drivers = [devices.read(sysfs, row, (), (), (), wide=False).driver for row in rows]
    assert drivers == ["virtio_drv", "veth"]


def test_irqs_of_a_virtio_device_hang_below_its_pci_device(tmp_path: Path) -> None:
    files = {f"sys/pci/msi_irqs/{n}": "msix" for n in (41, 42, 43)}
    sysfs = tree(tmp_path, files)
    (tmp_path / "sys/pci/virtio0").mkdir()
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/device").symlink_to(tmp_path / "sys/pci/virtio0")
    for number, action in (
        (41, "virtio0-config"),
        (42, "virtio0-input.0"),
        (43, "virtio0-output.0"),
    ):
        (tmp_path / f"proc/irq/{number}/{action}").mkdir(parents=True)
    assert devices._device_irqs(sysfs, "eth0") == {("rx", 0): [42], ("tx", 0): [43]}


def card(tmp_path: Path, actions: Mapping[int, str], queues: int = 1) -> Sysfs:
    """An interface of a PCI device with these vectors."""
    device = tmp_path / "sys/class/net/eth0/device"
    for number, action in actions.items():
        (tmp_path / f"proc/irq/{number}/{action}").mkdir(parents=True)
        (device / "msi_irqs").mkdir(parents=True, exist_ok=True)
        (device / f"msi_irqs/{number}").write_text("msix")
    for number in range(queues):
        (tmp_path / f"sys/class/net/eth0/queues/rx-{number}").mkdir(parents=True)
    return Sysfs(tmp_path)


ROW = LinkRow(2, "eth0", True)


@pytest.mark.parametrize(
    ("actions", "queues", "irq"),
    [
        ({127: "eth0"}, 1, (127, "only")),
        ({127: "eth0"}, 2, (None, "unknown")),
        ({127: "eth0", 128: "other"}, 1, (None, "unknown")),
    ],
)
def test_a_device_with_one_vector(
    tmp_path: Path, actions: dict[int, str], queues: int, irq: tuple[int | None, str]
) -> None:
    found = devices.read(card(tmp_path, actions, queues), ROW, [Napi(5)], [], (), wide=False)
    assert (found.queues[0].irq, found.queues[0].irq_source) == irq


def test_a_bridges_vector_is_no_queues(tmp_path: Path) -> None:
    sysfs = card(tmp_path, {})
    port = tmp_path / "sys/class/net/eth0"
    (port / "device").mkdir(parents=True)
    (port / "msi_irqs").mkdir()
    (port / "msi_irqs/27").write_text("msi")
    (tmp_path / "proc/irq/27/PCIe PME").mkdir(parents=True)
    found = devices.read(sysfs, ROW, [Napi(5)], [], (), wide=False)
    assert found.queues[0].irq is None


def test_a_representor_has_none_of_its_ports_interrupts(tmp_path: Path) -> None:
    sysfs = card(tmp_path, {101: "eth9-TxRx-0"})
    own = devices.read(sysfs, ROW, [Napi(5)], [], (), wide=False)
    assert own.queues[0].irq == 101
    row = QueueRow(2, "rx", 0, None)
    other = devices.read(sysfs, ROW, [], [row], (), wide=False)
    assert other.queues[0].irq is None


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


def test_writers_by_their_services(tmp_path: Path) -> None:
    groups = "sys/fs/cgroup/system.slice"
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
    assert found == (IrqThread(41, cpus, f"other:{nice}"),)


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


def test_time_for_other_tasks(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    assert hostfiles.unreserved(sysfs, (0, 1)) == ()
    tree(tmp_path, {"proc/sys/kernel/sched_rt_runtime_us": "-1"})
    assert hostfiles.unreserved(sysfs, (0, 1)) == (0, 1)
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
