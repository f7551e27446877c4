# SPDX-License-Identifier: GPL-2.0-or-later
"""How the queues, NAPIs and interrupts of one device are joined, and what it stands upon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rxlane.host import devices
from rxlane.model import Link, Napi
from rxlane.sysfs import Sysfs
from rxlane.wire.netdev import QueueRow
from rxlane.wire.rtnetlink import LinkRow
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
        ("ens1-Rx3", ("rx", 3)),
        ("eth0:rx-1", ("rx", 1)),
        ("eth0:tx-1", ("tx", 1)),
        ("wanrx0", None),
        ("dcomp1", None),
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


def test_the_vector_for_a_nics_link_is_no_queues(tmp_path: Path) -> None:
    """igb calls it as the interface is called, whatever that is."""
    own = tmp_path / "sys/class/net/rx0/device/msi_irqs"
    own.mkdir(parents=True)
    for number, action in ((40, "rx0"), (41, "rx0-TxRx-0"), (42, "rx0-TxRx-1")):
        (own / str(number)).touch()
        (tmp_path / f"proc/irq/{number}/{action}").mkdir(parents=True)
    assert devices._device_irqs(Sysfs(tmp_path), "rx0") == {("rx", 0): [41], ("rx", 1): [42]}


def test_a_subfunction_has_none_of_its_parents_vectors(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {"sys/pci/msi_irqs/41": "msix"})
    (tmp_path / "proc/irq/41/mlx5_comp0@pci:0000:03:00.0").mkdir(parents=True)
    (tmp_path / "sys/bus/auxiliary").mkdir(parents=True)
    (tmp_path / "sys/class/net/sf0").mkdir(parents=True)
    (tmp_path / "sys/pci/mlx5_core.sf.4").mkdir()
    (tmp_path / "sys/class/net/sf0/device").symlink_to(tmp_path / "sys/pci/mlx5_core.sf.4")
    assert devices._device_irqs(sysfs, "sf0") == {("rx", 0): [41]}
    (tmp_path / "sys/pci/mlx5_core.sf.4/subsystem").symlink_to(tmp_path / "sys/bus/auxiliary")
    assert devices._device_irqs(sysfs, "sf0") == {}


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
