# SPDX-License-Identifier: GPL-2.0-or-later
"""Read what is one for the whole host: sysctls, other programs, limits, whether it is virtual."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rxlane.host import places, slices
from rxlane.items import SYSCTL_ITEMS
from rxlane.model import IRQBALANCE, WRITERS, Capabilities, Sysctl
from rxlane.sysfs import Sysfs

FAIR_SERVER = "sys/kernel/debug/sched/fair_server"


def notes(sysfs: Sysfs, known: Capabilities) -> tuple[str, ...]:
    """Say what cannot be told of this host, for people."""
    found = []
    if not known.netdev:
        found.append("kernel has no netdev netlink family")
    if not sysfs.exists("sys/class/net"):
        found.append("/sys is not mounted: drivers, CPUs and steering of devices are not known")
    return tuple(found)


def sysctls(sysfs: Sysfs) -> tuple[Sysctl, ...]:
    """Return those of SYSCTL_ITEMS that this kernel and network namespace have."""
    found = ((name, sysfs.number(places.of_host(name))) for name in SYSCTL_ITEMS)
    return tuple(Sysctl(name, value) for name, value in found if value is not None)


def writers(sysfs: Sysfs) -> tuple[str, ...]:
    """Return the programs of model.WRITERS that run, by the control group of their service.

    irqbalance also by its socket, which is named after its pid (irqbalance.c): it may have been
    started by hand.
    """
    services = slices.folder(sysfs, slices.SYSTEM)
    groups = ((name, f"{services}/{name}.service/cgroup.procs") for name in WRITERS)
    found = {name for name, file in groups if sysfs.read(file)}
    for name in sysfs.names("run/irqbalance"):
        match = re.fullmatch(r"irqbalance(\d+)\.sock", name)
        if match and runs(sysfs, int(match[1]), IRQBALANCE):
            found.add(IRQBALANCE)
    return tuple(name for name in WRITERS if name in found)


def runs(sysfs: Sysfs, pid: int | None, name: str) -> bool:
    """True when the process has this name."""
    return pid is not None and sysfs.read(f"proc/{pid}/comm") == name


def virtual(sysfs: Sysfs) -> bool:
    """True in a virtual machine: the CPU says so on x86, the device tree or firmware elsewhere."""
    flags = re.search(r"^flags\s*:(.*)$", sysfs.start("proc/cpuinfo"), re.M)
    if flags is not None:
        return "hypervisor" in flags[1].split()
    if sysfs.exists("sys/firmware/devicetree/base/hypervisor"):
        return True
    said = {name: sysfs.read(f"sys/class/dmi/id/{name}") or "" for name in FIRMWARE}
    return METAL not in said["product_name"] and any(
        text.startswith(MACHINES) for text in said.values()
    )


# What the firmware of virtual machines says, as systemd-detect-virt(1) knows it.
FIRMWARE = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")
MACHINES = (
    *("QEMU", "KVM", "OpenStack", "KubeVirt", "Amazon EC2", "Google Compute Engine", "Hyper-V"),
    *("VMware", "VMW", "VirtualBox", "innotek GmbH", "Xen", "Bochs", "Parallels", "BHYVE"),
    "Apple Virtualization",
)
METAL = ".metal"  # of Amazon's machines that are none


def unreserved(sysfs: Sysfs, online: Sequence[int]) -> tuple[int, ...]:
    """Return the CPUs where a real-time thread that never sleeps starves all others.

    From 6.12 on the fair server of each CPU keeps time for them, before that the real-time limit
    did. debugfs is root's; without it the limit speaks for both.
    """
    if sysfs.folders(FAIR_SERVER):
        off = (n for n in online if sysfs.number(f"{FAIR_SERVER}/cpu{n}/runtime") == 0)
        return tuple(off)
    limit, period = (
        sysfs.number(f"proc/sys/kernel/sched_rt_{name}_us") for name in ("runtime", "period")
    )
    # As much as the period is no limit either (sched_rt_runtime_exceeded()).
    none = limit is not None and (limit == -1 or (period is not None and limit >= period))
    return tuple(online) if none else ()
