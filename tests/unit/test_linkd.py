# SPDX-License-Identifier: GPL-2.0-or-later
"""What wakes the service of an interface, and when it ends."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rxlane.applying.rollback import RolledBack
from rxlane.host import udevdb
from rxlane.journal import Claims, Store
from rxlane.keeping.events import Event
from rxlane.keeping.notify import Folders
from rxlane.linkfiles import linkd, linksources
from rxlane.linkfiles.linkd import LINGER, Stop
from rxlane.linkfiles.linksources import LinkSources
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink
from rxlane.wire.rtnetlink import LinkRow


def ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_folders(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    folders = Folders()
    first, second = folders.watch(str(one)), folders.watch(str(two))
    assert not ready(folders.descriptor) and folders.read() == set()
    (one / "a").write_text("")
    (two / "b.tmp").write_text("")
    os.replace(two / "b.tmp", two / "a name that is longer")
    (one / "a").unlink()
    assert ready(folders.descriptor)
    names = {(first, "a"), (second, "b.tmp"), (second, "a name that is longer")}
    assert folders.read() == names
    with pytest.raises(OSError, match="inotify: No such file"):
        folders.watch(str(tmp_path / "none"))
    folders.close()


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[LinkSources]:
    (tmp_path / udevdb.DATABASE).mkdir(parents=True)
    (tmp_path / "state").mkdir()
    made = LinkSources(Store(tmp_path / "state"), Sysfs(tmp_path), 7)
    yield made
    made.close()


def told(sources: LinkSources) -> list[Event]:
    return sources.read(sources.folders.descriptor)


def test_what_concerns_the_interface(sources: LinkSources, tmp_path: Path) -> None:
    database, store = tmp_path / udevdb.DATABASE, Store(tmp_path / "state")
    for name in ("n8", ".#n7", "b7:0"):
        (database / name).write_text("")
    store.claims.path.with_suffix(".tmp").write_text("")
    assert told(sources) == []
    (database / ".#n7").rename(database / "n7")
    store.claims.save(Claims("boot", (7,)))
    (event, other) = told(sources)
    assert "properties" in str(event) and "lays out" in str(other)
    assert event.ifindex is None, "it counts also while the interface is down"
    (database / "n7").unlink()
    assert len(told(sources)) == 1


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stop, list[int]]]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    alarms: list[int] = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    yield Stop(), alarms
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ends_when_asked(stop: tuple[Stop, list[int]]) -> None:
    one, _ = stop
    assert not ready(one.descriptor)
    os.kill(os.getpid(), signal.SIGTERM)
    assert ready(one.descriptor) and one.asked and not one.gone


def test_ends_when_the_interface_stays_away(stop: tuple[Stop, list[int]]) -> None:
    one, alarms = stop
    for there in (True, False, False, True, True, False):
        one.here(there)
    assert alarms == [LINGER, 0, LINGER]
    os.kill(os.getpid(), signal.SIGALRM)
    assert ready(one.descriptor) and one.gone and not one.asked


def test_many_services_of_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives 128 inotify instances; to use them up is not for a test."""
    full = SimpleNamespace(inotify_init1=lambda _: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: full)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EMFILE)
    with pytest.raises(OSError, match="raise fs.inotify.max_user_instances"):
        Folders()


def test_follows_the_threads_of_its_own_interface(
    sources: LinkSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has a limit of descriptors, and the others have services of their own."""
    monkeypatch.setattr(linksources, "napi_threads", lambda: [(1, 3), (os.getpid(), 7), (2, 9)])
    before = sources.descriptors
    sources.refresh({})
    assert len(sources.descriptors) == len(before) + 1


class Served:
    """serve() with a wait that ends as the test has it, and nothing laid out."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, *ends: str) -> None:
        self.ends = [*ends]
        self.stop = SimpleNamespace(asked=False, gone=False, here=None, descriptor=-1)
        self.did = list[str]()
        self.links = SimpleNamespace(names={7: "old"})
        for name in ("LinkSources", "KeptLink"):
            patch.setattr(linkd, name, lambda *_: self)
        patch.setattr(linkd, "Linux", lambda: None)
        patch.setattr(linkd, "keep", lambda *_: self._wait())
        patch.setattr(linkd, "Stop", lambda: self.stop)
        patch.setattr(rtnetlink, "links", lambda: [LinkRow(7, "eth0", True)])
        (root / udevdb.DATABASE).mkdir(parents=True)
        (root / udevdb.DATABASE / "n7").write_text("E:NAPI_THREADED=on\n")
        self.stop.go_on = self._go_on
        linkd.serve(7, Store(root / "state"), Sysfs(root))

    def _wait(self) -> None:
        setattr(self.stop, self.ends.pop(0), True)

    def _go_on(self) -> bool:
        self.stop.gone = False
        return True

    def claim(self) -> None:
        self.did.append("claim")

    relevant = replan = close = claim

    def renew(self, anyway: bool = False) -> None:
        self.links.names = {7: "new"} if anyway else self.links.names

    def end(self, names: dict[int, str]) -> RolledBack:
        self.did.append(f"end {names}")
        return RolledBack(0)


def test_stopped_it_gives_back_by_the_name_of_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served = Served(monkeypatch, tmp_path, "asked")
    assert served.did == ["claim", "end {7: 'new'}", "claim"]


def test_served_again_once_it_is_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = Served(monkeypatch, tmp_path, "gone", "asked")
    assert served.did == ["claim", "end {}", "claim", "claim", "end {7: 'new'}", "claim"]


def test_an_old_record_of_udev_is_no_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(linkd, "_is_there", lambda *_: False)
    assert Served(monkeypatch, tmp_path, "gone").did == ["claim", "end {}", "claim"]
    monkeypatch.undo()
    monkeypatch.setattr(rtnetlink, "links", list)
    assert not linkd._is_there(7, Sysfs(tmp_path))
    monkeypatch.setattr(rtnetlink, "links", lambda: [LinkRow(7, "eth0", True)])
    assert linkd._is_there(7, Sysfs(tmp_path))
    (tmp_path / udevdb.DATABASE / "n7").unlink()
    assert not linkd._is_there(7, Sysfs(tmp_path))


def test_goes_on_as_if_it_had_just_begun(stop: tuple[Stop, list[int]]) -> None:
    one, alarms = stop
    one.here(False)
    os.kill(os.getpid(), signal.SIGALRM)
    assert one.gone and one.go_on() and not one.gone and not ready(one.descriptor)
    one.here(False)
    assert alarms == [LINGER, LINGER]
    os.kill(os.getpid(), signal.SIGTERM)
    assert not one.go_on(), "what was asked for meanwhile counts"


def test_a_failure_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        error = OSError("no luck")
        error.add_note("undo failed")
        raise error

    monkeypatch.setattr(linkd, "serve", fail)
    monkeypatch.setattr("sys.argv", ["rxlane-link", "7", "--state", str(tmp_path)])
    assert linkd.main() == 1
    assert capsys.readouterr().err == "<3>no luck; undo failed\n"


def test_an_interface_that_is_back_when_the_wait_has_just_ended(
    stop: tuple[Stop, list[int]],
) -> None:
    wait, _ = stop
    wait.here(False)
    signal.raise_signal(signal.SIGALRM)
    assert wait.gone
    wait.here(True)
    poll = select.poll()
    poll.register(wait.descriptor, select.POLLIN)
    assert not wait.gone and not poll.poll(0)
