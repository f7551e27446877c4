#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What ethtool, ip, sysfs and the lab's reader say of a NIC, at each step of a walk, as JSON.

    tools_agree.py walk NIC [FEWER BACK]    the whole walk; FEWER, BACK: words for `ethtool -L`
    tools_agree.py look NIC                 one look, for the walk itself in another namespace

A walk prints a list of steps: ``step``, its name; ``ran``, the commands with their exit codes and
what they said on standard error; and a look: ``ethtool``, ``ethtool_text``, ``ip`` and ``ip_text``
as the tools print them (JSON decoded, null where the tool failed), ``napis`` and ``queues`` by the
reader /root/reader.py, and ``sysfs``. It ends as it began: all NAPIs in softirq mode.
"""

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, "/root")
reader = __import__("reader")

QUEUE_GET, NLM_F_DUMP = 10, 0x300  # linux/netdev.h, linux/netlink.h
QUEUE = {1: "id", 3: "type", 4: "napi"}  # NETDEV_A_QUEUE_*; 2 is the ifindex
NAMESPACE = "walk"
ALTNAME = "another-name-that-is-long"

Look = dict[str, Any]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def queues(nic: str, family: int) -> list[dict[str, int]]:
    """The queues that the kernel links to NAPIs; ``type`` 0 receives, 1 sends."""
    body = struct.pack("HHI", 8, 2, socket.if_nametoindex(nic))
    replies = reader.dump(family, QUEUE_GET, body, NLM_F_DUMP)
    return [
        {name: int.from_bytes(reply[kind], sys.byteorder) for kind, name in QUEUE.items()}
        for reply in replies
        if reply.keys() >= QUEUE.keys()
    ]


def decoded(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


def look(nic: str, name: str) -> Look:
    """``name`` is the one that the tools are asked for: the NIC's own or an alternative one."""
    family = reader.netdev_family()
    link = ("-d", "-d", "link", "show", "dev", name)
    return {
        "ethtool": decoded(run("ethtool", "--json", "--show-napi", name)),
        "ethtool_text": run("ethtool", "--show-napi", name).stdout,
        "ip": decoded(run("ip", "-j", *link)),
        "ip_text": run("ip", *link).stdout,
        "napis": reader.napis(nic, family),
        "queues": queues(nic, family),
        "sysfs": Path(f"/sys/class/net/{nic}/threaded").read_text().strip(),
    }


def look_inside(nic: str) -> Look:
    """In the namespace by ``ip netns exec``; ip itself by ``ip -n`` as well."""
    done = run("ip", "netns", "exec", NAMESPACE, sys.executable, __file__, "look", nic)
    found: Look = json.loads(done.stdout)
    link = ("-d", "-d", "link", "show", "dev", nic)
    other = decoded(run("ip", "-n", NAMESPACE, "-j", *link))
    return {**found, "ip_n_agrees": napi_part(other) == napi_part(found["ip"])}


def napi_part(link: Any) -> Any:
    """What our patch shows of a link; its state may change from one look to the next."""
    return link and {key: link.get(key) for key in ("threaded", "napis")}


class Walk:
    """One NIC and the steps so far."""

    def __init__(self, nic: str) -> None:
        self.nic = nic
        self.steps: list[dict[str, Any]] = []

    def step(self, name: str, *commands: str, asked: str = "", inside: bool = False) -> None:
        """``commands`` are words separated by blanks; NIC stands for the name."""
        ran = []
        for command in commands:
            argv = [self.nic if word == "NIC" else word for word in command.split()]
            done = run(*argv)
            ran.append({"argv": argv, "rc": done.returncode, "stderr": done.stderr})
        run("udevadm", "settle")
        seen = look_inside(self.nic) if inside else look(self.nic, asked or self.nic)
        self.steps.append({"step": name, "nic": self.nic, "ran": ran, **seen})

    def ids(self) -> list[int]:
        return [napi["id"] for napi in self.steps[-1]["napis"]]

    def modes(self) -> None:
        first, last = self.ids()[0], self.ids()[-1]
        self.step("one polls", f"ethtool --set-napi NIC napi {first} threaded busy-poll "
                  "defer-hard-irqs 3 gro-flush-timeout 5000000000")  # fmt: skip
        self.step("another has a thread", f"ip link set NIC threaded on napi {last}")
        self.step("all back", "ethtool --set-napi NIC all threaded off defer-hard-irqs 0 "
                  "gro-flush-timeout 0")  # fmt: skip
        self.step("device on", "ip link set NIC threaded on")
        self.step("down", "ip link set NIC down")
        self.step("up", "ip link set NIC up")

    def channels(self, fewer: str, back: str) -> None:
        self.step("fewer channels", f"ethtool -L NIC {fewer}")
        self.step("channels back", f"ethtool -L NIC {back}")

    def names(self) -> None:
        old = self.nic
        self.step("altname", f"ip link property add dev NIC altname {ALTNAME}", asked=ALTNAME)
        self.step("altname gone", f"ip link property del dev NIC altname {ALTNAME}")
        run("ip", "link", "set", old, "down")
        run("ip", "link", "set", old, "name", "renamed0")
        self.nic = "renamed0"
        self.step("renamed", "ip link set NIC threaded off up")
        run("ip", "link", "set", self.nic, "down")
        run("ip", "link", "set", self.nic, "name", old)
        self.nic = old
        self.step("name back", "ip link set NIC up")

    def namespace(self) -> None:
        inside = f"ip netns exec {NAMESPACE}"
        run("ip", "netns", "add", NAMESPACE)
        self.step("moved", f"ip link set NIC netns {NAMESPACE}",
                  f"ip -n {NAMESPACE} link set NIC up", inside=True)  # fmt: skip
        self.step("on there", f"ip -n {NAMESPACE} link set NIC threaded on", inside=True)
        self.step("off there", f"{inside} ethtool --set-napi NIC all threaded off", inside=True)
        self.step("on again", f"{inside} ip link set NIC threaded on", inside=True)
        self.step("all off", f"ip -n {NAMESPACE} link set NIC threaded off", inside=True)
        self.step("returned", f"ip -n {NAMESPACE} link set NIC netns 1", "ip link set NIC up")
        run("ip", "netns", "delete", NAMESPACE)


def main() -> int:
    verb, nic, *rest = sys.argv[1:]
    if verb == "look":
        print(json.dumps(look(nic, nic)))
        return 0
    walk = Walk(nic)
    walk.step("found")
    walk.modes()
    if rest:
        walk.channels(*rest)
    walk.names()
    walk.namespace()
    print(json.dumps(walk.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
