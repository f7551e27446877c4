# SPDX-License-Identifier: GPL-2.0-or-later
"""What is read from the console of a guest that was asked by an NMI what it does."""

from lab import hung

# As 6.12 writes it; CPU 1 stands in a loop, and init has not begun.
CONSOLE = """\
RIP: 0010:before_it_was_asked+0x1/0x2
Kernel panic - not syncing: NMI: Not continuing
CPU: 0 UID: 0 PID: 0 Comm: swapper/0 Not tainted 6.12.117 #1
Call Trace:
 <NMI>
 panic+0x321/0x390
RIP: 0010:pv_native_safe_halt+0x13/0x20
 do_idle+0x1f0/0x230
NMI backtrace for cpu 1
CPU: 1 UID: 0 PID: 21 Comm: migration/1 stress Tainted: G        W  6.12.117 #1
RIP: 0010:multi_cpu_stop+0x5b/0xf0
NMI backtrace for cpu 2 skipped: idling at default_idle+0xf/0x20
task:swapper/0       state:D stack:0     pid:1     tgid:1     ppid:0      flags:0x00004000
Call Trace:
 <TASK>
 ? usleep_range_state+0x10/0x90
 schedule+0x27/0xd0
 stop_machine_cpuslocked+0x10f/0x150
 </TASK>
task:kthreadd        state:S stack:0     pid:2     tgid:2     ppid:0      flags:0x00004000
 kthreadd+0x2a0/0x2f0
task:kworker/0:1     state:D stack:0     pid:11    tgid:11    ppid:2      flags:0x00004000
[   12.500000]  __mutex_lock.constprop.0+0x3a0/0x900
task:rcu_preempt     state:I stack:0     pid:17    tgid:17    ppid:2      flags:0x00004000
 schedule+0x27/0xd0
task:qemu-ga         state:S stack:0     pid:200   tgid:200   ppid:1      flags:0x00000002
 do_poll.constprop.0+0x1f0/0x380
RIP: 0033:0x7fcdde3283a7
"""


def test_cpus_waiting_tasks_and_processes_are_told() -> None:
    assert hung.doing(CONSOLE) == [
        "CPU 0, swapper/0: pv_native_safe_halt+0x13/0x20",
        "CPU 1, migration/1 stress: multi_cpu_stop+0x5b/0xf0",
        "CPU 2, idle: default_idle+0xf/0x20",
        "swapper/0(D): schedule < stop_machine_cpuslocked",
        "kworker/0:1(D): __mutex_lock.constprop.0",
        "processes: swapper/0(D) qemu-ga(S)",
    ]


IDLE = CONSOLE.replace("migration/1 stress", "swapper/1").replace("multi_cpu_stop", "default_idle")


def test_an_idle_guest_is_told_by_its_cpus() -> None:
    told = hung.all_idle(IDLE)
    assert told.startswith("CPU 0, swapper/0: pv_native_safe_halt+0x13/0x20; CPU 1, swapper/1: ")
    assert told.endswith("; CPU 2, idle: default_idle+0xf/0x20")
    assert hung.all_idle(CONSOLE) == hung.all_idle("") == ""


def test_which_cpu_halted() -> None:
    assert [hung.halted(CONSOLE, cpu) for cpu in range(4)] == [True, False, True, False]


def test_a_guest_that_took_no_nmi_tells_nothing() -> None:
    assert hung.doing("Linux version 6.12.117\nRIP: 0010:elsewhere+0x1/0x2\n") == []


def test_no_more_of_a_stack_than_a_line_holds() -> None:
    deep = "".join(f" step_{n}+0x1/0x2\n" for n in range(20))
    row = "task:init state:S stack:0 pid:1 tgid:1 ppid:0 flags:0x2\n"
    told = hung.doing(f"Kernel panic - not syncing: NMI: Not continuing\n{row}{deep}")
    assert told[0].count("step_") == hung.FRAMES


def test_a_kernel_that_did_not_come_to_init_is_told_by_its_cpus() -> None:
    where = hung.before_init(CONSOLE)
    assert where.startswith("CPU 0, swapper/0: pv_native_safe_halt+0x13/0x20; CPU 1, migration/1")
    assert hung.before_init(CONSOLE.replace("task:swapper/0 ", "task:systemd   ")) == ""
    assert hung.before_init("Linux version 6.12.117\n") == ""
