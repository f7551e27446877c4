# SPDX-License-Identifier: GPL-2.0-or-later
"""The patched ``ethtool`` on the guests' NICs: queues, interrupts, busy-poll, older kernels."""

import json
from typing import Any

import ethtool_tool as tool
import pytest
from test_profile import differing

from conftest import DEBIAN_612, OURS, STOCK_72, Host

QUEUES = 4


def ethtool(guest: Host, *words: str, check: bool = True) -> Any:
    return guest.run("/root/ethtool", *words, check=check)


@pytest.fixture
def nic(guest: Host) -> str:
    """The guest's multi-queue NIC; the binary is in /root."""
    guest.vm.put(tool.ethtool(), "/root/ethtool", 0o755)
    return guest.vm.nic


@pytest.mark.kernels(OURS, STOCK_72)
def test_one_queue_busy_polls(guest: Host, nic: str) -> None:
    before = guest.settings()
    ethtool(guest, "--set-napi", nic, "queue", "1", "threaded", "busy-poll",
            "defer-hard-irqs", "7")  # fmt: skip
    try:
        (device,) = json.loads(ethtool(guest, "--json", "--show-napi", nic).stdout)
        napis = [napi for napi in device["napis"] if "rx-queues" in napi]
        lanes = guest.lanes(nic)
        assert [napi["rx-queues"] for napi in napis] == [[queue] for queue in range(QUEUES)]
        assert [napi["threaded"] for napi in napis] == ["off", "busy-poll", "off", "off"]
        assert [napi["defer-hard-irqs"] for napi in napis] == [0, 7, 0, 0]
        for key in ("pid", "defer-hard-irqs"):
            assert [napi.get(key) for napi in napis] == [lane.get(key) for lane in lanes]
        if guest.kernel == OURS:
            assert [napi["irq"] for napi in napis] == [lane["irq"] for lane in lanes]
        text = ethtool(guest, "--show-napi", nic, "queue", "1").stdout
        assert f"\tPID:\t\t\t{napis[1]['pid']}\n" in text
    finally:
        ethtool(guest, "--set-napi", nic, "all", "threaded", "off", "defer-hard-irqs", "0")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(DEBIAN_612)
def test_words_on_a_kernel_without_napi_set(guest: Host, nic: str) -> None:
    done = ethtool(guest, "--set-napi", nic, "all", "threaded", "on", check=False)
    assert (done.rc, done.stdout) == (1, "")
    assert done.stderr == "ethtool (--set-napi): kernel does not support NAPI_SET\n"
    assert "Threaded:\t\tn/a\n" in ethtool(guest, "--show-napi", nic).stdout
