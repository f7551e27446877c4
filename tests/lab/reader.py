#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The independent reader: every network setting of this host as one JSON object.

Runs in the guest as a script of its own and imports nothing of rxlane, so that it cannot share
its mistakes. Keys are "device/item", "device/queue/item" or "sysctl/name"; values are what the
kernel or ethtool says. NAPI threads are keyed by device and queue order, because NAPI ids and
pids may change. Numbers: include/uapi/linux/netdev.h, include/uapi/linux/genetlink.h.
"""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

NET = Path("/sys/class/net")
NETLINK_GENERIC, NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 16, 1, 0x300, 2, 3
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, NAPI_GET = 16, 3, 11
NAPI = {3: "irq", 5: "defer-hard-irqs", 6: "gro-flush-timeout", 7: "irq-suspend-timeout",
        8: "threaded"}  # fmt: skip
DEVICE_FILES = ("threaded", "napi_defer_hard_irqs", "gro_flush_timeout", "mtu", "tx_queue_len",
                "rx_threads")  # fmt: skip
QUEUE_FILES = ("rps_cpus", "rps_flow_cnt", "xps_cpus", "xps_rxqs")
ETHTOOL = {"channels": "-l", "rings": "-g", "coalescing": "-c", "features": "-k", "rss": "-x"}
POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}

Settings = dict[str, object]


def text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # a file that this device does not offer has no value
        return None


def attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        if size < 4:
            break
        found[kind & 0x3FFF] = data[4:size]
        data = data[(size + 3) & ~3 :]
    return found


def dump(family: int, command: int, body: bytes, flags: int) -> list[dict[int, bytes]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as sock:
        head = struct.pack("IHHIIBBH", 20 + len(body), family, 1 | flags, 1, 0, command, 1, 0)
        sock.send(head + body)
        replies: list[dict[int, bytes]] = []
        while True:
            data = sock.recv(1 << 17)
            while data:
                size, kind = struct.unpack_from("IH", data)
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    return replies
                replies.append(attributes(data[20:size]))
                data = data[(size + 3) & ~3 :]
            if not flags:
                return replies


def netdev_family() -> int | None:
    name = b"netdev\0"
    body = struct.pack("HH", 4 + len(name), 2) + name + b"\0" * (-len(name) % 4)
    replies = dump(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, body, 0)
    return struct.unpack("H", replies[0][1])[0] if replies and 1 in replies[0] else None


def napis(device: str, family: int | None) -> list[dict[str, int]]:
    """The device's NAPIs in ascending id: their attributes, all as integers."""
    if family is None:
        return []
    body = struct.pack("HHI", 8, 1, socket.if_nametoindex(device))
    rows = []
    for reply in dump(family, NAPI_GET, body, NLM_F_DUMP):
        row = {name: int.from_bytes(reply[kind], sys.byteorder)
               for kind, name in NAPI.items() if kind in reply}  # fmt: skip
        row["id"] = int.from_bytes(reply[2], sys.byteorder)
        if 4 in reply:
            row["pid"] = int.from_bytes(reply[4], sys.byteorder)
        rows.append(row)
    return sorted(rows, key=lambda row: row["id"])


def thread(pid: int) -> Settings:
    policy = os.sched_getscheduler(pid)
    return {
        "policy": POLICIES.get(policy & ~os.SCHED_RESET_ON_FORK, "?"),
        "reset_on_fork": bool(policy & os.SCHED_RESET_ON_FORK),
        "priority": os.sched_getparam(pid).sched_priority,
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
        "affinity": sorted(os.sched_getaffinity(pid)),
    }


def rx_thread(folder: Path) -> Settings | None:
    """An rx thread's class and CPUs; a CPU that the kernel chose may be another one next time."""
    pid = int(text(folder / "pid") or 0)
    if not pid:
        return None
    found = thread(pid)
    return found if text(folder / "cpu") == "-1" else found | {"affinity": "kernel"}


def device_settings(device: str, family: int | None) -> Settings:
    here = NET / device
    found: Settings = {}
    for name in DEVICE_FILES:
        found[f"{device}/{name}"] = text(here / name)
    for queue in sorted((here / "queues").glob("*")):
        for name in QUEUE_FILES:
            if (value := text(queue / name)) is not None:
                found[f"{device}/{queue.name}/{name}"] = value
    for folder in sorted((here / "rx_thread").glob("*")):
        found[f"{device}/rx-thread-{folder.name}"] = rx_thread(folder)
    for name, flag in ETHTOOL.items():
        done = subprocess.run(
            ["ethtool", flag, device], capture_output=True, text=True, check=False
        )
        found[f"{device}/{name}"] = done.stdout if done.returncode == 0 else None
    for order, napi in enumerate(napis(device, family)):
        pid = napi.pop("pid", None)
        napi.pop("id")
        found |= {f"{device}/napi-{order}/{name}": number for name, number in napi.items()}
        if pid is not None:
            found[f"{device}/napi-{order}/thread"] = thread(pid)
    return found


def irq_settings() -> Settings:
    found: Settings = {}
    for irq in sorted(Path("/proc/irq").glob("[0-9]*")):
        actions = "+".join(sorted(p.name for p in irq.iterdir() if p.is_dir())) or irq.name
        found[f"irq/{actions}/smp_affinity_list"] = text(irq / "smp_affinity_list")
        for mode in sorted(irq.glob("*/threaded")):
            found[f"irq/{actions}/{mode.parent.name}/threaded"] = text(mode)
    return found


def sysctl_settings() -> Settings:
    files = [*Path("/proc/sys/net/core").glob("*"), Path("/proc/sys/kernel/timer_migration")]
    files += [Path("/proc/sys/kernel/sched_rt_runtime_us")]
    files.append(Path("/sys/devices/virtual/workqueue/cpumask"))
    return {f"sysctl/{path.name}": text(path) for path in sorted(files) if path.is_file()}


def main() -> int:
    family = netdev_family()
    found: Settings = {}
    for device in sorted(os.listdir(NET)):
        if (NET / device).is_dir():
            found.update(device_settings(device, family))
    found.update(irq_settings())
    found.update(sysctl_settings())
    json.dump(found, sys.stdout, indent=1, sort_keys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
