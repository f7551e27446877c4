# SPDX-License-Identifier: GPL-2.0-or-later
# The class docstring below is the plugin's manual in AsciiDoc; TuneD prints it.

from __future__ import annotations

import tuned.logs
from tuned.plugins import exceptions, hotplug

log = tuned.logs.get()

try:
    from rxlane.tuned.tuned_facet import Facet
except ImportError as error:
    # TuneD passes over a plugin that cannot be imported without a word of the reason.
    log.error(f"plugin irq_layout: the rxlane library is missing: {error}")
    raise


class IrqLayoutPlugin(Facet, hotplug.Plugin):  # type: ignore[misc]
    """
    Lays out which CPU takes the receive interrupts of network devices, and
    whether a thread handles them.
    Planned together with sections of the types `napi` and `flow_steering`,
    written once, and brought back from a journal in `/var/lib/rxlane` when
    the profile is switched off, also after TuneD itself was killed.

    Without [option]`devices` the section covers hardware network devices
    and those of virtual machines.

    [option]`irq_cpus` is `auto`, `numa-local`, `one-per-core`, `spread-llc`
    or a CPU list (such as `2,4-7`). With `auto` and a list each interrupt gets one CPU: that of its
    queue's NAPI thread when the thread is bound to one (and the list names it), else the least used
    near the device. CPUs are counted over all devices, so that devices go to
    different ones. `auto` spreads evenly over the housekeeping CPUs of the
    device's NUMA node (of the host where the node has none), CPU 0 after
    others, those of busy pollers last, isolated ones not at all. With `numa-local` each
    interrupt may go to all housekeeping CPUs of the device's node. `one-per-core` and `spread-llc`
    are `auto` with one CPU of each core and over last level caches. Empty leaves interrupts alone.
    Queues that a section `napi` keeps for management keep their interrupts.

    [option]`threaded` moves the handler of each receive interrupt, and with it
    the poll of its NAPI, into a thread: `on`, `off`, or `auto`, which is `on`
    where no thread of the NAPI's own polls; for single queues a list of
    `MODE@QUEUES`. It needs a kernel that has `threaded` files in `/proc/irq`.
    Beside a NAPI thread `on` costs a second wake-up, which is warned of; where
    the NAPI busy-polls it is left out. [option]`thread_cpus` is `auto` (the
    CPUs of the interrupt, but vCPUs'), a CPU list or, of those of `auto`, what
    `numa-local`, `one-per-core` or `spread-llc` takes, [option]`thread_spread`,
    [option]`thread_policy`, [option]`thread_priority`, [option]`thread_nice`
    and [option]`allow_realtime_cpu0` are as in sections of the type `napi`. Without
    [option]`threaded` they are about threads that are there already.

    [option]`workqueue_cpus` is where kernel workers that are bound to no CPU
    may run: a CPU list, or `auto`, which is those that they had, but isolated
    ones and those of busy pollers and real-time threads. [option]`smt_siblings` with the
    value `idle` keeps these, and RPS, off the SMT siblings of such CPUs as well.
    [option]`timer_migration`
    with the value 0 keeps timers on the CPU that set them. Both are the
    host's, so sections may not ask for different values.

    An interrupt that the kernel manages itself is reported as unmovable and
    is no failure. A running irqbalance may move interrupts again: the log
    says so, and `tuned-adm verify` finds it.

    .One CPU for each receive interrupt
    ====
    ----
    [irq_layout]
    irq_cpus=auto
    ----
    ====
    """

    KIND = "irq_layout"
    LOG = log
    UNSUPPORTED = exceptions.NotSupportedPluginException
