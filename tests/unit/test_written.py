# SPDX-License-Identifier: GPL-2.0-or-later
"""Which files settings stand in, and that another program's writes to them are noticed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.host import places
from rxlane.host.places import Folder
from rxlane.items import (
    FLOW_ENTRIES,
    FLUSH,
    IRQ_CPUS,
    IRQ_THREADED,
    RPS,
    RX_THREADS,
    SCHED,
    SUSPEND,
    THREADED,
    WORKQUEUE,
    XPS,
)
from rxlane.keeping.events import Event, Links, Sources, Written
from rxlane.keeping.notify import Folders
from rxlane.plan import HOST, WHOLE, Target
from rxlane.settings import View
from rxlane.sysfs import Sysfs
from rxlane.wire.rtnetlink import LinkState
from unit import simhost

RX0 = "sys/class/net/eth0/queues/rx-0"
STEERED = {RX0: Folder("eth0", frozenset({"rps_cpus", "rps_flow_cnt"}))}


def folders(*targets: tuple[str, int, str]) -> dict[str, set[str]]:
    view = View.of(simhost.snapshot())
    found = places.folders(view, (Target(*target) for target in targets))
    return {path: set(folder.names) for path, folder in found.items()}


def test_where_settings_stand() -> None:
    assert folders(("eth0", 1, RPS), ("eth0", 1, XPS), ("eth0", WHOLE, RX_THREADS)) == {
        "sys/class/net/eth0/queues/rx-1": {"rps_cpus"},
        "sys/class/net/eth0/queues/tx-1": {"xps_cpus"},
        "sys/class/net/eth0": {"rx_threads"},
    }
    assert folders((HOST, WHOLE, FLOW_ENTRIES), (HOST, WHOLE, WORKQUEUE)) == {
        "proc/sys/net/core": {"rps_sock_flow_entries"},
        "sys/devices/virtual/workqueue": {"cpumask"},
    }


def test_a_napi_is_also_written_by_its_device() -> None:
    assert folders(("eth0", 0, THREADED), ("eth0", 1, FLUSH)) == {
        "sys/class/net/eth0": {"threaded", "gro_flush_timeout"}
    }


def test_an_interrupt_has_a_list_and_a_mask() -> None:
    host = simhost.whole(simhost.snapshot())
    first = host.irqs[0]
    view = View.of(replace(host, irqs=(replace(first, name="eth0-rx-0"), *host.irqs[1:])))
    targets = [Target("eth0", 0, IRQ_CPUS), Target("eth0", 0, IRQ_THREADED)]
    base = f"proc/irq/{first.number}"
    assert places.folders(view, targets) == {
        base: Folder("eth0", frozenset({"smp_affinity", "smp_affinity_list"})),
        f"{base}/eth0-rx-0": Folder("eth0", frozenset({"threaded"})),
    }


def test_what_stands_in_no_file_or_is_gone() -> None:
    assert folders(("eth0", 0, SCHED), ("eth0", 0, SUSPEND), ("eth0", 77, IRQ_CPUS)) == {}


@pytest.fixture
def watcher() -> Iterator[Folders]:
    made = Folders()
    yield made
    made.close()


@pytest.fixture
def written(tmp_path: Path, watcher: Folders) -> Iterator[Written]:
    (tmp_path / RX0).mkdir(parents=True)
    made = Written(watcher, Sysfs(tmp_path))
    yield made
    made.close()


LINKS = Links([LinkState(2, "eth0", True)])


def told(written: Written, watcher: Folders) -> list[Event]:
    seen = watcher.read()
    assert seen is not None
    return written.told(seen, LINKS)


def test_a_write_is_told_of_the_files_that_matter(
    tmp_path: Path, written: Written, watcher: Folders
) -> None:
    written.refresh(STEERED)
    (tmp_path / RX0 / "rps_cpus").write_text("3")
    (tmp_path / RX0 / "other").write_text("3")
    (event,) = told(written, watcher)
    assert str(event) == "eth0 had rps_cpus written"
    assert event.ifindex == 2 and not event.reset
    (tmp_path / RX0 / "rps_cpus").read_text()
    assert told(written, watcher) == []


def test_of_the_host(tmp_path: Path, written: Written, watcher: Folders) -> None:
    core = "proc/sys/net/core"
    (tmp_path / core).mkdir(parents=True)
    written.refresh({core: Folder(HOST, frozenset({"busy_read"}))})
    (tmp_path / core / "busy_read").write_text("50")
    assert told(written, watcher) == [Event("busy_read was written", reset=False)]


def test_a_device_that_is_called_otherwise_by_now(
    tmp_path: Path, written: Written, watcher: Folders
) -> None:
    written.refresh({RX0: Folder("gone0", frozenset({"rps_cpus"}))})
    (tmp_path / RX0 / "rps_cpus").write_text("3")
    assert told(written, watcher) == []


def test_made_anew_it_is_followed_and_the_old_one_left(
    tmp_path: Path, written: Written, watcher: Folders
) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    written.refresh(STEERED)
    held = open_files()
    written.refresh(STEERED)
    assert open_files() == held
    shutil.rmtree(tmp_path / RX0)
    (tmp_path / RX0).mkdir()
    written.refresh(STEERED)
    assert open_files() == held
    (tmp_path / RX0 / "rps_cpus").write_text("1")
    assert len(told(written, watcher)) == 1
    shutil.rmtree(tmp_path / RX0)
    written.refresh(STEERED)
    assert open_files() == held - 1 and told(written, watcher) == []


def test_left_when_nobody_asks(tmp_path: Path, written: Written, watcher: Folders) -> None:
    written.refresh(STEERED)
    written.refresh({})
    (tmp_path / RX0 / "rps_cpus").write_text("1")
    assert told(written, watcher) == []


def test_more_than_can_be_held_open(
    tmp_path: Path, watcher: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (8, 8))
    queues = [f"sys/class/net/eth0/queues/rx-{n}" for n in range(3)]
    for queue in queues:
        (tmp_path / queue).mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    written = Written(watcher, Sysfs(tmp_path))
    written.refresh({queue: Folder("eth0", frozenset({"rps_cpus"})) for queue in queues})
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for queue in queues:
        (tmp_path / queue / "rps_cpus").write_text("1")
    assert told(written, watcher) == [Event("had rps_cpus written", "eth0", 2, reset=False)]
    written.close()


def test_no_more_watches(
    tmp_path: Path, written: Written, watcher: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: str, mask: int = 0) -> int:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(watcher, "watch", full)
    written.refresh(STEERED)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_room_what_is_followed_stays_so(
    tmp_path: Path, written: Written, watcher: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(files: Sysfs, directory: str) -> int:
        raise OSError(24, "Too many open files")

    written.refresh(STEERED)
    held = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(Sysfs, "pin", full)
        written.refresh(STEERED)
    (tmp_path / RX0 / "rps_cpus").write_text("1")
    assert len(told(written, watcher)) == 1
    written.refresh(STEERED)
    assert len(os.listdir("/proc/self/fd")) == held


def test_sources_tell_it_and_what_they_are_told(tmp_path: Path) -> None:
    sources = Sources()
    try:
        sources._written = Written(sources.folders, Sysfs(tmp_path))
        (tmp_path / RX0).mkdir(parents=True)
        sources.links = LINKS
        sources.refresh(STEERED)
        (tmp_path / RX0 / "rps_flow_cnt").write_text("9")
        found = sources.read(sources.folders.descriptor)
        assert [event.device for event in found] == ["eth0"]
        assert sources.noticed(None) == [Event("writes of settings were lost", reset=False)]
        own = Event("something")
        sources.announce(own)
        rung = [e for descriptor in sources.descriptors for e in sources.read(descriptor)]
        assert own in rung
    finally:
        sources.close()


def test_no_room_for_a_new_folder_leaves_those_that_are_followed(
    tmp_path: Path, written: Written, watcher: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.refresh(STEERED)
    new = "sys/class/net/eth0/queues/rx-00"
    (tmp_path / new).mkdir()
    follow = watcher.watch

    def full(path: str, what: int) -> int:
        if os.path.samefile(path, tmp_path / new):
            raise OSError(errno.ENOSPC, "fs.inotify.max_user_watches")
        return follow(path, what)

    monkeypatch.setattr(watcher, "watch", full)
    written.refresh({new: STEERED[RX0], **STEERED})
    (tmp_path / RX0 / "rps_cpus").write_text("3")
    assert len(told(written, watcher)) == 1
