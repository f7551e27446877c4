# SPDX-License-Identifier: GPL-2.0-or-later
"""lab.shell: which machine is asked for, and what counts as a line."""

import io

import pytest

from lab.shell import lines, machine


def test_eight_cpus_are_the_profiles_guest() -> None:
    spec = machine(8, [])
    assert spec.sockets * spec.cores * spec.threads == spec.cpus
    assert spec.numa == 2
    assert spec.devices() == ("e1000e", "vmxnet3")


def test_other_counts_are_plain() -> None:
    spec = machine(1, [])
    assert (spec.cpus, spec.numa, spec.devices()) == (1, 1, ())


def test_empty_lines_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("true\n\n  \nfalse"))
    assert list(lines()) == [["sh", "-c", "true\n"], ["sh", "-c", "false"]]
