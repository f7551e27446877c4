# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.tuned import tuned_compat
from rxlane.tuned.tuned_compat import Adapter, Row
from unit import simhost
from unit.simhost import SimHost


def row(devices: str = "eth0", name: str = "napi", **options: str | None) -> Row:
    return Row(name, frozenset(devices.split()), tuple(options.items()))


@pytest.mark.parametrize(
    ("path", "hardware"),
    [
        ("/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0", True),
        ("/devices/pci0000:00/0000:00:05.0/net/eth1", True),
        ("/devices/virtual/net/veth0", False),
        ("/devices/netdevsim1/net/eni1np1", False),
    ],
)
def test_hardware(path: str, hardware: bool) -> None:
    assert tuned_compat.is_hardware(path) == hardware


def test_old_tuned_gets_one_line() -> None:
    def old(self: object, name: str, devices_expression: str) -> None: ...

    def new(self: object, name: str, priority: int, devices_expression: str) -> None: ...

    assert tuned_compat.unsupported(new) is None
    assert "2.25" in str(tuned_compat.unsupported(old))


def adapter(tmp_path: Path, host: SimHost) -> Adapter:
    return Adapter(tmp_path / "state", lambda: host)


def test_sections_make_one_plan(tmp_path: Path) -> None:
    two = simhost.link("eth1", 2, ifindex=3, base=9000)
    host = SimHost(simhost.snapshot(simhost.link(), two))
    before = simhost.settings(host)
    work = adapter(tmp_path, host)
    rows = [row(threaded="on", thread_cpus='"auto"'), row("eth1", "other", threaded="busy-poll")]
    assert work.apply(rows).ok
    report = work.verify(rows, {"eth0"})
    assert report.ok and not [text for _, text in report.lines if "eth1/" in text]
    assert work.rollback().ok and simhost.settings(host) == before


def test_a_bad_section_stops_all_of_them(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    report = adapter(tmp_path, host).apply([row(threaded="on"), row("eth9", "b", threaded="om")])
    assert not report.ok and host.writes == 0
    assert [level for level, _ in report.lines] == ["error"]
    assert report.lines[0][1].startswith("[b] threaded=om: ")


def test_unsupported_is_a_warning_not_a_failure(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot(capabilities=simhost.STOCK))
    work = adapter(tmp_path, host)
    rows = [row(threaded="busy-poll", defer_hard_irqs="5", management_queues=None)]
    report = work.apply(rows)
    assert report.ok
    assert [line for level, line in report.lines if level == "warning" and "NAPI_SET" in line]
    assert work.verify(rows, {"eth0"}).ok


def test_drift_fails_verify_with_one_line_each(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    work = adapter(tmp_path, host)
    work.apply([row(threaded="on")])
    host.write_napi(8195, {"threaded": "off"})
    report = work.verify([row(threaded="on")], {"eth0"})
    errors = [text for level, text in report.lines if level == "error"]
    assert not report.ok and len(errors) == 1
    assert "eth0/rx2/threaded is off, expected on" in errors[0]


def test_what_a_login_kept_back_has_not_drifted_once_that_ends(tmp_path: Path) -> None:
    link = replace(simhost.tuned(simhost.link()), driver="ixgbe")
    host = SimHost(simhost.snapshot(link))
    host.sessions = ("eth0",)
    work, rows = adapter(tmp_path, host), [row(threaded="on", rx_usecs="0")]
    assert work.apply(rows).ok
    for host.sessions in (("eth0",), ()):
        report = work.verify(rows, {"eth0"})
        told = [text for _, text in report.lines if "rx-usecs" in text]
        assert report.ok and len(told) == 1
        assert told[0].startswith("verify: not compared: eth0: ") and "logged in" in told[0]
    assert work.apply(rows).ok and work.verify(rows, {"eth0"}).ok
    host.write_tunables(host.links["eth0"], {"rx-usecs": 3})
    assert not work.verify(rows, {"eth0"}).ok, "what was written since then has drifted"


def test_channels_that_a_login_kept_back_have_not_drifted_either(tmp_path: Path) -> None:
    """Nor have the queues that would come with them, which the policy asks for as well."""
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    work, rows = adapter(tmp_path, host), [row(threaded="on", rx_usecs="9")]
    assert work.apply([row(channels="1", threaded="on")]).ok
    host.sessions = ("eth0",)
    assert work.apply(rows).ok and host.links["eth0"].count("rx") == 1
    for host.sessions in (("eth0",), ()):
        assert work.verify(rows, {"eth0"}).ok
    assert work.apply(rows).ok and host.links["eth0"].count("rx") == 4
    assert work.verify(rows, {"eth0"}).ok


def test_verify_plans_for_the_queues_of_a_driver_that_refused_channels(tmp_path: Path) -> None:
    """Two queues would send from other CPUs than the four that there are."""
    host = SimHost(simhost.whole(simhost.snapshot(simhost.tuned(simhost.link()))))
    host.lacking = {"channels-combined"}
    steering = Row("steering", frozenset({"eth0"}), (("xps", "auto"),), "flow_steering")
    work, rows = adapter(tmp_path, host), [row(channels="2", threaded="on"), steering]
    for _ in range(2):
        assert work.apply(rows).ok
        report = work.verify(rows, {"eth0"})
        assert report.ok, report.lines
    host.write_napi(8195, {"threaded": "off"})
    assert not work.verify(rows, {"eth0"}).ok, "a queue that would have gone"


def test_verify_of_kernel_workers_starts_from_the_original(tmp_path: Path) -> None:
    host = SimHost(simhost.whole(simhost.snapshot()))
    work = adapter(tmp_path, host)
    rows = [
        row(threaded="busy-poll@3", thread_cpus="3"),
        Row("irq_layout", frozenset({"eth0"}), (("workqueue_cpus", "auto"),), "irq_layout"),
    ]
    assert work.apply(rows).ok and work.verify(rows, {"eth0"}).ok
    host.workqueue_cpus = (0, 1)
    report = work.verify(rows, {"eth0"})
    (error,) = [text for level, text in report.lines if level == "error"]
    assert not report.ok and "workqueue-cpus is 0-1, expected 0-2,4-7" in error
    host.boot = "boot-2"
    assert work.verify(rows, {"eth0"}).ok, "the original is of the boot before"


def test_originals_of_a_killed_tuned_come_back(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    before = simhost.settings(host)
    adapter(tmp_path, host).apply([row(threaded="on", thread_nice="5")])
    again = adapter(tmp_path, host)  # the journal is all that the new process knows
    assert again.apply([row(threaded="busy-poll@3")]).ok
    assert again.rollback().ok and simhost.settings(host) == before


def test_device_that_is_down_at_rollback_is_a_warning(tmp_path: Path) -> None:
    host = SimHost(simhost.snapshot())
    work = adapter(tmp_path, host)
    work.apply([row(threaded="on")])
    host.set_down("eth0")
    report = work.rollback()
    assert not report.ok and "interface is down" in report.lines[0][1]


@pytest.mark.parametrize("kind", [None, "napi"])
def test_originals_of_a_device_that_is_away_wait(tmp_path: Path, kind: str | None) -> None:
    """Switched off, and on again, while the device is in another network namespace."""
    two = simhost.link("eth1", ifindex=3, base=9000)
    host = SimHost(simhost.snapshot(simhost.link(), two))
    before = simhost.settings(host)
    work = adapter(tmp_path, host)
    assert work.apply([row(threaded="on")]).ok
    away = host.links.pop("eth0")
    report = work.rollback(kind=kind)
    assert report.ok and ("info", "eth0 is not here, its originals are kept") in report.lines
    host.links["eth0"] = away
    assert work.apply([row(threaded="on")]).ok and work.rollback().ok
    assert simhost.settings(host) == before and work.store.load() is None
