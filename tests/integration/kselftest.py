# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel's selftests print: as TAP, those of interrupts, and rx_threads.sh."""

import re
from collections.abc import Iterable

Results = dict[str, str]
# "TEST: rx_threads (values and errors)      [ OK ]"
OUTCOME = re.compile(
    r"^TEST: rx_threads \((?P<case>[^)]*)\)\s+\[\s*(?P<word>\w+)\s*\]", re.MULTILINE
)
# What the cases with interrupts leave out, in a kernel or a system that lacks something, and pass.
LEFT_OUT = re.compile(r"^# (no [\w-]+|not tried.*)$", re.M)
SELFTESTS = "/mnt/share/ksrc/tools/testing/selftests/irq"
# The cases with interrupts of the series' test module.
MODULE = {"refused", "values", "capability", "switch", "kept", "affinity", "late", "under_fire",
          "free_race", "no_cpu"}  # fmt: skip


def results(text: str) -> Results:
    """{case: "ok" or "not ok", and the comment} of TAP; of a case told twice what is worse."""
    found = re.findall(r"^((?:not )?ok) \d+ (\S+)(.*)$", text, re.M)
    return worst(((name, f"{outcome}{comment}") for outcome, name, comment in found), "ok")


def outcomes(text: str) -> Results:
    """{case of rx_threads.sh: OK, FAIL, SKIP or XFAIL}; of a case told twice what is not OK."""
    return worst(((one["case"], one["word"]) for one in OUTCOME.finditer(text)), "OK")


def worst(told: Iterable[tuple[str, str]], well: str) -> Results:
    """{case: outcome}; of a case told more than once the first that is not ``well``."""
    found: Results = {}
    for case, outcome in told:
        if found.get(case, well) == well:
            found[case] = outcome
    return found


def check(printed: str, cases: set[str]) -> None:
    """These cases were run whole, no others, and all of them passed."""
    assert LEFT_OUT.findall(printed) == [], printed
    found = results(printed)
    assert set(found) == cases, printed
    assert set(found.values()) == {"ok"}, printed
