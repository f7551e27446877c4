# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests whose guest the emulation took away, in a run of pytest inside of this one."""

import pytest

from lab import oncemore

pytest_plugins = ["pytester"]

CONFTEST = """
from types import SimpleNamespace

import pytest

from lab import oncemore
from lab.oncemore import protocol as pytest_runtest_protocol

@pytest.fixture(scope="session")
def guest():
    up = SimpleNamespace(kernel=SimpleNamespace(name="6.12"), gone=False)
    up.lost_to_emulation = lambda: "its CPUs raced" if up.gone else ""
    oncemore.GUESTS.append(up)
    yield up
    if up.gone:
        raise OSError("a guest that is gone does not end well")
"""

TESTS = """
from lab import oncemore

def lost(guest):
    guest.gone = True
    raise OSError("no answer")

def test_before(guest):
    assert len(oncemore.GUESTS) == 1

def test_first(guest):
    if len(oncemore.GUESTS) == 1:
        lost(guest)

def test_after(guest):
    assert oncemore.GUESTS[-1] is guest and len(oncemore.GUESTS) == 2
"""


@pytest.fixture
def told(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run tells of guests that are new."""
    anew: list[str] = []
    monkeypatch.setattr(oncemore, "GUESTS", [])
    monkeypatch.setattr(oncemore, "ANEW", anew)
    pytester.makeconftest(CONFTEST)
    return anew


def test_a_test_whose_guest_was_lost_runs_once_more_with_a_new_one(
    pytester: pytest.Pytester, told: list[str]
) -> None:
    file = pytester.makepyfile(TESTS)
    pytester.runpytest_inprocess().assert_outcomes(passed=3)
    assert told == [f"6.12: its CPUs raced; {file.name}::test_first was run once more"]


def test_one_test_a_run_is_all(pytester: pytest.Pytester, told: list[str]) -> None:
    more = "def test_second(guest):\n    lost(guest)\n"
    pytester.makepyfile(TESTS + more)
    pytester.runpytest_inprocess().assert_outcomes(passed=3, failed=1, errors=1)
    assert len(told) == 1


def test_one_that_fails_again_has_failed(pytester: pytest.Pytester, told: list[str]) -> None:
    pytester.makepyfile(TESTS.replace("len(oncemore.GUESTS) == 1:", "True:"))
    pytester.runpytest_inprocess().assert_outcomes(passed=2, failed=1, errors=1)
    assert len(told) == 1


def test_a_failure_beside_a_guest_that_is_up_stays(
    pytester: pytest.Pytester, told: list[str]
) -> None:
    pytester.makepyfile("def test_alone(guest):\n    raise OSError('ours')\n")
    pytester.runpytest_inprocess().assert_outcomes(failed=1)
    assert told == []
