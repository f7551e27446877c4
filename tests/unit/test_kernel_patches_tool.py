# SPDX-License-Identifier: GPL-2.0-or-later
"""rxlane-kernel-patches on a small tree: the whole series or nothing, and nothing twice."""

import os
import subprocess
from difflib import unified_diff
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
TOOL = TREE / "packaging" / "kernel" / "rxlane-kernel-patches"
BEFORE = {"Kconfig": "", "Makefile": "all:\n", "net/a.c": "one\ntwo\nthree\n", "net/old.c": "x\n"}
BETWEEN = {**BEFORE, "net/a.c": "one\n2\nthree\n", "net/new/b.c": "b\n"}
AFTER = {**BETWEEN, "net/a.c": "one\nII\nthree\n"}
del AFTER["net/old.c"]


def write(tree: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)


def read(tree: Path) -> dict[str, str]:
    return {str(p.relative_to(tree)): p.read_text() for p in tree.rglob("*") if p.is_file()}


def diff(old: dict[str, str], new: dict[str, str]) -> str:
    text = "Subject: a change\n\n"
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        text += f"diff --git a/{name} b/{name}\n"
        was, is_ = old.get(name, ""), new.get(name, "")
        first = f"a/{name}" if name in old else "/dev/null"
        second = f"b/{name}" if name in new else "/dev/null"
        text += "".join(unified_diff(was.splitlines(True), is_.splitlines(True), first, second))
    return text


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    folder = tmp_path / "patches"
    write(folder / "6.12", {
        "BASE": "package=linux-source-6.12\nversion=6.12.1-1\n",
        "series": "0001-a.patch\n0002-b.patch\n",
        "0001-a.patch": diff(BEFORE, BETWEEN),
        "0002-b.patch": diff(BETWEEN, AFTER),
    })  # fmt: skip
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path / "linux", BEFORE)
    return tmp_path / "linux"


def run(patches: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [TOOL, "--patches", patches, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def refused(patches: Path, *words: str | Path) -> str:
    done = run(patches, *words)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("rxlane-kernel-patches: ")
    return done.stderr


def test_list(patches: Path) -> None:
    assert run(patches, "list").stdout == "6.12: 2 patches on linux-source-6.12 6.12.1-1\n"


def test_the_whole_series_is_applied(patches: Path, tree: Path) -> None:
    done = run(patches, "apply", "6.12", tree)
    assert done.stdout == f"2 patches applied to {tree}\n", done.stderr
    assert read(tree) == AFTER
    assert sorted(path.name for path in tree.parent.iterdir()) == ["linux", "patches"]


def test_nothing_is_applied_if_one_does_not_apply(patches: Path, tree: Path) -> None:
    (patches / "6.12" / "0002-b.patch").write_text(diff(BEFORE, AFTER))
    said = refused(patches, "apply", "6.12", tree)
    assert "0002-b.patch (2 of 2) does not apply" in said
    assert read(tree) == BEFORE


def test_fuzz_is_refused(patches: Path, tree: Path) -> None:
    (tree / "net" / "a.c").write_text("0ne\ntwo\nthree\n")
    assert "0001-a.patch (1 of 2) does not apply" in refused(patches, "apply", "6.12", tree)


def test_a_failure_in_the_middle_leaves_nothing(patches: Path, tree: Path) -> None:
    (tree / "net/new").write_text("a file where the series has a folder")
    before = read(tree)
    assert "net/new" in refused(patches, "apply", "6.12", tree)
    assert read(tree) == before


def test_twice_is_refused(patches: Path, tree: Path) -> None:
    run(patches, "apply", "6.12", tree)
    refused(patches, "apply", "6.12", tree)
    assert read(tree) == AFTER


@pytest.mark.parametrize("verb", ["apply", "debian"])
def test_other_trees_are_refused(patches: Path, tmp_path: Path, verb: str) -> None:
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/empty" in refused(patches, verb, "6.12", tmp_path / "empty")


def test_unknown_series(patches: Path, tree: Path) -> None:
    assert "no series '6.1'; there are: 6.12" in refused(patches, "apply", "6.1", tree)
    assert "no series ''; there are: 6.12" in refused(patches, "apply", "", tree)


def test_a_folder_without_series(tmp_path: Path) -> None:
    assert f"no series in {tmp_path}/none" in refused(tmp_path / "none", "list")


def test_a_reader_that_leaves(patches: Path) -> None:
    argv: list[str | Path] = [TOOL, "--patches", patches, "combine", "6.12"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_debian_packaging(patches: Path, tree: Path) -> None:
    write(tree, {"debian/patches/series": "debian/version.patch\n"})
    assert run(patches, "debian", "6.12", tree).returncode == 0
    added = (tree / "debian/patches/series").read_text().splitlines()
    assert added[0] == "debian/version.patch"
    assert added[-2:] == ["rxlane/0001-a.patch", "rxlane/0002-b.patch"]
    for line in added[-2:]:
        copy = (tree / "debian/patches" / line).read_text()
        assert copy == (patches / "6.12" / Path(line).name).read_text()
    assert "already" in refused(patches, "debian", "6.12", tree)


def test_debian_packaging_after_a_run_that_was_ended(patches: Path, tree: Path) -> None:
    write(tree, {"debian/patches/series": "", "debian/patches/rxlane/0001-a.patch": "half"})
    assert run(patches, "debian", "6.12", tree).returncode == 0
    copy = (tree / "debian/patches/rxlane/0001-a.patch").read_text()
    assert copy == (patches / "6.12/0001-a.patch").read_text()


def test_combined_applies_like_the_series(patches: Path, tree: Path) -> None:
    combined = run(patches, "combine", "6.12").stdout
    subprocess.run(["patch", "-p1", "-F0", "-s"], cwd=tree, input=combined, text=True, check=True)
    assert read(tree) == AFTER
