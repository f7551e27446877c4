# SPDX-License-Identifier: GPL-2.0-or-later
"""The profiles net-forwarding and net-vm-host: whole without variables files, each line explained.

net-low-latency has a file of its own.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import pytest

from rxlane import policy
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.model import Capabilities
from rxlane.plan import Plan
from rxlane.sections import Policy
from unit import simhost
from unit.settings_table import defaults_of
from unit.taps import tap

PROFILES = Path(__file__).resolve().parents[2] / "tuned-profiles"
NAMES = ("net-forwarding", "net-vm-host")
LEFT_OUT = {  # options that a profile does not set
    "net-forwarding": {
        *("busy_read", "busy_poll", "workqueue_cpus", "timer_migration", "allow_realtime_cpu0"),
        *("smt_siblings", "vhost_cpus", "tap_rps"),
        *("rx_thread_policy", "rx_thread_priority", "rx_allow_realtime_cpu0"),
        *("threaded", "thread_cpus", "thread_spread"),
        *("thread_policy", "thread_priority", "thread_nice"),
    },
    "net-vm-host": {
        *("thread_policy", "thread_priority", "defer_hard_irqs", "gro_flush_timeout"),
        *("irq_suspend_timeout", "allow_realtime_cpu0", "rfs", "xps"),
        *("netdev_max_backlog", "busy_read", "busy_poll", "arfs"),
        *("rx_threads", "rx_thread_cpus", "rx_thread_policy", "rx_thread_priority"),
        *("rx_thread_nice", "rx_allow_realtime_cpu0"),
        *("workqueue_cpus", "timer_migration", "allow_session_reset", "smt_siblings"),
        *("channels", "ring_rx", "ring_tx", "adaptive_rx", "adaptive_tx"),
        *("rx_usecs", "tx_usecs", "rx_frames", "tx_frames"),
    },
}


def parsed(text: str) -> ConfigParser:
    """Configured as tuned.profiles.loader and tuned.profiles.variables do."""
    found = ConfigParser(delimiters=("="), inline_comment_prefixes=("#"), strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text)
    return found


def profile(name: str) -> ConfigParser:
    return parsed((PROFILES / name / "tuned.conf").read_text())


def variables_text(name: str) -> str:
    return (PROFILES / name / f"{name}-variables.conf").read_text()


def defaults(name: str) -> dict[str, str]:
    return defaults_of(name, dict(profile(name).items("variables", raw=True)))


def sections(name: str) -> dict[str, dict[str, str]]:
    found = profile(name)
    kinds = [kind for kind in found.sections() if kind not in ("main", "variables")]
    assert set(kinds) <= set(policy.KINDS)
    return {kind: dict(found.items(kind, raw=True)) for kind in kinds}


def wanted(name: str, values: dict[str, str]) -> Policy:
    return policy.parse(
        policy.Given(
            kind,
            kind,
            (),
            {o: re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], v) for o, v in options.items()},
        )
        for kind, options in sections(name).items()
    )


def after(plan: Plan) -> dict[str, object]:
    return {str(c.target): c.after for c in (*plan.changes, *plan.holds)}


def test_a_veth_without_napis_is_told_how_it_gets_some() -> None:
    veth = simhost.link("veth0", 1, ifindex=9, physical=False)
    veth = replace(veth, napis=(), driver="veth")
    rows = [policy.Given("napi", "pairs", ("veth0",), {"threaded": "on"})]
    (skip,) = decide(simhost.snapshot(veth), policy.parse(rows)).skips
    assert skip.reason.endswith("`ethtool -K veth0 gro on` gives a veth some")


@pytest.mark.parametrize("name", NAMES)
def test_variables_file_repeats_the_defaults(name: str) -> None:
    given = dict(parsed("[x]\n" + variables_text(name)).items("x", raw=True))
    assert given == defaults(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_known_and_set_or_left_out(name: str) -> None:
    for kind, options in sections(name).items():
        assert set(policy.names(kind)) - set(options) == LEFT_OUT[name] & set(policy.names(kind))
        assert set(options) <= set(policy.names(kind))


@pytest.mark.parametrize("name", NAMES)
def test_no_parent(name: str) -> None:
    assert "include" not in profile(name)["main"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cpus", [1, 2, 8])
@pytest.mark.parametrize("kernel", [simhost.STOCK, simhost.THREADED, simhost.BUSY_POLL])
def test_it_plans_on_any_host(name: str, cpus: int, kernel: Capabilities) -> None:
    one = simhost.link("eth1", 1, ifindex=3, base=9000, kernel=kernel)
    host = simhost.snapshot(
        simhost.link(kernel=kernel), one, cpus=simhost.topology(cpus), capabilities=kernel
    )
    plan = decide(simhost.whole(host), wanted(name, defaults(name)))
    assert {c.target.device for c in (*plan.changes, *plan.holds)} >= {"eth0", "eth1"}


def test_forwarding() -> None:
    """Interrupts apart, RPS where queues are few, no flow tables."""
    links = (simhost.link(node=0), simhost.link("eth1", 1, ifindex=3, base=9000, node=1))
    host = simhost.whole(simhost.snapshot(*links, cpus=simhost.topology(8, nodes=2)))
    plan = after(decide(host, wanted("net-forwarding", defaults("net-forwarding"))))
    assert {plan[f"eth0/rx{n}/irq-cpus"] for n in range(4)} == {"0", "1", "2", "3"}
    assert plan["eth1/rx0/irq-cpus"] == "4"
    assert plan["eth0/rx0/rps-cpus"] == "off" and plan["eth1/rx0/rps-cpus"] == "5-7"
    assert plan["eth0/rx3/rps-flow-cnt"] == 0 and plan["net.core.netdev_max_backlog"] == 4096
    assert "net.core.rps_sock_flow_entries" not in plan


def test_forwarding_for_services_of_the_host() -> None:
    values = defaults("net-forwarding") | {"forwarding_rfs": "auto"}
    plan = after(decide(simhost.whole(simhost.snapshot()), wanted("net-forwarding", values)))
    assert plan["net.core.rps_sock_flow_entries"] == 32768
    assert plan["eth0/rx3/rps-flow-cnt"] == 8192


def test_vm_host_with_the_cpus_of_the_comments() -> None:
    """Threads may run on all of the host's CPUs and nowhere else."""
    hinted = dict(re.findall(r"^#     (vm_\w+)=(.*)$", variables_text("net-vm-host"), re.M))
    assert hinted == {
        "vm_host_cpus": "0-3",
        "vm_host_spread": "all",
        "vm_host_irq_cpus": "0-3",
        "vm_host_rps": "off",
        "vm_host_vhost_cpus": "0-3",
        "vm_host_tap_rps": "0-3",
    }
    found = wanted("net-vm-host", defaults("net-vm-host") | hinted)
    plan = after(decide(simhost.whole(simhost.snapshot()), found))
    for queue in range(4):
        assert plan[f"eth0/rx{queue}/thread-cpus"] == "0-3"
        assert plan[f"eth0/rx{queue}/thread-sched"] == "other:0"
        assert plan[f"eth0/rx{queue}/irq-cpus"] == str(queue)


def test_vhost_threads_and_taps_go_with_the_threads() -> None:
    hinted = dict(re.findall(r"^#     (vm_\w+)=(.*)$", variables_text("net-vm-host"), re.M))
    start = simhost.whole(simhost.snapshot(simhost.link()))
    start = replace(start, links=(*start.links, tap()))
    plan = after(decide(start, wanted("net-vm-host", defaults("net-vm-host") | hinted)))
    assert plan["tap0/vhost0/vhost-cpus"] == plan["tap0/vhost1/vhost-cpus"] == "0-3"
    assert plan["tap0/rx0/rps-cpus"] == "0-3" and plan["eth0/rx0/rps-cpus"] == "off"
    bare = after(decide(start, wanted("net-vm-host", defaults("net-vm-host"))))
    assert not any(target.startswith("tap0") for target in bare)


def test_rx_threads_by_variables() -> None:
    """In place of RPS: the operator says both, for a device has one or the other."""
    given = defaults("net-forwarding") | {"forwarding_rx_threads": "auto"}
    with pytest.raises(RxlaneError, match="excludes rps=auto.*set rps=off"):
        wanted("net-forwarding", given)
    nic = simhost.separable(simhost.wired(simhost.link(queues=1)))
    start = replace(simhost.whole(simhost.snapshot(nic)), links=(nic,))
    plan = decide(start, wanted("net-forwarding", given | {"forwarding_rps": "off"}))
    found = after(plan)
    assert found["eth0/all/rx-threads"] == 7 and found["eth0/rx0/rps-cpus"] == "off"
    assert decide(start, wanted("net-forwarding", defaults("net-forwarding"))).skips == ()


def test_a_tap_is_reported_and_fails_nothing() -> None:
    tap = simhost.link("tap0", 1, ifindex=9, physical=False)
    tap = replace(tap, napis=(), queues=())
    rows = [policy.Given("napi", "taps", ("tap0",), {"threaded": "on"})]
    plan = decide(simhost.snapshot(simhost.link(), tap), policy.parse(rows))
    assert plan.changes == () and "tap0 is a virtual device without NAPI" in str(plan.skips[0])


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_comment_above_it(name: str) -> None:
    text = (PROFILES / name / "tuned.conf").read_text()
    tuning = text[text.index("\n[", text.index("[variables]")) :]
    for lines in (tuning.splitlines(), variables_text(name).splitlines()):
        for before, line in zip(["", *lines], lines, strict=False):
            if "=" in line and not line.startswith("#"):
                assert before.startswith("#"), line


@pytest.mark.parametrize("role", ["", "web-server", *NAMES, "net-low-latency"])
def test_recommended_is_what_the_administrators_file_says(role: str) -> None:
    """As tuned.utils.profile_recommender reads it: all lines of a section have to match."""
    found = ConfigParser(delimiters=("="), inline_comment_prefixes=("#"), strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string((PROFILES / "recommend.d" / "40-rxlane.conf").read_text())
    matching = []
    for name in found.sections():
        rules = dict(found.items(name, raw=True))
        assert set(rules) == {"/etc/rxlane/role"} and (PROFILES / name / "tuned.conf").exists()
        if re.match(rules["/etc/rxlane/role"], f"{role}\n", re.S):
            matching.append(name)
    assert matching == ([role] if role.startswith("net-") else [])
