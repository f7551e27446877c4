# SPDX-License-Identifier: GPL-2.0-or-later
"""The profile net-low-latency: whole without its variables file, and each line explained."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from rxlane.decide import decide
from rxlane.model import Capabilities
from rxlane.policy import NAPI, names, parse_section
from rxlane.sections import Policy, Section
from unit import simhost

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


def section(values: dict[str, str]) -> Section:
    options = {}
    for name, value in profile().items("napi", raw=True):
        options[name] = re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], value)
    return parse_section("napi", [], options)


def defaults() -> dict[str, str]:
    found = dict(profile().items("variables", raw=True))
    assert found.pop("include") == "/etc/tuned/net-low-latency-variables.conf"
    return found


def test_variables_file_repeats_the_defaults() -> None:
    assert variables() == defaults()


def test_every_option_of_the_profile_is_known_and_set() -> None:
    given = set(dict(profile().items("napi", raw=True)))
    assert given <= set(names(NAPI))
    assert set(names(NAPI)) - given == {"allow_realtime_cpu0", "thread_spread"}
    assert section(defaults()).management_queues == 1


def test_no_parent() -> None:
    """What the profile switches on must be what it switches off; see the comment in the file."""
    assert "include" not in profile()["main"]
    assert profile().sections() == ["main", "variables", "napi"]


@pytest.mark.parametrize("cpus", [1, 2, 8])
@pytest.mark.parametrize(
    "kernel", [simhost.STOCK, simhost.TIMERS_ONLY, simhost.THREADED, simhost.BUSY_POLL]
)
def test_it_plans_on_any_host(cpus: int, kernel: Capabilities) -> None:
    one = simhost.link("eth1", 1, ifindex=3, base=9000, kernel=kernel)
    links = (simhost.link(kernel=kernel), one)
    host = simhost.snapshot(*links, cpus=simhost.topology(cpus), capabilities=kernel)
    plan = decide(host, Policy((section(defaults()),)))
    assert plan.changes
    assert not [c for c in plan.changes if c.target.device == "eth1"], (
        "its one queue is management's"
    )


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
            "thread_policy thread_priority thread_nice defer_hard_irqs gro_flush_timeout".split()
        )
        for before, line in zip(lines, lines[1:], strict=False):
            key = line.partition("=")[0].removeprefix("rx_")
            if "=" not in line or line.startswith("#") or key not in names(NAPI):
                continue
            above = before.partition("=")[0].removeprefix("rx_")
            grouped = above in group and key in group
            in_defaults = line in _default_lines()
            assert before.startswith("#") or grouped or in_defaults, f"{name}: {line}"


def _default_lines() -> list[str]:
    text = (FOLDER / "tuned.conf").read_text()
    return text[text.index("[variables]") : text.index("[napi]")].splitlines()
