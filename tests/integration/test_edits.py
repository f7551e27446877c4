# SPDX-License-Identifier: GPL-2.0-or-later
"""The edits that long tests make to our kernels still fit the series.

A patch that changes such a line would have the test that needs it end before it shows anything.
"""

from pathlib import Path

import pytest
from test_rx_threads_cpus import EDITS
from test_rx_threads_load import BLIND
from undone import UNDONE

from lab import apt
from lab.base import apply_series, read_base, unpack_touched
from lab.kernel import Edit


@pytest.mark.parametrize(
    ("name", "edits"),
    [("6.12", (*UNDONE.values(), *EDITS, BLIND)), ("7.2", (*EDITS, BLIND))],
    ids=["6.12", "7.2"],
)
def test_edits_fit(name: str, edits: tuple[Edit, ...], tmp_path: Path) -> None:
    base = read_base(name)
    unpack_touched(base, apt.choose(base.package, base.version), tmp_path)
    apply_series(base, tmp_path)
    assert all(edit.outcome(tmp_path) for edit in edits)
