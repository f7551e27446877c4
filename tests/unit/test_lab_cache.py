# SPDX-License-Identifier: GPL-2.0-or-later
"""The cache makes a thing once, whole or not at all."""

from pathlib import Path

import pytest

from lab.cache import built, digest


def test_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RXLANE_CACHE", str(tmp_path))
    made: list[Path] = []

    def make(out: Path) -> None:
        made.append(out)
        (out / "thing").write_text("x")

    first, second = built("kind", "key", make), built("kind", "key", make)
    assert first == second and (first / "thing").read_text() == "x"
    assert len(made) == 1


def test_a_failed_make_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RXLANE_CACHE", str(tmp_path))

    def fail(out: Path) -> None:
        (out / "half").write_text("x")
        raise RuntimeError("compiler went away")

    with pytest.raises(RuntimeError):
        built("kind", "key", fail)
    assert [path.name for path in (tmp_path / "kind").iterdir()] == ["key.lock"]


def test_no_two_lists_share_a_digest() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["a"]) != digest(["a", ""])
