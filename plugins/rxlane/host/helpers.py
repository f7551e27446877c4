# SPDX-License-Identifier: GPL-2.0-or-later
"""A device's rx threads in sysfs: /sys/class/net/DEV/rx_threads and rx_thread/K/.

The files are of our kernel series (kernel-patches, "RX flow separation"); a kernel without them has
no rx_threads, which reads as None. A device is one file to look for.
"""

from __future__ import annotations

import errno
from dataclasses import fields, replace

from rxlane.errors import RxlaneError, code_of
from rxlane.host import places, threads
from rxlane.items import RX_THREADS
from rxlane.model import Handled, Helper, Link
from rxlane.sysfs import Sysfs

COUNTERS = tuple(field.name for field in fields(Handled))


def with_helpers(sysfs: Sysfs, link: Link, counted: bool = False) -> Link:
    """Return the link with its rx threads. counted: with what they have handled, too."""
    count = sysfs.number(places.of_device(link.name, RX_THREADS))
    own = tuple(_helper(sysfs, link.name, number, counted) for number in range(count or 0))
    return replace(link, rx_threads=count, helpers=own)


def _helper(sysfs: Sysfs, device: str, number: int, counted: bool) -> Helper:
    base = f"sys/class/net/{device}/rx_thread/{number}"
    pid, cpu = sysfs.number(f"{base}/pid"), sysfs.number(f"{base}/cpu")
    return Helper(
        number,
        # 0 where the thread is in none of the reader's pid namespaces.
        threads.read(sysfs, pid, threads.RX) if pid else None,
        None if cpu is None or cpu < 0 else cpu,
        handled(sysfs, device, number) if counted else None,
    )


def handled(sysfs: Sysfs, device: str, number: int) -> Handled:
    """Return an rx thread's counters; None for each that the kernel does not report."""
    base = f"sys/class/net/{device}/rx_thread/{number}"
    return Handled(**{name: sysfs.number(f"{base}/{name}") for name in COUNTERS})


def write_count(sysfs: Sysfs, device: str, count: int) -> None:
    """Set how many rx threads a device has; KERNEL or UNSUPPORTED with what helps."""
    try:
        sysfs.write(places.of_device(device, RX_THREADS), str(count))
    except RxlaneError as error:
        error.remedy = _REMEDIES.get(code_of(error) or 0)
        raise


def explain_busy(error: RxlaneError, device: str) -> None:
    """Say what EBUSY of a device's RPS and RFS files means."""
    if code_of(error) == errno.EBUSY:
        count = places.of_device(device, RX_THREADS)
        error.remedy = f"write 0 to /{count} first: rx threads exclude RPS and RFS"


# What each error of the count's file means (rx_threads_store() of our kernel series).
_REMEDIES = {
    errno.EBUSY: "switch RPS and RFS of each of the device's receive queues off first",
    errno.ERANGE: "give at most as many threads as CPUs are online",
    errno.EPERM: "it takes CAP_NET_ADMIN in the initial user namespace",
    errno.ENOMEM: "there is not enough memory for so many threads: give fewer",
}
