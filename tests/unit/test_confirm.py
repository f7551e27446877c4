# SPDX-License-Identifier: GPL-2.0-or-later
"""An apply that is undone unless a new login confirms it, on a simulated kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import confirm, guard
from rxlane.apply import apply
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Pending, Process, Sealed, Store
from rxlane.plan import HOST_INDEX
from rxlane.policy import parse_mixed, parse_section
from rxlane.rollback import rollback
from rxlane.session import Login, current, not_newer, start_of, ticks
from rxlane.sysfs import Sysfs
from unit import simhost
from unit.asking import FULL, policy
from unit.confirming import NEW, OLD, SELF, ready
from unit.simhost import SimHost
from unit.simwrites import Killed

TWO = simhost.link("eth1", ifindex=3, base=9000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


@pytest.fixture
def host() -> SimHost:
    return SimHost(simhost.snapshot())


def arm(host: SimHost, store: Store, devices: list[int] | None = None) -> Pending:
    return confirm.arm(host, store, OLD, 60, devices, ready)


# -- logins -----------------------------------------------------------------------------------


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


# -- the record -------------------------------------------------------------------------------


def test_confirmed_apply_stays(host: SimHost, store: Store) -> None:
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    during = simhost.settings(host)
    with pytest.raises(RxlaneError, match="log in anew") as caught:
        confirm.confirm(host, store, OLD)
    assert caught.value.kind is Kind.REFUSED
    confirm.confirm(host, store, NEW)
    assert confirm.expire(host, store, pending) is None
    assert simhost.settings(host) == during
    with pytest.raises(RxlaneError, match="no apply waits"):
        confirm.confirm(host, store, NEW)


def test_unconfirmed_apply_is_undone(host: SimHost, store: Store) -> None:
    before = simhost.settings(host)
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    done = confirm.expire(host, store, pending)
    assert done is not None and done.written > 0
    assert simhost.settings(host) == before
    assert store.load() is None and store.pending.load() is None


def test_no_disk_is_needed_before_the_originals_are_back(
    host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs, such as one behind the network that the layout cut off."""
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    steps = list[str]()
    monkeypatch.setattr(os, "fsync", lambda _: steps.append("disk"))
    host.on_write = lambda: steps.append("original")
    confirm.expire(host, store, pending)
    assert steps == sorted(steps, reverse=True) and {*steps} == {"original", "disk"}
    assert store.given_up.load() is not None


def test_killed_at_every_write_the_originals_come_back(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    apply(host, Store(tmp_path / "count"), policy(**FULL))
    for number in range(host.writes):
        one, store = SimHost(simhost.snapshot()), Store(tmp_path / str(number))
        before = simhost.settings(one)
        pending = arm(one, store)
        one.kill_at = number
        with pytest.raises(Killed):
            apply(one, store, policy(**FULL))
        confirm.expire(one, store, pending)
        assert simhost.settings(one) == before


def test_only_the_devices_of_that_apply(store: Store) -> None:
    """Also under another name; what was confirmed of other devices stays."""
    host = SimHost(simhost.snapshot(simhost.link(), TWO))
    apply(host, store, policy("eth0", threaded="on"), ["eth0"])
    pending = arm(host, store, [3])
    apply(host, store, policy("eth1", threaded="on"), ["eth1"])
    host.rename("eth1", "lan1")
    confirm.expire(host, store, pending)
    assert all(n.threaded == 0 for n in host.links["lan1"].napis)
    assert all(n.threaded == 1 for n in host.links["eth0"].napis)


def test_settings_of_the_host_come_back_with_the_apply_that_wrote_them(store: Store) -> None:
    host = SimHost(simhost.whole(simhost.snapshot(simhost.link(), TWO)))
    backlog = host.sysctls["net.core.netdev_max_backlog"]
    apply(host, store, parse_mixed(("eth0",), {"netdev_max_backlog": "5000"}), {"eth0"})
    pending = arm(host, store, [3])
    apply(host, store, policy("eth1", threaded="on"), {"eth1"})
    confirm.expire(host, store, pending)
    assert host.sysctls["net.core.netdev_max_backlog"] == 5000
    confirm.expire(host, store, arm(host, store, [HOST_INDEX]))
    assert host.sysctls["net.core.netdev_max_backlog"] == backlog


def test_of_two_at_once_one_is_refused(host: SimHost, store: Store) -> None:
    """Both asked before either waited."""
    confirm.refuse_second(host, store)
    first = arm(host, store)
    with pytest.raises(RxlaneError, match="an earlier apply waits"):
        arm(host, store)
    assert store.pending.load() == first


@pytest.mark.parametrize("started", [False, True])
def test_interrupted_while_the_guard_starts(
    host: SimHost, store: Store, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(confirm, "_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        confirm.arm(host, store, OLD, 60, None, ready if started else interrupt)
    assert store.pending.load() is None


def killed_while_arming(host: SimHost, store: Store, login: Login) -> Pending:
    def start(*_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        confirm.arm(host, store, login, 60, None, start)
    left = store.pending.load()
    assert left is not None
    return left


def test_killed_before_a_guard_was_ready(host: SimHost, store: Store) -> None:
    """Nothing was written, so nothing waits once no guard can be on its way."""
    killed_while_arming(host, store, replace(OLD, at=ticks()))
    with pytest.raises(RxlaneError, match="s are left"):
        confirm.refuse_second(host, store)
    confirm.cancel(store)

    left = killed_while_arming(host, store, OLD)
    assert confirm.waiting(host, store) is None
    with pytest.raises(RxlaneError, match="no apply waits"):
        confirm.confirm(host, store, NEW)
    assert store.pending.load() is None, "packages wait for it"
    assert confirm.register(store, left.token, SELF) is None, "a guard that comes late"


@pytest.mark.parametrize(
    ("about", "back", "ends"),
    [
        ([2], {2}, True),
        ([2], {2, 3}, True),
        ([2, 3], {2}, False),
        ([HOST_INDEX, 2], {2}, False),
        (None, {2}, False),
        (None, None, True),
    ],
)
def test_a_rollback_of_all_it_is_about_ends_the_wait(
    host: SimHost, store: Store, about: list[int] | None, back: set[int] | None, ends: bool
) -> None:
    arm(host, store, about)
    confirm.cancel(store, back)
    assert (store.pending.load() is None) == ends


def test_too_late(host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = arm(host, store)
    monkeypatch.setattr(confirm, "boottime", lambda: pending.deadline)
    with pytest.raises(RxlaneError, match="is gone.*rxlane rollback"):
        confirm.confirm(host, store, NEW)
    with pytest.raises(RxlaneError, match="is gone; run `rxlane rollback`"):
        confirm.refuse_second(host, store)
    monkeypatch.setattr(confirm, "start_of", lambda *_: SELF.started)
    with pytest.raises(RxlaneError, match="not confirmed in time: its originals come back"):
        confirm.confirm(host, store, NEW)
    with pytest.raises(RxlaneError, match="not confirmed in time: its originals come back"):
        confirm.refuse_second(host, store)


def test_second_apply_must_wait(host: SimHost, store: Store) -> None:
    confirm.refuse_second(host, store)
    arm(host, store)
    with pytest.raises(RxlaneError, match="s are left"):
        confirm.refuse_second(host, store)
    rollback(host, store)
    confirm.cancel(store)
    confirm.refuse_second(host, store)


def test_guard_that_cannot_wait(host: SimHost, store: Store) -> None:
    def fail(store: Store, token: str) -> None:
        confirm.register(store, token, None, "locking memory: no")

    with pytest.raises(RxlaneError, match="locking memory: no"):
        confirm.arm(host, store, OLD, 60, None, fail)
    assert store.pending.load() is None


def test_guard_that_never_comes(
    host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "READY_WAIT", 0.05)
    with pytest.raises(RxlaneError, match="nothing was changed"):
        confirm.arm(host, store, OLD, 60, None, lambda store, token: None)
    assert store.pending.load() is None


def test_record_of_another_boot_counts_for_nothing(host: SimHost, store: Store) -> None:
    arm(host, store)
    apply(host, store, policy(**FULL))
    again = SimHost(simhost.snapshot(), boot="boot-2")
    confirm.refuse_second(again, store)
    assert store.pending.load() is None


def test_at_boot_everything_earlier_goes(host: SimHost, store: Store) -> None:
    arm(host, store)
    apply(host, store, policy(**FULL))
    assert confirm.discard_earlier(host, store) == () and store.load() is not None
    again = SimHost(simhost.snapshot(), boot="boot-2")
    assert len(confirm.discard_earlier(again, store)) == 2
    assert store.load() is None and store.pending.load() is None
    store.path.write_text("{")
    assert "damaged" in confirm.discard_earlier(again, store)[0] and not store.path.exists()
    assert again.writes == 0


@pytest.mark.parametrize("text", ["", "{}", '{"pending": {}, "crc32": "0"}'])
def test_damaged_record_confirms_nothing(host: SimHost, store: Store, text: str) -> None:
    before = simhost.settings(host)
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    store.pending.path.write_text(text)
    with pytest.raises(RxlaneError, match="rxlane rollback"):
        confirm.confirm(host, store, NEW)
    confirm.expire(host, store, pending)
    assert simhost.settings(host) == before and not store.pending.path.exists()


# -- the guard --------------------------------------------------------------------------------


def test_guard_waits_and_brings_back(host: SimHost, store: Store) -> None:
    before, said = simhost.settings(host), list[str]()
    pending = replace(arm(host, store), deadline=confirm.boottime() + 10**8)
    slept = list[float]()
    apply(host, store, policy(**FULL))
    event = threading.Event()

    def sleep(seconds: float) -> bool:
        slept.append(seconds)
        return event.wait(seconds)

    guard.wait(host, store, pending, sleep, said.append)
    assert simhost.settings(host) == before and 0 < slept[0] <= 0.1
    assert said == ["not confirmed: 17 settings put back"]


def test_guard_that_is_stopped_brings_back_at_once(host: SimHost, store: Store) -> None:
    before, said = simhost.settings(host), list[str]()
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    guard.wait(host, store, pending, lambda seconds: True, said.append)
    assert simhost.settings(host) == before


def test_guard_tries_again(host: SimHost, store: Store) -> None:
    """A device that is down takes its originals when it is up again."""
    before, said = simhost.settings(host), list[str]()
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    host.set_down("eth0")
    delays = list[float]()

    def sleep(seconds: float) -> bool:
        delays.append(seconds)
        if len(delays) == 4:
            host.set_up("eth0", shift=0)
        return len(delays) == 1

    guard.wait(host, store, pending, sleep, said.append)
    assert delays[1:] == [1.0, 2.0, 4.0]
    assert simhost.settings(host) == before and "interface is down" in said[0]


@pytest.mark.parametrize("devices", [None, [2]])
def test_guard_waits_for_a_device_that_is_away(store: Store, devices: list[int] | None) -> None:
    """As one that is in a container's network namespace at the deadline, and comes back."""
    host = SimHost(simhost.snapshot(simhost.link(), TWO))
    before, said, waits = simhost.settings(host), list[str](), list[float]()
    pending = replace(arm(host, store, devices), deadline=0)
    apply(host, store, policy("eth0", **FULL), ["eth0"])
    away = host.links.pop("eth0")

    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        host.links["eth0"] = away
        return False

    guard.wait(host, store, pending, sleep, said.append)
    assert len(waits) == 1 and "eth0: not here; if it is gone for good" in said[0]
    assert simhost.settings(host) == before
    assert store.pending.load() is None and store.load() is None


def test_guard_waits_for_no_other_device(store: Store) -> None:
    host = SimHost(simhost.snapshot(simhost.link(), TWO))
    apply(host, store, policy("eth0", **FULL), ["eth0"])
    pending = arm(host, store, [3])
    del host.links["eth0"]
    done = confirm.expire(host, store, pending)
    assert done is not None and done.pending == () and store.pending.load() is None


def test_guard_waits_for_no_device_that_was_away_before(store: Store) -> None:
    """An apply without DEV is about all that are here; one that leaves later is waited for."""
    host = SimHost(simhost.snapshot(simhost.link(), TWO))
    apply(host, store, policy("eth1", **FULL), ["eth1"])
    del host.links["eth1"]
    pending = arm(host, store)
    apply(host, store, policy("eth0", **FULL))
    away = host.links.pop("eth0")
    done = confirm.expire(host, store, pending)
    assert done is not None and [line.split(":")[0] for line in done.pending] == ["eth0"]
    host.links["eth0"] = away
    done = confirm.expire(host, store, pending)
    assert done is not None and done.pending == () and store.pending.load() is None


def test_guard_tells_a_device_from_one_that_had_its_index(store: Store) -> None:
    host = SimHost(simhost.snapshot(simhost.link(), TWO))
    host.folders = {"eth0": 10, "eth1": 11, "eth2": 12}
    apply(host, store, policy("eth1", **FULL), ["eth1"])
    del host.links["eth1"]
    host.links["eth2"] = simhost.link("eth2", ifindex=3, base=50)
    pending = arm(host, store)
    apply(host, store, policy("eth2", **FULL))
    del host.links["eth2"]
    done = confirm.expire(host, store, pending)
    assert done is not None and [line.split(":")[0] for line in done.pending] == ["eth2"]


def test_guard_reports_what_it_cannot_do(host: SimHost, store: Store) -> None:
    before, said = simhost.settings(host), list[str]()
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    whole = store.path.read_text()
    store.path.write_text("{")
    waits = list[float]()

    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 2:
            store.path.write_text(whole)
        return True

    guard.wait(host, store, pending, sleep, said.append)
    assert len(said) == 2 and "cannot be brought back yet" in said[0] and "damaged" in said[0]
    assert simhost.settings(host) == before


@pytest.mark.parametrize("again", [False, True])
def test_a_guard_that_cannot_look(
    host: SimHost, store: Store, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that systemd started in the place of another is to be started once more."""

    class Blind:
        def observe(self) -> None:
            raise RxlaneError(Kind.KERNEL, "links: interrupted")

    told = []

    def start(store: Store, token: str) -> None:
        if again:
            ready(store, token)
        told.append(guard._guard(str(store.directory), token))

    monkeypatch.setattr(guard, "Linux", Blind)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    if again:
        assert confirm.arm(host, store, OLD, 60, None, start).guard == SELF
    else:
        with pytest.raises(RxlaneError, match="interrupted"):
            confirm.arm(host, store, OLD, 60, None, start)
    assert told == [1 if again else 0]


def full(*_: object) -> None:
    raise RxlaneError(Kind.JOURNAL, "confirm.json cannot be written: No space left on device")


@pytest.fixture
def guarded(host: SimHost, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What guard._guard() logs; it sees the host and leaves this process as it is."""
    said = list[str]()
    monkeypatch.setattr(guard, "Linux", lambda: host)
    monkeypatch.setattr(guard, "_prepare", lambda: None)
    monkeypatch.setattr(guard, "_log", said.append)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    return said


def test_an_apply_that_cannot_be_noted_changes_nothing(
    host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sealed, "save", full)
    with pytest.raises(RxlaneError, match="No space left on device; nothing was changed"):
        arm(host, store)


def test_a_guard_that_is_started_again_needs_no_room(
    host: SimHost, store: Store, guarded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, pending = simhost.settings(host), arm(host, store)
    apply(host, store, policy(**FULL))
    monkeypatch.setattr(confirm, "boottime", lambda: pending.deadline)
    monkeypatch.setattr(guard, "boottime", lambda: pending.deadline)
    monkeypatch.setattr(Sealed, "save", full)
    assert guard._guard(str(store.directory), pending.token) == 0
    assert simhost.settings(host) == before and store.pending.load() is None
    assert "cannot be written" in guarded[0] and "settings put back" in guarded[1]


def test_a_first_guard_without_room_is_none(
    host: SimHost, store: Store, guarded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it changes nothing; the log has one line, no traceback."""
    codes = list[int]()

    def start(store: Store, token: str) -> None:
        monkeypatch.setattr(Sealed, "save", full)
        monkeypatch.setattr(sys, "argv", ["guard", "--state", str(store.directory), token])
        codes.append(guard.main())

    monkeypatch.setattr(confirm, "READY_WAIT", 0.05)
    with pytest.raises(RxlaneError, match="nothing was changed"):
        confirm.arm(host, store, OLD, 60, None, start)
    assert codes == [1] and len(guarded) == 1 and "No space left" in guarded[0]


def test_woken_is_the_guard_and_nobody_else() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started = start_of(Sysfs(), child.pid)
        assert started is not None
        confirm.wake(Process(child.pid, started + 1))
        assert child.poll() is None
        confirm.wake(Process(child.pid, started))
        assert child.wait(10) == -signal.SIGTERM
        confirm.wake(Process(child.pid, started))
    finally:
        child.kill()
        child.wait()


HOLDS_THE_LOCK = """
import fcntl, os, signal, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_an_applier_that_is_stopped_keeps_no_original_away(
    host: SimHost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-Z, for example, in the login that the layout cut off."""
    before, said = simhost.settings(host), list[str]()
    pending = arm(host, store)
    apply(host, store, policy(**FULL))
    argv = [sys.executable, "-c", HOLDS_THE_LOCK, str(store.directory / "lock")]
    child = subprocess.Popen(argv)
    try:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        monkeypatch.setattr("rxlane.journal.LOCK_WAIT", 0.0)
        started = start_of(Sysfs(), child.pid) or 0
        late = replace(pending, deadline=0, applier=Process(child.pid, started))
        guard.wait(host, store, late, lambda _: child.wait(10) != 0, said.append)
    finally:
        child.kill()
        child.wait()
    assert simhost.settings(host) == before
    assert "another rxlane holds" in said[0] and "17 settings put back" in said[1]


def test_unit_outlives_its_starter(store: Store) -> None:
    argv = [*guard.unit("ab12"), *guard.command(store, "ab12")]
    assert argv[0] == "systemd-run" and "--unit=rxlane-confirm-ab12" in argv
    assert argv[argv.index("--") + 1] == sys.executable
    assert argv[-3:] == ["--state", str(store.directory), "ab12"]
    assert "--property=Restart=on-failure" in argv


def test_a_guard_is_above_every_poller() -> None:
    with pytest.raises(RxlaneError):
        parse_section(
            "napi",
            (),
            {"thread_policy": "fifo", "thread_priority": str(guard.PRIORITY), "thread_cpus": "2"},
        )
