# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-packages`: README's way to the kernel trees and back, in a clean clone."""

import re
import subprocess
from pathlib import Path

from lab.paths import TREE

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)


def test_a_tree_and_back_into_patches(tmp_path: Path) -> None:
    """The patches come back byte for byte, so that nothing differs for git."""
    text = (TREE / "README.md").read_text().partition("\n## The kernel series\n")[2]
    (block,) = BLOCK.findall(text.partition("\n## ")[0])
    clone = tmp_path / "rxlane"
    subprocess.run(["git", "clone", "--quiet", str(TREE), str(clone)], check=True)
    assert "make kernel-tree" in block and "make kernel-refresh" in block
    subprocess.run(["sh", "-ec", block], cwd=clone, check=True)
    said = subprocess.run(
        ["git", "status", "--short"], cwd=clone, check=True, capture_output=True, text=True
    )
    assert said.stdout == ""
