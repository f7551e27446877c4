# SPDX-License-Identifier: GPL-2.0-or-later
"""Logins: which are newer than that of an apply."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.host.session import Login, current, not_newer
from rxlane.sysfs import Sysfs
from unit.confirming import NEW, OLD


def test_a_login_after_the_apply_may_confirm() -> None:
    assert not_newer(OLD, NEW) is None


@pytest.mark.parametrize(
    "own",
    [
        OLD,
        replace(NEW, audit=3),  # setsid, tmux: another session and terminal in the old login
        replace(NEW, audit=5),  # a second login that was there before the apply
        replace(NEW, audit=None),  # a unit that the old login started
    ],
)
def test_no_other_login_may(own: Login) -> None:
    assert not_newer(OLD, own) is not None


BARE = replace(OLD, audit=None, newest=None)


@pytest.mark.parametrize(
    ("own", "good"),
    [
        (replace(NEW, audit=None), True),
        (replace(NEW, audit=7), True),
        (replace(NEW, audit=None, tty=0), True),
        (replace(NEW, audit=None, sid=100), False),
        (replace(NEW, audit=None, tty=34816), False),
        (replace(NEW, audit=None, started=999), False),
        (replace(NEW, audit=None, started=None), False),
    ],
)
def test_without_audit_the_posix_session_decides(own: Login, good: bool) -> None:
    assert (not_newer(BARE, own) is None) == good


def test_login_is_read(tmp_path: Path) -> None:
    stat = "1 (a) b) S 1 1 {sid} {tty} -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0"
    rows = {
        "self": ("3", stat.format(sid=40, tty=34816, start=70)),
        "40": ("3", stat.format(sid=40, tty=34816, start=55)),
        "41": ("9", ""),
        "42": ("4294967295", ""),
    }
    for name, (audit, text) in rows.items():
        (tmp_path / "proc" / name).mkdir(parents=True)
        (tmp_path / "proc" / name / "sessionid").write_text(audit)
        (tmp_path / "proc" / name / "stat").write_text(text)
    found = current(Sysfs(tmp_path))
    assert replace(found, at=0) == Login(3, 9, 40, 34816, 55, 0)
    (tmp_path / "proc" / "self" / "sessionid").write_text("4294967295")
    assert current(Sysfs(tmp_path)).audit is None


def test_own_login() -> None:
    found = current(Sysfs())
    assert found.sid == os.getsid(0) and 0 <= found.at
    assert not_newer(found, found) is not None
