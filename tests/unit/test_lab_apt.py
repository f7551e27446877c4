# SPDX-License-Identifier: GPL-2.0-or-later
"""Two commands of the lab at once share apt's lists and what was downloaded."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab import apt, source
from lab.progress import StepFailed

MIRROR = {"Debian": "http://mirror.example/debian"}


class Apt:
    """Stands in for apt-get, which refuses to update where another does so, as apt does."""

    def __init__(self) -> None:
        self.updates = self.downloads = 0
        self.failing = False
        self._lists = threading.Lock()

    def tool(self, argv: list[Any], **how: Any) -> str:
        if "update" in argv:
            self._update()
        elif "download" in argv:
            self._download(how["cwd"], argv[-1].partition("="))
        return ""

    def _update(self) -> None:
        if not self._lists.acquire(blocking=False):
            raise StepFailed("E: Could not get lock lists/lock. It is held by process 1 (apt-get)")
        try:
            time.sleep(0.2)
            if self.failing:
                raise StepFailed("E: Temporary failure resolving 'mirror.example'")
            self.updates += 1
        finally:
            self._lists.release()

    def _download(self, folder: Path, wanted: tuple[str, str, str]) -> None:
        self.downloads += 1
        deb = folder / f"{wanted[0]}_{wanted[2]}_all.deb"
        deb.write_text("ha")
        time.sleep(0.2)
        if self.failing:
            raise StepFailed("E: Failed to fetch")
        deb.write_text("half and half")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    monkeypatch.setenv("RXLANE_CACHE", str(tmp_path))
    found = Apt()
    monkeypatch.setattr(apt, "mirrors", lambda: MIRROR)
    for module in (apt, source):
        monkeypatch.setattr(module, "tool", found.tool)
    # As in a process that has not asked yet.
    monkeypatch.setattr(apt, "state", apt.state.__wrapped__)
    return found


def at_once(call: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(3) as pool:
        return [one.result() for one in [pool.submit(call) for _ in range(3)]]


def test_lists_are_read_once_by_commands_at_once(stand_in: Apt) -> None:
    at_once(apt.state)
    assert stand_in.updates == 1


def test_lists_of_sources_are_read_once_by_commands_at_once(stand_in: Apt) -> None:
    apt.state()

    def updates_then() -> int:
        source.source_options.__wrapped__()
        return stand_in.updates

    assert at_once(updates_then) == [2, 2, 2]


def test_lists_that_could_not_be_read_are_read_by_the_next(stand_in: Apt) -> None:
    apt.state()
    stand_in.failing = True
    with pytest.raises(StepFailed, match="Temporary failure"):
        source.source_options.__wrapped__()
    stand_in.failing = False
    source.source_options.__wrapped__()
    assert stand_in.updates == 2


def test_a_package_is_downloaded_once_and_whole(stand_in: Apt) -> None:
    apt.state()
    found = at_once(lambda: apt.download("linux-source", "6.12").read_text())
    assert found == ["half and half"] * 3
    assert stand_in.downloads == 1


def test_a_download_that_ends_half_way_is_none(stand_in: Apt) -> None:
    apt.state()
    stand_in.failing = True
    with pytest.raises(StepFailed, match="Failed to fetch"):
        apt.download("linux-source", "6.12")
    stand_in.failing = False
    assert apt.download("linux-source", "6.12").read_text() == "half and half"
