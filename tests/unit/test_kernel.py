# SPDX-License-Identifier: GPL-2.0-or-later
"""What is written to which file, on a tree of files in place of /proc and /sys."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rxlane.errors import Kind, RxlaneError
from rxlane.kernel import Linux
from rxlane.sysfs import Sysfs
from unit import simhost

QUEUES = "sys/class/net/eth0/queues"
FILES = {
    "sys/class/net/eth0/ifindex": "2\n",
    f"{QUEUES}/rx-1/rps_cpus": "0\n",
    f"{QUEUES}/rx-1/rps_flow_cnt": "0\n",
    f"{QUEUES}/tx-1/xps_cpus": "0\n",
    f"{QUEUES}/tx-1/xps_rxqs": "0\n",
    "proc/irq/41/smp_affinity_list": "0-3\n",
    "proc/sys/net/core/busy_read": "0\n",
}


@pytest.fixture
def linux(tmp_path: Path) -> Linux:
    """A Linux without sockets: only its files are used here."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = Linux.__new__(Linux)
    found._sysfs = Sysfs(tmp_path)
    return found


def held(linux: Linux, name: str) -> str | None:
    # The kernel's files take one write whole; on a disk the old end stays behind it.
    text = linux._sysfs.read(name)
    return None if text is None else text.split("\n")[0]


def test_queue_files(linux: Linux) -> None:
    steering: dict[str, int | str] = {"rps-cpus": "2-3,33", "rps-flow-cnt": 4096}
    values = steering | {"xps-cpus": "off", "xps-rxqs": "1"}
    linux.write_queue(simhost.link(), 1, values)
    assert held(linux, f"{QUEUES}/rx-1/rps_cpus") == "00000002,0000000c"
    assert held(linux, f"{QUEUES}/rx-1/rps_flow_cnt") == "4096"
    assert held(linux, f"{QUEUES}/tx-1/xps_cpus") == "0"
    assert held(linux, f"{QUEUES}/tx-1/xps_rxqs") == "2"


def test_host_and_interrupt_files(linux: Linux) -> None:
    linux.write_sysctl("net.core.busy_read", 5)
    linux.write_irq(41, "1,3")
    assert held(linux, "proc/sys/net/core/busy_read") == "5"
    assert held(linux, "proc/irq/41/smp_affinity_list") == "1,3"


def test_a_device_that_took_the_name_is_left_alone(linux: Linux) -> None:
    with pytest.raises(RxlaneError) as caught:
        linux.write_queue(simhost.link(ifindex=7), 1, {"rps-cpus": "1"})
    assert caught.value.kind is Kind.NO_DEVICE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EPERM, Kind.UNMOVABLE),  # 6.12 and later
        (errno.EIO, Kind.UNMOVABLE),  # before
        (errno.EROFS, Kind.UNMOVABLE),  # in a container
        (errno.EINVAL, Kind.KERNEL),
        (errno.ENOSPC, Kind.KERNEL),  # no vector is free on those CPUs
    ],
)
def test_refused_interrupts(
    linux: Linux, monkeypatch: pytest.MonkeyPatch, code: int, kind: Kind
) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(RxlaneError) as caught:
        linux.write_irq(41, "1")
    assert caught.value.kind is kind and "41" in str(caught.value)


def test_an_interrupt_that_went_away(linux: Linux) -> None:
    with pytest.raises(RxlaneError) as caught:
        linux.write_irq(99, "1")
    assert caught.value.kind.unsupported and "99" in str(caught.value)
