# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import journal as module
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Store
from rxlane.plan import Entry, Journal

ENTRIES = st.builds(
    Entry,
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8),
    st.integers(1, 2**31),
    st.integers(-1, 70000),
    st.sampled_from(["threaded", "thread-cpus", "gro-flush-timeout"]),
    st.none() | st.integers(0, 2**63) | st.text(max_size=10),
    st.none() | st.integers(0, 2**63) | st.text(max_size=10),
)
ONE = Journal("boot", (Entry("eth0", 2, 1, "threaded", "off", "on"),))


def saved(directory: Path, journal: Journal = ONE) -> Store:
    store = Store(directory / "state")
    with store.lock():
        store.save(journal)
    return store


@given(st.lists(ENTRIES, max_size=5))
def test_journal_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Entry]) -> None:
    journal = Journal("some-boot", tuple(rows))
    assert saved(tmp_path_factory.mktemp("j"), journal).load() == journal


def test_modes_of_directory_and_file(tmp_path: Path) -> None:
    store = saved(tmp_path)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert not (store.directory / "journal.tmp").exists()


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    """Never a silent loss: the whole file or a clear refusal."""
    store = saved(tmp_path)
    whole = store.path.read_bytes()
    for length in range(len(whole) - 1):
        store.path.write_bytes(whole[:length])
        with pytest.raises(RxlaneError) as caught:
            store.load()
        assert caught.value.kind is Kind.JOURNAL and "damaged" in str(caught.value)
    store.path.write_bytes(whole[:-1])  # only the final newline is missing
    assert store.load() == ONE


def test_any_changed_value_is_noticed(tmp_path: Path) -> None:
    store = saved(tmp_path)
    text = store.path.read_text()
    store.path.write_text(text.replace('"off"', '"on"'))
    with pytest.raises(RxlaneError, match="checksum"):
        store.load()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"journal": {}, "crc32": 1}', "\x00"])
def test_foreign_files(tmp_path: Path, text: str) -> None:
    store = saved(tmp_path)
    store.path.write_text(text)
    with pytest.raises(RxlaneError, match="damaged"):
        store.load()
    store.path.write_bytes(b"\xff\xfe")
    with pytest.raises(RxlaneError, match="damaged"):
        store.load()


def test_newer_format_is_refused(tmp_path: Path) -> None:
    store = saved(tmp_path, Journal("boot", (), format=99))
    with pytest.raises(RxlaneError, match="format 99"):
        store.load()


def test_power_cut_between_write_and_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path)

    def cut(*_: object) -> None:
        raise OSError(5, "cut")

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(RxlaneError) as caught:
        store.save(Journal("boot", ()))
    assert caught.value.kind is Kind.JOURNAL
    assert store.load() == ONE


def test_file_then_name_then_directory_reach_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that a power cut cannot break: data, rename, directory entry."""
    steps: list[str] = []
    replace = os.replace

    def rename(old: Path, new: Path) -> None:
        steps.append("rename")
        replace(old, new)

    def sync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    saved(tmp_path)
    assert steps == ["file", "rename", "directory"]


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RxlaneError, match="cannot be written: No space left"):
        store.save(Journal("boot", ()))
    monkeypatch.undo()
    assert store.load() == ONE


def test_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    store = Store(tmp_path / "state")
    with pytest.raises(RxlaneError, match="state is not a directory") as caught, store.lock():
        pass
    assert caught.value.kind is Kind.JOURNAL


def test_second_holder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT", 0.0)
    first, second = Store(tmp_path / "state"), Store(tmp_path / "state")
    with first.lock():
        with pytest.raises(RxlaneError) as caught, second.lock():
            pass
        assert caught.value.kind is Kind.BUSY and caught.value.kind.retry
    with second.lock():
        pass


def test_file_is_readable_json(tmp_path: Path) -> None:
    data = json.loads(saved(tmp_path).path.read_text())
    assert data["journal"]["entries"][0]["device"] == "eth0"
