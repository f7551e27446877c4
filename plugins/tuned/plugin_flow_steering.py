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
    log.error(f"plugin flow_steering: the rxlane library is missing: {error}")
    raise


class FlowSteeringPlugin(Facet, hotplug.Plugin):  # type: ignore[misc]
    """
    Steers the flows behind the receive queues of network devices: RPS, RFS,
    XPS, threads of a device's own and the settings of the host that belong
    to them. Planned together with sections of the types `napi` and
    `irq_layout`, written once, and brought back from a journal in
    `/var/lib/rxlane` when the profile is switched off, also after TuneD
    itself was killed.

    Without [option]`devices` the section covers hardware network devices
    and those of virtual machines. An option that is left empty leaves its
    setting alone.

    [option]`rps` names the CPUs that process what a queue received: `off`,
    a CPU list, `numa-local` (the housekeeping CPUs of the device's node) or
    `auto`: where the device's node has two housekeeping CPUs or more for
    each queue, each queue gets two CPUs at least, the one where it is polled
    last; otherwise RPS is off. The kernel takes no isolated CPU.

    [option]`rfs` steers each flow to the CPU where its application runs:
    `off`, the number of entries in the host's flow table, or `auto`: 32768,
    and 4096 for each queue where that is more. Each queue's own table gets
    its device's share. Both are powers of two.
    [option]`arfs` with the value `on` also lets the NIC's filters bring a
    flow to its application's queue (`rx-ntuple-filter`), where it has any.

    [option]`xps` chooses the TX queue: `auto` by the sending CPU (the
    queue whose interrupt is taken there or nearest), `rxqs` by the queue that
    received the flow, or `off`.

    [option]`rx_threads` gives a device threads of its own that process what
    its queues received: `off`, a number, or `auto` (one for each CPU near the
    device that neither takes its interrupts nor polls it, at most 16). Each
    has its own queue, where RPS has one for each CPU that all devices fill: a
    device under load costs others no packets. It excludes
    [option]`rps` and [option]`rfs` on the device. [option]`rx_thread_cpus`
    names their CPUs: a list, `auto`, `numa-local`, `one-per-core`,
    `spread-llc`, or `kernel`, which reserves them itself.
    [option]`rx_thread_policy`, [option]`rx_thread_priority`,
    [option]`rx_thread_nice` and [option]`rx_allow_realtime_cpu0` are as
    those of a section `napi` without `rx_`.

    [option]`vhost_cpus` are the CPUs for the vhost threads of all taps of
    virtual machines: a list, or `auto` for the housekeeping CPUs to which no
    vCPU is bound. [option]`tap_rps` is RPS of all taps: `off` or a list.
    Both are the host's, whatever [option]`devices` says.

    [option]`netdev_max_backlog`, [option]`busy_read` and
    [option]`busy_poll` are the sysctls of these names in `net.core`. They
    are the host's, so sections may not ask for different values. The first
    is a minimum: a higher one that the host has stays.

    .Few queues, many CPUs, applications on this host
    ====
    ----
    [flow_steering]
    rps=auto
    rfs=auto
    ----
    ====
    """

    KIND = "flow_steering"
    LOG = log
    UNSUPPORTED = exceptions.NotSupportedPluginException
