# SPDX-License-Identifier: GPL-2.0-or-later
"""Patches to commits and back: the same bytes, on the stored pre-images of the touched files."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import eachmodel, eachpatch
from lab.base import BASES, Base, read_base, touched
from lab.custody import PREIMAGES, REVIEW_TAGS, export, is_generated, replay
from lab.eachpatch import OUTDATED, keys, objects, warnings_in
from lab.kernel import BASE_FLAVOURS, wanted_of

WITH_PATCHES = [name for name in BASES if read_base(name).patches]


@pytest.mark.parametrize("name", WITH_PATCHES)
def test_export_is_byte_stable(name: str, tmp_path: Path) -> None:
    base = read_base(name)
    replay(base, PREIMAGES / f"{name}.tar.xz", tmp_path / "tree")
    names = export(tmp_path / "tree", tmp_path / "out")
    assert names == [patch.name for patch in base.patches]
    for patch in base.patches:
        assert (tmp_path / "out" / patch.name).read_bytes() == patch.read_bytes(), patch.name


def test_series_is_not_empty() -> None:
    assert "6.12" in WITH_PATCHES


@pytest.mark.parametrize("tried", [eachpatch.check, eachmodel.check])
def test_patches_are_asked_for_by_their_numbers(tried: Callable[[str, int, int], None]) -> None:
    with pytest.raises(ValueError, match=r"6\.12: no patch has a number from 9000 to 9001"):
        tried("6.12", 9000, 9001)


@pytest.mark.parametrize("name", BASES)
def test_each_model_of_a_guest_is_one_that_patches_are_compiled_in(name: str) -> None:
    """But PREEMPT_DYNAMIC, in which they are built as a whole."""
    models = set(BASE_FLAVOURS[name]) & {"none", "preempt", "lazy", "rt"}
    assert {flavour.removeprefix("series-") for flavour in eachmodel.flavours(name)} == models


ADDED = """--- /dev/null
+++ b/{0}
@@ -0,0 +1 @@
+
"""


def test_a_patch_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RXLANE_CACHE", str(tmp_path / "cache"))
    patches = [tmp_path / f"{number:04}-x.patch" for number in (1, 2, 3)]
    for patch in patches:
        patch.write_text(f"\ndiff --git a/{patch.stem} b/{patch.stem}\n{ADDED.format(patch.stem)}")
    base = Base("6.12", "linux-source-6.12", "1", tuple(patches))
    wanted = wanted_of("6.12", "series", patched=True)
    config = "".join(f"{name}={value}\n" for name, value in wanted.items() if value != "n")

    def tried(fails: str | None, asked: list[Path]) -> list[str]:
        names = []
        tree = tmp_path / "tree"
        tree.mkdir()
        (tree / ".config").write_text(config)
        for name, files in eachpatch.untried(base, tree, asked, [], "series"):
            names.append(name)
            assert files == [name.removesuffix(".patch")] and (tree / files[0]).exists()
            if name == fails:
                break
        shutil.rmtree(tree)
        return names

    one, two, three = (patch.name for patch in patches)
    assert tried(two, patches) == [one, two]
    assert tried(None, patches[:1]) == []
    assert tried(None, patches) == [two, three]
    assert tried(None, patches) == []


def test_touched_reads_headers_only() -> None:
    patch = "diff --git a/net/core/dev.c b/net/core/dev.c\n+diff --git a/no b/no\n"
    assert touched(patch) == ["net/core/dev.c"]


def test_review_tags_are_seen() -> None:
    assert REVIEW_TAGS.search("text\nReviewed-by: A Person <a@b>\n")
    assert not REVIEW_TAGS.search("text\nOrigin: vendor, rxlane\n")


def test_only_a_generators_long_lines_are_excused(tmp_path: Path) -> None:
    (tmp_path / "gen.c").write_text("/* Do not edit directly, auto-generated from: */\n")
    (tmp_path / "own.c").write_text("int x;\n")
    long = "WARNING: line length of 103 exceeds 100 columns"
    assert is_generated(f"gen.c:97: {long}", tmp_path)
    assert not is_generated(f"own.c:97: {long}", tmp_path)
    assert not is_generated("gen.c:97: CHECK: Alignment should match open parenthesis", tmp_path)
    assert not is_generated("total: 1 errors", tmp_path)


def test_a_warning_that_moved_is_the_same_one() -> None:
    """gcc tells line and column, kernel-doc the line."""
    text = "In file included from a.h:1:\n{}: warning: unused variable 'x'\n  CC  net/core/dev.o\n"
    for before, after in (("a.c:10:5", "a.c:20:7"), ("a.c:10", "a.c:20")):
        assert warnings_in(text.format(before)) == warnings_in(text.format(after)) != {}
    assert warnings_in(text.format("a.c:10")) != warnings_in(text.format("b.c:10"))


SECTION = "WARNING: modpost: vmlinux: section mismatch in reference: a+0x{} (section: .text) -> b"


@pytest.mark.parametrize(
    "line",
    [
        "net/core/dev.c:{}:5: error: incompatible types in comparison expression",
        "net/core/dev.c:{}:5: warning: context imbalance in 'f' - wrong count at exit",
        SECTION,
        "net/core/dev.c:{}: warning: Function parameter 'x' not described in 'f'",
    ],
)
def test_every_kind_of_complaint_counts_wherever_it_stands(line: str) -> None:
    assert warnings_in(line.format(10)) == warnings_in(line.format(20)) != {}


def test_a_second_one_like_the_first_is_another_one() -> None:
    one, two = "a.c:1:1: warning: unused\n", "a.c:9:1: warning: unused\n"
    assert warnings_in(one + two) - warnings_in(one) == {"a.c: warning: unused": 1}
    # A header's comes with each file that reads it.
    header = "./include/a.h:1:1: warning: unused\n"
    assert warnings_in(header * 3) == warnings_in(header)


def test_a_sparse_that_says_it_is_old_is_not_believed() -> None:
    assert OUTDATED.search("a.h:1:2: warning: sparse is not up to date")
    assert OUTDATED.search("CHECK: your version of Sparse is out-of-date")
    assert not OUTDATED.search("a.c:3:1: sparse: warning: symbol 'date' was not declared")


def test_objects_are_those_of_the_kernels_own_c_files(tmp_path: Path) -> None:
    for name in ("net/core/dev.c", "tools/testing/x.c", "include/a.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files = ["net/core/dev.c", "tools/testing/x.c", "include/a.h", "net/core/later.c"]
    assert objects(tmp_path, files) == ["net/core/dev.o"]


def test_the_object_of_a_c_file_that_another_includes_is_that_ones(tmp_path: Path) -> None:
    (tmp_path / "core.c").write_text("int alone;\n")
    (tmp_path / "deadline.c").write_text("int part;\n")
    (tmp_path / "build_policy.c").write_text('#include "rt.c"\n#include "deadline.c"\n')
    files = ["core.c", "deadline.c", "build_policy.c"]
    assert objects(tmp_path, files) == ["core.o", "build_policy.o"]


def test_what_passed_counts_until_the_code_of_a_patch_before_changes() -> None:
    first, second, other = (
        f"Subject: {word}\n\ndiff --git a/x b/x\n+{word}\n".encode() for word in ("a", "b", "c")
    )
    reworded = first.replace(b"Subject: a", b"Subject: an a")
    before = list(keys(["6.12.1", "gcc 14"], [first, second]))
    assert list(keys(["6.12.1", "gcc 14"], [reworded, second])) == before
    assert list(keys(["6.12.1", "gcc 14"], [first, second, other]))[:2] == before
    same, changed = keys(["6.12.1", "gcc 14"], [first, other])
    assert same == before[0] and changed not in before
    for anew in (keys(["6.12.1", "gcc 14"], [other, second]), keys(["6.12.2", "gcc 14"], [first])):
        assert not {*anew} & {*before}
