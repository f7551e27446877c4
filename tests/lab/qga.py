# SPDX-License-Identifier: GPL-2.0-or-later
"""Client of QEMU's guest agent: commands and files over the guest's virtio-serial port.

The agent in the guest is Debian's qemu-guest-agent; its protocol is JSON, one object a line
(QEMU's docs/interop/qemu-ga-ref). Output comes back as records, never off the console.
"""

import base64
import json
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK = 48 * 1024
# Between two questions whether a command has ended: a part of the time it has taken already. Each
# costs an emulated guest several ms.
POLL_S, POLL_PART, POLL_MOST_S = 0.05, 0.02, 2.0
ANSWER_S = 60.0


class AgentSilent(Exception):
    """The agent did not answer in time, or the channel is closed: the guest is in doubt."""


class AgentError(Exception):
    """The agent answered with an error of its own, e.g. no such file."""


class CommandTimeout(Exception):
    """The guest lives, but a command in it did not end in time."""


@dataclass(frozen=True)
class Completed:
    """What a command in the guest left: exit code (128 + signal when killed) and streams."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str


class Agent:
    """One channel to one guest; not for use by two threads.

    ``patience`` is how many times ANSWER_S an answer may take. Raises AgentSilent while QEMU
    does not listen at ``path``: it makes the socket first, and listens later.
    """

    def __init__(self, path: Path, patience: float = 1) -> None:
        self._answer_s = patience * ANSWER_S
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError) as nobody:
            self._socket.close()
            raise AgentSilent(f"nobody listens at {path}") from nobody
        self._buffer = b""

    def close(self) -> None:
        self._socket.close()

    def sync(self, timeout: float) -> None:
        """Throws away stale answers. Raises AgentSilent while the agent is not up."""
        token = random.randrange(1 << 30)
        self._send({"execute": "guest-sync", "arguments": {"id": token}})
        end = time.monotonic() + timeout
        while True:
            answer = json.loads(self._line(end - time.monotonic()))
            if answer.get("return") == token:
                return

    def call(self, command: str, **arguments: Any) -> Any:
        self._send({"execute": command, "arguments": arguments})
        answer = json.loads(self._line(self._answer_s))
        if "error" in answer:
            raise AgentError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def run(self, argv: list[str], timeout: float, stdin: bytes = b"") -> Completed:
        arguments: dict[str, Any] = {"path": argv[0], "arg": argv[1:], "capture-output": True}
        arguments["env"] = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TERM=dumb",
        ]  # fmt: skip
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        pid = self.call("guest-exec", **arguments)["pid"]
        began = time.monotonic()
        while True:
            status = self.call("guest-exec-status", pid=pid)
            if status["exited"]:
                return _completed(argv, status)
            took = time.monotonic() - began
            if took > timeout:
                raise CommandTimeout(f"`{' '.join(argv)}` did not end within {timeout:.0f} s")
            time.sleep(min(max(POLL_S, POLL_PART * took), POLL_MOST_S))

    def write(self, path: str, data: bytes) -> None:
        handle = self.call("guest-file-open", path=path, mode="w")
        for start in range(0, len(data), CHUNK):
            piece = base64.b64encode(data[start : start + CHUNK]).decode()
            self.call("guest-file-write", handle=handle, **{"buf-b64": piece})
        self.call("guest-file-close", handle=handle)

    def read(self, path: str) -> bytes:
        handle = self.call("guest-file-open", path=path, mode="r")
        data = b""
        while True:
            piece = self.call("guest-file-read", handle=handle, count=CHUNK)
            data += base64.b64decode(piece["buf-b64"])
            if piece["eof"]:
                self.call("guest-file-close", handle=handle)
                return data

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as broken:
            raise AgentSilent(f"the channel to the guest is closed: {broken}") from broken

    def _line(self, timeout: float) -> bytes:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                raise AgentSilent(f"no answer from the guest's agent within {timeout:.0f} s")
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError as broken:
                raise AgentSilent(f"the channel to the guest broke: {broken}") from broken
            if not data:
                raise AgentSilent("the guest closed the channel")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _completed(argv: list[str], status: dict[str, Any]) -> Completed:
    rc = status["exitcode"] if "exitcode" in status else 128 + int(status.get("signal", 0))

    def text(key: str) -> str:
        return base64.b64decode(status.get(key, "")).decode(errors="replace")

    return Completed(tuple(argv), rc, text("out-data"), text("err-data"))
