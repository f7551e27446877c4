# SPDX-License-Identifier: GPL-2.0-or-later
"""Kernel faults are found in a console log, and nothing else is."""

import pytest

from lab.splat import emulation_race, left_by_hotplug, splats

FAULTS = [
    "[   12.1] BUG: kernel NULL pointer dereference, address: 0000000000000010",
    "[   12.1] BUG: sleeping function called from invalid context at net/core/dev.c:1",
    "[   12.1] WARNING: CPU: 0 PID: 1 at net/core/dev.c:6789 napi_enable+0x1/0x2",
    "[   12.1] WARNING: possible circular locking dependency detected",
    "[   12.1] RIP: 0010:napi_enable+0x1/0x2",
    "[   12.1] Call Trace:",
    "[   12.1] INFO: task ip:123 blocked for more than 20 seconds.",
    "[   12.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
    "[   12.1] INFO: rcu_tasks detected stalls on tasks:",
    "[   12.1] BUG: KASAN: slab-use-after-free in napi_schedule+0x1/0x2",
    "[   12.1] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
    "[   12.1] watchdog: BUG: soft lockup - CPU#0 stuck for 24s!",
    "[   12.1] Kernel panic - not syncing: sysrq triggered crash",
    "[   12.1] ------------[ cut here ]------------",
    "[   12.1] BUG kmalloc-64 (Not tainted): Poison overwritten",
    "[   12.1] rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 1-.... } 6 jiffies",
    "[   12.1] rcu: rcu_preempt kthread starved for 5252 jiffies! g1 f0x0 RCU_GP_WAIT_FQS(5)",
    "[   12.1] NOHZ tick-stop error: local softirq work is pending, handler #08!!!",
    "[   12.1] huh, entered softirq 3 NET_RX 000000001 with preempt_count 00000100, exited with 0?",
    '[   12.1] irq 36: nobody cared (try booting with the "irqpoll" option)',
    "[   12.1] genirq: Flags mismatch irq 36. 00000000 (a) vs. 00000080 (b)",
    "[   12.1] genirq: Threaded irq requested with handler=NULL and !ONESHOT for a (irq 36)",
    "[   12.1] e1000e 0000:00:05.0 eth1: NETDEV WATCHDOG: CPU: 1: queue 0 timed out 5 ms",
    "[   12.1] eth1: NAPI poll function e1000e_poll+0x0/0x1 returned 65, exceeding its budget",
    "[   12.1] eth1: Budget exhausted after napi rescheduled",
    "[   12.1] page_pool_release_retry() stalled pool shutdown: id 3, 1 inflight 60 sec",
    "[   12.1] kmemleak: Kernel memory leak detector disabled",
]
HEALTHY = [
    "[    0.0] Linux version 6.12.107 (rxlane@lab)",
    "[    0.1] kmemleak: Kernel memory leak detector initialized (mem pool available: 1)",
    "[    1.0] e1000e 0000:00:05.0 eth1: (PCI Express:2.5GT/s:Width x1)",
    "debugging options are on; no bug was found",
]


@pytest.mark.parametrize("line", FAULTS)
def test_fault_is_seen(line: str) -> None:
    assert splats(f"before\n{line}\nafter\n") == [line]


def test_what_hotplug_alone_brings_about_is_spared_where_cpus_come_and_go() -> None:
    left = "[   12.1] NOHZ tick-stop error: local softirq work is pending, handler #08!!!"
    others = ["[   12.2] NOHZ tick-stop error: local softirq work is pending, handler #0a!!!",
              "[   12.3] WARNING: CPU: 0 PID: 1 at net/core/dev.c:1 handler #08"]  # fmt: skip
    console = "\n".join([left, *others, left])
    assert splats(console, hotplug=True) == others
    assert splats(console) == [left, *others, left]
    assert left_by_hotplug(console) == [left, left]


def test_healthy_console_is_quiet() -> None:
    assert splats("\n".join(HEALTHY)) == []


def test_race_of_the_emulation_is_no_fault_that_came_first() -> None:
    race = "[    1.8] Oops: int3: 0000 [#1] SMP PTI"
    assert emulation_race(f"booting\n{race}\n[    1.8] RIP: 0010:default_idle+0x9/0x20\n")
    assert not emulation_race(f"[    1.7] BUG: kernel NULL pointer dereference\n{race}\n")
    assert not emulation_race("\n".join(HEALTHY))
