# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import uapi
from rxlane.errors import RxlaneError
from rxlane.host import threads
from rxlane.model import Thread
from rxlane.sysfs import Sysfs
from unit.filetree import stat_line

GONE = Thread(2**22 + 1, "napi/x", "other", 0, 0, (0,))


def test_fields_of_stat() -> None:
    """nice is field 19, rt_priority 40, policy 41; checked against this process below."""
    line = stat_line("napi/eth0-8193", 0x208040, -5, 50, 1)
    fields = line.split()
    assert (fields[18], fields[39], fields[40]) == ("-5", "50", "1")
    assert threads.parse_stat(line) == ("napi/eth0-8193", 0x208040, -5, 50, 1)


def test_own_stat_line() -> None:
    own = threads.parse_stat(Path("/proc/self/stat").read_text())
    assert own is not None
    assert own[2] == os.getpriority(os.PRIO_PROCESS, 0) and own[4] == os.sched_getscheduler(0)


@pytest.mark.parametrize("text", ["", "77", "77 (x", "77 (x) S 1 2"])
def test_short_stat_lines(text: str) -> None:
    assert threads.parse_stat(text) is None


def test_names_with_parentheses() -> None:
    found = threads.parse_stat(stat_line("a) b (c", 0, 0, 0, 0))
    assert found is not None and found[0] == "a) b (c"


@pytest.mark.parametrize(
    ("name", "flags", "is_ours"),
    [
        ("napi/eth0-8193", 0x00200040, True),
        ("napi/eth0-8193", 0x00400040, False),  # a process that took the name
        ("ksoftirqd/0", 0x00200040, False),
    ],
)
def test_only_napi_kernel_threads_count(
    tmp_path: Path, name: str, flags: int, is_ours: bool
) -> None:
    pid = os.getpid()  # sched_getaffinity needs a live process
    (tmp_path / f"proc/{pid}").mkdir(parents=True)
    (tmp_path / f"proc/{pid}/stat").write_text(stat_line(name, flags, 0, 0, 0))
    found = threads.read(Sysfs(tmp_path), pid)
    assert (found is not None) == is_ours
    assert threads.read(Sysfs(tmp_path), pid + 1) is None


def test_setting_a_thread_that_is_gone() -> None:
    with pytest.raises(RxlaneError, match="No such process"):
        threads.set_cpus(2**22 + 1, [0])
    with pytest.raises(RxlaneError, match="No such process"):
        threads.set_sched(GONE.pid, 0, "other:5")
    with pytest.raises(RxlaneError) as caught:
        threads.set_sched(GONE.pid, 0, "deadline:0")
    assert caught.value.kind.unsupported


@pytest.mark.parametrize(
    ("status", "cpus"),
    [
        ("Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\n", (0, 1, 3)),  # 4-7 are not present
        ("Cpus_allowed_list:\t0-1\n", (0, 1)),
        ("", (0, 1)),  # gone
    ],
)
def test_cpus_that_are_offline_belong_to_a_thread(
    tmp_path: Path, status: str, cpus: tuple[int, ...]
) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    if status:
        (tmp_path / "proc/7/status").write_text(status)
    thread = Thread(7, "napi/eth0-1", "other", 0, 0, (0, 1))
    found = threads.with_offline(Sysfs(tmp_path), thread, {3})
    assert found == replace(thread, cpus=cpus)


def test_a_glance_sees_what_reading_does(tmp_path: Path) -> None:
    """Of this process: a glance does not ask whether it is a kernel thread."""
    pid = os.getpid()
    found = threads.glance(pid)
    assert found is not None and found.name == ""
    stat = threads.parse_stat(Path(f"/proc/{pid}/stat").read_text())
    assert stat is not None
    assert (found.nice, found.priority, found.cpus) == (stat[2], stat[3], threads.affinity(pid))
    assert uapi.SCHED_POLICY[stat[4]] == found.policy
    assert threads.glance(2**22 + 1) is None
