# SPDX-License-Identifier: GPL-2.0-or-later
"""The unit of an interface: its sandbox, and that what it starts takes what it is given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rxlane.linkfiles import linkd

UNIT = Path(__file__).resolve().parents[2] / "plugins" / "systemd" / "rxlane-link@.service"
EXPOSURE = 30  # tenths, of what systemd-analyze(1) counts
CAPABILITIES = {"CAP_NET_ADMIN", "CAP_SYS_NICE", "CAP_SYS_ADMIN"}


def test_exposure() -> None:
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("RXLANE_STRICT") == "1":
            pytest.fail("RXLANE_STRICT=1 and there is no systemd-analyze")
        pytest.skip("there is no systemd-analyze")
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", str(UNIT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


def test_capabilities_are_those_that_are_explained() -> None:
    text = UNIT.read_text()
    line = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.M)
    assert line is not None and set(line[1].split()) == CAPABILITIES
    assert set(re.findall(r"^#   (CAP_\w+) ", text, re.M)) == CAPABILITIES


def test_the_command_is_the_module() -> None:
    assert f"ExecStart=/usr/bin/python3 -I -m {linkd.__name__} %i\n" in UNIT.read_text()
