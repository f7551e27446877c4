# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: /var/lib/rxlane full or read-only: refused in one line, nothing changed."""

import json
from collections.abc import Iterator

import pytest

from conftest import OURS, Host

pytestmark = pytest.mark.long

STATE = "/var/lib/rxlane"
OPTIONS = ("-o", "threaded=on@1-", "-o", "thread_cpus=auto", "-o", "defer_hard_irqs=7")


@pytest.fixture
def room(guest: Host) -> Iterator[Host]:
    """The journal's folder is a file system of its own, of two pages for data."""
    guest.run("mount", "-t", "tmpfs", "-o", "size=8k,mode=700", "tmpfs", STATE)
    try:
        yield guest
    finally:
        guest.run("umount", STATE)


def words(host: Host) -> tuple[str, ...]:
    return ("rxlane", "apply", *OPTIONS, host.vm.nic)


@pytest.mark.kernels(OURS)
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_nothing_is_changed(room: Host, how: str) -> None:
    before = room.settings()
    if how == "full":
        room.run("sh", "-c", f"cat /dev/zero > {STATE}/filler 2>/dev/null; true")
    else:
        room.run("mount", "-o", "remount,ro", STATE)
    said = room.run(*words(room), check=False)
    assert said.rc != 0 and len(said.stderr.splitlines()) == 1, said.stderr
    assert room.settings() == before


@pytest.mark.kernels(OURS)
def test_originals_come_back_from_a_folder_that_became_read_only(room: Host) -> None:
    before = room.settings()
    room.run(*words(room))
    assert room.settings() != before
    room.run("mount", "-o", "remount,ro", STATE)
    room.run("rxlane", "rollback", check=False)
    assert room.settings() == before
    room.run("mount", "-o", "remount,rw", STATE)
    room.run("rxlane", "rollback")
    assert room.settings() == before
    assert json.loads(room.run("rxlane", "verify", "--json").stdout) == {
        "applied": False,
        "waiting": 0,
        "settings": [],
    }
