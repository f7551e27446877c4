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

# x86 kernels patch their code behind a breakpoint, which every CPU may meet while it is there. An
# emulated CPU can meet it afterwards, and the kernel then takes it for a fault of its own.
EMULATION_RACE = "Oops: int3:"


def emulation_race(console: str) -> bool:
    """Whether the kernel died of how several CPUs are emulated; of no use where CPUs are real."""
    first = next(iter(splats(console)), "")
    return EMULATION_RACE in first


def faulted(console: str) -> bool:
    """Whether the kernel complained of more than tasks that wait."""
    return any("blocked for" not in line for line in splats(console))


def splats(console: str) -> list[str]:
    """The lines of ``console`` that tell of a kernel fault, in order."""
    return [
        line for line in console.splitlines() if PATTERNS.search(line) and not HARMLESS.search(line)
    ]
