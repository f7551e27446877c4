# SPDX-License-Identifier: GPL-2.0-or-later
"""lab.qemu: what apt's simulation says has to be unpacked."""

from lab.qemu import Qemu, resolved

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
    own = Qemu(variables=(("LD_LIBRARY_PATH", "/x"),)).environment()
    assert own["LD_LIBRARY_PATH"] == "/x"
    assert "PATH" in own
