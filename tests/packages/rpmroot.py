# SPDX-License-Identifier: GPL-2.0-or-later
"""RPM packages installed into a folder, without scripts: no machine of ours runs RHEL or Fedora."""

import subprocess
from collections.abc import Iterable
from pathlib import Path


def install(root: Path, rpms: Iterable[Path]) -> None:
    """Install the packages below `root`, with a database of its own in var/lib/rpm."""
    words = ["--dbpath", "/var/lib/rpm", "--nodeps", "--noscripts", "--nosignature"]
    argv = ["rpm", "--root", str(root), "-i", *words, *map(str, rpms)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
