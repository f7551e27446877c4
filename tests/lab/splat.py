# SPDX-License-Identifier: GPL-2.0-or-later
"""What a sick kernel prints. Pure: console text in, offending lines out."""

import re

PATTERNS = re.compile(
    r"""
    \bBUG:\s | \bWARNING:\s | kernel\ BUG\ at | \bRIP:\s | Call\ Trace: | Oops:\s
    | Kernel\ panic | INFO:\ task\ .*\ blocked\ for | blocked\ for\ more\ than
    | detected\ stall | self-detected\ stall | rcu_tasks.*stall | RCU\ Stall
    | possible\ (recursive|circular)\ locking | possible\ irq\ lock\ inversion
    | suspicious\ RCU\ usage | sleeping\ function\ called | scheduling\ while\ atomic
    | inconsistent\ lock\ state | held\ lock\ freed | bad\ unlock\ balance
    | KASAN: | KFENCE: | UBSAN: | kmemleak:\ \d+\ new\ suspected | ODEBUG: | soft\ lockup
    | hard\ LOCKUP | refcount_t: | unregister_netdevice:\ waiting
    # Of these some come without a word of the above and without a stack.
    | cut\ here\ \]- | \bBUG\ \S+\ \( | detected\ expedited\ stalls | kthread\ starved
    | softirq\ work\ is\ pending | huh,\ entered\ softirq | nobody\ cared
    | genirq:\ (Flags\ mismatch|Threaded\ irq\ requested)
    | NETDEV\ WATCHDOG: | exceeding\ its\ budget | Budget\ exhausted\ after
    | stalled\ pool\ shutdown | hw\ csum\ failure | Dead\ loop\ on | page\ allocation\ failure
    | kmemleak:\ .*\bdisabled
    """,
    re.VERBOSE,
)
# Said by a healthy kernel: sentences that merely contain one of the words above.
HARMLESS = re.compile(
    r"WARNING: (memory corruption check|Image Not Supported)"
    r"|unprivileged eBPF is enabled|software IO TLB"
    r"|clocksource: .*WARNING|kmemleak: Kernel memory leak detector initialized"
)

# A CPU that hotplug takes away or brings can be idle with packets left, while its ksoftirqd is
# parked, and report_idle_softirq() in kernel/time/tick-sched.c says so, ten times at most. Stock
# kernels do it, too: 6.12 with all debugging, under flood, said it ten times within 49 hotplugs.
LEFT_BY_HOTPLUG = re.compile(r"NOHZ tick-stop error: local softirq work is pending, handler #08!!!")

# x86 kernels patch their code behind a breakpoint, which every CPU may meet while it is there. An
# emulated CPU can meet it afterwards, and the kernel then takes it for a fault of its own.
EMULATION_RACE = "Oops: int3:"

# A guest all of whose CPUs are idle can be without the timer that RCU waits for; see vm.py. RCU's
# report of that has stacks of where it and the CPUs were.
LOST_TIMER = re.compile(r"kthread timer wakeup didn't happen")
OF_RCU = re.compile(r"detected stall|kthread starved|\bRIP: |Call Trace:")


def emulation_race(console: str) -> bool:
    """Whether the kernel died of how several CPUs are emulated; of no use where CPUs are real."""
    first = next(iter(splats(console)), "")
    return EMULATION_RACE in first


def faulted(console: str) -> bool:
    """Whether the kernel complained of more than tasks that wait, or RCU for a timer."""
    waits = LOST_TIMER.search(console)
    return any(
        "blocked for" not in line and not (waits and OF_RCU.search(line))
        for line in splats(console)
    )


def left_by_hotplug(console: str) -> list[str]:
    """The lines of ``console`` that CPU hotplug under flood is enough for."""
    return [line for line in console.splitlines() if LEFT_BY_HOTPLUG.search(line)]


def splats(console: str, hotplug: bool = False) -> list[str]:
    """The lines of ``console`` that tell of a kernel fault, in order.

    hotplug: CPUs went and came under flood, so that left_by_hotplug() are none.
    """
    return [
        line
        for line in console.splitlines()
        if PATTERNS.search(line)
        and not HARMLESS.search(line)
        and not (hotplug and LEFT_BY_HOTPLUG.search(line))
    ]
