#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What one received packet costs; prints the nanoseconds of each round as JSON.

Runs in a guest whose clocks count instructions, as root, and imports nothing of rxlane. The packets
are written to a tun interface with a NAPI of its own (IFF_NAPI): each write hands one over, raises
the softirq and has it polled, before the write returns. They go to a UDP socket that nobody reads.
The same number of writes to /dev/null is taken off, so that what remains is the kernel's.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NAPI, IFF_NO_PI = 0x0001, 0x0010, 0x1000
NAME, HERE, THERE, PORT = "cost0", "10.78.0.1", "10.78.0.2", 6000
ROUNDS, WARM_UP, PACKETS, PAYLOAD = 9, 2, 5000, 64


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet() -> bytes:
    """One IPv4 UDP datagram from the other side, without a UDP checksum."""
    udp = struct.pack("!HHHH", PORT, PORT, 8 + PAYLOAD, 0) + b"x" * PAYLOAD
    addresses = socket.inet_aton(THERE) + socket.inet_aton(HERE)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0)
    head = head[:10] + struct.pack("!H", checksum(head + addresses)) + addresses
    return head + udp


def tun() -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    wanted = struct.pack("16sH22x", NAME.encode(), IFF_TUN | IFF_NAPI | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, wanted)
    subprocess.run(["ip", "address", "add", f"{HERE}/24", "dev", NAME], check=True)
    subprocess.run(["ip", "link", "set", NAME, "up"], check=True)
    return descriptor


def took(descriptor: int, data: bytes) -> int:
    began = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    for _ in range(PACKETS):
        os.write(descriptor, data)
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - began


def received() -> int:
    with open(f"/sys/class/net/{NAME}/statistics/rx_packets", encoding="ascii") as counter:
        return int(counter.read())


def main() -> int:
    device, null, data = tun(), os.open("/dev/null", os.O_WRONLY), packet()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind((HERE, PORT))
        before = received()
        costs = [took(device, data) - took(null, data) for _ in range(ROUNDS)][WARM_UP:]
        counted = received() - before
    if counted < ROUNDS * PACKETS:
        raise SystemExit(f"{NAME}: {counted} packets of {ROUNDS * PACKETS} were received")
    json.dump([cost / PACKETS for cost in costs], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
