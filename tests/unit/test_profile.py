# SPDX-License-Identifier: GPL-2.0-or-later
"""The profile net-low-latency: whole without its variables file, and each line explained."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from rxlane.decide import decide
from rxlane.model import Capabilities
from rxlane.policy import KINDS, Given, names, parse
from rxlane.sections import Policy, Section
from unit import simhost
from unit.settings_table import defaults_of

FOLDER = Path(__file__).resolve().parents[2] / "tuned-profiles" / "net-low-latency"


def parser() -> ConfigParser:
    """Configured as tuned.profiles.loader and tuned.profiles.variables do."""
    found = ConfigParser(delimiters=("="), inline_comment_prefixes=("#"), strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    return found


def profile() -> ConfigParser:
    found = parser()
    found.read_string((FOLDER / "tuned.conf").read_text())
    return found


def variables() -> dict[str, str]:
    found = parser()
    found.read_string("[x]\n" + (FOLDER / "net-low-latency-variables.conf").read_text())
    return dict(found.items("x", raw=True))


def wanted(values: dict[str, str]) -> Policy:
    given = []
    for kind in KINDS:
        options = {
            name: re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], value)
            for name, value in profile().items(kind, raw=True)
        }
        given.append(Given(kind, kind, (), options))
    return parse(given)


def section(values: dict[str, str]) -> Section:
    return wanted(values).sections[0]


IRQ_THREADS = (
    *("threaded", "thread_cpus", "thread_spread"),
    *("thread_policy", "thread_priority", "thread_nice", "allow_realtime_cpu0"),
)


def defaults() -> dict[str, str]:
    return defaults_of("net-low-latency", dict(profile().items("variables", raw=True)))


def test_variables_file_repeats_the_defaults() -> None:
    assert variables() == defaults()


def test_every_option_of_the_profile_is_known_and_set() -> None:
    left = set()
    for kind in KINDS:
        given = set(dict(profile().items(kind, raw=True)))
        assert given <= set(names(kind))
        left |= {f"{kind}.{name}" for name in set(names(kind)) - given}
    assert left == {
        *("napi.allow_realtime_cpu0", "napi.thread_spread"),
        # Its NAPIs' own threads poll; the interrupts' would only wake them.
        *(f"irq_layout.{name}" for name in IRQ_THREADS),
        *("flow_steering.arfs", "flow_steering.xps", "flow_steering.netdev_max_backlog"),
        *("flow_steering.vhost_cpus", "flow_steering.tap_rps"),
        *(f"flow_steering.{n}" for n in names("flow_steering") if n.startswith("rx_")),
    }
    assert section(defaults()).management_queues == 1


def test_no_parent() -> None:
    """What the profile switches on must be what it switches off; see the comment in the file."""
    assert "include" not in profile()["main"]
    assert profile().sections() == ["main", "variables", *KINDS]


@pytest.mark.parametrize("cpus", [1, 2, 8])
@pytest.mark.parametrize(
    "kernel", [simhost.STOCK, simhost.TIMERS_ONLY, simhost.THREADED, simhost.BUSY_POLL]
)
def test_it_plans_on_any_host(cpus: int, kernel: Capabilities) -> None:
    one = simhost.link("eth1", 1, ifindex=3, base=9000, kernel=kernel)
    links = (simhost.link(kernel=kernel), one)
    host = simhost.snapshot(*links, cpus=simhost.topology(cpus), capabilities=kernel)
    plan = decide(simhost.whole(host), wanted(defaults()))
    assert plan.changes
    assert not [c for c in plan.changes if c.target.device == "eth1"], (
        "its one queue is management's"
    )


def test_every_line_of_the_script() -> None:
    """Seed 003's script on its machine: one queue for polling, here beside management's."""
    values = defaults() | {
        **{"rx_channels": "2", "rx_ring": "1024", "rx_threaded": "busy-poll"},
        **{"rx_thread_policy": "fifo", "rx_thread_priority": "50", "rx_thread_nice": ""},
        "rx_thread_cpus": "2",
    }
    one = simhost.tuned(simhost.link(queues=8))
    cpus = simhost.topology(8, isolated=[2])
    start = simhost.whole(simhost.snapshot(one, cpus=cpus))
    plan = decide(start, wanted(values))
    assert {str(c.target): c.after for c in (*plan.changes, *plan.holds)} == {
        "eth0/all/channels-combined": 2,
        "eth0/all/ring-rx": 1024,
        "eth0/all/adaptive-rx": "off",
        "eth0/all/adaptive-tx": "off",
        "eth0/all/rx-usecs": 0,
        "eth0/all/tx-usecs": 0,
        "eth0/rx1/irq-cpus": "2",
        "eth0/rx1/threaded": "busy-poll",
        "eth0/rx1/defer-hard-irqs": 100,
        "eth0/rx1/gro-flush-timeout": 15000,
        "eth0/rx1/thread-cpus": "2",
        "eth0/rx1/thread-sched": "fifo:50",
        "eth0/rx1/rps-cpus": "off",
        "eth0/rx1/rps-flow-cnt": 0,
        "net.core.busy_read": 0,
        "net.core.busy_poll": 0,
        "kernel.timer_migration": 0,
        "workqueue-cpus": "0-1,3-7",
    }
    assert plan.skips and {s.kind for s in plan.skips} == {"left-alone"}


def test_the_real_time_variant_of_the_comments() -> None:
    """The lines that the variables file tells to put in are accepted together."""
    text = (FOLDER / "net-low-latency-variables.conf").read_text()
    hinted = dict(re.findall(r"^#     (rx_\w+)=(.*)$", text, re.M))
    assert hinted == {
        "rx_thread_policy": "fifo",
        "rx_thread_priority": "50",
        "rx_thread_nice": "",
    }
    found = section(defaults() | hinted)
    assert found.sched == "fifo:50"
    assert decide(simhost.snapshot(), Policy((found,))).changes


def test_every_setting_has_a_comment_above_it() -> None:
    for name in ("tuned.conf", "net-low-latency-variables.conf"):
        lines = (FOLDER / name).read_text().splitlines()
        group = (
            "thread_policy thread_priority thread_nice defer_hard_irqs gro_flush_timeout"
            " channels ring_rx ring_tx ring tx_ring adaptive adaptive_rx adaptive_tx tx_adaptive"
            " usecs rx_usecs tx_usecs frames rx_frames tx_frames rps rfs busy_read busy_poll"
        ).split()
        for before, line in zip(lines, lines[1:], strict=False):
            key = line.partition("=")[0].removeprefix("rx_")
            known = key in {n for kind in KINDS for n in names(kind)}
            if "=" not in line or line.startswith("#") or not known:
                continue
            above = before.partition("=")[0].removeprefix("rx_")
            grouped = above in group and key in group
            in_defaults = line in _default_lines()
            assert before.startswith("#") or grouped or in_defaults, f"{name}: {line}"


def _default_lines() -> list[str]:
    text = (FOLDER / "tuned.conf").read_text()
    return text[text.index("[variables]") : text.index("[napi]")].splitlines()
