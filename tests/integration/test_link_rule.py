# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: interfaces laid out by a rule of udev on systemd 252, Debian 12's.

The rule is that of rxlane.link(7), with the driver of the guest's NIC.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from linked import Linked
from manuals import LINK, blocks

from conftest import DEBS, KERNELS, OURS, READER, Host
from lab.machine import GuestSpec
from lab.rootfs import OLDER_SUITE
from lab.vm import Guest

pytestmark = pytest.mark.long

RULES = "/etc/udev/rules.d/70-lanes.rules"
# The TuneD that is there is older than our plugins.
PACKAGES = ("python3-rxlane", "rxlane")


@pytest.fixture(scope="module")
def older(debs: list[Path]) -> Iterator[Linked]:
    spec = GuestSpec(cpus=4, queues=4, suite=OLDER_SUITE, share=[DEBS])
    with Guest(KERNELS[OURS](), spec) as vm:
        host = Host(OURS, vm)
        vm.put(READER, "/root/reader.py")
        host.run("systemctl", "disable", "--now", "irqbalance", "tuned")
        before = host.settings()
        files = [
            f"/mnt/share/debs/{deb.name}" for deb in debs if deb.name.split("_")[0] in PACKAGES
        ]
        host.run("apt-get", "install", "-y", *files, timeout=300)
        rule = blocks(LINK)[1]
        assert 'DRIVERS=="ixgbe"' in rule
        vm.put(rule.replace("ixgbe", "virtio_net").encode(), RULES)
        host.run("sync")
        vm.power_cut()
        try:
            yield Linked(host, vm.nic, vm.nic, before)
        finally:
            print(host.run("journalctl", "--no-pager", "-b", "-u", "rxlane-link@*").stdout)
            vm.check_splats()


def test_a_rule_does_what_a_link_file_does(older: Linked) -> None:
    """After a cold boot, kept over down and up, and given back once the rule is gone."""
    assert " 252 " in older.host.run("systemctl", "--version").stdout
    assert older.until(lambda: older.threaded(older.nic) == 4)
    laid_out = older.own(older.nic)
    older.host.run("sh", "-c", f"ip link set {older.nic} down; ip link set {older.nic} up")
    assert older.stands(laid_out)
    unit = older.unit(older.nic)
    assert older.property(unit, "ActiveState") == "active"
    log = older.host.run("journalctl", "--no-pager", "-b", "-o", "cat", "_PID=1").stdout
    assert "rxlane" not in "".join(row for row in log.splitlines() if "Unknown" in row), log

    older.host.run("rm", RULES)
    trigger = (
        f"udevadm control --reload; udevadm trigger --settle -c add /sys/class/net/{older.nic}"
    )
    older.host.run("sh", "-c", trigger)
    assert older.stands(older.own(older.nic, older.before))
    assert older.until(lambda: older.property(unit, "ActiveState") == "inactive")
