# SPDX-License-Identifier: GPL-2.0-or-later
"""Every device type of the lab in one guest."""

import json

from conftest import Host
from lab.rootfs import NICS

QUEUES = 4
# igb takes a receive queue a CPU, at most 8; from 5 on a vector and a NAPI serve a pair of queues.
IGB_PAIRED = 8
NETDEVSIM = "/sys/bus/netdevsim"


def make_devices(host: Host) -> dict[str, str]:
    """{type: name} of every device; those that no emulated hardware brings are made here."""
    host.vm.put(f"1 1 {QUEUES}".encode(), f"{NETDEVSIM}/new_device")
    many = ("numrxqueues", str(QUEUES), "numtxqueues", str(QUEUES))
    host.run("ip", "link", "add", "veth0", *many, "type", "veth", "peer", "name", "veth1", *many)
    host.run("ethtool", "-K", "veth0", "gro", "on")
    host.run("udevadm", "settle")
    names = {"veth": "veth0"}
    names["netdevsim"] = host.run("ls", f"{NETDEVSIM}/devices/netdevsim1/net").stdout.strip()
    for name in ("veth0", "veth1", names["netdevsim"]):
        host.run("ip", "link", "set", name, "up")
    of_mac = {mac: kind for kind, (mac, _address) in NICS.items()}
    for link in json.loads(host.run("ip", "-json", "link").stdout):
        if link["address"] in of_mac:
            names[of_mac[link["address"]]] = link["ifname"]
    if "igb" in names:
        host.run("ethtool", "-L", names["igb"], "combined", str(IGB_PAIRED))
    return names
