# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-packages`: rxlane-kernel-patches makes of Debian's sources what the lab builds.

On the files that a series touches, of the version that it was made for and of the newest offered.
"""

import subprocess
from pathlib import Path

import pytest

from lab import apt
from lab.base import BASES, apply_series, newest, read_base, unpack_touched

TREE = Path(__file__).resolve().parents[2]
TOOL = TREE / "packaging" / "kernel" / "rxlane-kernel-patches"


def files(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", BASES)
def test_series_on_debians_sources(name: str, tmp_path: Path) -> None:
    base = read_base(name)
    pinned = apt.choose(base.package, base.version)
    for version in dict.fromkeys((pinned, newest(base))):
        mine, theirs = tmp_path / f"{version}-mine", tmp_path / f"{version}-theirs"
        for tree in (mine, theirs):
            unpack_touched(base, version, tree)
        for sign in ("Kconfig", "Makefile"):
            for tree in (mine, theirs):
                (tree / sign).touch()
        argv = [
            str(word) for word in (TOOL, "--patches", TREE / "kernel-patches", "apply", name, mine)
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        apply_series(base, theirs)
        assert files(mine) == files(theirs)
