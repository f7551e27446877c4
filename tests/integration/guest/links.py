# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces up and down, with more or fewer channels, in another namespace; what they count.

By system calls: to start ip(8) or ethtool(8) takes an emulated debug kernel several times as long
as what they ask of it. All raise OSError as the kernel answers. Needs root. Numbers:
include/uapi/linux/{sockios,if,ethtool,rtnetlink,if_link}.h.
"""

import array
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from napi_contract import CLONE_NEWNET, attr, u32  # type: ignore[import-not-found]

SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCETHTOOL = 0x8913, 0x8914, 0x8946
IFF_UP = 1
ETHTOOL_GCHANNELS, ETHTOOL_SCHANNELS = 0x3C, 0x3D
# struct ethtool_channels: cmd, four maxima, then rx, tx, other and combined.
CHANNELS, CMD, COMBINED = 9, 0, 8
ETHTOOL_GSTRINGS, ETHTOOL_GSTATS, ETHTOOL_GSSET_INFO = 0x1B, 0x1D, 0x37
ETH_SS_STATS, STRING, MOST_STATISTICS = 1, 32, 4096
RTM_NEWLINK, NLM_F_REQUEST, NLM_F_ACK = 16, 1, 4
IFLA_IFNAME, IFLA_NET_NS_FD = 3, 28
NAMESPACES = Path("/run/netns")
OWN = Path("/proc/self/ns/net")


def set_up(name: str, up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        held = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
        flags = struct.unpack_from("H", held, 16)[0] & ~IFF_UP | (IFF_UP if up else 0)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags))


def set_channels(name: str, combined: int) -> None:
    words = array.array("I", [ETHTOOL_GCHANNELS, *[0] * (CHANNELS - 1)])
    request = struct.pack("16sP16x", name.encode(), words.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCETHTOOL, request)
        words[CMD], words[COMBINED] = ETHTOOL_SCHANNELS, combined
        fcntl.ioctl(control, SIOCETHTOOL, request)


def ethtool(control: socket.socket, name: str, command: bytes, room: int) -> bytes:
    """What the kernel made of a command with so many bytes after it."""
    answer = bytearray(command) + bytes(room)
    address = (ctypes.c_char * len(answer)).from_buffer(answer)
    request = struct.pack("16sP16x", name.encode(), ctypes.addressof(address))
    fcntl.ioctl(control, SIOCETHTOOL, request)
    return bytes(answer)


def statistic_names(name: str) -> list[str]:
    """What `ethtool -S` calls the values of statistics()."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("IIQ", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS)
        (count,) = struct.unpack_from("I", ethtool(control, name, asked, 4), 16)
        asked = struct.pack("III", ETHTOOL_GSTRINGS, ETH_SS_STATS, count)
        words = ethtool(control, name, asked, STRING * count)[12:]
    fields = (words[at : at + STRING] for at in range(0, len(words), STRING))
    return [field.split(b"\0")[0].decode() for field in fields]


def statistics(name: str) -> tuple[int, ...]:
    """The kernel tells how many there are, MOST_STATISTICS at most."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("II", ETHTOOL_GSTATS, 0)
        answer = ethtool(control, name, asked, 8 * MOST_STATISTICS)
    (count,) = struct.unpack_from("I", answer, 4)
    return struct.unpack_from(f"{count}Q", answer, 8)


def enter(descriptor: int) -> None:
    """os.setns() exists from Python 3.12 only."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns(CLONE_NEWNET)")


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Sockets that are opened here belong to a namespace that `ip netns add` has made."""
    with OWN.open() as own, (NAMESPACES / namespace).open() as other:
        enter(other.fileno())
        try:
            yield
        finally:
            enter(own.fileno())


def move(name: str, descriptor: int) -> None:
    """From the namespace that the caller is in to the one of the descriptor."""
    body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + attr(IFLA_IFNAME, name.encode() + b"\0")
    body += attr(IFLA_NET_NS_FD, u32(descriptor))
    head = struct.pack("IHHII", 16 + len(body), RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        route.send(head + body)
        code = -struct.unpack_from("i", route.recv(1 << 16), 16)[0]
    if code:
        raise OSError(code, f"{name}: {os.strerror(code)}")


def put(name: str, namespace: str) -> None:
    """Into a namespace that `ip netns add` has made."""
    with (NAMESPACES / namespace).open() as there:
        move(name, there.fileno())


def fetch(name: str, namespace: str) -> None:
    """From there to the one that the caller is in."""
    with OWN.open() as here, inside(namespace):
        move(name, here.fileno())


def names() -> list[str]:
    """Of all interfaces in the namespace that the caller is in, but lo."""
    return [name for _index, name in socket.if_nameindex() if name != "lo"]
