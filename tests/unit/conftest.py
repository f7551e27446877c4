# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from unit import simhost
from unit.asking import SECOND
from unit.daemon import Daemon, running
from unit.simhost import SimHost

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


@pytest.fixture
def host() -> SimHost:
    """Two devices, for tests that want no other host."""
    return SimHost(simhost.snapshot(simhost.link(), SECOND))


@pytest.fixture
def daemon(host: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """TuneD's process as far as it is ours, on the host of the test."""
    yield from running(host, tmp_path / "state", monkeypatch)
