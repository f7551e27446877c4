# SPDX-License-Identifier: GPL-2.0-or-later
"""The command's doors: bad input gives one line and status 2; and what each verb tells."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import codec
from rxlane.command import act, parser
from rxlane.journal import Store
from rxlane.keeping import claims
from rxlane.model import Thread
from rxlane.showing import sanitize
from rxlane.wire import rtnetlink
from unit import simhost
from unit.commands import Captured, root_of_a_host, run, state
from unit.simhost import SimHost


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimHost:
    monkeypatch.setattr(rtnetlink, "resolve", lambda _: None)
    return root_of_a_host(monkeypatch)


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
    ("rollback", "--boot", "eth0"),
    ("rollback", "--orphaned", "eth0"),
    ("rollback", "--tuned", "eth0"),
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
    (tmp_path / "state").mkdir()
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
    for module in (parser, act):
        monkeypatch.setattr(module, "STATE", str(tmp_path / "rxlane"))
    said = "nothing was applied, so there is nothing to compare\n"
    assert run(capsys, "verify")[:2] == (0, said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["verify", "rollback", "confirm"])
def test_a_folder_that_is_not_there(
    host: SimHost, capsys: Captured, tmp_path: Path, verb: str
) -> None:
    """A mistyped --state must not pass for a host on which nothing drifted or was applied."""
    status, out, err = run(capsys, verb, "--state", str(tmp_path / "typo"))
    assert status == 1 and out == "" and err == f"rxlane: {tmp_path}/typo is not a directory\n"
    assert list(tmp_path.iterdir()) == []
    status, _, err = run(capsys, verb, "--state", "")
    assert status == 2 and "names no directory" in err


def test_the_folder_of_all_is_no_fault_where_it_is_not_there(
    host: SimHost, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parser, act):
        monkeypatch.setattr(module, "STATE", str(tmp_path / "rxlane"))
    assert run(capsys, "rollback") == (0, "0 settings put back\n", "")


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


@pytest.mark.parametrize("verb", [("map",), ("plan", "-o", "threaded=on")])
def test_a_recorded_host_is_not_asked_for_here(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    """A name that this machine knows, as an alternative one too, is none of the recorded host's."""
    monkeypatch.setattr("rxlane.wire.rtnetlink.resolve", lambda _: "lan7")
    names = ["lan7", *(f"lan{n}" for n in range(10, 19))]
    links = [simhost.link(name, 1, ifindex=n, base=8192 + n) for n, name in enumerate(names, 2)]
    other = simhost.snapshot(*links)
    (tmp_path / "host.json").write_text(codec.dumps(other))
    status, out, err = run(capsys, *verb, "--snapshot", str(tmp_path / "host.json"), "lan")
    assert (status, out) == (2, "")
    there = "lan7, lan10, lan11, lan12, lan13, lan14, ..."
    assert err == f"rxlane: lan: no such device; there are {there}\n"


def test_boot_discards_and_writes_nothing(host: SimHost, capsys: Captured, tmp_path: Path) -> None:
    run(capsys, "apply", "eth0", "-o", "threaded=on", *state(tmp_path))
    writes = host.writes
    assert run(capsys, "rollback", "--boot", *state(tmp_path)) == (0, "", "")
    host.boot = "boot-2"
    status, _, err = run(capsys, "rollback", "--boot", *state(tmp_path))
    assert status == 0 and "another boot" in err and host.writes == writes


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
    for words in (("verify",), ("link", "eth0")):
        status, _, err = run(capsys, *words, *state(tmp_path))
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


def test_a_thread_keeps_no_address_of_an_interface_that_is_not_here() -> None:
    text = '"napi/enx8cae4cd" "irq/9-wlx8cae4c" "enx100" "napi/eth0-8193x" "a/enx100"'
    assert sanitize.without_addresses(text) == (
        '"napi/enx0000000" "irq/9-wlx000000" "enx100" "napi/eth0-8193x" "a/enx100"'
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
    monkeypatch.setattr("rxlane.host.udevdb.properties", lambda *_: None)
    assert run(capsys, "apply", "eth0", "-o", "threaded=on@1-", *state(tmp_path))[0] == 0
    status, out, err = run(capsys, "link", "eth0", *state(tmp_path))
    assert (status, err) == (0, "")
    assert out.splitlines()[-2:] == ["[Link]", "Property=NAPI_THREADED=off@0,on@1-3"]
    assert "once 70-eth0.link beside it has NamePolicy=keep in [Link]" in out
    known = {"ID_NET_LINK_FILE": "/etc/systemd/network/10-a.link"}
    monkeypatch.setattr("rxlane.host.udevdb.properties", lambda *_: known)
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
    known["ID_NET_LINK_FILE_DROPINS"] = "/etc/systemd/network/10-a.link.d/mtu.conf"
    monkeypatch.setattr("rxlane.host.udevdb.shares", lambda *_: True)
    out = run(capsys, "link", "eth0", *state(tmp_path))[1]
    copy = "# Copy these, too, to /etc/systemd/network/00-eth0.link.d/, without a [Match]:"
    assert f"{copy}\n# {known['ID_NET_LINK_FILE_DROPINS']}\n" in out


def test_no_drop_in_is_made_of_another_namespace(
    host: SimHost, tmp_path: Path, capsys: Captured
) -> None:
    """Its journal knows devices of the same index, and what was changed of them."""
    assert run(capsys, "apply", "eth0", "-o", "threaded=on@1-", *state(tmp_path))[0] == 0
    host.namespaces["self"] += 1
    status, out, err = run(capsys, "link", "eth0", *state(tmp_path))
    assert (status, out) == (2, "") and "are of another network namespace" in err


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
