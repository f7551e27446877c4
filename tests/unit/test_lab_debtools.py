# SPDX-License-Identifier: GPL-2.0-or-later
"""The packages of ethtool and iproute2: their versions, and what is read of a source package."""

from pathlib import Path

import pytest

from lab import debtools
from lab.progress import StepFailed

DSC = """Format: 3.0 (quilt)
Source: ethtool
Version: 1:6.1-1
Build-Depends: debhelper-compat (= 13),
 autoconf
Files:
 0 1 ethtool_6.1.orig.tar.xz
"""


@pytest.mark.parametrize(
    ("of_source", "released", "expected"),
    [
        ("1:6.14.2-1", "1:6.14.2-1", "1:6.14.2-1+rxlane1"),
        ("1:6.14.2-1", "1:6.14.2-1+b1", "1:6.14.2-1+rxlane1"),
        ("1:6.1-1", "1:6.14.2-1", "1:6.14.2+really6.1-1+rxlane1"),
        ("6.1.0-3", "6.15.0-1", "6.15.0+really6.1.0-3+rxlane1"),
        ("7.2.0-1", "6.15.0-1", "7.2.0-1+rxlane1"),
    ],
)
def test_version_is_above_the_releases(of_source: str, released: str, expected: str) -> None:
    own = debtools.own_version(of_source, released)
    assert own == expected
    assert debtools.newer(own, released)


def test_fields_of_a_source_package(tmp_path: Path) -> None:
    dsc = tmp_path / "ethtool_6.1-1.dsc"
    dsc.write_text(DSC)
    assert debtools.field(dsc, "Version") == "1:6.1-1"
    assert debtools.field(dsc, "Build-Depends") == "debhelper-compat (= 13), autoconf"
    with pytest.raises(StepFailed, match="no field Binary"):
        debtools.field(dsc, "Binary")


@pytest.mark.parametrize("package", debtools.PATCHES)
def test_changelog_is_dated_as_the_patch(package: str) -> None:
    entry = debtools.entry(package, "1-1", debtools.PATCHES[package])
    assert entry.startswith(f"{package} (1-1) trixie; urgency=medium\n")
    assert " -- rxlane maintainers <maintainers@rxlane.example>  Sat, 21 Nov 2026 " in entry
