# SPDX-License-Identifier: GPL-2.0-or-later
"""rx threads on the map: for people, for programs, and what they do in a second."""

from __future__ import annotations

import json
from dataclasses import replace

from rxlane.model import Handled
from rxlane.samples import Sample
from rxlane.showing import mapjson, rates, table
from rxlane.showing.svg import render
from unit import simhost
from unit.separated import host


def test_the_map() -> None:
    start = host(2)
    own = replace(start.links[0].helpers[1], reserved=None)
    link = replace(start.links[0], helpers=(start.links[0].helpers[0], own))
    text = table.map_text(replace(start, links=(link,)), [link])
    at = text.index("  thread PID")
    assert text[at:].splitlines()[:3] == [
        "  thread PID CPU policy flows backlog dropped packets",
        "  rx0    200 0*  other     25       3       0       0",
        "  rx1    201 1   other     25       3       7   1,000",
    ]
    down = replace(link, up=False)
    assert "rx1    201" in table.map_text(replace(start, links=(down,)), [down])
    assert "thread PID" not in table.map_text(host(), host().links)
    assert "2 rx threads on CPU 0-1" in render(replace(start, links=(link,)), [link])


def test_the_map_for_programs() -> None:
    start = host(2)
    (device,) = json.loads(mapjson.map_json(start, start.links))["devices"]
    assert device["rx-threads"]["count"] == 2
    assert device["rx-threads"]["threads"][1] == {
        "number": 1,
        "reserved-cpu": 1,
        "pid": 201,
        "packets": 1000,
        "batches": 100,
        "wakeups": 90,
        "dropped": 7,
        "backlog": 3,
        "backlog-bytes": 4608,
        "flows": 25,
        "thread": {"name": "rx1/eth0", "policy": "other", "priority": 0, "nice": 0, "cpus": [1]},
    }
    old = simhost.snapshot()
    assert "rx-threads" not in json.loads(mapjson.map_json(old, old.links))["devices"][0]


def test_the_map_of_a_second() -> None:
    start = host(2)
    link = start.links[0]
    first, last = (
        Sample(
            at,
            {},
            {},
            {201: at / 2},
            {(start.links[0].ifindex, 1): Handled(packets, 0, 0, drops, 5)},
        )
        for at, packets, drops in ((1.0, 100, 1), (3.0, 4100, 21))
    )
    text = rates.screen(start, [link], first, last).splitlines()
    assert text[-3:] == [
        "  thread PID CPU policy flows backlog dropped/s packets/s",
        "  rx0    200 0*  other      -       -         -         -",
        "  rx1    201 1*  other      -       5        10     2,000",
    ]
    plain = rates.plain(start, [link], first, last)["rx-threads"][1]
    assert plain == {
        "device": "eth0", "thread": 1, "packets-per-second": 2000.0,
        "dropped-per-second": 10.0, "backlog": 5, "cpu": 0.5,
    }  # fmt: skip
    assert "rx-threads" not in rates.plain(host(), host().links, first, last)
