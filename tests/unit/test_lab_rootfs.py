# SPDX-License-Identifier: GPL-2.0-or-later
"""lab.rootfs: which packages come along with Debian's own kernels."""

from lab.rootfs import from_backports


def test_kernels_of_the_release_need_nothing_of_the_backports() -> None:
    assert from_backports("6.12.117-1") == ()


def test_kernels_of_the_backports_bring_their_linux_base() -> None:
    assert from_backports("7.2.12-1~bpo13+1") == ("linux-base/trixie-backports",)
