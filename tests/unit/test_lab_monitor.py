# SPDX-License-Identifier: GPL-2.0-or-later
"""What is said to QEMU's monitor and made of its answers, by a stand-in that answers."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import monitor
from lab.monitor import MonitorRefused, answer

EVENT = '{"event": "STOP", "timestamp": {}}\n'
NO = '{"error": {"class": "GenericError", "desc": "no"}}\n'
DONE = '{"return": {}}\n'


def test_answers() -> None:
    assert answer(iter([EVENT, '{"return": [1]}\n']), "stop") == [1]
    with pytest.raises(MonitorRefused, match="stop: no"):
        answer(iter([NO]), "stop")
    with pytest.raises(MonitorRefused, match="ended"):
        answer(iter([EVENT]), "stop")


@contextmanager
def answering(folder: Path, *replies: str) -> Iterator[list[dict[str, Any]]]:
    """A monitor of one caller, with one reply a command; yields the commands it was given."""
    heard: list[dict[str, Any]] = []

    def serve() -> None:
        caller, _address = ears.accept()
        with caller, caller.makefile("rw") as talk:
            talk.write('{"QMP": {}}\n')
            talk.flush()
            for reply in replies:
                heard.append(json.loads(talk.readline()))
                talk.write(reply)
                talk.flush()

    with socket.socket(socket.AF_UNIX) as ears:
        ears.bind(str(folder / monitor.SOCKET))
        ears.listen()
        server = threading.Thread(target=serve)
        server.start()
        yield heard
        server.join()


def test_a_command_has_its_arguments(tmp_path: Path) -> None:
    with answering(tmp_path, DONE, EVENT + DONE) as heard:
        monitor.on_reset(tmp_path, boots=True)
    assert heard == [
        {"execute": "qmp_capabilities", "arguments": {}},
        {"execute": "set-action", "arguments": {"reboot": "reset"}},
    ]


def test_a_refusal_names_the_command(tmp_path: Path) -> None:
    with answering(tmp_path, DONE, NO), pytest.raises(MonitorRefused, match="system_reset: no"):
        monitor.ask(tmp_path, "system_reset")


def test_what_people_are_shown_of_one_cpu(tmp_path: Path) -> None:
    with answering(tmp_path, DONE, json.dumps({"return": "LVTT\r\nISR\r\n"}) + "\n") as heard:
        assert monitor.ask_human(tmp_path, "info lapic", 1) == "LVTT\nISR\n"
    wanted = {"command-line": "info lapic", "cpu-index": 1}
    assert heard[1] == {"execute": "human-monitor-command", "arguments": wanted}


def test_virtual_cpus_in_their_order(tmp_path: Path) -> None:
    rows = [{"cpu-index": 1, "thread-id": 41}, {"cpu-index": 0, "thread-id": 42}]
    with answering(tmp_path, DONE, json.dumps({"return": rows}) + "\n"):
        assert monitor.virtual_cpus(tmp_path) == [42, 41]


def test_time_that_virtual_cpus_have_had(tmp_path: Path) -> None:
    """This thread stands for one that has worked, another that sleeps for one that has not."""
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    rest = threading.Event()
    sleeper = threading.Thread(target=rest.wait, daemon=True)
    sleeper.start()
    rows = [
        {"cpu-index": n, "thread-id": thread}
        for n, thread in enumerate((threading.get_native_id(), sleeper.native_id))
    ]
    with answering(tmp_path, DONE, json.dumps({"return": rows}) + "\n"):
        worked, slept = monitor.host_seconds(tmp_path)
    rest.set()
    sleeper.join()
    assert worked >= 0.1 > 0.05 > slept
