# SPDX-License-Identifier: GPL-2.0-or-later
"""The TuneD plugin against a stand-in of TuneD's base class; real TuneD runs in the guest tests.

The stand-in repeats the order of calls of TuneD 2.25.1's unit manager and plugin base: all
instances are created and given devices before the first is applied.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rxlane import policy, tuned_compat
from unit import simhost
from unit.simhost import SimHost

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "tuned" / "plugin_napi.py"


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda text: self.lines.append((level, text))

    def errors(self) -> list[str]:
        return [text for level, text in self.lines if level == "error"]


class NotSupported(Exception):
    pass


class Base:
    """What the adapter uses of tuned.plugins.hotplug.Plugin."""

    def __init__(self, names: dict[str, str], variables: dict[str, str]) -> None:
        found = [SimpleNamespace(sys_name=n, device_path=p) for n, p in names.items()]
        self._hardware_inventory = SimpleNamespace(
            get_devices=lambda _: found, subscribe=lambda *_: None, unsubscribe=lambda *_: None
        )
        self._variables = SimpleNamespace(expand=lambda v: variables.get(v, v))
        self._instances: dict[str, Any] = {}

    def create_instance(self, name: str, priority: int, devices: str | None, options: Any) -> Any:
        instance = SimpleNamespace(
            name=name,
            devices_expression=devices,
            options=self._get_effective_options(options),
            assigned_devices=set(),
            processed_devices=set(),
            active=True,
        )
        self._instances[name] = instance
        return instance

    def _get_effective_options(self, options: Any) -> Any:
        raise NotImplementedError

    def _init_devices(self) -> None:
        self._hardware_events_init()

    def _hardware_events_init(self) -> None:
        raise NotImplementedError

    def _get_matching_devices(self, instance: Any, devices: Any) -> set[str]:
        words = (instance.devices_expression or "*").split()
        return {d for d in devices if any(fnmatch(d, w) for w in words)}

    def _hardware_events_callback(self, event: str, device: Any) -> None:
        pass


PATHS = {
    "eth0": "/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0",
    "eth1": "/devices/pci0000:00/0000:00:04.0/net/eth1",
    "veth0": "/devices/virtual/net/veth0",
}


class Manager:
    """Creates, applies, verifies and unapplies instances in TuneD's order."""

    def __init__(
        self, plugin: Any, sections: dict[str, dict[str, str]], paths: dict[str, str] = PATHS
    ) -> None:
        self.plugin = plugin
        for name, options in sections.items():
            given = dict(options)
            plugin.create_instance(name, 0, given.pop("devices", None), given)
        plugin._init_devices()
        for one in plugin._instances.values():
            taken = plugin._get_matching_devices(one, plugin._free_devices)
            one.active = bool(taken)
            one.assigned_devices.update(taken)
            plugin._assigned_devices |= taken
            plugin._free_devices -= taken
            plugin._instance_init(one)

    def start(self) -> None:
        for one in self.plugin._instances.values():
            if one.active:
                self.plugin._instance_apply_static(one)
                one.processed_devices.update(one.assigned_devices)
                one.assigned_devices.clear()

    def verify(self) -> bool:
        active = [i for i in self.plugin._instances.values() if i.active]
        return all(
            [
                self.plugin._instance_verify_static(i, False, set(i.processed_devices))
                for i in active
            ]
        )

    def stop(self) -> None:
        for one in reversed(list(self.plugin._instances.values())):
            self.plugin._instance_unapply_static(one)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()
    modules: dict[str, dict[str, object]] = {
        "tuned": {},
        "tuned.logs": {"get": lambda: found},
        "tuned.plugins": {},
        "tuned.plugins.exceptions": {"NotSupportedPluginException": NotSupported},
        "tuned.plugins.hotplug": {"Plugin": Base},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    return found


@pytest.fixture
def host() -> SimHost:
    links = [
        simhost.link("eth0"),
        simhost.link("eth1", 1, ifindex=3, base=9000),
        simhost.link("veth0", 2, ifindex=4, base=9500, physical=False),
    ]
    return SimHost(simhost.snapshot(*links))


def plugin_class() -> Any:
    spec = importlib.util.spec_from_file_location("plugin_napi", PLUGIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NapiPlugin


@pytest.fixture
def make(log: Log, host: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    class Adapter(tuned_compat.Adapter):
        def __init__(self) -> None:
            super().__init__(tmp_path / "state", lambda: host)

    monkeypatch.setattr(tuned_compat, "Adapter", Adapter)

    def build(sections: dict[str, dict[str, str]], **variables: str) -> Manager:
        expanded = {f"${{{name}}}": value for name, value in variables.items()}
        return Manager(plugin_class()(PATHS, expanded), sections)

    yield build


def test_apply_verify_off(make: Any, host: SimHost, log: Log) -> None:
    before = simhost.settings(host)
    manager = make({"napi": {"threaded": "${mode}", "thread_cpus": "auto"}}, mode="on")
    manager.start()
    assert manager.verify() and log.errors() == []
    assert {n.threaded for n in host.links["eth0"].napis} == {1}
    assert {n.threaded for n in host.links["veth0"].napis} == {0}, "veth only by its own name"
    manager.stop()
    assert simhost.settings(host) == before


def test_virtual_device_by_exact_name_only(make: Any, host: SimHost) -> None:
    make({"napi": {"devices": "veth*", "threaded": "on"}}).start()
    assert host.writes == 0
    make({"napi": {"devices": "veth0", "threaded": "on"}}).start()
    assert {n.threaded for n in host.links["veth0"].napis} == {1}


def test_sections_are_one_plan_applied_once(make: Any, host: SimHost, log: Log) -> None:
    manager = make(
        {"a": {"devices": "eth0", "threaded": "on"}, "b": {"devices": "eth1", "threaded": "on"}}
    )
    manager.start()
    assert host.writes == 5
    assert [text for _, text in log.lines if "settings written" in text] == [
        "a: 5 settings written, 0 as wanted already"
    ]
    assert manager.verify()


@pytest.mark.parametrize(
    "bad",
    [
        {"devices": "eth1", "threaded": "om"},
        {"devices": "eth1", "threded": "on"},
        {"devices": "eth1", "thread_cpus": "99", "threaded": "on"},
        {"devices": "eth9", "threaded": "on"},
        {"devices": "eth1", "threaded": "${undefined}"},
    ],
)
def test_one_error_and_nothing_half_applied(
    make: Any, host: SimHost, log: Log, bad: dict[str, str]
) -> None:
    manager = make({"good": {"devices": "eth0", "threaded": "on"}, "bad": bad})
    manager.start()
    assert host.writes == 0 and len(log.errors()) == 1
    assert "[bad]" in log.errors()[0] and "\n" not in log.errors()[0]
    assert not manager.verify()
    manager.stop()
    assert host.writes == 0


def test_killed_daemon_restores_the_true_originals(make: Any, host: SimHost) -> None:
    before = simhost.settings(host)
    make({"napi": {"threaded": "on", "thread_nice": "5"}}).start()  # and then kill -9
    again = make({"napi": {"threaded": "busy-poll@2-", "devices": "eth0"}})
    again.start()
    assert [n.threaded for n in host.links["eth0"].napis] == [0, 0, 2, 2]
    again.stop()
    assert simhost.settings(host) == before


def test_leftovers_go_back_even_without_a_matching_device(make: Any, host: SimHost) -> None:
    before = simhost.settings(host)
    make({"napi": {"threaded": "on"}}).start()
    manager = make({"napi": {"devices": "ens*", "threaded": "on"}})
    manager.start()
    manager.stop()
    assert simhost.settings(host) == before


def test_hotplug_joins_and_leaves(make: Any, host: SimHost, log: Log) -> None:
    late = host.links.pop("eth1")
    manager = make({"napi": {"threaded": "on"}})
    plugin, instance = manager.plugin, manager.plugin._instances["napi"]
    instance.assigned_devices.discard("eth1")
    manager.start()
    host.links["eth1"] = late
    plugin._added_device_apply_tuning(instance, "eth1")
    instance.processed_devices.add("eth1")
    assert host.links["eth1"].napis[0].threaded == 1 and manager.verify()
    plugin._removed_device_unapply_tuning(instance, "eth1")
    assert host.links["eth1"].napis[0].threaded == 0
    assert host.links["eth0"].napis[0].threaded == 1
    assert log.errors() == []


def test_old_tuned_is_told_apart(make: Any, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Base, "create_instance", lambda self, name, devices, options: None)
    with pytest.raises(NotSupported):
        plugin_class()(PATHS, {})
    assert len(log.errors()) == 1 and "2.25" in log.errors()[0]


def test_missing_library_is_reported(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rxlane.tuned_compat", None)
    monkeypatch.delattr("rxlane.tuned_compat", raising=False)
    with pytest.raises(NotSupported):
        plugin_class()(PATHS, {})
    assert "rxlane library is missing" in log.errors()[0]


def test_manual_and_hints_name_every_option(log: Log) -> None:
    found = plugin_class()
    manual = inspect.getdoc(found)
    assert manual is not None
    for name in policy.NAMES:
        assert f"[option]`{name}`" in manual
    assert set(found.get_config_options_hints()) == set(policy.NAMES)
    assert set(found._get_config_options()) == set(policy.NAMES)


def test_the_loader_finds_one_class(log: Log) -> None:
    """TuneD takes the first Plugin subclass among the module's names."""
    spec = importlib.util.spec_from_file_location("plugin_napi", PLUGIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    classes = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Base)]
    assert [c.__name__ for c in classes] == ["NapiPlugin"]
    assert os.path.basename(PLUGIN).startswith("plugin_")
