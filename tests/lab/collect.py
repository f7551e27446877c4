# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs in a guest: packs the part of /sys and /proc that describes lanes into a tar file.

Imports nothing of rxlane. Only files named here are taken, none of which holds an address, a
serial number or a key. Links stay links; modes stay, for they tell which interrupts are managed.
"""

import glob
import io
import os
import sys
import tarfile

CPU = "/sys/devices/system/cpu"
FILES = (
    *(f"{CPU}/{name}" for name in ("online", "present", "possible", "isolated", "nohz_full")),
    *(f"/sys/fs/cgroup/cpuset.cpus.{name}" for name in ("effective", "isolated")),
    f"{CPU}/smt/active",
    f"{CPU}/cpu[0-9]*/cpu_capacity",
    f"{CPU}/cpu[0-9]*/cache/index*/level",
    f"{CPU}/cpu[0-9]*/cache/index*/type",
    f"{CPU}/cpu[0-9]*/cache/index*/shared_cpu_list",
    *(
        f"{CPU}/cpu[0-9]*/topology/{name}"
        for name in ("physical_package_id", "core_id", "thread_siblings_list")
    ),
    "/sys/devices/cpu_core/cpus",
    "/sys/devices/cpu_atom/cpus",
    "/sys/devices/system/node/node[0-9]*/cpulist",
    *(
        f"/sys/class/net/*/{name}"
        for name in ("ifindex", "threaded", "napi_defer_hard_irqs", "gro_flush_timeout", "mtu")
    ),
    "/sys/class/net/*/queues/[rt]x-*/[rx]ps_*",
    "/sys/class/net/*/device/numa_node",
    "/sys/class/net/*/device/../numa_node",
    "/sys/class/net/*/device/msi_irqs/*",
    "/sys/class/net/*/device/../msi_irqs/*",
    "/proc/irq/[0-9]*/smp_affinity_list",
    "/proc/irq/[0-9]*/effective_affinity_list",
    "/proc/irq/[0-9]*/*/threaded",
    "/proc/sys/kernel/timer_migration",
    "/sys/devices/virtual/workqueue/cpumask",
    *(
        f"/proc/sys/net/core/{name}"
        for name in ("rps_sock_flow_entries", "netdev_max_backlog", "busy_read", "busy_poll")
    ),
)
LINKS = (
    "/sys/class/net/*",
    "/sys/class/net/*/device",
    "/sys/class/net/*/device/driver",
    "/sys/class/net/*/device/subsystem",
    "/sys/class/net/*/lower_*",
    # A node's links to its CPUs stay while these are offline.
    "/sys/devices/system/node/node[0-9]*/cpu[0-9]*",
)
FOLDERS = ("/proc/irq/[0-9]*/*/",)  # an interrupt's actions


def inside(path: str) -> str:
    """The path with every link but a last one resolved, as the tar is to hold it."""
    folder, name = os.path.split(path.rstrip("/"))
    return os.path.join(os.path.realpath(folder), name)


def add(tar: tarfile.TarFile, name: str, kind: bytes, mode: int, data: bytes = b"") -> None:
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.type, entry.mode = kind, mode
    if kind == tarfile.SYMTYPE:
        entry.linkname = data.decode()
        data = b""
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def contents(path: str) -> bytes | None:
    """What a reader gets; None where the kernel refuses, as for a device that is down."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def collect(tar: tarfile.TarFile) -> None:
    for pattern in LINKS:
        for path in sorted(glob.glob(pattern)):
            if os.path.islink(path):
                add(tar, inside(path), tarfile.SYMTYPE, 0o777, os.readlink(path).encode())
                add(tar, os.path.realpath(path), tarfile.DIRTYPE, 0o755)
    for pattern in FOLDERS:
        for path in sorted(glob.glob(pattern)):
            add(tar, path, tarfile.DIRTYPE, 0o755)
    names = {inside(path): path for pattern in FILES for path in glob.glob(pattern)}
    for name, path in sorted(names.items()):
        data = contents(path)
        if data is not None:
            add(tar, name, tarfile.REGTYPE, os.stat(path).st_mode & 0o777, data)


if __name__ == "__main__":
    with tarfile.open(sys.argv[1], "w") as made:
        collect(made)
