# SPDX-License-Identifier: GPL-2.0-or-later
"""What the three TuneD plugins have in common: devices, instances, and the one joint plan.

TuneD initialises the instances of all plugins before it applies the first. Each plugin registers
its facet with the Joint of the process, and the first instance to be applied brings the plan of
all of them; the others find it done.

Imports nothing of TuneD: a plugin mixes Facet into TuneD's own base class.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, cast

from rxlane import policy
from rxlane.converge import RETRIES, Choose, Log
from rxlane.keeping.watch import GivenUp
from rxlane.tuned import tuned_compat
from rxlane.tuned.profile import exact_names
from rxlane.tuned.profilefile import profile_file
from rxlane.tuned.tuned_compat import Adapter, Report, Row
from rxlane.tuned.tuned_keep import Keeper, without
from rxlane.tuned.variables import Variables, settled

GIVEN_UP = Report(
    False,
    (("warning", "the layout was rolled back: nothing is laid out until a profile is applied"),),
)


class Joint:
    """The sections of all plugins in one process, and what was applied of them."""

    def __init__(
        self,
        adapter: Callable[[], Adapter] = Adapter,
        keeper: Callable[[Adapter, threading.RLock], Keeper] = Keeper,
    ) -> None:
        # TuneD calls from its own thread and from the one that hears of devices.
        self._lock = threading.RLock()
        self._adapter = adapter()
        self._keeper = keeper(self._adapter, self._lock)
        self._facets: dict[str, Callable[[], tuple[Row, ...]]] = {}
        self._live: set[tuple[str, str]] = set()  # kind and name of instances that are applied
        self._applied: tuple[Row, ...] | None = None  # the rows of the last apply, good or not
        self._standing: tuple[Row, ...] = ()  # the rows of the last good one, as far as they stand
        self._owed = False  # an earlier profile's originals are still to come back
        self._failures = 0  # of writes beside what stands, since TuneD asked for one

    def register(self, kind: str, rows: Callable[[], tuple[Row, ...]], log: Log) -> None:
        """Let a facet take part; a plugin that TuneD made anew takes its predecessor's place."""
        with self._lock:
            self._facets[kind] = rows
            self._keeper.log = log

    def _rows(self) -> tuple[Row, ...]:
        facets = (self._facets[kind] for kind in policy.KINDS if kind in self._facets)
        return tuple(row for rows in facets for row in rows())

    def apply(self, kind: str, name: str) -> Report | None:
        """Write the plan of all facets; None when that is done already."""
        return self._asked(kind, name, self._write)

    def add(self, kind: str, name: str) -> Report | None:
        """Write the plan with one more device; what was rolled back comes back with none."""
        return self._asked(kind, name, self._write_more)

    def _asked(self, kind: str, name: str, attempt: Callable[[], Report]) -> Report | None:
        with self._lock:
            self._live.add((kind, name))
            self._failures = 0
            return None if self._rows() == self._applied else self._done(attempt)

    def _write_more(self) -> Report:
        """Write what stands and more, unless it is rolled back by the time that has the lock."""
        if self._keeper.lost():
            return GIVEN_UP
        try:
            return self._written(bool(self._standing), self._keeper.still)
        except GivenUp:
            self._keeper.give_up()
            return GIVEN_UP

    def _write(self) -> Report:
        return self._written(bool(self._standing) and not self._keeper.lost(), None)

    def _written(self, stands: bool, choose: Choose | None) -> Report:
        rows = self._rows()
        report = self._adapter.apply(rows, stands, choose)
        # Who else held the lock may be gone when the next instance is applied.
        self._applied = None if report.again or report.passing else rows
        if report.ok:
            self._owed = False
            self._standing = rows
            self._keeper.hold(rows)
            return report
        if stands:
            # One more device that cannot be laid out takes nothing from the others.
            self._keeper.hold_on(self._standing)
            if report.passing and self._failures < len(RETRIES):
                self._keeper.soon(RETRIES[self._failures], self._write_more)
                self._failures += 1
            return report
        if report.passing:
            self._keeper.hold(rows)  # whose looks are such tries, also when a link comes up
            return report
        self._keeper.pause()
        if self._owed and not report.again:
            self._keeper.retry(self._off)
        return report

    def _off(self) -> Report:
        report = self._adapter.rollback()
        self._owed = report.again
        return report

    def _done(self, attempt: Callable[[], Report]) -> Report:
        """Do something, and the rest later where another rxlane or a link that is down is in the
        way: TuneD does not.
        """
        report = attempt()
        if report.again:
            self._keeper.retry(attempt)
        elif report.waiting:
            self._keeper.retry(self._adapter.rest)
        return report

    def verify(self, kind: str, devices: set[str]) -> Report:
        with self._lock:
            return self._adapter.verify(self._rows(), devices, kind)

    def unapply(self, kind: str, name: str, devices: set[str]) -> Report:
        """Bring back what an instance changed.

        With the last instance of its kind goes what the kind changed elsewhere, with the last of
        all whatever the journal holds, also what a killed TuneD left.
        """
        with self._lock:
            self.forget(kind, name)
            self._applied = None
            if not self._live:
                return self._done(self._off)
            # Not what was refused beside them, with which no look would do.
            rows = self._standing or self._rows()
            rest = (row for row in rows if (row.kind, row.name) in self._live)
            self._standing = self._keeper.called_now(rest)
            others = any(live == kind for live, _ in self._live)
            report = self._taken_back(devices if others else None, kind)
            # After the rollback, which is no other's for them.
            self._keeper.hold_later(() if self._keeper.given_up else self._standing)
            return self._left(report, devices)

    def remove(self, kind: str, device: str) -> Report:
        with self._lock:
            self._applied = None
            self._standing = without(self._standing, kind, device)
            report = self._taken_back({device}, kind)
            # After the rollback, which is no other's for the rest.
            self._keeper.drop(kind, device)
            return self._left(report, {device})

    def _taken_back(self, devices: set[str] | None, kind: str) -> Report:
        """Bring originals back. What an operator rolled back, be it while this waited for the
        lock, is kept no longer, whatever goes now.
        """
        self._keeper.lost()
        report = self._adapter.rollback(devices, kind)
        self._keeper.lost(ended=False)
        return report

    def _left(self, report: Report, devices: set[str]) -> Report:
        hindered = report.again or report.waiting
        self._keeper.left(devices if hindered else (), self._adapter.rest)
        return report

    def forget(self, kind: str, name: str) -> None:
        """An instance ends. Where TuneD leaves all values as they are nobody may go on writing."""
        with self._lock:
            if (kind, name) not in self._live:
                return
            self._live.remove((kind, name))
            if not self._live:
                self._applied, self._standing = None, ()
                self._keeper.end()


# What the profile that TuneD loads asks of its variables file, see function_rxlane_variable.py.
VARIABLES = Variables(profile_file)

_joint: Joint | None = None


def joint() -> Joint:
    """Return the Joint of this process."""
    global _joint
    if _joint is None:
        _joint = Joint()
    return _joint


class Facet:
    """To be mixed into a subclass of TuneD's hotplug.Plugin, before that class."""

    KIND: ClassVar[str]  # one of policy.KINDS
    LOG: ClassVar[Any]  # TuneD's logger
    UNSUPPORTED: ClassVar[type[Exception]]  # what TuneD takes for "not on this system"
    _told: ClassVar[set[str]] = set()  # reasons that one of the plugins logged, for all of them

    # Of TuneD's base class
    _hardware_inventory: Any
    _variables: Any
    _instances: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        reason = tuned_compat.unsupported(cast(Any, super()).create_instance)
        if reason is not None:
            if reason not in Facet._told:
                Facet._told.add(reason)
                self.LOG.error(reason)
            raise self.UNSUPPORTED(reason)
        self._hardware: set[str] = set()
        # Per instance the exact names in devices= that no device had when the profile was loaded;
        # one that was there and is unplugged is no mistake of the profile.
        self._absent: dict[str, set[str]] = {}
        super().__init__(*args, **kwargs)
        self._joint = joint()
        self._joint.register(self.KIND, self._rows, self._say)

    @classmethod
    def _get_config_options(cls) -> dict[str, str | None]:
        return dict.fromkeys(policy.names(cls.KIND))

    @classmethod
    def get_config_options_hints(cls) -> dict[str, str]:
        return {option.name: option.hint for option in policy.BY_KIND[cls.KIND]}

    def _get_effective_options(self, options: dict[str, str]) -> dict[str, str | None]:
        # TuneD drops unknown options with a warning; kept, they become an error of ours.
        return {**self._get_config_options(), **options}

    # Devices

    def _init_devices(self) -> None:
        cast(Any, super())._init_devices()
        self._devices_supported = True
        self._assigned_devices: set[str] = set()
        self._free_devices: set[str] = set()
        # First: what happens from here on is an event to come, or in the list, or both.
        self._listed_after = tuned_compat.events_so_far()
        for device in self._hardware_inventory.get_devices("net"):
            self._note_device(device)
            self._free_devices.add(device.sys_name)

    def _note_device(self, device: Any) -> None:
        if tuned_compat.is_hardware(device.device_path):
            self._hardware.add(device.sys_name)

    def _get_device_objects(self, devices: list[str]) -> list[Any]:
        found = [self._hardware_inventory.get_device("net", name) for name in devices]
        return [device for device in found if device is not None]

    def _names(self, instance: Any) -> tuple[str, ...]:
        return exact_names(instance.devices_expression)

    def _get_matching_devices(self, instance: Any, devices: Any) -> set[str]:
        matching = cast(Any, super())._get_matching_devices(instance, devices)
        named = self._names(instance)
        return {name for name in matching if name in self._hardware or name in named}

    def _hardware_events_init(self) -> None:
        self._hardware_inventory.subscribe(self, "net", self._hardware_events_callback)

    def _hardware_events_cleanup(self) -> None:
        self._hardware_inventory.unsubscribe(self)

    def _is_old(self, event: str, device: Any) -> bool:
        """True for what the list of devices shows already.

        TuneD gathers events also while it has no profile, and tells them all when it has one. A
        device is in the list for a moment after its removal was told.
        """
        if device.sequence_number > self._listed_after:
            return False
        return event != "remove" or bool(self._get_device_objects([device.sys_name]))

    def _hardware_events_callback(self, event: str, device: Any) -> None:
        if self._is_old(event, device):
            return
        if event == "remove":
            # Another device, a virtual one perhaps, may get the name.
            self._hardware.discard(device.sys_name)
        else:
            self._note_device(device)
        cast(Any, super())._hardware_events_callback(event, device)

    def _move_device(self, device_name: str) -> None:
        # The journal follows the device's index. The old name, which udev does not tell, must go:
        # a plan for it would fail.
        present = {device.sys_name for device in self._hardware_inventory.get_devices("net")}
        self._hardware.intersection_update(present)
        gone = []
        for instance in self._instances.values():
            gone += [instance] * len(instance.processed_devices - present)
            instance.processed_devices.intersection_update(present)
        self._assigned_devices.intersection_update(present)
        self._free_devices.intersection_update(present)
        cast(Any, self)._add_device(device_name)
        if device_name in self._free_devices and len(gone) == 1:
            # What the layout follows under a name that no instance takes is still of its own one.
            self._free_devices.remove(device_name)
            self._assigned_devices.add(device_name)
            gone[0].processed_devices.add(device_name)
            # What failed for want of the old name is done now.
            self._do(gone[0], self._joint.add)

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
        self._joint.forget(self.KIND, instance.name)
        self._absent.pop(instance.name, None)

    def _rows(self) -> tuple[Row, ...]:
        """Return every instance that has devices, or names one that is not there."""
        found = []
        for instance in self._instances.values():
            devices = {
                *instance.assigned_devices,
                *instance.processed_devices,
                *self._absent.get(instance.name, ()),
            }
            if devices:
                options = ((k, self._expanded(v)) for k, v in instance.options.items())
                found.append(Row(instance.name, frozenset(devices), tuple(options), self.KIND))
        return tuple(found)

    def _expanded(self, value: str | None) -> str | None:
        # Once is enough for TuneD, whose variables files have all values in place.
        if value is not None:
            value = settled(value, self._variables.expand_static)
        return cast("str | None", self._variables.expand(value))

    def _say(self, level: str, text: str) -> None:
        getattr(self.LOG, level)(f"rxlane: {text}")

    def _log(self, instance: Any, report: Report) -> bool:
        for level, text in report.lines:
            getattr(self.LOG, level)(f"{instance.name}: {text}")
        return report.ok

    def _instance_apply_static(self, instance: Any) -> None:
        self._do(instance, self._joint.apply)

    def _do(self, instance: Any, what: Callable[[str, str], Report | None]) -> None:
        for note in VARIABLES.notes():
            self._say("warning", note)
        report = what(self.KIND, instance.name)
        if report is not None:
            self._log(instance, report)

    def _instance_verify_static(self, instance: Any, ignore_missing: bool, devices: Any) -> bool:
        names = devices | self._absent.get(instance.name, set())
        return self._log(instance, self._joint.verify(self.KIND, names))

    def _instance_unapply_static(self, instance: Any, rollback: Any = None) -> None:
        devices = {*instance.processed_devices, *instance.assigned_devices}
        self._log(instance, self._joint.unapply(self.KIND, instance.name, devices))

    def _added_device_apply_tuning(self, instance: Any, device_name: str) -> None:
        for absent in self._absent.values():
            absent.discard(device_name)
        # TuneD, which passes by one that never had a device or lost its last, would not compare.
        instance.active = True
        instance.assigned_devices.add(device_name)
        self._do(instance, self._joint.add)
        instance.assigned_devices.discard(device_name)

    def _removed_device_unapply_tuning(self, instance: Any, device_name: str) -> None:
        self._log(instance, self._joint.remove(self.KIND, device_name))
