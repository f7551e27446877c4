# SPDX-License-Identifier: GPL-2.0-or-later
"""The patched ``ip link`` on the guests' NICs: queues, interrupts, busy-poll, older kernels.

One command a guest (each costs a second under emulation); what it printed is looked at here.
"""

import json
from pathlib import Path
from typing import Any

import iproute2_tool as tool
import pytest
from tool_schema import link_faults

from conftest import DEBIAN_612, OURS, STOCK_72, Host

SCRIPT = Path(__file__).parent / "guest" / "iproute2_threaded.py"
MODES = ("off", "on", "busy-poll")
QUEUES = 4
CHECKS = 16  # those that threaded.t prints a verdict of

# What is asked, the message, the code, and the modes of the receive queues' NAPIs afterwards.
Step = tuple[list[str], str, int, list[str]]
NO_SINGLE = "Error: kernel does not support per-NAPI threaded mode.\n"
NO_BUSY_POLL = "Error: kernel does not support busy-poll threaded NAPI.\n"
BY_QUEUE: list[Step] = [
    (["threaded", "busy-poll", "queue", "3"], "", 0, ["off", "off", "off", "busy-poll"]),
    (["threaded", "on", "queue", "1"], "", 0, ["off", "on", "off", "busy-poll"]),
    (["threaded", "on", "queue", "9"], "Error: no NAPI for queue 9 on {nic}.\n", 2,
     ["off", "on", "off", "busy-poll"]),
    (["threaded", "off", "queue", "3"], "", 0, ["off", "on", "off", "off"]),
    (["threaded", "on"], "", 0, ["on"] * QUEUES),
    (["threaded", "busy-poll"], "", 0, ["busy-poll"] * QUEUES),
    (["threaded", "off"], "", 0, ["off"] * QUEUES),
]  # fmt: skip
STEPS: dict[str, list[Step]] = {
    OURS: BY_QUEUE,
    STOCK_72: BY_QUEUE,
    # No links, no napi-set, and the mode of single NAPIs is not reported.
    DEBIAN_612: [
        (["threaded", "on"], "", 0, []),
        (["threaded", "off"], "", 0, []),
        (["threaded", "busy-poll"], NO_BUSY_POLL, 2, []),
        (["threaded", "on", "napi", "NAPI"], NO_SINGLE, 2, []),
        (["threaded", "on", "queue", "0"], "Error: no NAPI for queue 0 on {nic}.\n", 2, []),
    ],
}


def prepare(guest: Host) -> None:
    guest.vm.put(SCRIPT, "/root/iproute2_threaded.py")


@pytest.fixture
def answers(guest: Host) -> dict[str, Any]:
    prepare(guest)
    commands = json.dumps([words for words, _said, _code, _modes in STEPS[guest.kernel]])
    done = guest.run("python3", "/root/iproute2_threaded.py", "ip", guest.vm.nic, commands)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def same(link: dict[str, Any], napis: list[dict[str, int]]) -> bool:
    """Whether ip shows of a link's NAPIs just what the reader read."""
    shown = link.get("napis", [])
    pairs = list(zip(shown, napis, strict=True)) if len(shown) == len(napis) else []
    return len(shown) == len(napis) and all(
        one["napi_id"] == other["id"]
        and one.get("pid") == other.get("pid")
        and one.get("irq") == other.get("irq")
        and one.get("threaded") == (MODES[other["threaded"]] if "threaded" in other else None)
        for one, other in pairs
    )


def test_threaded_in_the_guest(guest: Host, answers: dict[str, Any]) -> None:
    for link in answers["links"]:
        assert link_faults(link) == []
        assert same(link, answers["napis"][link["ifname"]]), link["ifname"]
    for (words, said, code, modes), did in zip(STEPS[guest.kernel], answers["done"], strict=True):
        assert (did["rc"], did["stderr"]) == (code, said.format(nic=guest.vm.nic)), words
        assert link_faults(did["link"]) == [] and same(did["link"], did["napis"]), words
        queues = [napi for napi in did["link"]["napis"] if "rx_queues" in napi]
        assert [napi.get("threaded") for napi in queues] == modes, words
        assert [napi["rx_queues"] for napi in queues] == [[n] for n in range(len(modes))]
    if guest.kernel == DEBIAN_612:  # the whole device works, what single NAPIs do is not reported
        assert [did["sysfs"] for did in answers["done"]][:2] == ["1", "0"]
        assert not any("threaded" in link for link in answers["links"])


@pytest.mark.kernels(OURS)
def test_64_queues_by_number(guest: Host) -> None:
    commands = [["up"], ["threaded", "on", "queue", "40"], ["threaded", "busy-poll", "queue", "63"]]
    prepare(guest)
    script = (
        "echo 88 1 64 > /sys/bus/netdevsim/new_device; udevadm settle; "
        "nic=$(ls /sys/bus/netdevsim/devices/netdevsim88/net); python3 /root/iproute2_threaded.py "
        'ip "$nic" "$1"; echo 88 > /sys/bus/netdevsim/del_device'
    )
    done = json.loads(guest.run("sh", "-c", script, "sh", json.dumps(commands)).stdout)["done"]
    assert [did["rc"] for did in done] == [0, 0, 0]
    assert all(link_faults(did["link"]) == [] and same(did["link"], did["napis"]) for did in done)
    napis = {tuple(napi["rx_queues"]): napi["threaded"] for napi in done[-1]["link"]["napis"]}
    expected = {(queue,): "off" for queue in range(64)}
    assert napis == {**expected, (40,): "on", (63,): "busy-poll"}
    assert done[-1]["link"]["threaded"] == "mixed"


@pytest.mark.kernels(OURS)
def test_own_test_suite(guest: Host) -> None:
    """testsuite/tests/ip/link/threaded.t, which needs ethtool, as its Makefile runs it."""
    suite = tool.testsuite("7.2.0")
    guest.vm.put(tool.ip("7.2.0", "gcc"), "/root/ip", 0o755)
    for name in ("lib/generic.sh", "tests/ip/link/threaded.t"):
        guest.vm.put(suite / name, f"/root/{Path(name).name}", 0o755)
    script = (
        "mkdir -p lib && cp generic.sh lib/ && rm -f err && "
        "IP=/root/ip STD_ERR=/root/std_err STD_OUT=/root/std_out ERRF=/root/err "
        "unshare -n sh threaded.t; rc=$?; cat err 2>/dev/null; exit $rc"
    )
    done = guest.run("sh", "-c", f"cd /root && {script}", check=False)
    assert done.rc == 0, "ended with 127 where it skipped itself"
    assert "[FAILED]" not in done.stdout and "failed" not in done.stdout, done.stdout
    assert done.stdout.count("[SUCCESS]") == CHECKS, done.stdout
