# SPDX-License-Identifier: GPL-2.0-or-later
"""How RPM packages of this tree are built, checked and collected, whatever they hold.

On Debian packaging/rpm/macros-debian stands in for the macro packages of Fedora and RHEL.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from package_build import TREE, logged, make_room

RPM = TREE / "packaging" / "rpm"
MACROS = RPM / "macros-debian"


def rpmbuild(spec: Path, work: Path, epoch: int, defines: Mapping[str, str]) -> list[Path]:
    """Source package and binary packages of `spec`, from work/SOURCES, dated with `epoch`."""
    every = {
        "_topdir": str(work),
        "_buildhost": "rxlane",
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        **defines,
    }
    words = [word for name, value in every.items() for word in ("--define", f"{name} {value}")]
    # What is built with is Debian's, which rpm does not know.
    argv = ["rpmbuild", "-ba", "--nodeps", "--load", str(MACROS), *words, str(spec)]
    logged(argv, work, work / "build.log", epoch)
    return sorted([*work.glob("SRPMS/*.rpm"), *work.glob("RPMS/*/*.rpm")])


def lint(specs: Sequence[Path], rpms: Sequence[Path], config: str, work: Path, epoch: int) -> None:
    """rpmlint over specs and packages: a finding that rpm/`config` does not explain raises."""
    argv = [str(TREE / "build" / "venv" / "bin" / "rpmlint"), "--strict"]
    argv += ["--config", str(RPM / config), *map(str, (*specs, *rpms))]
    logged(argv, work, work / "rpmlint.log", epoch)


def collect(rpms: Sequence[Path], output: Path, label: str) -> None:
    """Copy the packages into `output` in place of earlier ones, and print their sums."""
    make_room(output, rpms)
    for rpm in rpms:
        shutil.copy2(rpm, output)
        print(f"{label}: {hashlib.sha256(rpm.read_bytes()).hexdigest()}  {rpm.name}")
