# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: one device is flooded; what becomes of others, of neighbours and of memory.

The flood comes from the host by the virtio NIC, whose one interrupt is on CPU 0. What it costs in
the guest are rules of tc on that NIC, which nothing matches; they are gone through on CPU 1, by
helper threads or, to compare, by RPS, so that the interrupt's CPU takes in all that comes.
"""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from flooding import flooded
from kselftest import outcomes

from bench import rules
from bench.tools import build_tool
from conftest import MANAGERS, SCRIPTS
from lab.kernel import Edit, build
from lab.machine import GuestSpec
from lab.net import peer_of
from lab.rootfs import NICS
from lab.selftests import selftests
from lab.vm import Guest

pytestmark = pytest.mark.long

ON_GUEST = ("napi_contract.py", "napi_threads_kept.py", "napi_survives.py", "neighbours.py",
            "rx_paths.py", "rx_threads_told.py")  # fmt: skip
ON_VETHS = ("links.py", "rx_veth.py", "rx_bonds.py", "rx_merged.py", "rx_vlans.py")
# Messages a second, and the rules that leave an emulated CPU some 700 or 2,500 packets a second:
# nine of ten are to be dropped, or enough to keep a backlog full.
RATE, MANY_RULES, RULES = 9_000, 64_000, 12_000
IRQ_CPU, WORK_CPU, ECHO_CPU = 0, 1, 2
SETTLE_S = 2.0
TAP_QUEUE = 10_000
# Neighbours: how often each is found anew, and what part of the flood is not dropped meanwhile.
TIMES, TIMES_IN_VLANS, MOST_KEPT = 100, 20, 0.1
# The kernel takes what has a tag in the frame for what the tag says, and looks no further.
BLIND = Edit(
    "net/core/rx_threads.c", "while (eth_type_vlan(proto)) {", "while (0 && eth_type_vlan(proto)) {"
)
TIMES_BLIND = 5
# Seconds that bonds are flooded; bytes of a stream, and how many segments a packet has at least.
BONDED_S, STREAM, MERGED = 20, 20_000_000, 2
QUIET_PEERS, OWN6 = (["10.77.0.77/24"], ["fd77::77/64", "nodad"]), "fd77::2/64"
# Whoever is in doubt of a neighbour asks it by link-local address, which nobody here has by itself.
LOCAL_PEER, LOCAL_OWN = "fe80::77/64", "fe80::2/64"
# The other device's requests; what RPS has to lose for the load to say anything.
REQUESTS, GAP_US, TIMEOUT_MS, PORT = 200, 5_000, 300, 6300
RPS_LOSES, SLOWER = 0.05, 3.0
# How long flows are sent while the number of threads changes, and how many a second at least.
ORDER_S, LEAST_RATE = 600, 200
# The same with packets that wait, at most of the changes, which are one a second at least; the
# selftest's device, and where is written what waited.
WAITING_S, MOSTLY, DEVICE, WAITED = 60, 0.9, "rxt0", "/run/rx-waited"
SELFTESTS = "/mnt/share/ksrc/tools/testing/selftests/net"
# The bytes that each packet of a backlog may have, scaling.rst.
SKB_BYTES = 4096
BACKLOGS = (1000, 6000)
MEMORY_MB, MEMORY_S = 256, 20
LARGEST, FULL = 1400, 0.3
# Messages and link of packets that are larger than SKB_BYTES.
JUMBO, JUMBO_MTU, MTU = 8000, 9000, 1500
# What else in the guest comes and goes meanwhile, in bytes.
OTHERS = 12 << 20

Counts = dict[str, int]


@contextmanager
def machine(
    words: str = "", flavour: str = "fast", edits: tuple[Edit, ...] = (), **spec: Any
) -> Iterator[Guest]:
    """A guest whose NICs interrupt IRQ_CPU and which nothing else configures."""
    kernel = build("6.12", flavour, patched=True, edits=edits)
    with Guest(kernel, GuestSpec(extra_cmdline=words, **spec)) as vm:
        vm.run(["systemctl", "stop", *MANAGERS])
        vm.bind_interrupts(IRQ_CPU)
        # What comes while this machine's CPUs are taken waits there.
        vm.host(["ip", "link", "set", "t-virtio", "txqueuelen", str(TAP_QUEUE)])
        for script in ON_GUEST:
            vm.put(SCRIPTS / script, f"/root/{script}")
        yield vm
        vm.check_splats()


def set_threads(vm: Guest, dev: str, cpus: list[int]) -> None:
    """One helper thread on each of the CPUs; none of them, none."""
    folder = f"/sys/class/net/{dev}"
    vm.run(["sh", "-c", f"echo {len(cpus)} > {folder}/rx_threads"])
    for number, cpu in enumerate(cpus):
        pid = vm.run(["cat", f"{folder}/rx_thread/{number}/pid"]).stdout.strip()
        vm.run(["taskset", "-pc", str(cpu), pid])


def set_rps(vm: Guest, dev: str, cpu: int) -> None:
    files = f"/sys/class/net/{dev}/queues/rx-*/rps_cpus"
    vm.run(["sh", "-c", f"for f in {files}; do echo {1 << cpu:x} > $f; done"])


def set_backlog(vm: Guest, packets: int) -> None:
    vm.run(["sysctl", "-q", "-w", f"net.core.netdev_max_backlog={packets}"])


def set_mtu(vm: Guest, mtu: int) -> None:
    """Of the flooded link, at both ends."""
    for run, dev in ((vm.host, "t-virtio"), (vm.run, vm.nic)):
        run(["ip", "link", "set", dev, "mtu", str(mtu)])


def told(vm: Guest, seconds: float = 0) -> dict[str, Any]:
    argv = ["python3", "/root/rx_threads_told.py", vm.nic, str(seconds)]
    found: dict[str, Any] = json.loads(vm.run(argv, timeout=seconds + 60).stdout)
    return found


def tap_drops(vm: Guest, kind: str) -> int:
    """Packets that the guest's ring had no room for: QEMU then leaves them in the tap."""
    shown = json.loads(vm.host(["ip", "-s", "-j", "link", "show", "dev", f"t-{kind}"]).stdout)
    return int(shown[0]["stats64"]["tx"]["dropped"])


@dataclass(frozen=True)
class Flooded:
    """What became of the flood: by helper threads, and dropped before the guest's stack."""

    packets: int
    dropped: int
    at_tap: int

    @property
    def kept(self) -> float:
        """The part of what was handed to helper threads that they delivered."""
        return self.packets / (self.packets + self.dropped)


@contextmanager
def counted(vm: Guest) -> Iterator[list[Flooded]]:
    """The flood for as long as the block takes; what became of it is in the list afterwards."""
    outcome: list[Flooded] = []
    with flooded(vm, "virtio", RATE):
        time.sleep(SETTLE_S)
        before, at_tap = told(vm)["counts"], tap_drops(vm, "virtio")
        yield outcome
        after = told(vm)["counts"]
        grown = {name: after[name] - before[name] for name in ("packets", "dropped")}
        outcome.append(Flooded(**grown, at_tap=tap_drops(vm, "virtio") - at_tap))


def test_neighbours_are_found_while_nearly_all_is_dropped() -> None:
    """By ARP and by neighbour discovery, deleted and expired, on the flooded device.

    Nothing else in the guest speaks to these neighbours: the flood has another address, which the
    guest answers.
    """
    with machine(cpus=2, queues=1) as vm:
        rules.load(vm, vm.nic, MANY_RULES)
        set_threads(vm, vm.nic, [WORK_CPU])
        for peer in (*QUIET_PEERS, [LOCAL_PEER, "nodad"]):
            vm.host(["ip", "address", "add", *peer, "dev", "t-virtio"])
        for own in (OWN6, LOCAL_OWN):
            vm.run(["ip", "address", "add", own, "dev", vm.nic, "nodad"])
        peers = [peer[0].partition("/")[0] for peer in QUIET_PEERS]
        with counted(vm) as outcome:
            argv = ["python3", "/root/neighbours.py", vm.nic]
            told_of = [vm.run([*argv, peer, str(TIMES)], timeout=1200).stdout for peer in peers]
    print(dict(zip(peers, told_of, strict=True)), outcome)
    ways = [way for one in told_of for way in json.loads(one).values()]
    assert [way["found"] for way in ways] == [TIMES] * 4
    assert outcome[0].kept <= MOST_KEPT
    assert outcome[0].at_tap == 0


def test_what_else_handles_packets_goes_on() -> None:
    with machine(cpus=2, queues=1, e1000e=True) as vm:
        dev, address = vm.nic_of("e1000e"), NICS["e1000e"][1]
        set_threads(vm, dev, [IRQ_CPU, WORK_CPU])
        argv = ["python3", "/root/rx_paths.py", dev, address, peer_of("e1000e")]
        came: dict[str, Counts] = json.loads(vm.run(argv, timeout=600).stdout)
    print(json.dumps(came, indent=1))
    # It is run, by the threads, as it would be by RPS.
    drops = came.pop("generic XDP that drops")
    assert drops["answered"] == 0 and drops["threads"] > 0
    assert came.keys() == {"plain", "without GRO", "generic XDP", "tc ingress", "bond"}
    for way, one in came.items():
        assert one["answered"] == one["echoes"], way
        assert one["threads"] >= one["echoes"], way
    assert came["tc ingress"]["seen"] >= came["tc ingress"]["echoes"]


@contextmanager
def with_vlans(*edits: Edit) -> Iterator[Guest]:
    """A guest for the scripts that make veths; its kernel knows VLANs."""
    with machine(flavour="vlan", edits=edits, cpus=3, queues=1) as vm:
        for script in ON_VETHS:
            vm.put(SCRIPTS / script, f"/root/{script}")
        yield vm


@pytest.fixture(scope="module")
def veths() -> Iterator[Guest]:
    with with_vlans() as vm:
        yield vm


def seen_by(vm: Guest, script: str, number: int) -> dict[str, Any]:
    argv = ["python3", f"/root/{script}", str(number)]
    seen: dict[str, Any] = json.loads(vm.run(argv, timeout=1200).stdout)
    print(json.dumps(seen, indent=1))
    return seen


def test_bonds_of_two_go_on(veths: Guest) -> None:
    """LACP keeps its partner while the members' threads drop; another member takes over."""
    seen = seen_by(veths, "rx_bonds.py", BONDED_S)
    lacp, backup = seen["802.3ad"], seen["active-backup"]
    assert lacp["answered"] == backup["answered"] == seen["echoes"]
    assert (lacp["ports"], lacp["partner"], lacp["failures"]) == (2, True, 0)
    assert min(lacp["packets"]) > 0 and min(lacp["later"]) > 0
    assert backup["other"] and min(backup["first"], backup["packets"]) >= seen["echoes"]


def test_neighbours_in_vlans_are_found(veths: Guest) -> None:
    """However many tags their packets have, and wherever the NIC leaves them."""
    seen = seen_by(veths, "rx_vlans.py", TIMES_IN_VLANS)
    assert len(seen) == 4
    for way, one in seen.items():
        ways = [found for peer in one["peers"].values() for found in peer.values()]
        assert [found["found"] for found in ways] == [TIMES_IN_VLANS] * 4, way
        assert 0 < one["packets"] <= MOST_KEPT * (one["packets"] + one["dropped"]), way


def test_they_are_lost_where_nobody_looks_behind_tags() -> None:
    """But for a single tag that the NIC took out."""
    with with_vlans(BLIND) as vm:
        seen = seen_by(vm, "rx_vlans.py", TIMES_BLIND)
    fewest = {
        way: min(found["found"] for peer in one["peers"].values() for found in peer.values())
        for way, one in seen.items()
    }
    beside = "802.1Q, tag beside the frame"
    assert fewest.pop(beside) == TIMES_BLIND
    assert len(fewest) == 3 and max(fewest.values()) < TIMES_BLIND


def test_segments_are_merged_before_the_threads(veths: Guest) -> None:
    seen = seen_by(veths, "rx_merged.py", STREAM)
    assert seen["arrived"] == STREAM
    assert 0 < seen["packets"] * MERGED <= seen["segments"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backlog", BACKLOGS)
def test_memory_is_bounded(small: Guest, backlog: int, threads: int) -> None:
    """Of the largest packets that fit the link; the bound is that of scaling.rst."""
    vm, bound = small, threads * backlog * SKB_BYTES
    set_backlog(vm, backlog)
    before = told(vm)["most"]["memory"]
    set_threads(vm, vm.nic, [WORK_CPU] * threads)
    with flooded(vm, "virtio", RATE, size=LARGEST):
        found = told(vm, MEMORY_S)
    set_threads(vm, vm.nic, [])
    most, grown = found["most"], found["most"]["memory"] - before
    print(f"backlog {backlog}, {threads} threads: bound {bound}, most {most}, "
          f"memory grown by {grown}, {found['counts']}")  # fmt: skip
    assert found["counts"]["dropped"] > backlog, "the backlog was not full"
    assert bound * FULL <= most["bytes"] <= bound
    assert grown <= bound + OTHERS
    assert found["killed"] == 0


def test_bytes_bound_a_backlog_before_packets_do(small: Guest) -> None:
    """Of packets that have more than their share of them."""
    vm, bound = small, BACKLOGS[0] * SKB_BYTES
    set_backlog(vm, BACKLOGS[0])
    set_mtu(vm, JUMBO_MTU)
    set_threads(vm, vm.nic, [WORK_CPU])
    with flooded(vm, "virtio", RATE, size=JUMBO):
        found = told(vm, MEMORY_S)
    set_threads(vm, vm.nic, [])
    set_mtu(vm, MTU)
    most, counts = found["most"], found["counts"]
    print(f"bound {bound}, most {most}, {counts}")
    assert counts["dropped"] > BACKLOGS[0] and counts["packets"] > BACKLOGS[0]
    # One more would not have fitted, whatever it has.
    assert bound - 2 * JUMBO_MTU <= most["bytes"] <= bound
    assert most["packets"] <= bound / JUMBO < BACKLOGS[0]


def test_what_is_dropped_is_told_of(small: Guest) -> None:
    """With its reason to whoever traces drops, and in the statistics of the device."""
    vm, device = small, f"/sys/class/net/{small.nic}/statistics/rx_dropped"
    event = "/sys/kernel/tracing/events/skb/kfree_skb/enable"
    set_backlog(vm, BACKLOGS[0])
    set_threads(vm, vm.nic, [WORK_CPU])
    before = int(vm.read(device)), told(vm)["counts"]["dropped"]
    with flooded(vm, "virtio", RATE):
        time.sleep(SETTLE_S)
        vm.run(["sh", "-c", f"echo 1 > {event}; sleep 1; echo 0 > {event}"])
    time.sleep(SETTLE_S)
    reasons = re.findall(r"reason: (\w+)", vm.read("/sys/kernel/tracing/trace").decode())
    after = int(vm.read(device)), told(vm)["counts"]["dropped"]
    set_threads(vm, vm.nic, [])
    grown = [now - then for now, then in zip(after, before, strict=True)]
    print(Counter(reasons), grown)
    assert "CPU_BACKLOG" in reasons
    assert grown[1] > 0 and grown[0] == grown[1]


@pytest.fixture(scope="module")
def small() -> Iterator[Guest]:
    with machine(cpus=2, queues=1, memory_mb=MEMORY_MB) as vm:
        rules.load(vm, vm.nic, RULES)
        yield vm


def echoes(vm: Guest) -> dict[str, float]:
    """Round trips of the other device, in ns, and the part of requests without an answer."""
    to = NICS["e1000e"][1].removesuffix("/24")
    argv = [str(build_tool("udpecho")), "--to", to, "--port", str(PORT), "--count", str(REQUESTS),
            "--gap-us", str(GAP_US), "--timeout-ms", str(TIMEOUT_MS)]  # fmt: skip
    done = json.loads(vm.host(argv, timeout=900).stdout)
    return {"lost": done["lost"] / REQUESTS, "p50": done["rtt_ns"].get("p50", math.inf)}


@contextmanager
def sharing(words: str = "") -> Iterator[tuple[Guest, str]]:
    """A guest whose other device, named beside it, answers echoes."""
    with machine(words, cpus=3, queues=1, e1000e=True) as vm:
        rules.load(vm, vm.nic, RULES)
        vm.put(build_tool("udpecho"), "/root/udpecho", mode=0o755)
        vm.run(["/root/udpecho", "--serve", "--port", str(PORT), "--cpu", str(ECHO_CPU),
                "--background", "/run/udpecho.pid"])  # fmt: skip
        yield vm, vm.nic_of("e1000e")


@pytest.mark.parametrize("words", ["", "thread_backlog_napi"])
def test_with_rps_the_flooded_device_takes_from_the_other(words: str) -> None:
    """What the threads are for: with RPS on the same CPU this very load drops the other's packets,
    whether the backlog is worked off by softirqs or by threads of its own.
    """
    with sharing(words) as (vm, other):
        for dev in (vm.nic, other):
            set_rps(vm, dev, WORK_CPU)
        idle = echoes(vm)
        with flooded(vm, "virtio", RATE):
            time.sleep(SETTLE_S)
            loaded = echoes(vm)
    print(f"RPS {words}: idle {idle}, beside a flood {loaded}")
    assert idle["lost"] == 0 and loaded["lost"] >= RPS_LOSES


def test_with_threads_it_takes_nothing_from_the_other() -> None:
    with sharing() as (vm, other):
        for dev in (vm.nic, other):
            set_threads(vm, dev, [WORK_CPU])
        idle = echoes(vm)
        with counted(vm) as outcome:
            loaded = echoes(vm)
        threads = f"/sys/class/net/{other}/rx_thread/0/dropped"
        dropped = int(vm.run(["cat", threads]).stdout)
    ratio = loaded["p50"] / idle["p50"]
    print(f"idle {idle}, beside a flood {loaded}: median x{ratio:.2f}; {outcome}")
    assert outcome[0].kept < 1 - RPS_LOSES, "the flooded device's backlog was not full"
    assert dropped == 0 and loaded["lost"] == 0
    assert ratio <= SLOWER


def in_order(vm: Guest, seconds: int, beside: str = "") -> int:
    """Packets of numbered flows that were forwarded while resized; none was late.

    beside: what a shell does at the same time.
    """
    load = f"cd {SELFTESTS} && SECONDS_OF_LOAD={seconds} TESTS=forward_test ./rx_threads.sh 2>&1"
    script = f"{beside} {load}; wait"
    printed = vm.run(["sh", "-c", script], timeout=2 * seconds + 300, check=False).stdout
    print(printed)
    # That it was resized, and that threads delivered, is what the selftest itself looks at.
    assert outcomes(printed) == {"forwarded flows in order while resized": "OK"}
    found = re.search(r"received (\d+) .*late (\d+)", printed)
    assert found and int(found[2]) == 0
    return int(found[1])


def test_forwarded_flows_are_in_order_for_ten_minutes() -> None:
    spec = GuestSpec(cpus=4, share=[selftests("6.12")])
    with Guest(build("6.12", patched=True), spec) as vm:
        received = in_order(vm, ORDER_S)
        vm.check_splats()
    assert received > ORDER_S * LEAST_RATE


def test_flows_that_wait_are_in_order() -> None:
    """Behind rules, so that packets wait whenever the number of threads changes."""
    spec = GuestSpec(cpus=4, share=[selftests("6.12")])
    with Guest(build("6.12", patched=True), spec) as vm:
        vm.put(SCRIPTS / "rx_waiting.py", "/root/rx_waiting.py")
        rules.put(vm, DEVICE, RULES)
        beside = f"python3 /root/rx_waiting.py {DEVICE} {rules.FILE} > {WAITED} &"
        received = in_order(vm, WAITING_S, beside)
        waited = json.loads(vm.read(WAITED))
        vm.check_splats()
    print(waited)
    assert received > WAITING_S * LEAST_RATE
    assert waited["resized"] >= WAITING_S
    assert waited["waiting"] >= MOSTLY * waited["resized"]
