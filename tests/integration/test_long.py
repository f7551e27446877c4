# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: random policies, kills and power cuts; the originals come back every time."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from profiled import Sections, laid_out, words_of

from conftest import OURS, TUNED_LOG, Host, Settings, differing

pytestmark = [pytest.mark.long, pytest.mark.kernels(OURS)]
POLICIES, KILLS, POWER_CUTS = 50, 20, 50
LEAST, STEPS = 4, 100  # steps that an apply or rollback must have, and cannot have
KILLED = Path(__file__).parent / "guest" / "killed.py"
DRAWN_AT_BOOT = "sysctl/netdev_rss_key"
JOURNAL = "/var/lib/rxlane/journal.json"


def some_policy(chance: random.Random, everywhere: bool) -> Sections:
    """Every option that the guest has something for, each with a value or left out.

    Valid on the guest of 8 CPUs and a device of 4 queues. everywhere: for all devices, of which
    some have one queue.
    """
    pick = chance.choice
    channels = pick(["", "", "2", "max"])
    modes = ["on", "off", "on@1-", "off@0,on@1-"]
    if not everywhere and channels != "2":
        modes += ["on@0,2", "off@0,on@3", "busy-poll@3"]
    napi = {
        "threaded": pick(modes),
        "management_queues": str(chance.randrange(3)),
        "thread_cpus": pick(["auto", "2-5", "1,3,7", ""]),
        "defer_hard_irqs": pick(["", "0", str(chance.randrange(1000))]),
        "gro_flush_timeout": pick(["", "0", str(chance.randrange(10**6))]),
        "irq_suspend_timeout": pick(["", "0", str(chance.randrange(10**9))]),
        "channels": channels,
        "ring_rx": pick(["", "128", "max"]),
        "ring_tx": pick(["", "128", "max"]),
        "adaptive_rx": pick(["", "off"]),
        "rx_usecs": pick(["", "0", "30"]),
        **some_class(chance, "thread"),
    }
    irq_layout = {
        "irq_cpus": pick(["", "auto", "numa-local", "1-6"]),
        "threaded": pick(["", "auto", "on", "off", "on@1,2"]),
        "thread_nice": pick(["", "-3"]),
        "workqueue_cpus": pick(["", "auto", "0-3"]),
        "smt_siblings": pick(["", "idle", "any"]),
        "timer_migration": pick(["", "0", "1"]),
    }
    flow_steering = {
        "xps": pick(["", "off", "auto", "rxqs"]),
        "netdev_max_backlog": pick(["", "4096"]),
        "busy_read": pick(["", "", "0", "50"]),
        "busy_poll": pick(["", "", "0", "50"]),
        "vhost_cpus": pick(["", "2-3"]),
        "tap_rps": pick(["", "off", "2-3"]),
    }
    if chance.randrange(2):
        flow_steering |= {
            "rx_threads": pick(["off", "1", "3", "auto"]),
            "rx_thread_cpus": pick(["", "auto", "2-5", "kernel"]),
            **some_class(chance, "rx_thread"),
        }
    else:
        flow_steering |= {
            "rps": pick(["", "off", "auto", "0-3"]),
            "rfs": pick(["", "off", "auto"]),
        }
    kinds = {"napi": napi, "irq_layout": irq_layout, "flow_steering": flow_steering}
    return {kind: {n: v for n, v in options.items() if v} for kind, options in kinds.items()}


def some_class(chance: random.Random, thread: str) -> dict[str, str]:
    policy = chance.choice(["other", "batch", "idle", "fifo", ""])
    nice = "" if policy in ("idle", "fifo") else chance.choice(["", "0", "10", "-5"])
    priority = str(chance.randrange(1, 50)) if policy == "fifo" else ""
    own = {"policy": policy, "nice": nice, "priority": priority}
    return {f"{thread}_{name}": value for name, value in own.items()}


def tried_by_command(guest: Host, policy: Sections, devices: list[str]) -> str:
    """Why the policy was refused; empty if it was laid out, verified and taken back."""
    done = guest.run("rxlane", "apply", *words_of(policy), *devices, check=False)
    if done.rc == 2:
        return str(done.stderr).splitlines()[-1]
    assert done.rc == 0, done.stderr
    guest.run("rxlane", "verify")
    guest.run("rxlane", "rollback")
    return ""


def tried_by_tuned(guest: Host, policy: Sections, devices: list[str]) -> str:
    """The same with a profile that is on for a while."""
    before = guest.settings()
    guest.run("truncate", "--size=0", TUNED_LOG)
    with laid_out(guest, policy, devices):
        log = guest.vm.read(TUNED_LOG).decode().splitlines()
        refusals = [line for line in log if " ERROR " in line]
        if not refusals:
            guest.verify_by_tuned()
        else:
            assert differing(before, guest.settings()) == {}, refusals
    return refusals[-1] if refusals else ""


@pytest.mark.parametrize("tried", [tried_by_command, tried_by_tuned])
def test_random_policies(guest: Host, tried: Callable[[Host, Sections, list[str]], str]) -> None:
    """Of one device, or of all; what is refused changes nothing."""
    seed, refused = random.randrange(1 << 30), list[str]()
    chance = random.Random(seed)
    before = guest.settings()
    print(f"\nseed {seed}")
    for round_ in range(POLICIES):
        devices = chance.choice([[guest.vm.nic], []])
        policy = some_policy(chance, not devices)
        print(f"round {round_}: {devices or 'all'} {policy}")
        why = tried(guest, policy, devices)
        refused += [why] if why else []
        assert differing(before, guest.settings()) == {}
    print(f"{POLICIES} policies, {len(refused)} refused", *refused, sep="\n")
    assert len(refused) < POLICIES // 10


# Everything of an apply and a rollback: what sets queues up anew, threads that are born, settings
# that are optional, steering, interrupts, the host's own.
WORDS = words_of(
    {
        "napi": {
            "threaded": "on",
            "thread_cpus": "auto",
            "defer_hard_irqs": "9",
            "channels": "2",
            "ring_rx": "128",
        },
        "irq_layout": {"irq_cpus": "auto", "workqueue_cpus": "auto"},
        "flow_steering": {"rps": "0-3", "xps": "auto", "netdev_max_backlog": "4096"},
    }
)


@pytest.mark.parametrize("verb", ["apply", "rollback"])
def test_killed_at_every_step_of_the_journal(guest: Host, verb: str) -> None:
    """SIGKILL before each thing that is done to a file; a rollback brings everything back."""
    guest.vm.put(KILLED, "/root/killed.py")
    before = guest.settings()
    for step in range(1, STEPS):
        if verb == "rollback":
            guest.run("rxlane", "apply", *WORDS)
        words = WORDS if verb == "apply" else ()
        done = guest.run("python3", "/root/killed.py", str(step), verb, *words, check=False)
        guest.run("rxlane", "rollback")
        assert differing(before, guest.settings()) == {}, f"killed at step {step}"
        if done.rc == 0:
            break
        assert done.rc == 128 + signal.SIGKILL, str(done)
    print(f"\n{verb}: killed at each of {step - 1} steps")
    assert LEAST < step < STEPS - 1


def test_killed_while_applying(guest: Host) -> None:
    """SIGKILL after a random part of an apply's time; rollback brings everything back."""
    chance = random.Random(7)
    before = guest.settings()
    whole, killed = seconds_of_an_apply(guest), 0
    for round_ in range(KILLS):
        after = f"{chance.uniform(0.1, 1.0) * whole:.2f}"
        words = ("timeout", "--signal=KILL", after, "rxlane", "apply", *WORDS)
        killed += guest.run(*words, check=False).rc == 128 + signal.SIGKILL
        guest.run("rxlane", "rollback")
        assert differing(before, guest.settings()) == {}, f"round {round_}, killed after {after} s"
    assert killed >= KILLS / 2, f"{killed} of {KILLS} ended before their time"


def seconds_of_an_apply(guest: Host) -> float:
    start = time.monotonic()
    guest.run("rxlane", "apply", *WORDS)
    whole = time.monotonic() - start
    guest.run("rxlane", "rollback")
    return whole


def lasting(guest: Host) -> Settings:
    """The settings but for what each boot draws anew."""
    return {key: value for key, value in guest.settings().items() if key != DRAWN_AT_BOOT}


def test_power_cut_while_applying(guest: Host) -> None:
    """The power fails at a random moment of an apply, or soon after it.

    After that the settings are a fresh boot's, and the stale journal is in nobody's way.
    """
    chance = random.Random(11)
    before = lasting(guest)
    # Else it moves interrupts before it can be stopped.
    guest.run("systemctl", "disable", "irqbalance")
    whole, under_way = seconds_of_an_apply(guest), 0
    # The packages and the reader are not what is tried here: they are on the disk.
    guest.run("sync")
    for _round in range(POWER_CUTS):
        guest.run("systemd-run", "--quiet", "--collect", "--unit=cut", "rxlane", "apply", *WORDS)
        time.sleep(chance.uniform(0.0, 1.2) * whole)
        under_way += guest.run("systemctl", "is-active", "cut", check=False).rc == 0
        guest.vm.power_cut()
        assert differing(before, lasting(guest)) == {}
        guest.run("rxlane", "rollback")
        guest.run("rxlane", "apply", *WORDS)
        guest.run("rxlane", "verify")
        guest.run("rxlane", "rollback")
        assert differing(before, lasting(guest)) == {}
    print(f"\n{POWER_CUTS} power cuts, {under_way} of them while the apply was under way")
    assert under_way > POWER_CUTS // 4
    assert guest.run("test", "-e", JOURNAL, check=False).rc == 1
