# SPDX-License-Identifier: GPL-2.0-or-later
"""The process that waits for a confirmation, on a simulated kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.apply import apply
from rxlane.errors import Kind, RxlaneError
from rxlane.host.session import start_of
from rxlane.journal import Process, Sealed, Store
from rxlane.keeping import confirm, guard
from rxlane.policy import parse_section
from rxlane.sysfs import Sysfs
from unit import simhost
from unit.asking import FULL, SECOND, policy
from unit.confirming import OLD, SELF, arm, ready
from unit.simhost import SimHost


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


@pytest.fixture
def host() -> SimHost:
    return SimHost(simhost.snapshot())


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


def test_what_waits_for_long_is_told_once(store: Store) -> None:
    host = SimHost(simhost.snapshot())
    said, tries = list[str](), list[float]()
    pending = replace(arm(host, store), deadline=0)
    apply(host, store, policy("eth0", **FULL))
    host.set_down("eth0")

    def sleep(seconds: float) -> bool:
        tries.append(seconds)
        if len(tries) == 9:
            host.set_up("eth0", shift=0)
        return False

    guard.wait(host, store, pending, sleep, said.append)
    assert len(tries) == 9 and len(said) <= guard.SHOWN + 3
    assert len(set(said)) == len(said) and said[-1].startswith("not confirmed: ")


@pytest.mark.parametrize("devices", [None, [2]])
def test_guard_waits_for_a_device_that_is_away(store: Store, devices: list[int] | None) -> None:
    """As one that is in a container's network namespace at the deadline, and comes back."""
    host = SimHost(simhost.snapshot(simhost.link(), SECOND))
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
    host = SimHost(simhost.snapshot(simhost.link(), SECOND))
    apply(host, store, policy("eth0", **FULL), ["eth0"])
    pending = arm(host, store, [3])
    del host.links["eth0"]
    done = confirm.expire(host, store, pending)
    assert done is not None and done.pending == () and store.pending.load() is None


def test_guard_waits_for_no_device_that_was_away_before(store: Store) -> None:
    """An apply without DEV is about all that are here; one that leaves later is waited for."""
    host = SimHost(simhost.snapshot(simhost.link(), SECOND))
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
    host = SimHost(simhost.snapshot(simhost.link(), SECOND))
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


def test_a_guard_finds_its_library(store: Store) -> None:
    """Also where that lies in no folder that Python knows."""
    (path,) = (word for word in guard.unit("ab12") if word.startswith("--setenv=PYTHONPATH="))
    env = {"PYTHONPATH": path.partition("PYTHONPATH=")[2]}
    argv = [*guard.command(store, "ab12")[:-3], "--help"]
    assert subprocess.run(argv, env=env, capture_output=True, check=False).returncode == 0


def test_a_guard_is_above_every_poller() -> None:
    with pytest.raises(RxlaneError):
        parse_section(
            "napi",
            (),
            {"thread_policy": "fifo", "thread_priority": str(guard.PRIORITY), "thread_cpus": "2"},
        )
