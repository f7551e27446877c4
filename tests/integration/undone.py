# SPDX-License-Identifier: GPL-2.0-or-later
"""What mainline had to mend after it had merged the threads of single NAPIs, as faults in our 6.12.

One of its fixes has no counterpart: here IDs are given when a NAPI is added, not when it is
enabled, never with interrupts off, so that the lock of their table needs no irqsave.
"""

from lab.kernel import Edit

CORE = "net/core/dev.c"

UNDONE = {
    # A mask where the number of a bit belongs: the thread does not see that the NAPI is its own.
    "mask-for-bit": Edit(
        CORE,
        "if (test_bit_acquire(NAPI_STATE_SCHED_THREADED, &napi->state)) {",
        "if (test_bit_acquire(NAPIF_STATE_SCHED_THREADED, &napi->state)) {",
    ),
    # The mode of a whole device reaches the NAPIs it has just now, not those of idle queues.
    "unlisted-forgotten": Edit(
        CORE,
        "\t\tfor (i = 0; i < dev->num_napi_configs; i++)\n"
        "\t\t\tdev->napi_configs[i].threaded = threaded;\n",
        "\t\tstruct napi_struct *n;\n\n"
        "\t\tlist_for_each_entry(n, &dev->napi_list, dev_list)\n"
        "\t\t\tfor (i = 0; n->config && !i; i++)\n"
        "\t\t\t\tn->config->threaded = threaded;\n",
    ),
    # The thread goes and the NAPI is still taken for one that is busy polled.
    "busy-poll-left": Edit(CORE, "NAPIF_STATE_IN_BUSY_POLL, 0);", "0, 0);"),
    # The time of the last quiescent state begins anew with each poll: there never is one, and
    # nothing else tells RCU-tasks of a thread that does not sleep.
    "no-quiescent-state": Edit(
        CORE,
        "rcu_softirq_qs_periodic(*last_qs);\n\t\tcond_resched_tasks_rcu_qs();",
        "*last_qs = jiffies;\n\t\trcu_softirq_qs_periodic(*last_qs);\n\t\tcond_resched();",
    ),
}
