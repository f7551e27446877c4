# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: where stock 7.2 hangs for good, our series for it does not.

Each stock case has a guest of its own, because it takes the guest's networking along. What is
asserted is what the guest answered, that a writer sits in uninterruptible sleep; a guest that no
longer answers is GuestLost, and proves nothing.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from flooding import flooded
from stressing import prepared

from lab.kernel import build
from lab.machine import GuestSpec
from lab.net import peer_of
from lab.selftests import selftests
from lab.vm import Guest

pytestmark = pytest.mark.long

BASE = "7.2"
ENABLED, BUSY_POLL = 1, 2
# One CPU more, so that a thread can be moved from one that goes offline to another such.
CPUS, QUEUES = 3, 2
KSRC = "/mnt/share/ksrc"
SELFTEST = f"{KSRC}/tools/testing/selftests/drivers/net/napi_threaded.py"
# Datagrams a second; see bench/flood.py for what emulation can take. The lesser rate leaves the
# guest time for the test's own work, for which a debug kernel needs minutes.
RATE, LESSER_RATE = 180_000, 10_000
STRESS_S = 40
# The thread of a flooded queue gets at least this of the CPU, and a write returns within.
LEAST_SHARE, PROMPT_S = 0.3, 5.0
# What /proc/interrupts calls the interrupt of receive queue i.
INTERRUPTS = {"virtio": "-input.{}", "e1000e": "-rx-{}", "vmxnet3": "-rxtx-{}"}
# The cases that come with the series.
OURS = (
    "keep_over_down_up",
    "keep_thread_attributes",
    "give_back_after_cpu_offline.*",
    "suspend_without_cpus_of_cpuset.*",
    "threads_share_cpu",
    "thread_stopped_in_time.*",
    "disable_while_down.*",
    "disable_detached_queue",
)

Steps = dict[str, Any]


def spec() -> GuestSpec:
    return GuestSpec(
        cpus=CPUS, queues=QUEUES, e1000e=True, vmxnet3=True, share=[selftests(BASE)]
    )  # fmt: skip


@pytest.fixture
def stock() -> Iterator[Guest]:
    with Guest(build(BASE, patched=False), spec()) as vm:
        yield prepared(vm)


@pytest.fixture(scope="module")
def patched() -> Iterator[Guest]:
    with Guest(build(BASE, patched=True), spec()) as vm:
        yield prepared(vm)


def go_through(vm: Guest, kind: str, mode: int) -> Steps:
    """Threaded, down, not threaded, up, as threaded_down.py tells it."""
    argv = ["python3", "/root/threaded_down.py", vm.nic_of(kind), str(mode), peer_of(kind)]
    steps: Steps = json.loads(vm.run(argv, timeout=400).stdout)
    return steps


def run_selftest(vm: Guest, kind: str, *cases: str) -> dict[str, str]:
    """{case: its line of TAP} of the kernel's napi_threaded.py; ``kind`` "" is netdevsim."""
    device = [f"NETIF={vm.nic_of(kind)}"] if kind else []
    chosen = [word for case in cases for word in ("-t", case)]
    argv = ["env", "PYTHONDONTWRITEBYTECODE=1", *device, "python3", SELFTEST, *chosen]
    done = vm.run(argv, timeout=400, check=False)
    lines = [line for line in done.stdout.splitlines() if "napi_threaded." in line]
    results = {line.split("napi_threaded.")[1].split()[0]: line for line in lines}
    assert results, f"no results: {done.stdout}{done.stderr}"
    return results


def queues_of(kind: str) -> int:
    """How many receive queues a device of a kind has, each with a NAPI."""
    return 1 if kind == "e1000e" else QUEUES


def dumped(vm: Guest, command: str, device: str) -> list[dict[str, Any]]:
    """A dump of the netdev family for one device, by the kernel's own client."""
    index = int(vm.read(f"/sys/class/net/{device}/ifindex"))
    argv = ["python3", f"{KSRC}/tools/net/ynl/pyynl/cli.py", "--no-schema", "--output-json"]
    argv += ["--spec", f"{KSRC}/Documentation/netlink/specs/netdev.yaml"]
    argv += ["--dump", command, "--json", json.dumps({"ifindex": index})]
    rows: list[dict[str, Any]] = json.loads(vm.run(argv).stdout)
    return rows


def switch_under_flood(vm: Guest) -> list[Steps]:
    with flooded(vm, "virtio", RATE):
        argv = ["python3", "/root/threaded_flood.py", vm.nic_of("virtio")]
        modes: list[Steps] = json.loads(vm.run(argv, timeout=200).stdout)
    return modes


def hangs(step: Steps) -> bool:
    """In uninterruptible sleep whenever looked at, but for the moments it looks itself."""
    return not step["ended"] and step["states"].count("D") >= 8


@pytest.mark.parametrize("kind", ["virtio", "e1000e"])
def test_stock_hangs_when_switched_off_while_down(stock: Guest, kind: str) -> None:
    steps = go_through(stock, kind, ENABLED)
    assert steps["ping"]["rc"] == 0
    assert steps["down"]["rc"] == 0
    assert hangs(steps["off"]), steps
    assert hangs(steps["up"]), "whoever wants the device's lock waits, with RTNL held"
    assert hangs(steps["other"]), "and so does everybody who wants RTNL"


def test_stock_hangs_when_a_busy_polled_e1000e_goes_down(stock: Guest) -> None:
    steps = go_through(stock, "e1000e", BUSY_POLL)
    assert steps["ping"]["rc"] == 0
    assert hangs(steps["down"]), steps


def test_patched_switches_under_flood() -> None:
    with Guest(build(BASE, patched=True), GuestSpec(queues=1)) as vm:
        modes = switch_under_flood(prepared(vm))
        print(json.dumps(modes))
        assert [mode["share"] > LEAST_SHARE for mode in modes] == [True, True], modes
        assert all(mode["off"]["seconds"] < PROMPT_S for mode in modes), modes
        assert all(napi["pid"] == 0 for mode in modes for napi in mode["napis"])
        vm.check_splats()


def test_selftest_fails_on_stock(stock: Guest) -> None:
    results = run_selftest(stock, "", "disable_detached_queue")
    assert results["disable_detached_queue"].startswith("not ok")


@pytest.mark.parametrize("mode", [ENABLED, BUSY_POLL], ids=["enabled", "busy-poll"])
@pytest.mark.parametrize("kind", list(INTERRUPTS))
def test_patched_does_not_hang(patched: Guest, kind: str, mode: int) -> None:
    steps = go_through(patched, kind, mode)
    print(json.dumps(steps))
    ended = {name: step.get("rc") for name, step in steps.items() if not name.startswith("napis")}
    assert ended == dict.fromkeys(ended, 0), steps
    before, after = steps["napis before"], steps["napis after"]
    assert [napi["mode"] for napi in before] == [mode] * queues_of(kind)
    assert all(napi["pid"] for napi in before)
    assert [(napi["mode"], napi["pid"]) for napi in after] == [(0, 0)] * len(before)
    assert [napi["id"] for napi in after] == [napi["id"] for napi in before]
    patched.check_splats()


@pytest.mark.parametrize("kind", list(INTERRUPTS))
def test_patched_withstands_stress(patched: Guest, kind: str) -> None:
    """Modes by sysfs and netlink, down and up, pinning, all at once, with traffic."""
    device, seed = patched.nic_of(kind), random.randrange(1 << 30)
    argv = ["python3", "/root/threaded_stress.py", device, str(STRESS_S), str(seed)]
    with flooded(patched, kind, LESSER_RATE):
        done = json.loads(patched.run(argv, timeout=STRESS_S + 400).stdout)
    print(seed, done)
    assert all(isinstance(count, int) and count > 10 for count in done.values()), (seed, done)
    steps = go_through(patched, kind, BUSY_POLL)
    assert steps["ping after"]["rc"] == 0, (seed, steps)
    patched.check_splats()


@pytest.mark.parametrize("kind", list(INTERRUPTS))
def test_receive_queues_are_linked(patched: Guest, kind: str) -> None:
    device = patched.nic_of(kind)
    rows = patched.run(["cat", "/proc/interrupts"]).stdout.splitlines()
    words = [row.split() for row in rows[1:]]
    names = {int(row[0][:-1]): row[-1] for row in words if row[0][:-1].isdigit()}
    queues = dumped(patched, "queue-get", device)
    napi_of = {queue["id"]: queue["napi-id"] for queue in queues if queue["type"] == "rx"}
    irq_of = {napi["id"]: napi["irq"] for napi in dumped(patched, "napi-get", device)}
    assert len(napi_of) == queues_of(kind)
    for queue, napi in napi_of.items():
        assert names[irq_of[napi]].endswith(INTERRUPTS[kind].format(queue))


@pytest.mark.parametrize("kind", ["", *INTERRUPTS])
def test_selftest_passes_on_patched(patched: Guest, kind: str) -> None:
    results = run_selftest(patched, kind, *OURS)
    assert len(results) == 12, results
    assert [line for line in results.values() if not line.startswith("ok")] == []
    print(*results.values(), sep="\n")
    skipped = {case for case, line in results.items() if "# SKIP" in line}
    down = {"disable_while_down.enabled", "disable_while_down.busy-poll"}
    assert skipped == (set() if kind else down)
    patched.check_splats()
