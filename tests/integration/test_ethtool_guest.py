# SPDX-License-Identifier: GPL-2.0-or-later
"""The patched ``ethtool`` on the guests' NICs: queues, interrupts, busy-poll, older kernels."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import DEBIAN_612, OURS, STOCK_72, Host, differing

QUEUES = 4


def ethtool(guest: Host, *words: str, check: bool = True) -> Any:
    return guest.run("ethtool", *words, check=check)


@pytest.fixture
def nic(guest: Host) -> str:
    """The guest's multi-queue NIC."""
    return guest.vm.nic


def test_the_patched_packages_are_installed(guest: Host, tool_debs: list[Path]) -> None:
    """Their versions are above Debian's, so apt took them without being told to go back."""
    shown = guest.run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", "ethtool", "iproute2")
    installed = [line.split() for line in shown.stdout.splitlines()]
    # A file's name has the version without its epoch.
    assert [f"{name}_{version.rpartition(':')[2]}_amd64.deb" for name, version in installed] == [
        deb.name for deb in tool_debs
    ]
    assert guest.run("dpkg", "--verify", "ethtool", "iproute2").stdout == ""


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
