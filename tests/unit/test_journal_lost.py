# SPDX-License-Identifier: GPL-2.0-or-later
"""A /var that is full or read-only: nothing is changed that could not be brought back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Claims, Sealed, Store
from rxlane.plan import Journal
from unit import simhost
from unit.asking import FULL, policy
from unit.commands import Captured, root_of_a_host, run
from unit.simhost import MemoryStore, SimHost


class LastingStore(MemoryStore):
    """Takes so many more writes and removals, then none."""

    def __init__(self, more: int, code: int) -> None:
        super().__init__()
        self.more, self.code = more, code

    def _spend(self) -> None:
        if self.more <= 0:
            raise RxlaneError(Kind.JOURNAL, f"cannot be written: {os.strerror(self.code)}")
        self.more -= 1

    def save(self, journal: Journal) -> None:
        self._spend()
        super().save(journal)

    def remove(self) -> None:
        self._spend()
        super().remove()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("more", range(4))
def test_from_any_write_on(code: int, more: int) -> None:
    """The apply is refused with nothing changed, or it stands; the originals come back."""
    host, store = SimHost(simhost.whole(simhost.snapshot())), LastingStore(more, code)
    before = simhost.settings(host)
    try:
        apply(host, store, policy(**FULL))
    except RxlaneError as error:
        assert error.kind is Kind.JOURNAL
        assert simhost.settings(host) == before
    else:
        assert simhost.settings(host) != before
    try:
        rollback(host, store)
    except RxlaneError as error:
        assert error.kind is Kind.JOURNAL
    assert simhost.settings(host) == before
    store.more = 1
    rollback(host, store)
    assert simhost.settings(host) == before and store.text is None


def test_what_was_done_is_said_with_it() -> None:
    """Of a rollback of one device the other's originals stay, which takes a write."""
    two = simhost.snapshot(simhost.link(), simhost.link("eth1", ifindex=3, base=9000))
    host, store = SimHost(two), LastingStore(0, errno.ENOSPC)
    wanted = policy("eth0", "eth1", threaded="on")
    with pytest.raises(RxlaneError, match="No space left on device; nothing was changed"):
        apply(host, store, wanted)
    store.more = 9
    apply(host, store, wanted)
    store.more = 0
    with pytest.raises(RxlaneError, match="No space left on device; 4 settings put back"):
        rollback(host, store, {"eth0"})


def test_the_first_apply_writes_twice() -> None:
    """So the test above has writes that fail before, between and after."""
    host, store = SimHost(simhost.whole(simhost.snapshot())), LastingStore(9, 0)
    apply(host, store, policy(**FULL))
    assert store.more == 7


@pytest.mark.parametrize("read_only", [False, True])
def test_claims_that_stay_keep_no_original_away(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    """Their file needs room where another interface stays claimed."""

    def fail(held: Sealed[Any], *_: object) -> None:
        raise RxlaneError(Kind.JOURNAL, f"{held.path.name} cannot be written: lost")

    host, store = root_of_a_host(monkeypatch), Store(tmp_path / "state")
    before = simhost.settings(host)
    apply(host, store, policy(threaded="on"))
    store.claims.save(Claims(host.boot_id(), (2, 3)))
    monkeypatch.setattr(Sealed, "save", fail)
    if read_only:
        monkeypatch.setattr(Sealed, "remove", fail)
    status, out, err = run(capsys, "rollback", "eth0", "--state", str(store.directory))
    assert status == 1 and simhost.settings(host) == before
    assert err.startswith("note: claims.json cannot be written: lost; services of .link files may")
    assert "4 settings" in (err if read_only else out)


def test_originals_come_back_from_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, store = SimHost(simhost.whole(simhost.snapshot())), Store(tmp_path / "state")
    before = simhost.settings(host)
    apply(host, store, policy(**FULL))
    opened = os.open

    def read_only(path: Any, flags: int, *mode: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *mode)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(RxlaneError, match="removed: Read-only file system; 17 settings put"):
        rollback(host, store)
    assert simhost.settings(host) == before
