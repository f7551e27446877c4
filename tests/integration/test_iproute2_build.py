# SPDX-License-Identifier: GPL-2.0-or-later
"""The patch to iproute2 as such: builds without warnings, fuzzed parsers, own tests."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import iproute2_tool as tool
import pytest
from iproute2_space import run

from conftest import missing

INPUTS = 1_000_000


@pytest.mark.long
@pytest.mark.parametrize("version", tool.SUITES)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_builds_without_a_warning_in_the_new_file(version: str, compiler: str) -> None:
    """tool.ip() builds ipnapi.c with -Wall -Wextra -Werror; usage names what was added."""
    if not shutil.which(compiler):
        missing(f"{compiler} is not installed")
    shown = run([tool.ip(version, compiler), "link", "help"]).stderr
    assert "[ threaded { on | off | busy-poll } [ queue QUEUE | napi NAPI_ID ] ]" in shown


def test_fuzzed_replies() -> None:
    """Cut short, lengthened, with unknown attributes: no report of ASan or UBSan, no wait."""
    done = run([tool.fuzzer(), str(INPUTS), "1"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "runtime error" not in done.stderr
    stored = re.search(rf"fuzz-napi: {INPUTS} inputs, seed 1, (\d+) objects", done.stderr)
    assert stored and int(stored[1]) > INPUTS / 4, "too few inputs came through the parsers"


def verdict(ip: Path, suite: Path, test: str, tmp: Path) -> bool:
    """Whether a test of iproute2's suite passes, run as its Makefile does."""
    errors = tmp / "errors"
    errors.unlink(missing_ok=True)
    env = {**os.environ, "IP": str(ip), "STD_OUT": str(tmp / "out"), "STD_ERR": str(tmp / "err"),
           "ERRF": str(errors), "DEV": "lo"}  # fmt: skip
    done = subprocess.run(
        ["unshare", "-n", "sh", f"tests/{test}"], cwd=suite, env=env, check=False, timeout=60,
        capture_output=True,
    )  # fmt: skip
    # The shell has an error of its own for what is not there or cannot be run.
    return done.returncode == 0 and not errors.exists()


@pytest.mark.parametrize("version", ["7.2.0"])
def test_own_tests_of_ip_link_are_as_before(version: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("network namespaces need root")
    suite = tool.testsuite(version)
    tests = sorted(str(path.relative_to(suite / "tests")) for path in suite.glob("tests/ip/*/*.t"))
    tests.remove("ip/link/threaded.t")
    before = {test: verdict(tool.ip(version, "stock"), suite, test, tmp_path) for test in tests}
    after = {test: verdict(tool.ip(version, "gcc"), suite, test, tmp_path) for test in tests}
    assert after == before
    assert any(before.values()), "none passes: the suite was not run as it wants to be"
