# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: how a NIC spreads flows (RSS), as `rxlane record` has it, against ethtool.

By virtio_net, which QEMU gives a hash key and a table when it is asked to.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import DEBS, KERNELS, OURS, Host
from lab.machine import GuestSpec
from lab.vm import Guest

pytestmark = pytest.mark.long

QUEUES = 4
# How ethtool calls the fields that it tells of a flow type, and how a recording does.
FIELDS = {"IP SA": "ip-src", "IP DA": "ip-dst", "L4 bytes 0 & 1": "port-src"}


@pytest.fixture(scope="module")
def host(debs: list[Path]) -> Iterator[Host]:
    spec = GuestSpec(cpus=QUEUES, queues=QUEUES, rss=True, share=[DEBS])
    with Guest(KERNELS[OURS](), spec) as vm:
        found = Host(OURS, vm)
        files = [f"/mnt/share/debs/{deb.name}" for deb in debs]
        found.run("apt-get", "install", "-y", *files, timeout=300)
        yield found
        vm.check_splats()


def recorded(host: Host) -> dict[str, Any]:
    links = json.loads(host.run("rxlane", "record").stdout)["links"]
    found: dict[str, Any] = next(link["rss"] for link in links if link["name"] == host.vm.nic)
    return found


def shown(host: Host) -> tuple[list[int], str, str]:
    """Table, digest of the key and hash function by `ethtool -x`."""
    text = host.run("ethtool", "-x", host.vm.nic).stdout
    rows = re.findall(r"^ *\d+:((?: +\d+)+)$", text, re.MULTILINE)
    table = [int(queue) for row in rows for queue in row.split()]
    key = re.search(r"^RSS hash key:\n(\S+)$", text, re.MULTILINE)
    function = re.search(r"^ *(\w+): on$", text, re.MULTILINE)
    assert key and function and table, text
    digest = hashlib.sha256(bytes.fromhex(key[1].replace(":", ""))).hexdigest()
    return table, digest, function[1]


def agree(host: Host) -> dict[str, Any]:
    rss = recorded(host)
    table, digest, function = shown(host)
    assert rss["table"] == table and rss["function"] == function
    assert rss["key"] and digest.startswith(rss["key"])
    return rss


def test_a_recording_says_what_ethtool_says(host: Host) -> None:
    rss = agree(host)
    assert set(rss["table"]) == set(range(QUEUES))
    said = host.run("ethtool", "-n", host.vm.nic, "rx-flow-hash", "tcp4").stdout
    (hashed,) = (one for one in rss["fields"] if one["flow"] == "tcp4")
    print(rss, said)
    for words, name in FIELDS.items():
        assert (words in said) == (name in hashed["fields"])


def test_another_table_is_seen(host: Host) -> None:
    host.run("ethtool", "-X", host.vm.nic, "equal", "2")
    assert set(agree(host)["table"]) == {0, 1}
    host.run("ethtool", "-X", host.vm.nic, "default")
    assert set(agree(host)["table"]) == set(range(QUEUES))
