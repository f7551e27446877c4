#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Receives numbered datagrams, each flow on a CPU of its own choosing; prints JSON of what came.

    flows.py HOST FIRST_PORT FLOWS SECONDS

An application process is bound to each CPU and has the flows whose number leaves that remainder.
For each datagram the kernel is asked on which CPU it was processed (SO_INCOMING_CPU), and its
number is compared with the one before; "on" has the datagrams by that CPU. Sockets are connected:
RFS learns where a flow's application runs from such.
"""

import json
import os
import selectors
import socket
import sys
import time
from collections import Counter

SO_INCOMING_CPU = 49  # include/uapi/asm-generic/socket.h
PORT_OF_SENDER = 20000  # and upwards, one for each flow


def receive(
    cpu: int, host: str, ports: list[int], first: int, seconds: float
) -> dict[str, Counter[str]]:
    os.sched_setaffinity(0, {cpu})
    selector = selectors.DefaultSelector()
    for port in ports:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("0.0.0.0", port))
        sock.connect((host, PORT_OF_SENDER + port - first))
        selector.register(sock, selectors.EVENT_READ, [0])
    found: Counter[str] = Counter(packets=0, here=0, late=0, lost=0)
    on: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            number = int.from_bytes(ready.recv(64)[:8], "big")
            found["packets"] += 1
            at = ready.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU)
            on[str(at)] += 1
            found["here"] += at == cpu
            last = key.data[0] or number - 1  # the sender was there first
            if number <= last:
                found["late"] += 1
            else:
                found["lost"] += number - last - 1
                key.data[0] = number
    return {"all": found, "on": on}


def main() -> int:
    host, first, flows, seconds = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]),
    )
    cpus = sorted(os.sched_getaffinity(0))
    readers = []
    for turn, cpu in enumerate(cpus):
        reader, writer = os.pipe()
        if not os.fork():
            ports = [first + n for n in range(flows) if n % len(cpus) == turn]
            os.write(writer, json.dumps(receive(cpu, host, ports, first, seconds)).encode())
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    rows = [json.loads(os.read(reader, 4096)) for reader in readers]
    on: Counter[str] = Counter()
    for row in rows:
        on.update(row["on"])
    counts = [row["all"] for row in rows]
    told = {name: sum(one[name] for one in counts) for name in counts[0]}
    print(json.dumps({"cpus": len(cpus), "on": on} | told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
