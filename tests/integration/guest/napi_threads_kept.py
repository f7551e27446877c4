#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Stop and start the threads of NAPIs in every way; print as JSON how each was scheduled then.

Runs in the guest as root, beside napi_contract.py, and imports nothing of rxlane. Argument: a
network interface whose driver keeps its NAPIs while it is down, as virtio_net does. A thread is
described by [policy, priority, nice, CPUs], where the CPUs are those that are online.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from napi_contract import A_ID, A_PID, A_THREADED, Netdev, attr, u32  # type: ignore[import-not-found]

NSIM_ID = 78
OFF, ON, BUSY = 0, 1, 2
# Seconds that networkd may take to give the interface its address anew after a link change.
REACHED_S = 60
# Of so many threads, with a kernel that looks first and asks after that, 4 to 6 were moved on a
# calm machine, and 126 and 190 on a busy one.
PINNED_ANEW = 400
# Seconds in which a new thread has run for the first time, and claimed what the last one had.
BEGUN_S = 0.01

Scheduling = list[int | list[int]]


def scheduling_of(pid: int) -> Scheduling:
    return [
        os.sched_getscheduler(pid),
        os.sched_getparam(pid).sched_priority,
        os.getpriority(os.PRIO_PROCESS, pid),
        sorted(os.sched_getaffinity(pid)),
    ]


class Lane:
    """One NAPI of an interface: its lowest ID, which is that of the first receive queue."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.netdev = Netdev()

    def _napi(self) -> dict[int, bytes]:
        napis: list[dict[int, bytes]] = self.netdev.napis(socket.if_nametoindex(self.device))
        return napis[-1]

    def mode(self, mode: int) -> None:
        napi_id = struct.unpack("I", self._napi()[A_ID])[0]
        answer = self.netdev.napi_set(attr(A_ID, u32(napi_id)) + attr(A_THREADED, u32(mode)))
        if answer["errno"]:
            raise SystemExit(f"{self.device}: threaded={mode} was answered {answer}")

    def pid(self) -> int:
        napi = self._napi()
        if A_PID not in napi:
            raise SystemExit(f"{self.device}: the NAPI has no thread: {napi}")
        pid: int = struct.unpack("I", napi[A_PID])[0]
        return pid

    def scheduling(self) -> Scheduling:
        return scheduling_of(self.pid())

    def give(self, policy: int, priority: int, nice: int, cpu: int) -> None:
        pid = self.pid()
        os.sched_setaffinity(pid, {cpu})
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        os.sched_setscheduler(pid, policy, os.sched_param(priority))

    def link(self, state: str) -> None:
        subprocess.run(["ip", "link", "set", self.device, state], check=True)


def stops_and_starts(lane: Lane) -> dict[str, Scheduling]:
    """How the thread is scheduled after each way to end it and have another."""
    seen = {"given": lane.scheduling()}
    first = lane.pid()
    lane.mode(OFF)
    lane.mode(ON)
    if lane.pid() == first:
        raise SystemExit(f"{lane.device}: thread {first} outlived threaded=0")
    seen["off, on"] = lane.scheduling()
    lane.mode(BUSY)
    seen["on, busy-poll"] = lane.scheduling()
    lane.mode(OFF)
    lane.mode(BUSY)
    seen["off, busy-poll"] = lane.scheduling()
    lane.link("down")
    lane.link("up")
    seen["down, up"] = lane.scheduling()
    sysfs = Path(f"/sys/class/net/{lane.device}/threaded")
    sysfs.write_text("0")
    sysfs.write_text("1")
    seen["sysfs 0, 1"] = lane.scheduling()
    sysfs.write_text("0")
    lane.link("down")
    lane.link("up")
    lane.mode(ON)
    seen["off, down, up, on"] = lane.scheduling()
    return seen


def kept(lane: Lane, cpu: int) -> dict[str, dict[str, Scheduling]]:
    """stops_and_starts() for some policies; the last one gives the defaults back."""
    seen = {}
    for name, policy, priority, nice in (
        ("batch", os.SCHED_BATCH, 0, -7),
        ("fifo", os.SCHED_FIFO, 40, 0),
        ("other", os.SCHED_OTHER, 0, 0),
    ):
        lane.mode(ON)
        lane.give(policy, priority, nice, cpu)
        seen[name] = stops_and_starts(lane)
        lane.mode(OFF)
    lane.mode(ON)
    os.sched_setaffinity(lane.pid(), range(os.cpu_count() or 1))
    lane.mode(OFF)
    return seen


def overridden(lane: Lane) -> int:
    """How many of PINNED_ANEW new threads are not where they were pinned as soon as they existed.

    Each starts with the CPU of the one before it, and is pinned to the other one of two.
    """
    elsewhere = 0
    lane.mode(ON)
    for number in range(PINNED_ANEW):
        cpu = number % 2
        lane.mode(OFF)
        lane.mode(ON)
        pid = lane.pid()
        os.sched_setaffinity(pid, {cpu})
        time.sleep(BEGUN_S)
        elsewhere += os.sched_getaffinity(pid) != {cpu}
    os.sched_setaffinity(lane.pid(), range(os.cpu_count() or 1))
    lane.mode(OFF)
    return elsewhere


def online(cpu: int, state: bool) -> None:
    Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(int(state)))


def traffic() -> None:
    """Packets that wake the thread of the first queue, and in busy-poll mode have it begin.

    The answers come in by the queue that the requests left by, which CPU 0 has the first of.
    """
    ping = ["ping", "-q", "-c", "3", "-i", "0.2", "-W", "5", "10.77.0.1"]
    end = time.monotonic() + REACHED_S
    while True:
        late = time.monotonic() > end
        done = subprocess.run(["taskset", "-c", "0", *ping], check=late, capture_output=True)
        if done.returncode == 0:
            return
        time.sleep(0.5)


def hotplug(lane: Lane, cpu: int) -> dict[str, Scheduling]:
    """A FIFO poller whose only CPU goes and comes back, polling and sleeping."""
    seen = {}
    for name, mode in (("busy-poll", BUSY), ("on", ON)):
        lane.mode(mode)
        lane.give(os.SCHED_FIFO, 40, 0, cpu)
        traffic()
        online(cpu, False)
        seen[f"{name}, offline"] = lane.scheduling()
        traffic()
        seen[f"{name}, offline, traffic"] = lane.scheduling()
        online(cpu, True)
        seen[f"{name}, online"] = lane.scheduling()
        traffic()
        online(cpu, False)
        lane.mode(OFF)
        lane.mode(mode)
        seen[f"{name}, offline, off, {name}"] = lane.scheduling()
        online(cpu, True)
        seen[f"{name}, online again"] = lane.scheduling()
        os.sched_setscheduler(lane.pid(), os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(lane.pid(), range(os.cpu_count() or 1))
        lane.mode(OFF)
    return seen


@contextmanager
def netdevsim() -> Iterator[str]:
    """A netdevsim interface that is up. Its driver adds new NAPIs each time it goes up."""
    Path("/sys/bus/netdevsim/new_device").write_text(f"{NSIM_ID} 1 2")
    try:
        subprocess.run(["udevadm", "settle"], check=True)
        name = next(Path(f"/sys/bus/netdevsim/devices/netdevsim{NSIM_ID}/net").iterdir()).name
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield name
    finally:
        Path("/sys/bus/netdevsim/del_device").write_text(str(NSIM_ID))


def main() -> int:
    real, cpu = sys.argv[1], (os.cpu_count() or 1) - 1
    lane = Lane(real)
    began = time.monotonic()
    try:
        with netdevsim() as simulated:
            seen: dict[str, object] = {
                "cpu": cpu,
                "netdevsim": kept(Lane(simulated), cpu),
                real: kept(lane, cpu),
                "hotplug": hotplug(lane, cpu),
                "overridden": overridden(lane),
            }
    finally:
        # A real-time poller left behind would take its CPU from all that comes after.
        lane.mode(OFF)
        online(cpu, True)
    seen["seconds"] = round(time.monotonic() - began, 1)
    json.dump(seen, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
