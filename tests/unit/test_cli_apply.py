# SPDX-License-Identifier: GPL-2.0-or-later
"""The command that writes: applied, guarded, interrupted, verified and brought back."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Pending, Process, Store
from rxlane.keeping import confirm, guard
from rxlane.wire import rtnetlink
from unit import simhost
from unit.commands import Captured, root_of_a_host, run, state
from unit.simhost import SimHost


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimHost:
    monkeypatch.setattr(rtnetlink, "resolve", lambda _: None)
    return root_of_a_host(monkeypatch)


def test_apply_verify_drift_rollback(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    before = simhost.settings(host)
    options = ("-o", "threaded=on", "-o", "thread_cpus=auto", "-o", "irq_suspend_timeout=5")
    status, out, _ = run(capsys, "apply", "eth0", *options, *state(tmp_path))
    assert (status, out) == (0, "12 settings written, 0 as wanted already\n")
    assert run(capsys, "verify", *state(tmp_path))[:2] == (0, "12 of 12 settings as planned\n")
    host.write_napi(8194, {"threaded": "off"})
    status, out, _ = run(capsys, "verify", "--json", *state(tmp_path))
    found = json.loads(out)
    assert (found["applied"], found["waiting"]) == (True, 0)
    found = found["settings"]
    assert status == 1 and Counter(row["state"] for row in found) == {"ok": 10, "drifted": 2}
    assert found[0] == {"device": "eth0", "queue": 0, "setting": "threaded", "state": "ok",
                        "expected": "on"}  # fmt: skip
    lost = next(row for row in found if row["state"] == "drifted")
    assert lost["queue"] == 1 and lost["found"] == "off" and "driver reset" in lost["cause"]
    assert run(capsys, "rollback", "eth0", *state(tmp_path))[0] == 0
    assert simhost.settings(host) == before
    assert run(capsys, "rollback", *state(tmp_path))[:2] == (0, "0 settings put back\n")
    status, out, _ = run(capsys, "verify", "--json", *state(tmp_path))
    assert (status, json.loads(out)) == (0, {"applied": False, "waiting": 0, "settings": []})


def test_a_plan_says_what_an_apply_puts_back(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    where, other = state(tmp_path), ("eth0", "-o", "defer_hard_irqs=5")
    run(capsys, "apply", "eth0", "-o", "threaded=on", "-o", "thread_cpus=auto", *where)
    status, out, err = run(capsys, "plan", *other, *where)
    assert status == 0 and err == ""
    assert "eth0/rx0/threaded: on -> off  [thread-restart]\n    original value\n" in out
    count = int(out.splitlines()[-1].split()[0])
    status, told, _ = run(capsys, "apply", *other, *where)
    assert status == 0
    assert told == f"4 settings written, 0 as wanted already, {count - 4} put back\n"
    last = run(capsys, "plan", *other, *where)[1].splitlines()[-1]
    assert last == "0 to change, 4 as wanted already"


def test_a_plan_without_a_journal_that_can_be_read(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    where = state(tmp_path)
    run(capsys, "apply", "eth0", "-o", "threaded=on", *where)
    Store(tmp_path / "state").path.write_text("{")
    status, out, err = run(capsys, "plan", "eth0", "-o", "defer_hard_irqs=5", *where)
    assert status == 0 and out.splitlines()[-1].startswith("4 to change")
    assert "is damaged (no JSON)" in err and err.endswith("put back of it is not shown\n")


def test_originals_that_are_back_do_not_wait(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    where = state(tmp_path)
    one, less = ("-o", "threaded=on", "-o", "thread_cpus=auto"), ("-o", "threaded=on@0-1")
    run(capsys, "apply", "eth0", *one, *where)
    assert run(capsys, "apply", "eth0", *less, *where)[0] == 0
    assert run(capsys, "verify", *where)[:2] == (0, "2 of 2 settings as planned\n")
    thread = host.links["eth0"].napis[0].pid
    assert thread is not None
    host.write_thread(thread, {"thread-cpus": "3"})
    assert run(capsys, "verify", *where)[1].startswith("1 originals wait to be put back\n2 of 2")
    del host.links["eth0"]
    assert "originals wait to be put back" in run(capsys, "verify", *where)[1]


def test_a_full_rollback_forgets_devices_that_are_away(
    host: SimHost, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The operator says so by it; nobody else does."""
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    del host.links["eth0"]
    status, _, err = run(capsys, "rollback", *state(tmp_path))
    assert status == 0 and "of devices that are gone forgotten" in err
    assert Store(tmp_path / "state").load() is None


def test_what_could_not_be_had_is_said_again(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    host.links["eth1"] = simhost.link("eth1", 1, ifindex=3, base=9000)
    host.links["eth1"] = replace(host.links["eth1"], rx_threads=None)
    options = ("-o", "threaded=on", "-o", "rx_threads=1")
    assert run(capsys, "apply", "eth0", *options, *state(tmp_path))[0] == 0
    status, out, _ = run(capsys, "verify", "--json", *state(tmp_path))
    rows = [row for row in json.loads(out)["settings"] if row["state"] != "ok"]
    assert status == 0 and [(r["device"], r["setting"], r["state"]) for r in rows] == [
        ("eth0", "rx-threads", "unsupported")
    ]
    assert run(capsys, "apply", "eth1", "-o", "threaded=on", *state(tmp_path))[0] == 0
    both = run(capsys, "verify", *state(tmp_path))[1]
    assert "not compared: eth0: rx-threads unsupported: kernel has no rx_threads" in both
    assert run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))[0] == 0
    assert "not compared" not in run(capsys, "verify", *state(tmp_path))[1]


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the process that waits, the record only says that there is one."""

    def start(store: Store, token: str) -> None:
        confirm.register(store, token, Process(os.getpid(), -1))

    monkeypatch.setattr(guard, "start", start)


@pytest.mark.usefixtures("guarded")
def test_apply_that_waits(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    status, out, _ = run(capsys, *argv, "--confirm", "60")
    assert status == 0 and out.splitlines()[1].startswith("undone in 60 s unless")
    waits = Store(tmp_path / "state").pending.load()
    assert waits is not None and waits.applier == confirm.this_process()
    for again in (argv, (*argv, "--confirm", "60")):
        status, _, err = run(capsys, *again)
        assert status == 2 and "waits to be confirmed" in err
    status, _, err = run(capsys, "confirm", *state(tmp_path))
    assert status == 2 and "log in anew" in err
    monkeypatch.setattr(confirm, "not_newer", lambda earlier, own: None)
    assert run(capsys, "confirm", *state(tmp_path))[0] == 0
    assert run(capsys, *argv)[0] == 0


@pytest.mark.usefixtures("guarded")
def test_a_wait_that_ended_before_the_lock_was_free(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a rollback, for example: nothing would bring back what is written after it."""
    arm = confirm.arm

    def overtaken(*args: Any) -> Pending:
        pending = arm(*args)
        confirm.cancel(args[1])
        return pending

    monkeypatch.setattr(confirm, "arm", overtaken)
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    status, _, err = run(capsys, *argv)
    assert status == 2 and "ended before the lock was free, nothing was changed" in err
    assert host.writes == 0 and Store(tmp_path / "state").load() is None


@pytest.mark.usefixtures("guarded")
def test_what_waits_is_refused_by_the_queues_that_there_will_be(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    """Six would be too many for four CPUs, but two go with the channels."""
    host.links["eth0"] = simhost.tuned(host.links["eth0"])
    where = ("apply", "eth0", *state(tmp_path))
    assert run(capsys, *where, "-o", "channels=6", "-o", "threaded=on")[0] == 0
    polled = ("-o", "threaded=busy-poll", "-o", "thread_cpus=1-4")
    assert run(capsys, *where, *polled, "--confirm", "60")[0] == 0
    assert [napi.threaded for napi in host.links["eth0"].napis] == [2, 2, 2, 2]


@pytest.mark.usefixtures("guarded")
def test_rollback_leaves_nothing_to_confirm(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    assert run(capsys, "rollback", *state(tmp_path))[0] == 0
    status, _, err = run(capsys, "confirm", *state(tmp_path))
    assert status == 2 and "no apply waits" in err


@pytest.mark.usefixtures("guarded")
def test_rollback_of_a_device_leaves_nothing_to_confirm_of_it_once_it_is_back(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    host.set_down("eth0")
    assert run(capsys, "rollback", "eth0", *state(tmp_path))[0] == 1
    assert (tmp_path / "state" / "confirm.json").exists()
    host.set_up("eth0")
    assert run(capsys, "rollback", "eth0", *state(tmp_path))[0] == 0
    assert not (tmp_path / "state" / "confirm.json").exists()


@pytest.fixture
def hangups() -> Iterator[None]:
    """The command takes SIGHUP, though who runs the tests by nohup has it ignored."""
    inherited = {n: signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in inherited.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("guarded")
def test_failed_apply_waits_only_when_its_undo_failed(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    host.fail_at = 2
    assert run(capsys, *argv)[0] == 1
    assert not (tmp_path / "state" / "confirm.json").exists()

    done = host.writes

    def refuse() -> None:
        if host.writes > done + 2:
            raise RxlaneError(Kind.KERNEL, "refused for good")

    host.on_write = refuse
    assert run(capsys, *argv)[0] == 1
    assert (tmp_path / "state" / "confirm.json").exists()


@pytest.mark.usefixtures("guarded", "hangups")
@pytest.mark.parametrize("second", range(4, 8))
@pytest.mark.parametrize("refused", [False, True])
def test_an_undo_is_not_interrupted(
    host: SimHost, capsys: Captured, tmp_path: Path, second: int, refused: bool
) -> None:
    """A terminal that goes sends SIGHUP, and its shell once more; or the first one comes late."""

    def hang_up() -> None:
        if host.writes == 3 and refused:
            raise RxlaneError(Kind.KERNEL, "refused by the test")
        if host.writes in (3, second):
            signal.raise_signal(signal.SIGHUP)

    host.on_write = hang_up
    before = simhost.settings(host)
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    assert run(capsys, *argv)[0] == 130
    assert simhost.settings(host) == before
    assert not (tmp_path / "state" / "confirm.json").exists()
    assert Store(tmp_path / "state").load() is None


@pytest.mark.usefixtures("guarded", "hangups")
def test_an_undo_that_failed_and_was_interrupted_keeps_the_guard(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    def refuse() -> None:
        if host.writes == 4:
            signal.raise_signal(signal.SIGHUP)
        if host.writes > 2:
            raise RxlaneError(Kind.KERNEL, "refused for good")

    host.on_write = refuse
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    status, _, err = run(capsys, *argv)
    assert status == 130 and err.startswith("rxlane: interrupted\nrxlane: undo failed, `rxlane ro")
    assert (tmp_path / "state" / "confirm.json").exists()


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("guarded")
def test_an_apply_interrupted_after_its_last_write_is_undone(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = simhost.settings(host)
    monkeypatch.setattr("rxlane.apply.Applied", interrupt)
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    assert run(capsys, *argv)[0] == 130 and host.writes
    assert simhost.settings(host) == before
    assert not (tmp_path / "state" / "confirm.json").exists()


@pytest.mark.usefixtures("guarded")
def test_an_undo_that_never_began_keeps_the_guard(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second interrupt may come before the undo is safe from it."""
    host.fail_at = 3
    monkeypatch.setattr("rxlane.applying.undoing.undo_all", interrupt)
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    assert run(capsys, *argv)[0] == 130
    assert (tmp_path / "state" / "confirm.json").exists()


def test_failed_apply_is_one_line(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    host.fail_at = 2
    status, out, err = run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    assert status == 1 and out == ""
    assert err == "rxlane: eth0 queue 2: refused by the test\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_interrupted_apply_is_undone(
    host: SimHost, capsys: Captured, tmp_path: Path, number: signal.Signals
) -> None:
    def interrupt() -> None:
        if host.writes > 2:
            host.on_write = None
            signal.raise_signal(number)

    host.on_write = interrupt
    before = simhost.settings(host)
    # Who runs the tests by nohup has it ignored.
    inherited = signal.signal(number, signal.SIG_DFL)
    try:
        status, out, err = run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    finally:
        signal.signal(number, inherited)
    assert (status, out, err) == (130, "", "rxlane: interrupted\n")
    assert simhost.settings(host) == before and Store(tmp_path / "state").load() is None


@pytest.mark.usefixtures("hangups")
def test_two_interrupts_at_once_do_not_overtake_the_undo(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    """As at a shutdown, whose SIGTERM comes with the SIGHUP of the terminal."""
    both = (signal.SIGHUP, signal.SIGTERM)

    def interrupt() -> None:
        if host.writes == 3:
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.raise_signal(number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)

    host.on_write = interrupt
    before = simhost.settings(host)
    status, out, err = run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    assert (status, out, err) == (130, "", "rxlane: interrupted\n")
    assert simhost.settings(host) == before and Store(tmp_path / "state").load() is None


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_is_ignored_interrupts_nothing(
    host: SimHost, capsys: Captured, tmp_path: Path, number: signal.Signals
) -> None:
    """nohup(1) has a terminal that goes ignored, a script's & has Ctrl-C ignored."""
    host.on_write = lambda: signal.raise_signal(number)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        status, _, err = run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    finally:
        signal.signal(number, before)
    assert (status, err) == (0, "")
