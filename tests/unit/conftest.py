# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A machine that builds kernels beside the tests is slow, not wrong.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """fsync proves nothing in a unit test and takes seconds beside a kernel build.

    test_journal checks that and when it is called.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
