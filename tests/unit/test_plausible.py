# SPDX-License-Identifier: GPL-2.0-or-later
"""A recorded host that cannot be is one clear error when it is read, whatever it was read for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import codec
from rxlane.cli import main
from rxlane.command import request
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.host import plausible
from rxlane.model import Snapshot
from rxlane.showing import mapjson, svg, table
from unit import goldens
from unit.asking import asked

HOSTS = ("recorded-4cpu-6.12-laid-out", "synthetic-8cpu-router-rx-threads")
TEXTS = {name: (goldens.HOSTS / name / "snapshot.json").read_text() for name in HOSTS}


def put(name: str, path: str, value: object) -> str:
    """Return the host's file with another value at the path."""
    data = json.loads(TEXTS[name])
    place: Any = data
    *parents, last = path.split(".")
    for step in parents:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("topology.cpus", [], "topology.cpus: no CPU is online"),
        ("topology.cpus.1.number", 0, "topology.cpus: the same number twice"),
        ("topology.cpus.1.number", -1, "topology.cpus: -1 is not from 0 to 65535"),
        ("topology.isolated", [2**40], "topology.isolated: 1099511627776 is not"),
        ("threads.0.allowed", [-1], "threads[0].allowed: -1 is not"),
        ("irqs.0.threaded", 5, "irqs[0].threaded: 5 is neither 0 nor 1"),
        ("irqs.0.cpus", [-3], "irqs[0].cpus: -3 is not"),
        ("links.0.name", "", "links[0].name: empty"),
        ("links.1.name", "lo", "links: the same name twice"),
        ("links.0.driver", "\ud800", "links[0]: text that is not Unicode"),
        ("links.0.driver", "\x1b[2J", "links[0]: text with control characters"),
        ("irq_threads", [{"irq": 4, "cpus": [0], "sched": "deadline"}], "irq_threads[0].sched: no"),
        ("irq_threads", [{"irq": 4, "cpus": [0], "sched": "fifo:x"}], "irq_threads[0].sched: no"),
        ("irq_threads", [{"irq": 4, "cpus": [0], "sched": ":5"}], "irq_threads[0].sched: no"),
        ("threads.0.policy", "fifo:", "threads[0].policy: no scheduling class"),
        ("threads.0.policy", "", "threads[0].policy: no scheduling class"),
        ("threads.0.policy", "fifo\n", "threads[0].policy: no scheduling class"),
        ("links.0.ifindex", 0, "links[0].ifindex: 0 is no index of a device"),
        ("links.0.rx_threads", 10**30, "links[0].rx_threads: 1" + "0" * 30 + " is no count"),
        ("links.0.tunables", [{"item": "adaptive-rx", "value": 0, "top": 1}], "links[0].tunables"),
        ("links.0.tunables", [{"item": "channels-rx", "value": 2**20}], "links[0].tunables[0]: 1"),
        ("links.0.queues.0.kind", "up", "links[0].queues[0].kind: neither rx nor tx"),
        ("links.0.queues.0.index", -1, "links[0].queues[0].index: -1 is no queue"),
    ],
)
def test_what_no_host_has(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: str,
    value: object,
    text: str,
) -> None:
    file = tmp_path / "host.json"
    file.write_text(put(HOSTS[0], path, value))
    for verb in (["plan", "-o", "threaded=on", "-o", "thread_cpus=auto"], ["map"]):
        assert main([*verb, "--snapshot", str(file)]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"rxlane: {file}: {text}") and line.count("\n") == 1


@pytest.mark.parametrize("name", goldens.names())
def test_fixture_hosts_are_plausible(name: str) -> None:
    plausible.check(goldens.host(name), name)


def paths(data: object, own: str = "") -> list[str]:
    """Return the places of a file, of each list its first three."""
    rows: list[tuple[object, object]] = []
    if isinstance(data, dict):
        rows = list(data.items())
    elif isinstance(data, list):
        rows = list(enumerate(data[:3]))
    found = [own] if own else []
    for key, value in rows:
        found += paths(value, f"{own}.{key}" if own else str(key))
    return found


PLACES = [(name, path) for name, text in TEXTS.items() for path in paths(json.loads(text))]
ODD = st.sampled_from([-(2**40), -1, 0, 1, 2, 3, 5, 64, 2**31, 2**70, "", "rx", "\ud800", "\n"])
POLICIES = (
    asked(threaded="on", thread_cpus="auto", irq_cpus="auto", rps="auto", workqueue_cpus="auto"),
    asked(threaded="busy-poll@1-", thread_cpus="one-per-core", rfs="auto", xps="rxqs"),
    asked(rx_threads="auto", rx_thread_cpus="auto", vhost_cpus="auto", channels="max"),
)


@given(st.sampled_from(PLACES), st.one_of(ODD, st.lists(ODD, max_size=2), st.booleans()))
def test_any_value_anywhere_is_taken_or_refused(place: tuple[str, str], value: object) -> None:
    try:
        snapshot = codec.loads(Snapshot, put(*place, value), "x")
        plausible.check(snapshot, "x")
    except RxlaneError as error:
        assert error.kind is Kind.FORMAT and "\n" not in str(error)
        return
    svg.render(snapshot, snapshot.links).encode()
    table.map_text(snapshot, snapshot.links, table.Style(False, False)).encode()
    mapjson.map_json(snapshot, snapshot.links)
    for policy in POLICIES:
        try:
            decide(snapshot, policy)
        except RxlaneError as error:
            assert "\n" not in str(error)


def test_a_name_that_is_not_utf_8() -> None:
    """The interpreter hands over what is no UTF-8 as halves of surrogate pairs."""
    with pytest.raises(RxlaneError) as caught:
        request.resolve(["\udcff"], goldens.host(HOSTS[0]))
    assert caught.value.kind is Kind.NO_DEVICE and "\n" not in str(caught.value)
