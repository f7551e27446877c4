# SPDX-License-Identifier: GPL-2.0-or-later
"""lab.qemu: which one a guest gets, and what apt's simulation says has to be unpacked."""

from pathlib import Path

import pytest

from lab import qemu
from lab.progress import StepFailed
from lab.qemu import Qemu, having, major, resolved

SIMULATION = """\
Reading package lists...
Inst qemu-system-x86 [1:7.2+dfsg-7] (1:10.0.2+ds-2~bpo12+1 Debian Backports:x [amd64]) []
Inst libfdt1:amd64 (1.6.1-4+b1 Debian:12.12/oldstable [amd64])
Conf qemu-system-x86 (1:10.0.2+ds-2~bpo12+1 Debian Backports:x [amd64])
"""


def test_upgrades_and_new_packages_are_unpacked_once() -> None:
    assert resolved(SIMULATION) == [
        ("qemu-system-x86", "1:10.0.2+ds-2~bpo12+1"),
        ("libfdt1", "1.6.1-4+b1"),
    ]


def test_nothing_to_install() -> None:
    assert resolved("qemu-system-x86 is already the newest version (1:10.0.13).\n") == []


def test_variables_join_the_environment() -> None:
    own = Qemu(("qemu",), (("LD_LIBRARY_PATH", "/x"),)).environment()
    assert own["LD_LIBRARY_PATH"] == "/x"
    assert "PATH" in own


@pytest.mark.parametrize(("said", "version"), [("7.2.22", 7), ("8.2.4", 8), ("10.0.2", 10)])
def test_the_major_version(said: str, version: int) -> None:
    assert major(f"QEMU emulator version {said} (Debian)") == version


def test_a_qemu_that_does_not_tell_its_version() -> None:
    with pytest.raises(StepFailed, match="version"):
        major("no such thing")


def program(path: Path, version: str, devices: str) -> Qemu:
    """A stand-in that says this of its version, and knows these devices."""
    path.write_text(
        f"""#!/bin/sh
case "$1" in
--version) echo "QEMU emulator version {version} (Debian)" ;;
-device) case " {devices} " in *" ${{2%,help}} "*) echo "${{2%,help}} options:" ;; esac ;;
esac
"""
    )
    path.chmod(0o755)
    return Qemu((str(path),))


@pytest.mark.parametrize(
    ("own", "devices", "emulated", "taken"),
    [
        ("7.2.22", ("e1000e",), False, "own"),
        ("7.2.22", ("e1000e",), True, "newer"),
        ("7.2.22", ("igb",), False, "newer"),
        ("10.0.2", ("e1000e",), True, "own"),
        ("10.0.2", ("igb",), True, "newer"),
    ],
)
def test_which_one_a_guest_gets(
    own: str, devices: tuple[str, ...], emulated: bool, taken: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = {
        "own": program(tmp_path / "own", own, "e1000e"),
        "newer": program(tmp_path / "newer", "10.0.2", "e1000e igb"),
    }
    monkeypatch.setattr(qemu, "SYSTEM", found["own"].argv[0])
    monkeypatch.setattr(qemu, "newer", lambda: found["newer"])
    assert having.__wrapped__(devices, emulated) == found[taken]


def test_a_newer_one_that_is_no_better_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "own", "7.2.22", "")
    monkeypatch.setattr(qemu, "SYSTEM", own.argv[0])
    monkeypatch.setattr(qemu, "newer", lambda: own)
    with pytest.raises(StepFailed, match="QEMU has no igb, is 7, whose .* race more, either"):
        having.__wrapped__(("igb",), True)
