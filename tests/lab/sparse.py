# SPDX-License-Identifier: GPL-2.0-or-later
"""The sparse of the newest Debian release: older ones do not know what kernels of today say."""

import os
import shutil
from pathlib import Path

from lab import source
from lab.cache import built, digest
from lab.paths import cache
from lab.progress import step, tool

VERSION, SUITE = "0.6.5~rc1", "forky"


def compile_sparse(archive: Path, out: Path) -> None:
    folder = cache("build") / f"sparse-{os.getpid()}"
    folder.mkdir()
    try:
        tree = source.unpack(archive, folder, None)
        with step(f"building sparse {VERSION}"):
            tool(["make", f"-j{os.cpu_count() or 2}", "sparse"], cwd=tree, log=out / "build.log")
        shutil.copy(tree / "sparse", out / "sparse")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sparse() -> Path:
    """The program, from the cache or built now. NoSource, StepFailed."""
    archive = source.tarball("sparse", VERSION, SUITE)
    key = digest([archive.name, tool(["gcc", "--version"])])
    return built("sparse", key, lambda out: compile_sparse(archive, out)) / "sparse"
