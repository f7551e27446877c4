# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-packages`: ethtool and iproute2 as RPM packages hold the programs with our patches.

They are unpacked, and their programs run here: they are linked with this Debian's libraries.
"""

import subprocess
from pathlib import Path

import pytest
import rpmroot

RPMS = Path(__file__).resolve().parents[2] / "build" / "tool-rpms"


def unpacked(name: str, into: Path) -> Path:
    """The folder with the files of a binary package."""
    (rpm,) = (path for path in RPMS.glob(f"{name}-[0-9]*.rpm") if not path.match("*.src.rpm"))
    into.mkdir()
    rpmroot.install(into, [rpm])
    return into


@pytest.mark.parametrize(
    ("name", "program", "argv", "rc", "word"),
    [
        ("ethtool", "usr/sbin/ethtool", ["--help"], 0, "--set-napi"),
        ("iproute", "usr/sbin/ip", ["link", "help"], 255, "threaded"),
        ("iproute-tc", "usr/sbin/tc", ["-V"], 0, "tc utility"),
    ],
)
def test_programs(
    name: str, program: str, argv: list[str], rc: int, word: str, tmp_path: Path
) -> None:
    """ip ends with -1 whenever it prints how it is used."""
    root = unpacked(name, tmp_path / "root")
    done = subprocess.run([root / program, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == rc, done.stderr
    assert word in done.stdout + done.stderr
    assert "rxlane" not in done.stderr.lower()


def test_manuals_name_what_is_new(tmp_path: Path) -> None:
    manual = unpacked("ethtool", tmp_path / "a") / "usr/share/man/man8/ethtool.8.gz"
    text = subprocess.run(["zcat", manual], capture_output=True, text=True, check=True).stdout
    assert "show\\-napi" in text
    manual = unpacked("iproute", tmp_path / "b") / "usr/share/man/man8/ip-link.8.gz"
    text = subprocess.run(["zcat", manual], capture_output=True, text=True, check=True).stdout
    assert "threaded" in text


def test_tc_is_in_one_package_only(tmp_path: Path) -> None:
    one, other = unpacked("iproute", tmp_path / "a"), unpacked("iproute-tc", tmp_path / "b")
    assert not (one / "usr/sbin/tc").exists()
    shared = {
        path.relative_to(one)
        for path in one.rglob("*")
        if path.is_file() and (other / path.relative_to(one)).is_file()
    }
    assert {path for path in shared if path.parts[:3] != ("var", "lib", "rpm")} == set()
