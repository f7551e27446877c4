# SPDX-License-Identifier: GPL-2.0-or-later
"""kernel-patches/BASE: which exact source a series is for, and the patches of the series."""

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import apt
from lab.paths import PATCHES, cache
from lab.progress import step, tool

BASES = ("6.12", "7.2")


class BadBase(Exception):
    """A BASE or series file that cannot be understood."""


@dataclass(frozen=True)
class Base:
    """One BASE file: the source package, the exact version, the patches in their order."""

    name: str
    package: str
    version: str
    patches: tuple[Path, ...]


def read_base(name: str) -> Base:
    folder = PATCHES / name
    if not (folder / "BASE").exists():
        raise BadBase(f"unknown base {name}: there are {', '.join(BASES)}")
    lines = (folder / "BASE").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    missing = {"package", "version"} - values.keys()
    if missing:
        raise BadBase(f"{folder / 'BASE'} lacks {', '.join(sorted(missing))}")
    listed = (folder / "series").read_text().split() if (folder / "series").exists() else []
    patches = tuple(folder / patch for patch in listed)
    for patch in patches:
        if not patch.exists():
            raise BadBase(f"{folder / 'series'} names {patch.name}, which is not there")
    return Base(name, values["package"], values["version"], patches)


def newest(base: Base) -> str:
    return apt.offered(base.package)[0][0]


def unpack(base: Base, version: str, target: Path) -> None:
    """Lays Debian's kernel source of this version into the empty folder ``target``."""
    with step(f"unpacking {base.package} {version}"), source_archive(base, version) as archive:
        target.mkdir(parents=True, exist_ok=True)
        tool(["tar", "-xf", archive, "-C", target, "--strip-components=1"])


@contextmanager
def unpacked(base: Base, version: str, purpose: str) -> Iterator[Path]:
    """Debian's source in a folder of its own below the cache that goes with the context."""
    tree = cache("build") / f"{base.name}-{purpose}-{os.getpid()}"
    shutil.rmtree(tree, ignore_errors=True)
    try:
        unpack(base, version, tree)
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def unpack_touched(base: Base, version: str, target: Path) -> None:
    """Lays only what the series touches, and scripts/: enough to apply and check patches."""
    wanted = {path for patch in base.patches for path in touched(patch.read_text())}
    with step(f"reading {base.package} {version}"), source_archive(base, version) as archive:
        with tarfile.open(archive) as source:
            for member in source:
                name = member.name.partition("/")[2]
                if name in wanted or name.startswith("scripts/"):
                    member.name = name
                    source.extract(member, target)


@contextmanager
def source_archive(base: Base, version: str) -> Iterator[Path]:
    """The source tarball of the package, in a folder that goes with the context."""
    deb = apt.download(base.package, version)
    with tempfile.TemporaryDirectory(dir=cache("build")) as scratch:
        tool(["dpkg-deb", "-x", deb, scratch])
        yield next((Path(scratch) / "usr/src").glob("linux-source-*.tar.xz"))


def touched(patch: str) -> list[str]:
    """The files a patch changes, as its diff headers name them."""
    return sorted(set(re.findall(r"^diff --git a/(\S+) b/", patch, re.MULTILINE)))


def apply_series(base: Base, tree: Path) -> None:
    """Every patch with fuzz 0; the first that does not apply ends it with patch's own words."""
    for patch in base.patches:
        tool(["patch", "-p1", "-F0", "-s", "--no-backup-if-mismatch", "-i", patch], cwd=tree)
