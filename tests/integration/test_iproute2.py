# SPDX-License-Identifier: GPL-2.0-or-later
"""``ip link set DEVICE threaded`` and ``ip -d link``, as iproute2-patches/ adds them.

Runs in network namespaces of this machine, whose kernel must have the mode of single NAPIs.
test_iproute2_guest.py has what needs queues linked to NAPIs, interrupts and busy polling.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import iproute2_tool as tool
import pytest
from iproute2_space import ENV, GRO, Done, Space, checked, run, space
from netdev_requests import NAPI_GET, NAPI_SET, QUEUE_GET, preloaded
from tool_schema import link_faults

from conftest import missing, older_kernel

QUEUES = 4
DEVICES = {"lo", "v0", "v1", "d0", "d1"}
BUILDS = [("7.2.0", "gcc"), ("6.1.0", "asan")]


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def lab(request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace with v0 (four NAPIs), its peer v1 (as many), and d0 without any."""
    if os.geteuid() != 0:
        missing("network namespaces need root")
    with space(f"rxlane-ip-{os.getpid()}", tool.ip(*request.param)) as ready:
        ready.pair("v0", "v1", QUEUES)
        run(
            [
                "ip",
                "-n",
                ready.name,
                "link",
                "add",
                "d0",
                "up",
                "type",
                "veth",
                "peer",
                "name",
                "d1",
            ]
        )
        if "threaded" not in ready.napis()["v0"][0]:
            older_kernel("this machine's kernel has no threaded mode of single NAPIs")
        yield ready


@pytest.fixture
def ns(lab: Space) -> Space:
    """The namespace with v0 up and all of its NAPIs in softirq mode."""
    checked(["ip", "-n", lab.name, "link", "set", "v0", "up", "mtu", "1500"])
    lab.set("v0", "threaded", "off")
    assert lab.modes("v0") == ["off"] * QUEUES
    return lab


@pytest.fixture
def stock(ns: Space) -> Path:
    """The unpatched ip of the same version."""
    return tool.ip("6.1.0" if "6.1.0" in ns("-V").stdout else "7.2.0", "stock")


def one_line(done: Done, code: int) -> str:
    """The only line of standard error; a sanitizer's report would be more."""
    assert done.returncode == code, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and done.stdout == "", done
    return lines[0]


def shown_modes(ns: Space, device: str) -> list[str]:
    return [napi["threaded"] for napi in ns.show(device).get("napis", [])]


def first_id(ns: Space, device: str) -> str:
    return str(ns.napis()[device][0]["id"])


# What it sets and shows.


@pytest.mark.parametrize("mode", ["on", "off"])
def test_whole_device_agrees_with_sysfs_and_netlink(ns: Space, mode: str) -> None:
    ns.set("v0", "threaded", "on")
    ns.set("v0", "threaded", mode)
    assert ns.modes("v0") == shown_modes(ns, "v0") == [mode] * QUEUES
    assert ns.show("v0")["threaded"] == mode
    assert ns.sysfs("v0") == str(int(mode == "on"))
    assert f" threaded {mode} gso_max_size " in ns("-d", "link", "show", "v0").stdout


def test_one_napi_of_many(ns: Space) -> None:
    chosen = ns.napis()["v0"][2]["id"]
    ns.set("v0", "threaded", "on", "napi", str(chosen))
    assert ns.modes("v0") == shown_modes(ns, "v0") == ["off", "off", "on", "off"]
    assert ns.show("v0")["threaded"] == "mixed"
    assert " threaded mixed gso_max_size " in ns("-d", "link", "show", "v0").stdout
    ns.set("v0", "threaded", "off", "napi", hex(chosen))
    assert ns.show("v0")["threaded"] == "off"


def test_a_line_per_napi_says_what_the_kernel_says(ns: Space) -> None:
    ns.set("v0", "threaded", "on", "napi", first_id(ns, "v0"))
    expected = [
        f"napi {napi['id']} threaded {('off', 'on')[napi['threaded']]}"
        + (f" pid {napi['pid']}" if "pid" in napi else "")
        for napi in ns.napis()["v0"]
    ]
    text = ns("-d", "-d", "link", "show", "v0").stdout
    assert [line.strip() for line in text.splitlines() if " napi " in line] == expected
    oneline = ns("-o", "-d", "-d", "link", "show", "v0").stdout
    assert len(oneline.splitlines()) == 1
    assert [part.strip() for part in oneline.split("\\") if " napi " in part] == expected
    assert " napi " not in ns("-d", "link", "show", "v0").stdout


def test_a_thread_of_another_pid_namespace_has_no_pid(ns: Space) -> None:
    """To which the kernel gives 0, by which sched_setaffinity(2) means the caller."""
    ns.set("v0", "threaded", "on")
    words = ("unshare", "--pid", "--fork", ns.ip, "-j", "-d", "-d", "link", "show", "dev", "v0")
    (link,) = json.loads(ns.inside(*words).stdout)
    assert all(napi["pid"] for napi in ns.show("v0")["napis"])
    assert [napi.get("pid") for napi in link["napis"]] == [None] * QUEUES


def test_json_follows_the_schema(ns: Space) -> None:
    ns.set("v0", "threaded", "on", "napi", first_id(ns, "v0"))
    links = {link["ifname"]: link for link in json.loads(ns("-j", "-d", "-d", "link").stdout)}
    assert links.keys() == DEVICES
    assert [fault for link in links.values() for fault in link_faults(link)] == []
    assert links["v0"]["threaded"] == "mixed" and len(links["v0"]["napis"]) == QUEUES
    assert links["d0"].keys() & {"threaded", "napis"} == set()
    assert link_faults({**links["v0"], "threaded": "yes"}) != []


def as_before(
    ns: Space, stock: Path, words: list[str], env: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """What ours, with ``env``, and the stock ip print of one state, and no complaint of ours.

    Carriers settle up to a second later.
    """
    for _try in range(50):
        before = run([stock, "-n", ns.name, *words]).stdout
        done = ns(*words, env=env)
        assert (done.returncode, done.stderr) == (0, ""), done
        ours = done.stdout
        if before == run([stock, "-n", ns.name, *words]).stdout:
            return ours, before
    raise AssertionError(f"the links of {ns.name} never settled")


def test_all_else_is_printed_as_before(ns: Space, stock: Path) -> None:
    for words in (["link"], ["-j", "link"], ["-br", "-d", "link"], ["-d", "addr"]):
        ours, before = as_before(ns, stock, words)
        assert ours == before, words
    ours, before = as_before(ns, stock, ["-d", "link"])
    assert re.sub(r"threaded \S+ ", "", ours) == before


def test_altname_rename_and_other_settings_at_once(ns: Space) -> None:
    checked(["ip", "-n", ns.name, "link", "property", "add", "dev", "v0", "altname", "uplink0"])
    ns.set("uplink0", "threaded", "on", "mtu", "1400")
    assert (ns.modes("v0"), ns.show("v0")["mtu"]) == (["on"] * QUEUES, 1400)
    ns.set("v0", "down")
    ns.set("uplink0", "name", "v9", "threaded", "off", "up")
    assert ns.modes("v9") == ["off"] * QUEUES and ns.sysfs("v9") == "0"
    ns.set("v9", "down", "name", "v0", "up")
    checked(["ip", "-n", ns.name, "link", "property", "del", "dev", "v0", "altname", "uplink0"])


def test_whole_device_lasts_over_down_and_up(ns: Space) -> None:
    ns.set("v0", "threaded", "on")
    ns.set("v0", "down")
    assert "threaded" not in ns.show("v0")
    ns.set("v0", "up")
    assert shown_modes(ns, "v0") == ["on"] * QUEUES


def test_64_queues(ns: Space) -> None:
    ns.pair("q0", "q1", 64)
    ids = [napi["id"] for napi in ns.napis()["q0"]]
    ns.set("threaded", "on", "napi", str(ids[40]), "dev", "q0")
    modes = ["on" if napi == ids[40] else "off" for napi in ids]
    assert len(ids) == 64 and ns.modes("q0") == shown_modes(ns, "q0") == modes
    ns.set("q0", "threaded", "on", "group", "5")
    assert ns.modes("q0") == shown_modes(ns, "q0") == ["on"] * 64
    assert [napi["napi_id"] for napi in ns.show("q0")["napis"]] == ids
    checked(["ip", "-n", ns.name, "link", "delete", "q0"])


def test_batch_begins_anew_at_each_line(ns: Space) -> None:
    napi = first_id(ns, "v0")
    lines = [
        "link show v0", "link set v0 threaded on", "link set v0 mtu 1400", "link show v0",
        f"link set v0 threaded off napi {napi}", "link show v0",
    ]  # fmt: skip
    done = ns("-d", "-batch", "-", stdin="\n".join(lines))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"threaded (\S+)", done.stdout) == ["off", "on", "mixed"]


def test_forced_batch_goes_on_after_wrong_lines(ns: Space) -> None:
    lines = ["link set v0 threaded", "link set v0 threaded on queue", "link set v0 threaded 1",
             "link set v0 threaded on queue -1", "link set v0 threaded on stray",
             "link set v0 threaded on"]  # fmt: skip
    done = ns("-force", "-batch", "-", stdin="\n".join(lines))
    assert done.returncode == 1
    assert done.stderr.count("Command failed -:") == 5
    assert ns.modes("v0") == ["on"] * QUEUES


# What it asks the kernel for, and what it does not.


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["link"], []),
        (["-d", "addr"], []),
        (["-br", "-d", "link"], []),
        (["-d", "link"], [NAPI_GET]),
        (["-d", "-d", "link"], [NAPI_GET, QUEUE_GET]),
        (["-d", "link", "show", "v0"], [NAPI_GET]),
        (["-d", "-d", "-echo", "link", "set", "v0", "mtu", "1400"], []),
        (["link", "set", "v0", "threaded", "on"], []),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_one_dump_a_process(ns: Space, tmp_path: Path, words: list[str], asked: list[str]) -> None:
    log = tmp_path / "log"
    log.touch()
    done = ns(*words, env=preloaded(ns.ip, NETDEV_LOG=str(log)))
    assert done.returncode == 0, done
    assert log.read_text().split() == asked


def test_monitor_says_nothing_of_napis(ns: Space, tmp_path: Path) -> None:
    log, said = tmp_path / "log", tmp_path / "said"
    env = {**ENV, **preloaded(ns.ip, NETDEV_LOG=str(log))}
    with said.open("w") as sink:
        watch = subprocess.Popen(
            [ns.ip, "-n", ns.name, "-d", "-d", "monitor", "link"], env=env, stdout=sink
        )
        try:
            deadline = time.monotonic() + 30
            while said.stat().st_size == 0 and time.monotonic() < deadline:
                for mtu in ("1400", "1500") * 20:
                    checked(["ip", "-n", ns.name, "link", "set", "v0", "mtu", mtu])
        finally:
            watch.send_signal(signal.SIGTERM)
            watch.wait()
    assert "mtu 1400" in said.read_text()
    assert not log.exists() and "threaded" not in said.read_text()


# Whose sysfs is written, and what happens when it cannot be.


@pytest.fixture
def foreign(ns: Space) -> Iterator[Space]:
    """A second namespace; both have s0 with the same ifindex and an address each."""
    with space(f"{ns.name}-b", ns.ip) as other:
        for where in (ns, other):
            where.pair("s0", "s1", QUEUES, "index", "77")
        yield other
    checked(["ip", "-n", ns.name, "link", "delete", "s0"])


# What is set without the device's file in sysfs, and so not for the device.
ONLY_NAPIS = (
    "Warning: no access to {} in /sys: set for the NAPIs there are, not the device.\n".format
)


def in_foreign(ns: Space, foreign: Space, *words: str, **env: str) -> Done:
    """ip in ``foreign`` with the sysfs of ``ns``, as nsenter and containers' tools leave it."""
    net = f"--net=/run/netns/{foreign.name}"
    return ns.inside("nsenter", net, ns.ip, "link", "set", *words, env=env)


def test_sysfs_of_another_namespace_is_not_written(ns: Space, foreign: Space) -> None:
    for mode in ("on", "off"):
        done = in_foreign(ns, foreign, "s0", "threaded", mode)
        assert (done.returncode, done.stderr) == (0, ONLY_NAPIS("s0"))
        assert foreign.modes("s0") == [mode] * QUEUES
        assert (ns.modes("s0"), ns.sysfs("s0")) == (["off"] * QUEUES, "0")
    assert foreign.inside(ns.ip, "link", "set", "s0", "threaded", "on").returncode == 0
    assert (foreign.sysfs("s0"), ns.sysfs("s0")) == ("1", "0")
    foreign.set("s0", "threaded", "off")
    assert (foreign.sysfs("s0"), ns.sysfs("s0")) == ("0", "0")


@pytest.mark.parametrize(("own", "other"), [("on", "off"), ("off", "on")])
def test_what_was_warned_of_goes_with_the_napis(
    ns: Space, foreign: Space, own: str, other: str
) -> None:
    """The device keeps its mode, for the NAPIs that "up" makes; written again, it reaches all."""
    foreign.set("s0", "threaded", own)
    assert in_foreign(ns, foreign, "s0", "threaded", other).stderr == ONLY_NAPIS("s0")
    assert (foreign.modes("s0"), foreign.sysfs("s0")) == ([other] * QUEUES, str(int(own == "on")))
    foreign.set("s0", "down")
    foreign.set("s0", "up")
    assert foreign.modes("s0") == [own] * QUEUES
    assert in_foreign(ns, foreign, "s0", "threaded", other).returncode == 0
    foreign.set("s0", "threaded", own)
    assert foreign.modes("s0") == [own] * QUEUES


def test_single_napis_need_no_sysfs(ns: Space, foreign: Space) -> None:
    napi = first_id(foreign, "s0")
    done = in_foreign(ns, foreign, "s0", "threaded", "on", "napi", napi)
    assert (done.returncode, done.stderr) == (0, "")
    assert foreign.modes("s0") == ["on", *["off"] * (QUEUES - 1)]


def test_read_only_sysfs_is_done_without(ns: Space) -> None:
    script = 'mount -o remount,ro,bind /sys && exec "$0" link set v0 threaded on'
    done = ns.inside("sh", "-c", script, ns.ip)
    assert (done.returncode, done.stderr) == (0, ONLY_NAPIS("v0"))
    assert (ns.modes("v0"), ns.sysfs("v0")) == (["on"] * QUEUES, "0")


def test_partial_failure_says_how_many_and_a_second_call_finishes(
    ns: Space, foreign: Space
) -> None:
    third = foreign.napis()["s0"][2]["id"]
    done = in_foreign(ns, foreign, "s0", "threaded", "on", **preloaded(ns.ip, FAIL_NTH="3"))
    assert one_line(done, 2) == (
        f"Error: NAPI {third} on s0: No such file or directory; 2 of {QUEUES} set."
    )
    assert foreign.modes("s0") == ["on", "on", "off", "off"]
    assert in_foreign(ns, foreign, "s0", "threaded", "on").returncode == 0
    assert foreign.modes("s0") == ["on"] * QUEUES


@pytest.mark.parametrize(
    ("at", "mishap", "said"),
    [
        (NAPI_GET, "delete g0", r"No such device\."),
        (NAPI_GET, "set g0 down", r"no NAPI \d+ on g0\."),
        (NAPI_SET, "delete g0", r"NAPI \d+ on g0: No such file or directory; 0 of 1 set\."),
        (NAPI_SET, "set g0 down", r"NAPI \d+ on g0: No such file or directory; 0 of 1 set\."),
    ],
)
def test_device_gone_in_between(ns: Space, at: str, mishap: str, said: str) -> None:
    """Between it being found and the dump, and between the dump and the first set."""
    ns.pair("g0", "g1", 1)
    try:
        env = preloaded(ns.ip, RUN_AT=at, RUN=f"ip link {mishap}")
        done = ns("link", "set", "g0", "threaded", "on", "napi", first_id(ns, "g0"), env=env)
        assert re.fullmatch(f"Error: {said}", one_line(done, 2))
    finally:
        run(["ip", "-n", ns.name, "link", "delete", "g0"])


def test_sandbox_without_generic_netlink(ns: Space, stock: Path) -> None:
    """What shows links is as without the patch; what sets a mode says why it cannot."""
    env = preloaded(ns.ip, NO_GENERIC="1")
    for words in (["-d", "link"], ["-j", "-d", "-d", "link"], ["-d", "-d", "link", "show", "v0"]):
        ours, before = as_before(ns, stock, words, env)
        assert ours == before, words
    done = ns("link", "set", "v0", "threaded", "on", "napi", first_id(ns, "v0"), env=env)
    assert one_line(done, 2) == "Error: Protocol not supported."
    done = ns("link", "set", "v0", "threaded", "on", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert ns.modes("v0") == ["on"] * QUEUES


def test_without_permission(ns: Space) -> None:
    less = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    done = ns.inside(*less, ns.ip, "link", "set", "v0", "threaded", "on")
    assert one_line(done, 2) == "RTNETLINK answers: Operation not permitted"
    assert ns.modes("v0") == ["off"] * QUEUES


def test_administrator_of_a_user_namespace_may_not(ns: Space) -> None:
    script = (
        "ip link add w0 type veth peer name w1 && ip link set w0 up && "
        '"$1" -c "$2" w0 && exec "$3" link set w0 threaded on'
    )
    done = run(["unshare", "-Urn", "sh", "-c", script, "sh", sys.executable, GRO, ns.ip])
    said = one_line(done, 2)
    assert re.fullmatch(r"Error: NAPI \d+ on w0: Operation not permitted; 0 of 1 set\.", said)


# Wrong words: one line, the right code, nothing written.

NAPI = "NAPI"  # stands for an ID of v0
SELF = str(os.getpid())  # whose namespace is another one
WRONG = [
    ["threaded"],
    ["threaded", ""],
    ["threaded", "yes"],
    ["threaded", "1"],
    ["threaded", "busy"],
    ["threaded", "onn"],
    ["threaded", "on", "threaded", "on"],
    ["threaded", "on", "threaded"],
    *(
        ["threaded", "on", by, *value]
        for by in ("queue", "napi")
        for value in (
            [], [""], ["-1"], ["+1"], [" 1"], ["1 "], ["1x"], ["0x"], ["0xg"], ["1.0"], ["1,2"],
            ["all"], ["4294967296"], ["18446744073709551616"], ["-18446744073709551615"],
            ["99999999999999999999999999"], ["1", by, "1"], ["1", by],
        )
    ),
    ["threaded", "on", "queue", "0", "napi", NAPI],
    ["threaded", "on", "napi", NAPI, "queue", "0"],
    ["threaded", "on", "netns", SELF],
    ["netns", SELF, "threaded", "on"],
    ["threaded", "on", "type", "veth", "peer", "name", "v1", "threaded", "on"],
    ["type", "veth", "peer", "name", "v1", "threaded", "on"],
    ["threaded", "on", "stray"],
    ["threaded", "on", "queue", "1", "stray"],
    ["stray", "threaded", "on"],
]  # fmt: skip
OTHER_COMMANDS = [
    ["set", "group", "default", "threaded", "on"],
    ["add", "n0", "threaded", "on", "type", "dummy"],
    ["add", "n0", "type", "veth", "peer", "name", "n1", "threaded", "on"],
    ["add", "n0", "type", "vxcan", "peer", "name", "n1", "threaded", "on"],
    ["replace", "n0", "threaded", "on", "type", "dummy"],
    ["delete", "v0", "threaded", "on"],
    ["set", "nosuch0", "threaded", "on"],
]


def test_wrong_words_write_nothing(ns: Space) -> None:
    """Each asks for another MTU and for threads: what one of them writes is seen in the end."""
    ids = first_id(ns, "v0")
    commands = [*(["set", "v0", "mtu", "1400", *words] for words in WRONG), *OTHER_COMMANDS]
    for words in commands:
        said = one_line(ns("link", *(ids if word == NAPI else word for word in words)), 1)
        assert len(said) < 200, words
    assert ns.modes("v0") == ["off"] * QUEUES
    assert ns.napis().keys() == DEVICES
    assert ns.show("v0")["mtu"] == 1500


NO_BUSY_POLL = "Error: kernel does not support busy-poll threaded NAPI."
REFUSED = [
    ("v0", ["on", "queue", "9"], "Error: no NAPI for queue 9 on v0."),
    ("v0", ["on", "queue", "2147483648"], "Error: no NAPI for queue 2147483648 on v0."),
    ("v0", ["on", "queue", "0xffffffff"], "Error: no NAPI for queue 4294967295 on v0."),
    ("v0", ["on", "napi", "0"], "Error: no NAPI 0 on v0."),
    ("v0", ["on", "napi", "2147483648"], "Error: no NAPI 2147483648 on v0."),
    ("v0", ["on", "napi", "v1"], "Error: no NAPI {v1} on v0."),
    ("d0", ["on"], "Error: d0 has no NAPI."),
    ("d0", ["busy-poll"], "Error: d0 has no NAPI."),
    ("d0", ["on", "queue", "0"], "Error: no NAPI for queue 0 on d0."),
]


def test_what_the_kernel_does_not_have(ns: Space) -> None:
    """``napi v1`` stands for an ID of v1."""
    before = ns.napis()
    ids = {name: str(before[name][0]["id"]) for name in ("v0", "v1")}
    for device, words, said in REFUSED:
        done = ns("link", "set", device, "threaded", *(ids.get(word, word) for word in words))
        assert one_line(done, 2) == said.format(**ids)
    assert ns.napis() == before


def test_busy_poll_is_set_or_refused(ns: Space) -> None:
    """Which of the two is up to this machine's kernel; the guests have one of each."""
    for words in (["busy-poll"], ["busy-poll", "napi", first_id(ns, "v0")]):
        done = ns("link", "set", "v0", "threaded", *words)
        if done.returncode == 0:
            assert ns.modes("v0")[0] == shown_modes(ns, "v0")[0] == "busy-poll"
        else:
            assert one_line(done, 2) == NO_BUSY_POLL
            assert ns.modes("v0") == ["off"] * QUEUES


@pytest.mark.parametrize("words", [["on", "queue", "0"], ["off", "napi", "9"]], ids=" ".join)
def test_single_napis_need_the_device_up(ns: Space, words: list[str]) -> None:
    ns.set("v0", "down")
    said = one_line(ns("link", "set", "v0", "threaded", *words), 2)
    assert said == "Error: v0 is down; per-queue threaded needs the device up."
    assert one_line(ns("link", "set", "v0", "threaded", "busy-poll"), 2) == (
        "Error: v0 is down; threaded busy-poll needs the device up."
    )
    assert one_line(ns("link", "set", "v0", "threaded", "on"), 2) == (
        "Error: v0 has no NAPI while it is down."
    )
