# SPDX-License-Identifier: GPL-2.0-or-later
"""Workers of xdist: each guest is one worker's, and what they tell of guests comes together."""

import pytest

from lab import workers
from lab.vm import ANEW

pytest_plugins = ["pytester"]

KERNELS = ("ours-6.12", "debian-6.12")
CONFTEST = f"""
import pytest

from lab import workers
from lab.vm import ANEW


@pytest.fixture(scope="session", params={KERNELS})
def guest(request, worker_id):
    ANEW.append(f"{{request.param}} by {{worker_id}}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return workers.ByGuest(config, log, {KERNELS})


def pytest_sessionfinish(session):
    workers.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    workers.take(node)
"""
TESTS = """
import time
import pytest


@pytest.mark.parametrize("number", range(5))
def test_of_a_guest(guest, number):
    time.sleep(0.05)
"""


def test_groups() -> None:
    of = {
        "tests/a.py::test_x[ours-6.12]": "ours-6.12",
        "tests/b.py::test_y[ours-6.12-words [-x]]": "ours-6.12",
        "tests/b.py::test_y[debian-6.12-3]": "debian-6.12",
        "tests/b.py::test_y[stock-7.2]": "tests/b.py",
        "tests/b.py::test_y[6.12]": "tests/b.py",
        "tests/b.py::test_y": "tests/b.py",
    }
    assert {nodeid: workers.scope(nodeid, KERNELS) for nodeid in of} == of


def test_each_guest_is_booted_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ANEW.clear()
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_first=TESTS, test_second=TESTS)
    pytester.runpytest_inprocess("-n", "2").assert_outcomes(passed=20)
    told, booted = sorted(ANEW), sorted(line.partition(" by ")[0] for line in ANEW)
    ANEW.clear()
    assert booted == sorted(KERNELS), told
