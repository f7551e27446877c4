# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel sees of a virtual machine: a tap, its vhost worker, and the thread of a vCPU.

Runs in the guest as root: ``vm_stand_in.py TAP CPU`` until it is killed. The vhost worker is the
kernel's own (drivers/vhost/vhost.c); the vCPU is a thread that bears the name which QEMU gives to
its own (qemu_thread_create(), "CPU 0/KVM") and is bound to CPU, as libvirt's <vcpupin> does it.
Numbers: include/uapi/linux/{if_tun,vhost}.h.
"""

import fcntl
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
VHOST_SET_OWNER = 0xAF01


def be_vcpu(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("CPU 0/KVM")
    threading.Event().wait()


def main() -> None:
    name, cpu = sys.argv[1], int(sys.argv[2])
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    worker = os.open("/dev/vhost-net", os.O_RDWR)
    fcntl.ioctl(worker, VHOST_SET_OWNER)
    threading.Thread(target=be_vcpu, args=(cpu,), daemon=True).start()
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    threading.Event().wait()


main()
