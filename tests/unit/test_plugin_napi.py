# SPDX-License-Identifier: GPL-2.0-or-later
"""The TuneD plugins against a stand-in of TuneD's base class; real TuneD runs in the guest tests.

The stand-in repeats the order of calls of TuneD 2.25.1's unit manager and plugin base: all
instances are created and given devices before the first is applied.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rxlane import policy
from rxlane.keeping.watch import Kept
from rxlane.tuned import tuned_compat, tuned_facet
from rxlane.tuned.tuned_keep import Keeper
from rxlane.tuned.variables import FUNCTION, Variables
from unit import simhost
from unit.simhost import SimHost

PLUGINS = Path(__file__).resolve().parents[2] / "plugins" / "tuned"
CLASSES = {
    "napi": "NapiPlugin",
    "irq_layout": "IrqLayoutPlugin",
    "flow_steering": "FlowSteeringPlugin",
}


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda text: self.lines.append((level, text))

    def errors(self) -> list[str]:
        return [text for level, text in self.lines if level == "error"]


class NotSupported(Exception):
    pass


class Function:
    """What the function uses of tuned.profiles.functions.base.Function."""

    def __init__(self, name: str, most: int, least: int) -> None:
        self.name, self.most, self.least = name, most, least

    def execute(self, args: list[str]) -> bool:
        return self.least <= len(args) <= self.most


class Base:
    """What the adapter uses of tuned.plugins.hotplug.Plugin."""

    def __init__(self, names: dict[str, str], variables: dict[str, str]) -> None:
        found = {n: SimpleNamespace(sys_name=n, device_path=p) for n, p in names.items()}
        self._hardware_inventory = SimpleNamespace(
            get_devices=lambda _: list(found.values()),
            get_device=lambda _, name: found.get(name),
            subscribe=lambda *_: None,
            unsubscribe=lambda *_: None,
        )
        self._variables = SimpleNamespace(
            expand=lambda v: variables.get(v, v), expand_static=lambda v: variables.get(v, v)
        )
        self._instances: dict[str, Any] = {}
        self.heard: list[tuple[str, str]] = []

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
        self.heard.append((event, device.sys_name))


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
        "tuned.profiles": {},
        "tuned.profiles.functions": {},
        "tuned.profiles.functions.base": {"Function": Function},
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


def load(kind: str, what: str = "plugin") -> ModuleType:
    name = f"{what}_{kind}"
    spec = importlib.util.spec_from_file_location(name, PLUGINS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plugin_class(kind: str = "napi") -> Any:
    return getattr(load(kind), CLASSES[kind])


class _NoKeeper(Keeper):
    """test_tuned_keep.py is about the thread; here nothing happens behind the test's back."""

    def hold(self, rows: Iterable[tuned_compat.Row], kept: Kept | None = None) -> None:
        pass


@pytest.fixture
def make(log: Log, host: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def joint() -> tuned_facet.Joint:
        def adapter() -> tuned_compat.Adapter:
            return tuned_compat.Adapter(tmp_path / "state", lambda: host)

        return tuned_facet.Joint(adapter, _NoKeeper)

    def build(sections: dict[str, dict[str, str]], **variables: str) -> Manager:
        """A new process of TuneD with one plugin; `also` builds another in the same process."""
        monkeypatch.setattr(tuned_facet, "_joint", joint())
        return also("napi", sections, **variables)

    def also(kind: str, sections: dict[str, dict[str, str]], **variables: str) -> Manager:
        expanded = {f"${{{name}}}": value for name, value in variables.items()}
        return Manager(plugin_class(kind)(PATHS, expanded), sections)

    vars(build)["also"] = also
    yield build


def test_the_function(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """TuneD finds it by its file's name; what fails is told once and leaves the call as it is."""
    files = {"/etc/tuned/p-variables.conf": "a=1:2\n", "/etc/tuned/q-variables.conf": "=5\n"}
    monkeypatch.setattr(tuned_facet, "VARIABLES", Variables(files.get))
    function = load("rxlane_variable", "function").RxlaneVariable()
    assert function.name == FUNCTION
    assert function.execute(["p", "a", "x"]) == "1:2" and function.execute(["p", "b", ""]) == ""
    assert function.execute(["p", "a"]) is None and log.errors() == []
    assert function.execute(["q", "a", "x"]) is None and function.execute(["q", "b", ""]) is None
    assert len(log.errors()) == 1 and "/etc/tuned/q-variables.conf" in log.errors()[0]


def test_the_function_on_a_tuned_that_names_it_by_its_file(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 2.28 has it."""

    class Later(Function):
        def __init__(self, most: int, least: int) -> None:
            super().__init__(FUNCTION, most, least)

    monkeypatch.setattr(sys.modules["tuned.profiles.functions.base"], "Function", Later)
    monkeypatch.setattr(tuned_facet, "VARIABLES", Variables(lambda _path: None))
    function = load("rxlane_variable", "function").RxlaneVariable()
    assert function.execute(["p", "b", "x"]) == "x" and function.execute(["p", "b"]) is None


def test_a_value_may_name_another_profiles_variable(
    make: Any, host: SimHost, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_facet, "VARIABLES", Variables(lambda _path: None))
    assert tuned_facet.VARIABLES.value("p", "mode", "${theirs}") == "${theirs}"
    manager = make({"napi": {"threaded": "${mode}"}}, mode="${theirs}", theirs="on")
    manager.start()
    assert log.errors() == [] and {n.threaded for n in host.links["eth0"].napis} == {1}
    said = [text for level, text in log.lines if level == "warning"]
    assert any("/etc/tuned/p-variables.conf is not there" in text for text in said)


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


def test_renamed_device_keeps_no_old_name(
    make: Any, host: SimHost, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """udev tells the new name only; a plan that still named the old one would fail."""
    manager = make({"napi": {"threaded": "on"}})
    manager.start()
    plugin, instance = manager.plugin, manager.plugin._instances["napi"]
    host.rename("eth1", "lan1")
    names = [SimpleNamespace(sys_name=n, device_path="/devices/pci0/x") for n in ("eth0", "lan1")]
    monkeypatch.setattr(plugin._hardware_inventory, "get_devices", lambda _: names)

    def add(name: str) -> None:
        assert instance.processed_devices == {"eth0"}
        plugin._added_device_apply_tuning(instance, name)
        instance.processed_devices.add(name)

    monkeypatch.setattr(plugin, "_add_device", add, raising=False)
    plugin._move_device("lan1")
    assert log.errors() == [] and instance.processed_devices == {"eth0", "lan1"}
    # A veth may get the old name, and is no hardware for it.
    assert plugin._get_matching_devices(instance, {"eth0", "eth1"}) == {"eth0"}


def test_a_device_renamed_out_of_its_section_stays_in_it(
    make: Any, host: SimHost, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout follows it by its index, and so must what is compared and what comes back."""
    before = simhost.settings(host)
    manager = make({"napi": {"devices": "eth1", "threaded": "on"}})
    manager.start()
    plugin = manager.plugin
    host.rename("eth1", "lan1")
    names = [SimpleNamespace(sys_name=n, device_path="/devices/pci0/x") for n in ("eth0", "lan1")]
    monkeypatch.setattr(plugin._hardware_inventory, "get_devices", lambda _: names)
    monkeypatch.setattr(plugin, "_add_device", plugin._free_devices.add, raising=False)
    plugin._move_device("lan1")
    assert manager.verify()
    host.write_napi(9000, {"threaded": "off"})
    assert not manager.verify() and "lan1/rx0/threaded is off" in log.errors()[0]
    host.write_napi(9000, {"threaded": "on"})
    manager.stop()
    host.rename("lan1", "eth1")
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
    # As after the last of an instance's devices: TuneD would not compare the next one.
    instance.active = False
    plugin._added_device_apply_tuning(instance, "eth1")
    assert instance.active
    plugin._removed_device_unapply_tuning(instance, "eth1")
    assert host.links["eth1"].napis[0].threaded == 0
    assert host.links["eth0"].napis[0].threaded == 1
    assert log.errors() == []


def test_events_from_before_the_devices_were_listed(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the list; but what is gone by now may have been in it for a moment."""
    monkeypatch.setattr(tuned_compat, "events_so_far", lambda: 20)
    plugin = make({"napi": {"threaded": "on"}}).plugin
    told = [("remove", "eth1"), ("add", "eth1"), ("move", "lan1"), ("remove", "eth7")]
    for number in (20, 21):
        for event, name in told:
            device = SimpleNamespace(sys_name=name, device_path="/x", sequence_number=number)
            plugin._hardware_events_callback(event, device)
    assert plugin.heard == [("remove", "eth7"), *told]


def test_old_tuned_is_told_apart(make: Any, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Base, "create_instance", lambda self, name, devices, options: None)
    with pytest.raises(NotSupported):
        plugin_class()(PATHS, {})
    assert len(log.errors()) == 1 and "2.25" in log.errors()[0]


@pytest.mark.parametrize("kind", CLASSES)
def test_missing_library_is_reported(log: Log, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(sys.modules, "rxlane.tuned.tuned_facet", None)
    with pytest.raises(ImportError):
        plugin_class(kind)
    assert f"plugin {kind}: the rxlane library is missing" in log.errors()[0]


@pytest.mark.parametrize("kind", CLASSES)
def test_manual_and_hints_name_every_option(log: Log, kind: str) -> None:
    found = plugin_class(kind)
    manual = inspect.getdoc(found)
    assert manual is not None and found.KIND == kind
    names = policy.names(kind)
    for name in names:
        assert f"[option]`{name}`" in manual
    assert set(found.get_config_options_hints()) == set(names)
    assert set(found._get_config_options()) == set(names)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_loader_finds_one_class(log: Log, kind: str) -> None:
    """TuneD takes the first Plugin subclass among the module's names."""
    classes = [v for v in vars(load(kind)).values() if isinstance(v, type) and issubclass(v, Base)]
    assert [c.__name__ for c in classes] == [CLASSES[kind]]


LAID_OUT = {"irq_cpus": "auto"}
STEERED = {"rps": "auto", "netdev_max_backlog": "2000"}


def test_three_plugins_make_one_plan(make: Any, host: SimHost, log: Log) -> None:
    """The first instance to be applied brings the plan of all, in the one order."""
    host.__init__(simhost.whole(host.observe()))  # type: ignore[misc]
    before = simhost.settings(host)
    managers = [make({"napi": {"threaded": "on", "thread_cpus": "auto"}})]
    managers.append(make.also("flow_steering", {"flow_steering": STEERED}))
    managers.append(make.also("irq_layout", {"irq_layout": LAID_OUT}))
    for manager in managers:
        manager.start()
    kinds = list(dict.fromkeys(line.split()[0] for line in host.log))
    assert kinds == ["irq", "napi", "thread", "queue", "sysctl"]
    assert len([text for _, text in log.lines if "settings written" in text]) == 1
    assert host.irqs[40].cpus == host.threads[host.links["eth0"].napis[0].pid or 0].cpus
    assert all([manager.verify() for manager in managers]) and log.errors() == []
    host.write_sysctl("net.core.netdev_max_backlog", 5)
    assert [manager.verify() for manager in managers] == [True, False, True]
    managers[1].stop()
    assert host.sysctls["net.core.netdev_max_backlog"] == 1000
    assert host.links["eth0"].napis[0].threaded == 1 and host.irqs[40].cpus == (1,)
    managers[2].stop()
    managers[0].stop()
    assert simhost.settings(host) == before


def test_a_bad_section_of_one_plugin_stops_all(make: Any, host: SimHost, log: Log) -> None:
    managers = [make({"napi": {"threaded": "on"}})]
    managers.append(make.also("irq_layout", {"irqs": {"irq_cpus": "99"}}))
    for manager in managers:
        manager.start()
    assert host.writes == 0 and len(log.errors()) == 1 and "[irqs] irq_cpus=99" in log.errors()[0]
    assert not any(manager.verify() for manager in managers)


def test_an_unmovable_interrupt_is_no_failure(make: Any, host: SimHost, log: Log) -> None:
    host.__init__(simhost.whole(host.observe()))  # type: ignore[misc]
    host.managed = {41}
    make({})
    manager = make.also("irq_layout", {"irqs": {"devices": "eth0", **LAID_OUT}})
    manager.start()
    assert [text for level, text in log.lines if level == "warning"] == [
        "irqs: eth0 queue 1: irq-cpus unmovable: IRQ 41 is managed"
    ]
    assert manager.verify() and log.errors() == []
