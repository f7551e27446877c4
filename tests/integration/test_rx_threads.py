# SPDX-License-Identifier: GPL-2.0-or-later
"""Helper threads of network devices, by the selftest of the series.

On our 6.12; with `make check-long` on our 7.2, too.
"""

import re
from collections.abc import Iterator

import pytest

from lab.kernel import build
from lab.selftests import selftests
from lab.vm import Guest, GuestSpec

CPUS = 2
FOLDER = "/mnt/share/ksrc/tools/testing/selftests/net"
CASES = {
    "values and errors",
    "names, CPUs and end of threads",
    "neither with RPS nor with RFS",
    "flows are spread",
    "flows in order while resized",
    "flows in order while switched off and on",
    "forwarded flows in order while resized",
    "neighbours are found while packets are dropped",
    "policy and affinity are kept",
    "CPUs come and go",
    "moves between namespaces",
    "device is removed under load",
}
# "TEST: rx_threads (values and errors)      [ OK ]"
OUTCOME = re.compile(
    r"^TEST: rx_threads \((?P<case>[^)]*)\)\s+\[\s*(?P<word>\w+)\s*\]", re.MULTILINE
)


@pytest.fixture(scope="module", params=["6.12", pytest.param("7.2", marks=pytest.mark.long)])
def printed(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the selftest printed."""
    base = request.param
    with Guest(build(base, patched=True), GuestSpec(cpus=CPUS, share=[selftests(base)])) as vm:
        yield vm.run(["sh", "-c", f"cd {FOLDER} && ./rx_threads.sh 2>&1 || :"], timeout=900).stdout
        vm.check_splats()


def outcomes(printed: str) -> dict[str, str]:
    """{case: OK, FAIL, SKIP or XFAIL}"""
    return {found["case"]: found["word"] for found in OUTCOME.finditer(printed)}


def test_every_case_ran(printed: str) -> None:
    assert outcomes(printed).keys() == CASES, printed


@pytest.mark.parametrize("case", sorted(CASES))
def test_of_the_series(printed: str, case: str) -> None:
    assert outcomes(printed).get(case) == "OK", printed
