# SPDX-License-Identifier: GPL-2.0-or-later
"""The command's doors: bad input gives one line and status 2, and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rxlane import claims, cli, codec, confirm, guard, rtnetlink, sanitize
from rxlane.errors import Kind, RxlaneError
from rxlane.journal import Pending, Process, Store
from rxlane.model import Thread
from unit import simhost
from unit.commands import Captured, root_of_a_host, run
from unit.simhost import SimHost


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimHost:
    monkeypatch.setattr(rtnetlink, "resolve", lambda _: None)
    return root_of_a_host(monkeypatch)


def state(tmp_path: Path) -> Sequence[str]:
    return ("--state", str(tmp_path / "state"))


BAD = [
    (),
    ("nonsense",),
    ("map", "nosuch0"),
    ("map", "eth0", "nosuch0"),
    ("map", ""),
    ("map", "../../etc"),
    ("map", "x" * 5000),
    ("map", "eth0\nfake: line"),
    ("map", "--jso"),
    ("map", "--color", "pink"),
    ("map", "--svg", "/nonexistent/a.svg"),
    ("map", "--svg", ""),
    ("map", "--svg", "-", "--json"),
    ("map", ""),
    ("record", ""),
    ("map", "--snapshot", "/nonexistent"),
    ("map", "--snapshot", ""),
    ("plan",),
    ("plan", "eth0", "-o"),
    ("plan", "eth0", "-o", "threaded"),
    ("plan", "eth0", "-o", "=on"),
    ("plan", "eth0", "-o", "threaded=on", "-o", "threaded=off"),
    ("plan", "eth0", "-o", "threaded=on@9"),
    ("plan", "eth0", "-o", "unknown=1"),
    ("plan", "nosuch0", "-o", "threaded=on"),
    ("plan", "-o", "threaded=on", "--snapshot", "/nonexistent"),
    ("plan", "-o", "threaded=on", "--snapshot", "/"),
    ("plan", "-o", "threaded=on", "--snapshot", ""),
    ("apply", "eth0"),
    ("apply", "nosuch0", "-o", "threaded=on"),
    ("apply", "eth0", "-o", "threaded=on", "-o", "thread_cpus=64"),
    ("apply", "eth0", "-o", "threaded=on", "-o", "thread_cpus=0-99999999999"),
    ("apply", "eth0", "-o", "threaded=on", "-o", "thread_policy=fifo"),
    ("apply", "eth0", "-o", "gro_flush_timeout=18446744073709551616"),
    ("apply", "eth0", "-o", "threaded=\x1b[2J"),
    ("apply", "eth0", "-o", "threaded=on", "--confirm", "0"),
    ("apply", "eth0", "-o", "threaded=on", "--confirm", "86401"),
    ("apply", "eth0", "-o", "threaded=on", "--confirm", "-1"),
    ("apply", "eth0", "-o", "threaded=on", "--confirm", "9" * 5000),
    ("apply", "eth0", "-o", "threaded=on", "-o", "thread_cpus=64", "--confirm", "60"),
    ("watch", "eth0"),
    ("watch", "nosuch0", "-o", "threaded=on"),
    ("watch", "eth0", "-o", "threaded=on", "-o", "thread_cpus=64"),
    ("confirm",),
    ("confirm", "eth0"),
    ("rollback", "nosuch0"),
    ("verify", "extra"),
    ("record", "a", "b"),
    ("link",),
    ("link", "nosuch0"),
    ("link", "eth0", "eth1"),
]


STATEFUL = (("apply",), ("confirm",), ("rollback",), ("verify",), ("watch",))


@pytest.mark.parametrize("argv", BAD, ids=lambda argv: " ".join(argv)[:50] or "nothing")
def test_bad_input(host: SimHost, capsys: Captured, tmp_path: Path, argv: tuple[str, ...]) -> None:
    more = state(tmp_path) if argv[:1] in STATEFUL else ()
    status, out, err = run(capsys, *argv, *more)
    assert status == 2 and out == ""
    assert len(err.splitlines()) == 1 and len(err) < 500
    assert err.startswith("rxlane: ") and "\x1b" not in err
    assert host.writes == 0 and not (tmp_path / "state" / "journal.json").exists()


def test_map(host: SimHost, capsys: Captured) -> None:
    status, out, _ = run(capsys, "map")
    assert status == 0 and "rx3" in out
    status, out, _ = run(capsys, "map", "--json", "eth0")
    assert [lane["queue"] for lane in json.loads(out)["devices"][0]["lanes"]] == [0, 1, 2, 3]


@pytest.fixture
def bare(host: SimHost) -> SimHost:
    """Only a device that is no hardware and has no NAPIs, as in a new network namespace."""
    host.links = {"lo": simhost.link("lo", 0, physical=False)}
    return host


def test_where_nothing_is_shown_it_is_said(bare: SimHost, capsys: Captured) -> None:
    note = "no device here is hardware or has NAPI instances; name devices to see others\n"
    for more in ((), ("--json",), ("--svg", "-")):
        status, _, err = run(capsys, "map", *more)
        assert (status, err) == (0, f"note: {note}")
    assert run(capsys, "map", "lo")[2] == ""
    assert run(capsys, "map", "--watch=1") == (2, "", f"rxlane: {note}")


def test_where_nothing_is_planned_it_is_said(bare: SimHost, capsys: Captured) -> None:
    argv = ("plan", "-o", "threaded=on")
    status, out, err = run(capsys, *argv)
    assert (status, out) == (0, "0 to change, 0 as wanted already\n")
    assert err == "note: no device here is hardware; name devices to lay out others\n"
    assert run(capsys, *argv, "lo")[2] == ""


def test_verify_makes_no_folder(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "STATE", str(tmp_path / "rxlane"))
    said = "nothing was applied, so there is nothing to compare\n"
    assert run(capsys, "verify")[:2] == (0, said)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    """A mistyped --state must not pass for a host on which nothing drifted."""
    status, out, err = run(capsys, "verify", "--state", str(tmp_path / "typo"))
    assert status == 1 and out == "" and err == f"rxlane: {tmp_path}/typo is not a directory\n"
    status, _, err = run(capsys, "rollback", "--state", "")
    assert status == 2 and "names no directory" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("verify", "eth0"), "unrecognized arguments: eth0; see `rxlane verify --help`"),
        (("map", "--foo"), "unrecognized arguments: --foo; see `rxlane map --help`"),
        (("map", "--watch", "eth0"), "name devices first, or --watch=COUNT; see"),
        (("map", "--watch=0"), "'0' is not a number of times"),
    ],
)
def test_wrong_arguments(capsys: Captured, argv: tuple[str, ...], words: str) -> None:
    status, out, err = run(capsys, *argv)
    assert status == 2 and out == "" and words in err and len(err.splitlines()) == 1


def test_map_of_a_recorded_host_and_its_picture(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(codec.dumps(simhost.snapshot(simhost.link("lan7"))))
    argv = ("map", "--snapshot", str(tmp_path / "host.json"))
    status, out, _ = run(capsys, *argv)
    assert status == 0 and out.startswith("lan7: ") and out.isascii()
    assert run(capsys, *argv, "--svg", str(tmp_path / "a.svg"))[:2] == (0, "")
    status, out, _ = run(capsys, *argv, "lan7", "--svg", "-")
    assert status == 0 and out == (tmp_path / "a.svg").read_text() and "lan7" in out
    assert "\x1b[1mlan7" in run(capsys, *argv, "--color", "always")[1]


def test_plan_changes_nothing(host: SimHost, capsys: Captured) -> None:
    status, out, _ = run(capsys, "plan", "-o", "threaded=on@1")
    assert status == 0 and host.writes == 0
    assert "eth0/rx1/threaded: off -> on  [thread-restart]" in out
    assert "threaded=on@1 in [napi]" in out


def test_plan_of_a_recorded_host(capsys: Captured, tmp_path: Path) -> None:
    """Needs no kernel and no root; the recorded host has devices that this one has not."""
    other = simhost.snapshot(simhost.link("lan7"))
    (tmp_path / "host.json").write_text(codec.dumps(other))
    argv = (
        "plan",
        "lan7",
        "-o",
        "threaded=on",
        "--json",
        "--snapshot",
        str(tmp_path / "host.json"),
    )
    status, out, _ = run(capsys, *argv)
    assert status == 0 and len(json.loads(out)["changes"]) == 4
    (tmp_path / "host.json").write_bytes(b"\xff\xff")
    assert run(capsys, *argv)[0] == 2


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


def test_a_full_rollback_forgets_devices_that_are_away(
    host: SimHost, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The operator says so by it; nobody else does."""
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    del host.links["eth0"]
    status, _, err = run(capsys, "rollback", *state(tmp_path))
    assert status == 0 and "of devices that are gone were forgotten" in err
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
    monkeypatch.setattr("rxlane.apply._undo", interrupt)
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path), "--confirm", "60")
    assert run(capsys, *argv)[0] == 130
    assert (tmp_path / "state" / "confirm.json").exists()


def test_boot_discards_and_writes_nothing(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    writes = host.writes
    assert run(capsys, "rollback", "--boot", *state(tmp_path)) == (0, "", "")
    host.boot = "boot-2"
    status, _, err = run(capsys, "rollback", "--boot", *state(tmp_path))
    assert status == 0 and "another boot" in err and host.writes == writes


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


def test_what_tuned_takes_back_is_told(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    claims.update(store, host.boot_id(), claims.with_tuned([2]))
    status, _, err = run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    assert status == 0 and err.startswith("note: TuneD's profile takes this back")


def test_pending_rollback_is_told(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    host.set_down("eth0")
    status, _, err = run(capsys, "rollback", *state(tmp_path))
    assert status == 1 and "eth0/rx0/threaded: interface is down" in err


def test_without_root_nothing_is_tried(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    argv = ("apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    status, _, err = run(capsys, *argv)
    assert status == 2 and "needs root" in err and not (tmp_path / "state").exists()
    status, _, err = run(capsys, "verify", *state(tmp_path))
    assert (status, err) == (2, "rxlane: reading the journal needs root; use sudo\n")


def test_record_writes_a_snapshot(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    status, out, _ = run(capsys, "record")
    assert status == 0 and codec.loads(type(host.observe()), out, "x") == host.observe()
    assert run(capsys, "record", str(tmp_path / "no" / "file"))[0] == 2


def test_addresses_that_begin_alike() -> None:
    text = '"enx8cae4cdd1234" "enx8cae4cee5678" "napi/enx8cae4cd" "napi/enx8cae4ce" "x8cae4cdd"'
    said = sanitize.without_addresses(text)
    assert said == (
        '"enx000000000001" "enx000000000002" "napi/enx0000000" "napi/enx0000000" "x8cae4cdd"'
    )


def test_a_recording_has_no_address_in_a_name(host: SimHost, capsys: Captured) -> None:
    name = "enx8cae4cdd1234"
    link = replace(host.links.pop("eth0"), name=name)
    host.links[name] = link
    pid = next(iter(host.threads), 77)
    host.threads[pid] = Thread(pid, f"napi/{name}"[:15], "other", 0, 0, (0,))
    host.links[name] = replace(link, napis=(replace(link.napis[0], pid=pid), *link.napis[1:]))
    _, out, _ = run(capsys, "record")
    found = codec.loads(type(host.observe()), out, "x")
    assert found.links[0].name == "enx000000000001" and "8cae" not in out
    assert [thread.name for thread in found.threads] == ["napi/enx0000000"]


def test_damaged_journal_is_not_passed_over(
    host: SimHost, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/journal.json").write_text("{")
    for argv in (("rollback",), ("verify",), ("apply", "eth0", "-o", "threaded=on")):
        status, _, err = run(capsys, *argv, *state(tmp_path))
        assert status == 1 and "is damaged" in err and len(err.splitlines()) == 1
    assert host.writes == 0


def test_help_names_every_option(capsys: Captured) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0 and "allow_realtime_cpu0" in out


def test_a_trial_as_a_drop_in(
    host: SimHost, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rxlane.udevdb.properties", lambda *_: None)
    assert run(capsys, "apply", "eth0", "-o", "threaded=on@1-", *state(tmp_path))[0] == 0
    status, out, err = run(capsys, "link", "eth0", *state(tmp_path))
    assert (status, err) == (0, "")
    assert out.splitlines()[-2:] == ["[Link]", "Property=NAPI_THREADED=off@0,on@1-3"]
    assert "70-eth0.link" in out
    known = {"ID_NET_LINK_FILE": "/etc/systemd/network/10-a.link"}
    monkeypatch.setattr("rxlane.udevdb.properties", lambda *_: known)
    (napi, *_) = host.links["eth0"].napis
    host.write_napi(napi.napi_id, {"defer-hard-irqs": 9})
    store = Store(tmp_path / "state")
    journal = store.load()
    assert journal is not None
    entry = replace(journal.entries[0], queue=0, item="defer-hard-irqs", before=0, after=9)
    store.save(replace(journal, entries=(*journal.entries, entry)))
    status, out, err = run(capsys, "link", "eth0", *state(tmp_path))
    assert status == 1 and "10-a.link.d/50-rxlane.conf" in out
    assert "# defer-hard-irqs: no property gives queue 0: 9, queue 1: 0" in out


def test_an_apply_tells_of_a_link_file(host: SimHost, tmp_path: Path, capsys: Captured) -> None:
    store = Store(tmp_path / "state")
    claims.update(store, host.boot_id(), claims.with_link(2))
    status, _, err = run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    assert status == 0 and "note: rxlane-link@2 holds eth0 to its .link file\n" in err


@pytest.mark.parametrize(
    ("verb", "expected"),
    [("apply", [(os.PRIO_PROCESS, 0, -10)]), ("rollback", [(os.PRIO_PROCESS, 0, -10)])]
    + [(verb, []) for verb in ("map", "plan", "verify", "confirm")],
)
def test_who_writes_goes_before_what_computes(
    host: SimHost,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    tmp_path: Path,
    verb: str,
    expected: list[tuple[int, int, int]],
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr("os.setpriority", lambda *words: asked.append(words))
    monkeypatch.setattr("os.getpriority", lambda *_: 0)
    stands = state(tmp_path) if verb not in ("map", "plan") else ()
    run(capsys, verb, *stands)
    assert asked == expected


def test_a_nice_level_that_somebody_chose_stays(
    host: SimHost, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr("os.setpriority", lambda *words: asked.append(words))
    monkeypatch.setattr("os.getpriority", lambda *_: 19)
    assert run(capsys, "apply", "-o", "threaded=on", "eth0", *state(tmp_path))[0] == 0
    assert asked == []


def test_an_apply_without_the_right_to_go_first_takes_its_turn(
    host: SimHost, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.setpriority", refuse)
    monkeypatch.setattr("os.getpriority", lambda *_: 0)
    status, out, _ = run(capsys, "apply", "-o", "threaded=on", "eth0", *state(tmp_path))
    assert status == 0
    assert "settings written" in out
