# SPDX-License-Identifier: GPL-2.0-or-later
"""The Python selftests of a base's networking, as a folder that a guest can be given."""

import tarfile
from pathlib import Path

from lab import apt
from lab.base import Base, apply_series, read_base, source_archive, touched
from lab.cache import built, digest
from lab.progress import step

# What they are, and what they find by its place beside them.
FOLDERS = (
    "Documentation/netlink/specs/",
    "tools/net/ynl/pyynl/",
    "tools/testing/selftests/drivers/net/",
    "tools/testing/selftests/net/lib/",
)


def selftests(name: str) -> Path:
    """A folder ``ksrc`` laid out like the kernel's source, with our series applied."""
    base = read_base(name)
    version = apt.choose(base.package, base.version)
    patches = [patch.read_bytes() for patch in base.patches]
    key = digest([base.package, version, *FOLDERS, *patches])
    return built("selftests", key, lambda out: _lay(base, version, out / "ksrc")) / "ksrc"


def _lay(base: Base, version: str, target: Path) -> None:
    files = {path for patch in base.patches for path in touched(patch.read_text())}
    with (
        step(f"reading the selftests of {base.package} {version}"),
        source_archive(base, version) as archive,
        tarfile.open(archive) as source,
    ):
        for member in source:
            path = member.name.partition("/")[2]
            if path in files or path.startswith(FOLDERS):
                member.name = path
                source.extract(member, target)
    apply_series(base, target)
