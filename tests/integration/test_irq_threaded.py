# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts that users switch to threaded mode: what comes of it, by the selftests of the series.

On our 6.12; with `make check-long` on our 7.2, too. PREEMPT_RT, of `make check-variants`, has all
handlers in threads, as `threadirqs` does on any kernel.

Kinds of interrupts that refuse, and what is kept of the thread, are tried with the interrupts of
the series' test module; that NAPIs are polled by the threads of interrupts, and that mode and
policy are there after the link was down, with the devices of the lab. All at the same time, since
they wait most of it.
"""

import errno
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flooding import flooded
from kselftest import MODULE, SELFTESTS, check

from bench import rules
from conftest import (
    MANAGERS,
    SCRIPTS,
    STRESS,
    UNBALANCED,
    flavour,
    missing,
    our_bases,
    our_kernel,
)
from lab.machine import GuestSpec
from lab.net import peer_of
from lab.selftests import selftests
from lab.vm import Guest

KINDS = ("virtio", "e1000e", "igb")
# Fewer than they do by themselves: test_irq_stress.py does more.
ROUNDS = {"ROUNDS": 10, "CYCLES": 200, "SWITCHES": 4}
DEVICE = {"hard", "threaded", "switches", "down_up", "napi_thread"}
# Datagrams a second to the application that busy polls. With as many a debug kernel always has one
# waiting for it, and it never polls.
RATE, RATE_OF_DEBUG = 5_000, 500

Seen = Any  # what a script printed


def realtime(base: str) -> bool:
    """PREEMPT_RT, which runs all handlers in threads and so has nothing to switch."""
    return flavour(f"ours-{base}").startswith("rt")


SWITCHING = [one for one in our_bases() if not realtime(str(one.values[0]))]
# Both values, where the mode is not the user's.
REFUSED = [errno.EOPNOTSUPP, errno.EOPNOTSUPP]
# Of the interrupts of network devices, and all who share them, or with "all" of every interrupt:
# what their files read, and what writes of 0 and 1 end with.
MODES = """
import glob, json, os, sys
def write(path, value):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)
    return 0
def numbers(folder):
    device = os.path.realpath(folder)
    pci = device if os.path.exists(device + "/irq") else os.path.dirname(device)
    if os.path.isdir(pci + "/msi_irqs"):
        return os.listdir(pci + "/msi_irqs")
    return [open(pci + "/irq").read().strip()]
if sys.argv[1:] == ["all"]:
    irqs = ["*"]
else:
    irqs = {irq for folder in glob.glob("/sys/class/net/*/device") for irq in numbers(folder)}
found = {}
for path in sorted(path for irq in irqs for path in glob.glob(f"/proc/irq/{irq}/*/threaded")):
    found[path] = [open(path).read().strip(), write(path, b"0"), write(path, b"1")]
    if not found[path][2]:
        write(path, b"0")
print(json.dumps(found))
"""
# The actions of queues' interrupts, which are those that drivers let users switch.
OF_QUEUES = re.compile(r".*-(?:(?:input|output)\.|rx-|tx-|TxRx-)\d+/threaded")
# Figures of a NAPI that is polled 20 times for each of 20 packets, by a timer but for the first.
POLLS, MOST_INTERRUPTS = 200, 120
# Raised softirqs by poll: none is for these NAPIs, but the watchdogs of e1000e and igb have some.
MOST_RAISED = 0.1
# What irq_timer.py and irq_busy_poll.py are, and need beside them.
ON_TRAFFIC = (*STRESS, "irq_stress.py", "irq_busy_poll.py", "irq_timer.py", "irq_flooded_off.py")
# Of a flood that one CPU cannot take in: its packets a second, the rules of tc that each of them is
# compared with, the least share of polls that use up their budget, how often the mode is switched
# off, and what that may take, in seconds: to poll until the end takes as long as the flood.
MORE, RULES, FULL, TIMES, MOST_OFF_S = 20_000, 3_000, 0.9, 10, 5.0


def modes(vm: Guest, *words: str) -> dict[str, list[Any]]:
    """{file: [what it read, errno of writing 0, errno of writing 1]} by MODES."""
    vm.put(MODES.encode(), "/root/modes.py")
    found: dict[str, list[Any]] = json.loads(vm.run(["python3", "/root/modes.py", *words]).stdout)
    return found


@dataclass(frozen=True)
class Machine:
    """The guest, and {test or device: what its selftest printed}."""

    vm: Guest
    printed: dict[str, str]


def seen_by(vm: Guest, script: str, *words: str) -> Seen:
    """What one of the scripts of ON_TRAFFIC saw of the virtio NIC."""
    for name in ON_TRAFFIC:
        vm.put(SCRIPTS / name, f"/root/{name}")
    seen: Seen = json.loads(vm.run(["python3", f"/root/{script}", vm.nic, *words]).stdout)
    print(seen)
    vm.check_splats()
    return seen


def run_all(vm: Guest, tests: dict[str, str]) -> dict[str, str]:
    """Runs the commands at the same time; what each printed."""
    setting = " ".join(f"{name}={value}" for name, value in ROUNDS.items())
    starts = [f"({setting} {line} > /run/{name}.tap 2>&1) &" for name, line in tests.items()]
    vm.run(["sh", "-c", "\n".join([f"cd {SELFTESTS}", *starts, "wait"])], timeout=600)
    return {name: vm.read(f"/run/{name}.tap").decode() for name in tests}


@pytest.fixture(scope="module", params=SWITCHING)
def machine(request: pytest.FixtureRequest, igb: str) -> Iterator[Machine]:
    base = request.param
    # irqbalance moves the interrupts of the series' module, too, and their threads follow.
    spec = GuestSpec(
        cpus=2, queues=2, e1000e=True, igb=not igb, share=[selftests(base)],
        extra_cmdline=UNBALANCED,
    )  # fmt: skip
    with Guest(our_kernel(base), spec) as vm:
        # By itself: it takes a CPU for a while, which the others would notice.
        module = run_all(vm, {"module": "./threaded.sh"})
        tests = {}
        for kind in KINDS if not igb else KINDS[:-1]:
            tests[kind] = shlex.join(["./netdev.sh", vm.nic_of(kind), peer_of(kind)])
        yield Machine(vm, module | run_all(vm, tests))
        vm.check_splats()


@pytest.mark.parametrize("base", our_bases())
def test_lines_that_devices_share_refuse(base: str) -> None:
    """Without message signalled interrupts all that there are: NICs have the lines of others."""
    spec = GuestSpec(cpus=2, queues=2, e1000e=True, vmxnet3=True, extra_cmdline="pci=nomsi")
    with Guest(our_kernel(base), spec) as vm:
        found = modes(vm)
        vm.ping()
        vm.ping("e1000e")
        vm.check_splats()
    by_line = Counter(path.split("/")[3] for path in found)
    drivers = {path.split("/")[4] for path in found if by_line[path.split("/")[3]] > 1}
    assert len(drivers) >= 2, found
    assert all(one == [str(int(realtime(base))), *REFUSED] for one in found.values()), found


@pytest.mark.parametrize("base", SWITCHING)
def test_threaded_mode_ends_although_packets_do_not(base: str) -> None:
    with Guest(our_kernel(base), GuestSpec(cpus=1, queues=1)) as vm:
        vm.run(["systemctl", "stop", *MANAGERS])
        rules.load(vm, vm.nic, RULES)
        with flooded(vm, "virtio", MORE):
            rounds = seen_by(vm, "irq_flooded_off.py", str(TIMES))
    assert len(rounds) == TIMES
    for one in rounds:
        before, after = one["before"], one["after"]
        polls = sum(before["polls"].values())
        assert set(before["polls"]) == {"irq"} and before["full"] >= FULL * polls, one
        assert one["seconds"] <= MOST_OFF_S, one
        assert after["polls"] and "irq" not in after["polls"], one


@pytest.mark.parametrize("base", our_bases())
def test_kernels_with_all_handlers_in_threads(base: str) -> None:
    asked = "" if realtime(base) else "threadirqs"
    spec = GuestSpec(cpus=2, queues=2, e1000e=True, extra_cmdline=asked)
    with Guest(our_kernel(base), spec) as vm:
        found = modes(vm)
        vm.ping()
        vm.check_splats()
    assert len(found) >= 4, found
    assert all(one == ["1", *REFUSED] for one in found.values()), found


def test_of_the_module(machine: Machine) -> None:
    check(machine.printed["module"], MODULE)


@pytest.mark.parametrize("kind", KINDS)
def test_of_the_devices(machine: Machine, kind: str, igb: str) -> None:
    if kind == "igb" and igb:
        missing(igb)
    check(machine.printed[kind], DEVICE)


def test_the_interrupts_of_queues_are_switched_and_no_others(machine: Machine) -> None:
    known = modes(machine.vm, "all")
    machine.vm.check_splats()
    found = {path: one for path, one in known.items() if "/test-threaded-" not in path}
    queues = {path for path in found if OF_QUEUES.search(path)}
    assert {path for path, one in found.items() if one == ["0", 0, 0]} == queues, found
    others = [one for path, one in found.items() if path not in queues]
    assert others and all(one[1:] == REFUSED for one in others), found
    # Those of a disk and of the changes of virtio's configuration are among them.
    assert all(any(kind in path for path in found) for kind in ("req.0", "config")), found


def test_a_timer_has_the_thread_poll(machine: Machine) -> None:
    """What schedules a NAPI without an interrupt wakes the thread; no softirq is raised for it."""
    seen = seen_by(machine.vm, "irq_timer.py", peer_of("virtio"))
    threaded, hard = seen["threaded"], seen["hard"]
    for mode in (threaded, hard):
        assert mode["interrupts"] <= MOST_INTERRUPTS
        assert sum(mode["polls"].values()) >= POLLS
    assert set(threaded["polls"]) == {"irq"} and "irq" not in hard["polls"]
    assert hard["raised"] >= POLLS
    assert threaded["raised"] <= MOST_RAISED * threaded["polls"]["irq"]


def test_a_socket_busy_polls_beside_it(machine: Machine) -> None:
    rate = RATE_OF_DEBUG if machine.vm.kernel.flavour == "debug" else RATE
    with flooded(machine.vm, "virtio", rate):
        seen = seen_by(machine.vm, "irq_busy_poll.py")
    assert set(seen["plain"]["polls"]) == {"irq"}
    assert seen["busy"]["polls"].keys() - {"irq"} == {"application"}
    assert seen["plain"]["received"] and seen["busy"]["received"]
    for one in (seen["plain"], seen["busy"], seen["after"]):
        assert one["raised"] <= MOST_RAISED * sum(one["polls"].values())
    switches, survived = seen["switches"]
    assert survived == switches, "the application received nothing after a switch"
    assert set(seen["after"]["polls"]) == {"irq"}
