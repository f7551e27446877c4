# SPDX-License-Identifier: GPL-2.0-or-later
"""Run inside the lab's network namespace: switches of a host interface without ethtool(8).

    hostlink.py gro DEV          turn GRO on (a veth end then has a NAPI)
    hostlink.py segment DEV      turn TSO off: the device gets packets of the MTU
    hostlink.py threaded DEV 0|1 poll its NAPIs in threads or not

The namespace's own /sys must be mounted, as `ip netns exec` does. Failures end with one line.
"""

import array
import fcntl
import socket
import struct
import sys
from pathlib import Path

# include/uapi/linux/sockios.h and include/uapi/linux/ethtool.h
SIOCETHTOOL = 0x8946
ETHTOOL_GTSO = 0x0000001E
ETHTOOL_STSO = 0x0000001F
ETHTOOL_GGRO = 0x0000002B
ETHTOOL_SGRO = 0x0000002C


def ethtool_value(device: str, command: int, value: int = 0) -> int:
    """struct ethtool_value {u32 cmd; u32 data} through struct ifreq; returns data. OSError."""
    request = array.array("B", struct.pack("=II", command, value))
    address, _ = request.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        ifreq = struct.pack("16sP", device.encode(), address)
        fcntl.ioctl(control, SIOCETHTOOL, ifreq)
    return int(struct.unpack("=II", request.tobytes())[1])


def turn_on_gro(device: str) -> None:
    ethtool_value(device, ETHTOOL_SGRO, 1)
    if not ethtool_value(device, ETHTOOL_GGRO):
        raise OSError(f"{device}: GRO stays off")


def turn_off_tso(device: str) -> None:
    ethtool_value(device, ETHTOOL_STSO, 0)
    if ethtool_value(device, ETHTOOL_GTSO):
        raise OSError(f"{device}: TSO stays on")


def set_threaded(device: str, value: str) -> None:
    switch = Path("/sys/class/net", device, "threaded")
    switch.write_text(value)
    if switch.read_text().strip() != value:
        raise OSError(f"{device}: threaded stays {switch.read_text().strip()}")


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["gro", device]:
                turn_on_gro(device)
            case ["segment", device]:
                turn_off_tso(device)
            case ["threaded", device, "0" | "1" as value]:
                set_threaded(device, value)
            case _:
                print(
                    "usage: hostlink.py gro DEV | segment DEV | threaded DEV 0|1", file=sys.stderr
                )
                return 2
    except OSError as error:
        print(f"hostlink.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
