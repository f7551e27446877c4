# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels, rings and coalescing in a guest: virtio_net with pairs of queues, e1000e with none."""

import json

import pytest

from conftest import OURS, Host, differing

LAYOUT = {
    "threaded": "on@1-",
    "thread_cpus": "auto",
    "thread_nice": "-3",
    "defer_hard_irqs": "7",
    "irq_cpus": "auto",
    "xps": "rxqs",
}


def options(**values: str) -> list[str]:
    return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]


def tunables(host: Host, device: str) -> dict[str, int]:
    """What the kernel says, by `rxlane record`."""
    links = json.loads(host.run("rxlane", "record").stdout)["links"]
    own = next(link for link in links if link["name"] == device)
    return {row["item"]: row["value"] for row in own.get("tunables", ())}


def e1000e(host: Host) -> str:
    shown = json.loads(host.run("rxlane", "map", "--json").stdout)["devices"]
    return next(str(one["name"]) for one in shown if one["driver"] == "e1000e")


@pytest.mark.kernels(OURS)
def test_queues_of_virtio_net(guest: Host) -> None:
    """2 of 4 pairs, then all: lanes stand on those that are there, and all comes back."""
    before, nic = guest.settings(), guest.vm.nic
    try:
        for count in ("2", "max"):
            wanted = options(channels=count, **LAYOUT)
            guest.run("rxlane", "apply", nic, *wanted)
            lanes = guest.lanes(nic)
            assert len(lanes) == (2 if count == "2" else 4)
            assert tunables(guest, nic)["channels-combined"] == len(lanes)
            assert [lane["mode"] for lane in lanes[1:]] == ["on"] * (len(lanes) - 1)
            guest.run("rxlane", "verify")
            again = guest.run("rxlane", "apply", nic, *wanted).stdout
            assert again.startswith("0 settings written")
            guest.vm.ping()
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_rings_and_coalescing_of_e1000e(guest: Host) -> None:
    """A ring change resets the link: what was laid out before it stands after it."""
    before, nic = guest.settings(), e1000e(guest)
    wanted = options(ring_rx="512", rx_usecs="0", threaded="on", irq_cpus="auto", channels="1")
    try:
        done = guest.run("rxlane", "apply", nic, *wanted)
        assert "channels unsupported" in done.stderr
        found = tunables(guest, nic)
        assert (found["ring-rx"], found["rx-usecs"]) == (512, 0)
        assert guest.lanes(nic)[0]["mode"] == "on"
        guest.run("rxlane", "verify")
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_new_queues_under_a_login_are_refused(guest: Host) -> None:
    """The login is made up; the route to its address is the lab's own network."""
    login = ["env", "SSH_CONNECTION=10.77.0.1 50000 10.77.0.2 22"]
    script = 'rxlane apply "$0" -o channels=2; exit $?'
    done = guest.run(*login, "sh", "-c", script, guest.vm.nic, check=False)
    assert done.rc == 2 and "somebody is logged in over this device" in done.stderr
    assert tunables(guest, guest.vm.nic)["channels-combined"] == 4
