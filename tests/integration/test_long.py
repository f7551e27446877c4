# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: random policies, kills and power cuts; the originals come back every time."""

import random
import time

import pytest
from test_profile import differing

from conftest import OURS, Host, Settings

pytestmark = [pytest.mark.long, pytest.mark.kernels(OURS)]
POLICIES, KILLS, POWER_CUTS = 20, 20, 5
DRAWN_AT_BOOT = "sysctl/netdev_rss_key"
JOURNAL = "/var/lib/rxlane/journal.json"


def some_policy(chance: random.Random) -> list[str]:
    """Options that are valid on the guest of 8 CPUs and 4 queues."""
    policy = chance.choice(["other", "batch", "idle", ""])
    options = {
        "threaded": chance.choice(["on", "off", "on@1-", "on@0,2", "off@0,on@3"]),
        "management_queues": str(chance.randrange(3)),
        "thread_cpus": chance.choice(["auto", "2-5", "1,3,7", ""]),
        "thread_policy": policy,
        "thread_nice": "" if policy == "idle" else chance.choice(["", "0", "10", "-5"]),
        "defer_hard_irqs": chance.choice(["", "0", str(chance.randrange(1000))]),
        "gro_flush_timeout": chance.choice(["", "0", str(chance.randrange(10**6))]),
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def test_random_policies(guest: Host) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    before = guest.settings()
    for round_ in range(POLICIES):
        policy = some_policy(chance)
        guest.run("rxlane", "apply", *policy, guest.vm.nic)
        guest.run("rxlane", "verify")
        guest.run("rxlane", "rollback")
        after = differing(before, guest.settings())
        assert after == {}, f"seed {seed}, round {round_}: {policy}"


def test_killed_while_applying(guest: Host) -> None:
    """SIGKILL after a random part of an apply's time; rollback brings everything back."""
    chance = random.Random(7)
    words = ["-o", "threaded=on", "-o", "thread_cpus=auto", "-o", "defer_hard_irqs=9"]
    before = guest.settings()
    start = time.monotonic()
    guest.run("rxlane", "apply", *words)
    whole = time.monotonic() - start
    guest.run("rxlane", "rollback")
    for round_ in range(KILLS):
        after = f"{chance.uniform(0.1, 1.0) * whole:.2f}"
        guest.run("timeout", "--signal=KILL", after, "rxlane", "apply", *words, check=False)
        guest.run("rxlane", "rollback")
        assert differing(before, guest.settings()) == {}, f"round {round_}, killed after {after} s"


def lasting(guest: Host) -> Settings:
    """The settings but for what each boot draws anew."""
    return {key: value for key, value in guest.settings().items() if key != DRAWN_AT_BOOT}


def test_power_cut_while_applying(guest: Host) -> None:
    """After a reset the settings are a fresh boot's, and the stale journal is in nobody's way."""
    before = lasting(guest)
    words = ["-o", "threaded=on@1-", "-o", "thread_cpus=auto"]
    # Else it moves interrupts before it can be stopped.
    guest.run("systemctl", "disable", "irqbalance")
    # The packages and the reader are not what is tried here: they are on the disk.
    guest.run("sync")
    for _round in range(POWER_CUTS):
        guest.run("timeout", "--signal=KILL", "1.5", "rxlane", "apply", *words, check=False)
        guest.vm.power_cut()
        assert differing(before, lasting(guest)) == {}
        guest.run("rxlane", "rollback")
        guest.run("rxlane", "apply", *words)
        guest.run("rxlane", "verify")
        guest.run("rxlane", "rollback")
        assert differing(before, lasting(guest)) == {}
    assert guest.run("test", "-e", JOURNAL, check=False).rc == 1
