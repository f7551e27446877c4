# SPDX-License-Identifier: GPL-2.0-or-later
"""Affinity, policy, priority and nice value of a NAPI's thread outlive the thread on our 6.12.

And a real-time poller whose CPU goes offline is an ordinary task until that CPU is back.
"""

import json
import os
from typing import Any

import pytest

from conftest import OURS, SCRIPTS, Host

# [policy, priority, nice]; the script gives one CPU as well.
GIVEN = {"batch": [3, 0, -7], "fifo": [1, 40, 0], "other": [0, 0, 0]}
# What a real-time thread has meanwhile; the flag tells that nobody chose it.
PUT_OFF = [os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, 0, 0]

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def seen(guest: Host) -> Seen:
    for script in ("napi_contract.py", "napi_threads_kept.py"):
        guest.vm.put(SCRIPTS / script, f"/root/{script}")
    done = guest.run("python3", "/root/napi_threads_kept.py", guest.vm.nic, timeout=500)
    found: Seen = json.loads(done.stdout)
    return found


@pytest.mark.kernels(OURS)
@pytest.mark.parametrize("device", ["netdevsim", "virtio_net"])
@pytest.mark.parametrize("policy", list(GIVEN))
def test_thread_is_scheduled_as_the_one_before(
    guest: Host, seen: Seen, device: str, policy: str
) -> None:
    name = guest.vm.nic if device == "virtio_net" else device
    expected = [*GIVEN[policy], [seen["cpu"]]]
    ways = seen[name][policy]
    assert ways["given"] == expected
    assert {way: found for way, found in ways.items() if found != expected} == {}


@pytest.mark.kernels(OURS)
def test_what_users_ask_for_meanwhile_stands(seen: Seen) -> None:
    assert seen["overridden"] == 0


@pytest.mark.kernels(OURS)
@pytest.mark.parametrize("mode", ["busy-poll", "on"])
def test_no_real_time_poller_without_its_cpu(guest: Host, seen: Seen, mode: str) -> None:
    cpu, at = seen["cpu"], seen["hotplug"]
    fifo = [*GIVEN["fifo"], [cpu]]
    for moment in ("offline", "offline, traffic", f"offline, off, {mode}"):
        assert at[f"{mode}, {moment}"][:3] == PUT_OFF, moment
    elsewhere = at[f"{mode}, offline, traffic"][3]
    assert elsewhere, "the thread may run nowhere"
    assert cpu not in elsewhere
    assert at[f"{mode}, online"] == fifo
    assert at[f"{mode}, online again"] == fifo
