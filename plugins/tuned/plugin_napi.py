# SPDX-License-Identifier: GPL-2.0-or-later
# The class docstring below is the plugin's manual in AsciiDoc; TuneD prints it.

from __future__ import annotations

from typing import Any

import tuned.logs
from tuned.plugins import exceptions, hotplug

log = tuned.logs.get()


class NapiPlugin(hotplug.Plugin):  # type: ignore[misc]
    """
    Lays out how received packets are polled: which NAPI instances of a
    network device run in kernel threads, where those threads run and how
    long interrupts are deferred. Settings are planned for all sections of
    type `napi` together, written once, and brought back from a journal in
    `/var/lib/rxlane` when the profile is switched off, also after TuneD
    itself was killed.

    Without [option]`devices` the section covers hardware network devices
    and those of virtual machines. Virtual devices (veth, netdevsim and the
    like) are covered only where [option]`devices` names them exactly.

    An option that is left empty leaves its setting alone. What the kernel or
    the driver lacks is reported in the log and is no failure. An option that
    cannot be understood, or that would endanger the host, is one error in
    the log, and nothing of any `napi` section is applied.

    [option]`threaded` chooses the polling mode: `off` (softirq), `on` (a
    kernel thread for each NAPI instance) or `busy-poll` (a thread that polls
    without pause and takes a whole CPU). It holds for all queues, or for
    those named as in `busy-poll@1-2,on@3-`. A kernel that sets the mode only
    for whole devices gets `on` and `off` that way.

    [option]`management_queues` is how many of the lowest RX queues are left
    alone, so that the host stays reachable whatever the others do. The
    default is 0.

    [option]`thread_cpus` is `auto` or a CPU list (such as `2,4-7`). Threads
    take its CPUs one after the other in queue order.

    [option]`thread_policy` is the threads' scheduling class: `other`,
    `batch`, `idle`, `fifo` or `rr`. [option]`thread_priority` (1 to 98)
    belongs to `fifo` and `rr`, [option]`thread_nice` (-20 to 19) to `other`
    and `batch`. Real-time threads are refused on CPU 0 and where fewer than
    two housekeeping CPUs would be left. [option]`allow_realtime_cpu0` with
    the value 1 permits CPU 0.

    [option]`defer_hard_irqs` is the number of empty polls before the
    interrupt is enabled again, [option]`gro_flush_timeout` the nanoseconds
    between those polls, [option]`irq_suspend_timeout` the nanoseconds that
    interrupts stay off while the application itself polls.

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Late, because TuneD swallows an ImportError of a plugin module without a word.
        try:
            from rxlane import tuned_compat
        except ImportError as error:
            log.error(f"plugin napi: the rxlane library is missing: {error}")
            raise exceptions.NotSupportedPluginException(str(error)) from error
        reason = tuned_compat.unsupported(hotplug.Plugin.create_instance)
        if reason is not None:
            log.error(f"plugin napi: {reason}")
            raise exceptions.NotSupportedPluginException(reason)
        self._compat = tuned_compat
        self._adapter = tuned_compat.Adapter()
        self._hardware: set[str] = set()
        self._live: set[str] = set()  # names of instances that are applied
        self._applied: Any = None  # the rows of the last apply, good or not
        # Per instance the exact names in devices= that no device had when the profile was loaded;
        # one that was there and is unplugged is no mistake of the profile.
        self._absent: dict[str, set[str]] = {}
        super().__init__(*args, **kwargs)

    @classmethod
    def _get_config_options(cls) -> dict[str, str | None]:
        from rxlane.policy import NAMES

        return dict.fromkeys(NAMES)

    @classmethod
    def get_config_options_hints(cls) -> dict[str, str]:
        from rxlane.policy import OPTIONS

        return {option.name: option.hint for option in OPTIONS}

    def _get_effective_options(self, options: dict[str, str]) -> dict[str, str | None]:
        # TuneD drops unknown options with a warning; kept, they become an error of ours.
        return {**self._get_config_options(), **options}

    # Devices

    def _init_devices(self) -> None:
        super()._init_devices()
        self._devices_supported = True
        self._assigned_devices: set[str] = set()
        self._free_devices: set[str] = set()
        for device in self._hardware_inventory.get_devices("net"):
            self._note_device(device)
            self._free_devices.add(device.sys_name)

    def _note_device(self, device: Any) -> None:
        if self._compat.is_hardware(device.device_path):
            self._hardware.add(device.sys_name)

    def _get_device_objects(self, devices: list[str]) -> list[Any]:
        found = [self._hardware_inventory.get_device("net", name) for name in devices]
        return [device for device in found if device is not None]

    def _names(self, instance: Any) -> tuple[str, ...]:
        expression = self._variables.expand(instance.devices_expression)
        names: tuple[str, ...] = self._compat.exact_names(expression)
        return names

    def _get_matching_devices(self, instance: Any, devices: Any) -> set[str]:
        matching = super()._get_matching_devices(instance, devices)
        named = self._names(instance)
        return {name for name in matching if name in self._hardware or name in named}

    def _hardware_events_init(self) -> None:
        self._hardware_inventory.subscribe(self, "net", self._hardware_events_callback)

    def _hardware_events_cleanup(self) -> None:
        self._hardware_inventory.unsubscribe(self)

    def _hardware_events_callback(self, event: str, device: Any) -> None:
        if event == "remove":
            # Another device, a virtual one perhaps, may get the name.
            self._hardware.discard(device.sys_name)
        else:
            self._note_device(device)
        super()._hardware_events_callback(event, device)

    def _move_device(self, device_name: str) -> None:
        # The journal follows the device's index, so only the new name must be known.
        self._add_device(device_name)

    # Instances

    def _instance_init(self, instance: Any) -> None:
        instance._has_static_tuning = True
        instance._has_dynamic_tuning = False
        known = self._free_devices | self._assigned_devices
        absent = set(self._names(instance)) - known
        self._absent[instance.name] = absent
        if absent:
            # Without a device TuneD would pass the instance by, and its error with it.
            instance.active = True

    def _instance_cleanup(self, instance: Any) -> None:
        self._live.discard(instance.name)
        self._absent.pop(instance.name, None)

    def _rows(self) -> tuple[Any, ...]:
        """Return every instance that has devices, or names one that is not there."""
        found = []
        for instance in self._instances.values():
            devices = {
                *instance.assigned_devices,
                *instance.processed_devices,
                *self._absent.get(instance.name, ()),
            }
            if devices:
                options = ((k, self._variables.expand(v)) for k, v in instance.options.items())
                row = self._compat.Row(instance.name, frozenset(devices), tuple(options))
                found.append(row)
        return tuple(found)

    def _log(self, instance: Any, report: Any) -> bool:
        for level, text in report.lines:
            getattr(log, level)(f"{instance.name}: {text}")
        return bool(report.ok)

    def _apply_all(self, instance: Any) -> None:
        self._live.add(instance.name)
        rows = self._rows()
        if rows == self._applied:
            return
        self._applied = rows
        self._log(instance, self._adapter.apply(rows))

    def _instance_apply_static(self, instance: Any) -> None:
        # Joint: the first instance applies the plan of all, the others find it done.
        self._apply_all(instance)

    def _instance_verify_static(self, instance: Any, ignore_missing: bool, devices: Any) -> bool:
        names = devices | self._absent.get(instance.name, set())
        return self._log(instance, self._adapter.verify(self._rows(), names))

    def _instance_unapply_static(self, instance: Any, rollback: Any = None) -> None:
        self._live.discard(instance.name)
        self._applied = None
        devices = {*instance.processed_devices, *instance.assigned_devices}
        # With the last instance everything goes back, also what a killed TuneD left.
        self._log(instance, self._adapter.rollback(devices if self._live else None))

    def _added_device_apply_tuning(self, instance: Any, device_name: str) -> None:
        for absent in self._absent.values():
            absent.discard(device_name)
        instance.assigned_devices.add(device_name)
        self._apply_all(instance)
        instance.assigned_devices.discard(device_name)

    def _removed_device_unapply_tuning(self, instance: Any, device_name: str) -> None:
        self._applied = None
        self._log(instance, self._adapter.rollback({device_name}))
