# SPDX-License-Identifier: GPL-2.0-or-later
"""The only opener of the ethtool ioctl, for what netlink lacks or only newer kernels have there."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from rxlane import uapi as u


class Asking:
    """A socket to ask network drivers by."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._roomy = array.array("B")  # kept, since as many bytes are cleared for a new one

    def close(self) -> None:
        self._socket.close()

    def ask(self, device: str, request: bytes, room: int = 0) -> bytes | None:
        """Make one SIOCETHTOOL; None when the device or its driver does not have it.

        Returns as many bytes as the request has. room: how many the kernel may write at most, where
        it does so without regard to the request.
        """
        buffer = array.array("B", request) if room <= len(request) else self._with(request, room)
        name = device.encode()[: u.IFNAMSIZ - 1].ljust(u.IFNAMSIZ, b"\0")
        ifreq = struct.pack("16sP", name, buffer.buffer_info()[0]).ljust(40, b"\0")
        try:
            fcntl.ioctl(self._socket, u.SIOCETHTOOL, ifreq)
        except OSError:
            return None
        return buffer[: len(request)].tobytes()

    def _with(self, request: bytes, room: int) -> array.array[int]:
        if len(self._roomy) < room:
            self._roomy = array.array("B", bytes(room))
        self._roomy[: len(request)] = array.array("B", request)
        return self._roomy
