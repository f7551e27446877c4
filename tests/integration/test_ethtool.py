# SPDX-License-Identifier: GPL-2.0-or-later
"""The patched ``ethtool`` on veths of the host: what it shows and sets, wrong words, mishaps."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import ethtool_tool as tool
import pytest
from iproute2_space import GRO, Done, Space, checked, run, space
from netdev_requests import NAPI_GET, NAPI_SET, preloaded
from tool_schema import napi_faults

from conftest import missing, older_kernel

INPUTS = 1_000_000
QUEUES = 4
SELECTORS = {"queue": "1", "tx-queue": "1", "queue_mask": "3", "napi": "8193"}
NUMBERS = ("queue", "tx-queue", "napi")
SETTINGS = {
    "threaded": "on", "defer-hard-irqs": "1", "gro-flush-timeout": "0x10",
    "irq-suspend-timeout": "1",
}  # fmt: skip
# Empty, signs, blanks, trailing garbage, no digits, other bases, beyond 64 bits.
NO_NUMBER = (
    "", "-1", "-0", "+1", " 1", "1 ", "1x", "1,2", "1.0", "0x", "0xg", "0x-1", "0x0x1", "x1", "foo",
    "all", str(2**64), hex(2**64), str(-(2**64) + 1), "9" * 40,
)  # fmt: skip
NO_MASK = ("", "0", "0x", "0x0", "g", "-1", "+1", " 1", "1 ", "1,2", f"1{'0' * 1024}")
NO_MODE = ("", "0", "1", "2", "ON", "on ", "onn", "busy", "busy_poll", "mixed", "-1", "0x1")

Shown = dict[str, Any]


@pytest.fixture(scope="module", params=["gcc", "asan"])
def program(request: pytest.FixtureRequest) -> Path:
    return tool.ethtool(request.param)


@pytest.fixture(scope="module")
def host(program: Path) -> Iterator[Space]:
    if os.geteuid() != 0:
        missing("network namespaces need root")
    with space(f"rxlane-ethtool-{os.getpid()}", program) as ns:
        ns.pair("v0", "v1", QUEUES)
        if any("threaded" not in napi for napi in ns.napis()["v0"]):
            older_kernel("the kernel of this machine does not have the mode of single NAPIs")
        yield ns


def ethtool(ns: Space, *words: str, env: Mapping[str, str] | None = None) -> Done:
    return ns.inside(ns.ip, *words, env=env)


def shown(ns: Space, *words: str) -> list[Shown]:
    found: list[Shown] = json.loads(ethtool(ns, "--json", "--show-napi", *words).stdout)
    assert napi_faults(found) == []
    return found


def one_line(done: Done) -> str:
    """The only line of an error, without the command's name."""
    assert done.returncode == 1 and done.stdout == "", done
    assert done.stderr.count("\n") == 1, done.stderr
    found = re.fullmatch(r"ethtool \(--(?:show|set)-napi\): (.*)\n", done.stderr)
    assert found, done.stderr
    return found[1]


def refused(ns: Space, *words: str) -> str:
    """The one line of an error."""
    return one_line(ethtool(ns, *words))


@pytest.fixture
def kept(host: Space) -> Iterator[Space]:
    """The namespace, in which the test may change nothing: one reading before and one after."""
    before = host.napis()
    yield host
    assert host.napis() == before


def test_shows_what_the_reader_reads(host: Space) -> None:
    (device,) = shown(host, "v0")
    read = host.napis()["v0"]
    assert device["ifname"] == "v0"
    assert [napi["id"] for napi in device["napis"]] == [napi["id"] for napi in read]
    assert all(napi["threaded"] == "off" and "irq" not in napi for napi in device["napis"])
    text = ethtool(host, "--show-napi", "v0").stdout
    assert text.startswith(f"NAPI parameters for v0:\nNAPI {read[0]['id']}:\n\tRX queues:\t\tn/a\n")
    assert {entry["ifname"] for entry in shown(host, "*")} == {"v0", "v1"}


def test_sets_one_and_all(host: Space) -> None:
    first = host.napis()["v0"][0]["id"]
    assert ethtool(host, "--set-napi", "v0", "napi", str(first), "threaded", "on").returncode == 0
    assert host.modes("v0") == ["on", *["off"] * (QUEUES - 1)]
    assert ethtool(host, "--set-napi", "v0", "napi", hex(first), "threaded", "off").returncode == 0
    largest = str(2**64 - 1)
    done = ethtool(host, "--set-napi", "v0", "all", "threaded", "off", "gro-flush-timeout",
                   largest, "defer-hard-irqs", "0x7fffffff")  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert host.modes("v0") == ["off"] * QUEUES
    napi = shown(host, "v0")[0]["napis"][-1]
    assert (napi["gro-flush-timeout"], napi["defer-hard-irqs"]) == (2**64 - 1, 2**31 - 1)


def test_a_thread_of_another_pid_namespace_has_no_pid(host: Space) -> None:
    """To which the kernel gives 0, by which sched_setaffinity(2) means the caller."""
    assert ethtool(host, "--set-napi", "v0", "all", "threaded", "on").returncode == 0
    words = ("unshare", "--pid", "--fork", host.ip, "--json", "--show-napi", "v0")
    (device,) = json.loads(host.inside(*words).stdout)
    assert all("pid" in napi for napi in shown(host, "v0")[0]["napis"])
    assert not any("pid" in napi for napi in device["napis"])
    assert ethtool(host, "--set-napi", "v0", "all", "threaded", "off").returncode == 0


@pytest.mark.parametrize("files", [4, 5, 6])
@pytest.mark.parametrize("line", ["--show-napi v0", "--set-napi v0 all threaded off"])
def test_sockets_that_cannot_be_had(kept: Space, files: int, line: str) -> None:
    limit = ("prlimit", f"--nofile={files}:{files}")
    done = kept.inside(*limit, kept.ip, *line.split())
    if done.returncode != 0:
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") >= 1, done
        assert "Too many open files" in done.stderr, done
    assert files > 4 or done.returncode == 1


def test_busy_poll_where_the_kernel_knows_it_or_not(host: Space) -> None:
    """Threaded mode came to single NAPIs in 6.17, busy-poll in 6.19."""
    first = host.napis()["v0"][0]["id"]
    done = ethtool(host, "--set-napi", "v0", "all", "threaded", "busy-poll")
    if done.returncode == 0:
        assert host.modes("v0") == ["busy-poll"] * QUEUES
    else:
        why = "kernel does not support threaded busy-poll"
        assert one_line(done) == f"NAPI {first}: {why}; 0 of {QUEUES} updated"
    assert ethtool(host, "--set-napi", "v0", "all", "threaded", "off").returncode == 0


@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("name", ["gro-flush-timeout", "irq-suspend-timeout"])
def test_timers_of_any_size(host: Space, name: str, value: int) -> None:
    assert ethtool(host, "--set-napi", "v0", "all", name, str(value)).returncode == 0
    assert [napi[name] for napi in shown(host, "v0")[0]["napis"]] == [value] * QUEUES
    assert ethtool(host, "--set-napi", "v0", "all", name, "0").returncode == 0


def test_altnames(host: Space) -> None:
    long = "an-alternative-name-that-is-long"
    checked(["ip", "-n", host.name, "link", "property", "add", "dev", "v0", "altname", long])
    assert shown(host, long) == shown(host, "v0")
    checked(["ip", "-n", host.name, "link", "property", "del", "dev", "v0", "altname", long])


# Wrong words: one line, nothing written.


@pytest.mark.parametrize("command", ["--show-napi", "--set-napi"])
def test_wrong_selectors(kept: Space, command: str) -> None:
    setting = ["threaded", "on"] if command == "--set-napi" else []
    for name, good in SELECTORS.items():
        wrong = NO_MASK if name == "queue_mask" else (*NO_NUMBER, str(2**32), hex(2**32))
        for value in wrong:
            said = refused(kept, command, "v0", name, value, *setting)
            assert said == f"invalid value '{value}' for parameter '{name}'"
        assert refused(kept, command, "v0", name, good, name, good, *setting) == (
            f"duplicate parameter '{name}'"
        )
        assert refused(kept, command, "v0", *setting, name) == f"no value for parameter '{name}'"
    for one, other in permutations(SELECTORS, 2):
        words = (one, SELECTORS[one], other, SELECTORS[other], *setting)
        assert refused(kept, command, "v0", *words) == f"'{other}' conflicts with '{one}'"
    for word in ("stray", "", "-1", "queue=1", "Queue"):
        assert refused(kept, command, "v0", word, *setting) == f"unknown parameter '{word}'"


@pytest.mark.parametrize("command", ["--show-napi", "--set-napi"])
def test_what_is_not_there(kept: Space, command: str) -> None:
    setting = ["threaded", "on"] if command == "--set-napi" else []
    foreign = str(kept.napis()["v1"][0]["id"])
    for napi in (foreign, "0", str(2**31), str(2**32 - 1)):
        said = refused(kept, command, "v0", "napi", napi, *setting)
        assert said == f"NAPI {napi} does not belong to v0"
    for name in ("queue", "tx-queue"):
        for number in ("0", "9", str(2**31), str(2**32 - 1)):
            said = refused(kept, command, "v0", name, number, *setting)
            assert said == f"no NAPI for {name} {number} on v0"
    assert refused(kept, command, "v0", "queue_mask", "0x8", *setting) == (
        "no NAPI for queue 3 on v0"
    )
    every = ["all", *setting] if setting else []
    assert refused(kept, command, "nope", *every) == "nope: No such device"
    assert refused(kept, command, "x" * 127, *every) == f"{'x' * 127}: No such device"


def test_wrong_settings(kept: Space) -> None:
    start = ("--set-napi", "v0", "all")
    for name, good in SETTINGS.items():
        for value in NO_MODE if name == "threaded" else NO_NUMBER:
            said = refused(kept, *start, name, value)
            assert said == f"invalid value '{value}' for parameter '{name}'"
        assert refused(kept, *start, name) == f"no value for parameter '{name}'"
        assert refused(kept, *start, name, good, name, good) == f"duplicate parameter '{name}'"
        assert "is needed" in refused(kept, "--set-napi", "v0", name, good)
        for word in ("stray", "", "all"):
            assert refused(kept, *start, name, good, word).endswith(f"parameter '{word}'")
    for value in (str(2**31), str(2**32), hex(2**32)):
        assert "invalid value" in refused(kept, *start, "defer-hard-irqs", value)
    assert refused(kept, *start) == "no parameter to set"


def test_wildcard_is_not_set(kept: Space) -> None:
    done = ethtool(kept, "--set-napi", "*", "all", "threaded", "on")
    assert done.returncode == 1 and "wildcard" in done.stderr


# What goes wrong when the words are right.


def test_no_permission(kept: Space) -> None:
    done = kept.inside("setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", kept.ip,
                       "--set-napi", "v0", "all", "threaded", "on")  # fmt: skip
    first = kept.napis()["v0"][0]["id"]
    assert one_line(done) == f"NAPI {first}: Operation not permitted; 0 of {QUEUES} updated"


def test_device_down(host: Space) -> None:
    checked(["ip", "-n", host.name, "link", "set", "v0", "down"])
    try:
        for words in (("--show-napi", "v0"), ("--set-napi", "v0", "all", "threaded", "on")):
            assert refused(host, *words) == "interface v0 is down, no NAPI instances"
    finally:
        checked(["ip", "-n", host.name, "link", "set", "v0", "up"])


def test_device_without_napis(kept: Space) -> None:
    """A veth without GRO."""
    checked(["ip", "-n", kept.name, "link", "add", "d0", "up", "type", "veth", "peer", "d1"])
    for words in (("--show-napi", "d0"), ("--set-napi", "d0", "all", "threaded", "on")):
        assert refused(kept, *words) == "interface d0 has no NAPI instances"
    checked(["ip", "-n", kept.name, "link", "delete", "d0"])


def test_partial_failure_says_how_many_and_a_second_call_finishes(host: Space) -> None:
    third = host.napis()["v0"][2]["id"]
    words = ("--set-napi", "v0", "all", "threaded", "on", "irq-suspend-timeout", "7")
    done = ethtool(host, *words, env=preloaded(host.ip, FAIL_NTH="3"))
    assert one_line(done) == f"NAPI {third}: No such file or directory; 2 of {QUEUES} updated"
    assert host.modes("v0") == ["on", "on", "off", "off"]
    assert [napi["irq-suspend-timeout"] for napi in shown(host, "v0")[0]["napis"]] == [7, 7, 0, 0]
    assert ethtool(host, *words).returncode == 0
    assert host.modes("v0") == ["on"] * QUEUES
    assert [napi["irq-suspend-timeout"] for napi in shown(host, "v0")[0]["napis"]] == [7] * QUEUES
    back = ("--set-napi", "v0", "all", "threaded", "off", "irq-suspend-timeout", "0")
    assert ethtool(host, *back).returncode == 0


def test_second_call_sends_nothing(host: Space, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("--set-napi", "v0", "all", "threaded", "off", "defer-hard-irqs", "5")
    for expected in (QUEUES, 0):
        log.write_text("")
        env = preloaded(host.ip, NETDEV_LOG=str(log))
        assert ethtool(host, *words, env=env).returncode == 0
        assert log.read_text().split().count(NAPI_SET) == expected
    assert ethtool(host, "--set-napi", "v0", "all", "defer-hard-irqs", "0").returncode == 0


@pytest.mark.parametrize(
    ("at", "mishap", "said"),
    [
        (NAPI_GET, "delete g0", "g0: No such device"),
        (NAPI_GET, "set g0 down", "interface g0 is down, no NAPI instances"),
        (NAPI_SET, "delete g0", r"NAPI \d+: No such file or directory; 0 of 1 updated"),
        (NAPI_SET, "set g0 down", r"NAPI \d+: No such file or directory; 0 of 1 updated"),
    ],
)
def test_device_gone_in_between(host: Space, at: str, mishap: str, said: str) -> None:
    """Between its name being resolved and the dump, and between the dump and the first set."""
    checked(["ip", "-n", host.name, "link", "add", "g0", "type", "veth", "peer", "name", "g1"])
    host.inside("python3", "-c", GRO, "g0")
    checked(["ip", "-n", host.name, "link", "set", "g0", "up"])
    assert len(host.napis()["g0"]) == 1
    try:
        env = preloaded(host.ip, RUN_AT=at, RUN=f"ip link {mishap}")
        done = ethtool(host, "--set-napi", "g0", "all", "threaded", "on", env=env)
        assert re.fullmatch(said, one_line(done))
    finally:
        run(["ip", "-n", host.name, "link", "delete", "g0"])


def test_fuzzed_replies() -> None:
    done = run([tool.fuzzer(), str(INPUTS), "1"])
    assert done.returncode == 0 and done.stderr == "", done.stderr[-3000:]
    stored = re.fullmatch(rf"fuzz-napi: {INPUTS} inputs, seed 1, (\d+) objects\n", done.stdout)
    assert stored and int(stored[1]) > INPUTS / 4, "too few inputs came through the parsers"
