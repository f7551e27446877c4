# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel's selftests print, and those of interrupts."""

import re
from collections.abc import Iterable

Results = dict[str, str]
SELFTESTS = "/mnt/share/ksrc/tools/testing/selftests/irq"
# The cases with interrupts of the series' test module.
MODULE = {"refused", "values", "capability", "switch", "kept", "affinity", "late", "under_fire",
          "free_race", "no_cpu"}  # fmt: skip


def results(text: str) -> Results:
    """{case: "ok" or "not ok", and the comment} of TAP; of a case told twice what is worse."""
    found = re.findall(r"^((?:not )?ok) \d+ (\S+)(.*)$", text, re.M)
    return worst(((name, f"{outcome}{comment}") for outcome, name, comment in found), "ok")


def worst(told: Iterable[tuple[str, str]], well: str) -> Results:
    """{case: outcome}; of a case told more than once the first that is not ``well``."""
    found: Results = {}
    for case, outcome in told:
        if found.get(case, well) == well:
            found[case] = outcome
    return found


def check(printed: str, cases: set[str]) -> None:
    """These cases were run, no others, and all of them passed."""
    found = results(printed)
    assert set(found) == cases, printed
    assert set(found.values()) == {"ok"}, printed
