# SPDX-License-Identifier: GPL-2.0-or-later
"""The patched ``ethtool`` on veths of the host: what it shows and sets, wrong words, fuzzing."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import ethtool_tool as tool
import pytest
from iproute2_space import Done, Space, checked, run, space

from conftest import missing, older_kernel

INPUTS = 1_000_000
QUEUES = 4
NUMBERS = ("queue", "tx-queue", "napi")
SETTINGS = ("threaded", "defer-hard-irqs", "gro-flush-timeout", "irq-suspend-timeout")
NO_NUMBER = ("", "-1", "+1", " 1", "1x", "0x", "foo", str(2**64))

Shown = dict[str, Any]


@pytest.fixture(scope="module")
def host() -> Iterator[Space]:
    if os.geteuid() != 0:
        missing("network namespaces need root")
    with space(f"rxlane-ethtool-{os.getpid()}", tool.ethtool()) as ns:
        ns.pair("v0", "v1", QUEUES)
        if any("threaded" not in napi for napi in ns.napis()["v0"]):
            older_kernel("the kernel of this machine does not have the mode of single NAPIs")
        yield ns


def ethtool(ns: Space, *words: str) -> Done:
    return ns.inside(tool.ethtool(), *words)


def shown(ns: Space, *words: str) -> list[Shown]:
    found: list[Shown] = json.loads(ethtool(ns, "--json", "--show-napi", *words).stdout)
    return found


def refused(ns: Space, *words: str) -> str:
    """The one line of an error; nothing may have changed."""
    before = ns.napis()
    done = ethtool(ns, *words)
    assert done.returncode == 1 and done.stdout == "", (words, done)
    assert done.stderr.count("\n") == 1, (words, done.stderr)
    assert ns.napis() == before, words
    return done.stderr.strip()


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
    largest = str(2**64 - 1)
    done = ethtool(host, "--set-napi", "v0", "all", "threaded", "off", "gro-flush-timeout",
                   largest, "defer-hard-irqs", "0x7fffffff")  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert host.modes("v0") == ["off"] * QUEUES
    napi = shown(host, "v0")[0]["napis"][-1]
    assert (napi["gro-flush-timeout"], napi["defer-hard-irqs"]) == (2**64 - 1, 2**31 - 1)
    done = ethtool(host, "--set-napi", "v0", "all", "gro-flush-timeout", "0", "defer-hard-irqs",
                   "0")  # fmt: skip
    assert done.returncode == 0


def test_altnames(host: Space) -> None:
    long = "an-alternative-name-that-is-long"
    checked(["ip", "-n", host.name, "link", "property", "add", "dev", "v0", "altname", long])
    assert shown(host, long) == shown(host, "v0")


@pytest.mark.parametrize("command", ["--show-napi", "--set-napi"])
def test_wrong_selectors(host: Space, command: str) -> None:
    setting = ["threaded", "on"] if command == "--set-napi" else []
    for name in NUMBERS:
        for value in (*NO_NUMBER, str(2**32)):
            said = refused(host, command, "v0", name, value, *setting)
            assert said == f"ethtool ({command}): invalid value '{value}' for parameter '{name}'"
        assert "duplicate" in refused(host, command, "v0", name, "1", name, "1", *setting)
        assert "conflicts" in refused(host, command, "v0", name, "1", "queue_mask", "1", *setting)
        assert "no value" in refused(host, command, "v0", *setting, name)
    for value in ("", "0", "0x", "g", "-1"):
        assert "invalid value" in refused(host, command, "v0", "queue_mask", value, *setting)
    foreign = str(host.napis()["v1"][0]["id"])
    said = refused(host, command, "v0", "napi", foreign, *setting)
    assert said.endswith(f"NAPI {foreign} does not belong to v0")
    assert "no NAPI for queue 0 on v0" in refused(host, command, "v0", "queue", "0", *setting)
    every = ["all", *setting] if setting else []
    assert "No such device" in refused(host, command, "nope", *every)


def test_wrong_settings(host: Space) -> None:
    start = ("--set-napi", "v0", "all")
    for name in SETTINGS:
        for value in NO_NUMBER:
            assert "invalid value" in refused(host, *start, name, value)
        assert "no value" in refused(host, *start, name)
        good = "off" if name == "threaded" else "1"
        assert "duplicate" in refused(host, *start, name, good, name, good)
    assert "invalid value" in refused(host, *start, "defer-hard-irqs", str(2**31))
    assert "no parameter to set" in refused(host, *start)
    assert "is needed" in refused(host, "--set-napi", "v0", "threaded", "on")
    assert "wildcard" in refused(host, "--set-napi", "*", "all", "threaded", "on")


def test_no_permission(host: Space) -> None:
    done = host.inside("setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", tool.ethtool(),
                       "--set-napi", "v0", "all", "threaded", "on")  # fmt: skip
    first = host.napis()["v0"][0]["id"]
    expected = f"NAPI {first}: Operation not permitted; 0 of {QUEUES} updated"
    assert (done.returncode, done.stderr) == (1, f"ethtool (--set-napi): {expected}\n")


def test_device_down(host: Space) -> None:
    checked(["ip", "-n", host.name, "link", "set", "v0", "down"])
    try:
        for words in (("--show-napi", "v0"), ("--set-napi", "v0", "all", "threaded", "on")):
            assert refused(host, *words).endswith("interface v0 is down, no NAPI instances")
    finally:
        checked(["ip", "-n", host.name, "link", "set", "v0", "up"])


def test_fuzzed_replies() -> None:
    done = run([tool.fuzzer(), str(INPUTS), "1"])
    assert done.returncode == 0 and done.stderr == "", done.stderr[-3000:]
    stored = re.fullmatch(rf"fuzz-napi: {INPUTS} inputs, seed 1, (\d+) objects\n", done.stdout)
    assert stored and int(stored[1]) > INPUTS / 4, "too few inputs came through the parsers"
