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
    log.error(f"plugin napi: the rxlane library is missing: {error}")
    raise


class NapiPlugin(Facet, hotplug.Plugin):  # type: ignore[misc]
    """
    Lays out how received packets are polled: which NAPI instances of a
    network device run in kernel threads, where those threads run and how
    long interrupts are deferred. Settings are planned for all sections of
    the types `napi`, `irq_layout` and `flow_steering` together, written
    once, and brought back from a journal in `/var/lib/rxlane` when the
    profile is switched off, also after TuneD itself was killed. While it is
    on, the layout is kept standing: over link down and up, `ethtool -L`, a
    driver bound again, a rename, and CPUs that come and go.

    Without [option]`devices` the section covers hardware network devices
    and those of virtual machines. Virtual devices (veth, netdevsim and the
    like) are covered only where [option]`devices` names them exactly.

    An option that is left empty leaves its setting alone. What the kernel or
    the driver lacks is reported in the log and is no failure. An option that
    cannot be understood, or that would endanger the host, is one error in
    the log, and nothing of any of these sections is applied.

    [option]`threaded` chooses the polling mode: `off` (softirq), `on` (a
    kernel thread for each NAPI instance) or `busy-poll` (a thread that polls
    without pause and takes a whole CPU). It holds for all queues, or for
    those named as in `busy-poll@1-2,on@3-`. A kernel that sets the mode only
    for whole devices gets `on` and `off` that way.

    [option]`management_queues` is how many of the lowest RX queues are left
    alone, so that the host stays reachable whatever the others do. The
    default is 0.

    [option]`thread_cpus` is `auto` or a CPU list (such as `2,4-7`). Threads
    take its CPUs one after the other in queue order. With `auto` ordinary
    threads share the housekeeping CPUs of the device's NUMA node evenly, CPU 0
    last; busy pollers and real-time threads get isolated CPUs first, then
    performance cores. A CPU that goes offline moves the threads that were on
    it and no others. `numa-local` stays on the
    device's NUMA node, `one-per-core` takes one CPU of each core,
    `spread-llc` spreads over last level caches. Without a list busy pollers
    never share a core.

    [option]`thread_spread` with the value `all` lets every thread run on all
    CPUs of [option]`thread_cpus`, an ordinary one with `auto` over those of
    the device's NUMA node, so that the scheduler may move it; the
    default `one` gives each thread one of them.

    [option]`thread_policy` is the threads' scheduling class: `other`,
    `batch`, `idle`, `fifo` or `rr`. [option]`thread_priority` (1 to 98)
    belongs to `fifo` and `rr`, [option]`thread_nice` (-20 to 19, or
    `auto`: 10 in a virtual machine and 0 elsewhere) to `other` and `batch`.
    Real-time threads are refused on CPU 0, where fewer than two housekeeping
    CPUs or no whole core would be left, from priority 50 on all CPUs where
    another interrupt's thread may run, and where nothing keeps time for other tasks.
    [option]`allow_realtime_cpu0` with the value 1 permits CPU 0.

    [option]`defer_hard_irqs` is the number of empty polls before the
    interrupt is enabled again, [option]`gro_flush_timeout` the nanoseconds
    between those polls, without which the first has no effect,
    [option]`irq_suspend_timeout` the nanoseconds that interrupts stay off
    while the application itself polls.

    [option]`channels` is how many queues a device has (pairs of queues where
    its driver counts pairs), or `max`. [option]`ring_rx` and
    [option]`ring_tx` are the descriptors of each queue, or `max`. Drivers
    set queues up anew for these, many by resetting the link: they are
    written first, and everything else is planned for the queues that come.
    On a device over which somebody is logged in such a change is refused,
    unless [option]`allow_session_reset` has the value 1; so are coalescing
    and [option]`arfs` left alone where the driver resets the link for them,
    as ixgbe does.

    [option]`adaptive_rx` and [option]`adaptive_tx` (`on`, `off`) let the
    driver choose coalescing by load. [option]`rx_usecs` and
    [option]`tx_usecs` are the microseconds, [option]`rx_frames` and
    [option]`tx_frames` the packets before an interrupt, where 0 is no limit:
    with 0 microseconds, packets are 1 unless the option says otherwise.
    Rings and coalescing are a device's, so its management queues have them too; a device whose
    queues all are management's keeps its own.

    .Threads for all queues but the first, interrupts deferred
    ====
    ----
    [napi]
    devices=eth0
    threaded=on
    management_queues=1
    thread_cpus=auto
    thread_nice=-5
    defer_hard_irqs=100
    gro_flush_timeout=15000
    ----
    ====
    """

    KIND = "napi"
    LOG = log
    UNSUPPORTED = exceptions.NotSupportedPluginException
