# SPDX-License-Identifier: GPL-2.0-or-later
"""The picture: well formed, whole, inside its frame, on every fixture host laid out."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from rxlane import policy
from rxlane.apply import apply
from rxlane.model import Snapshot
from rxlane.showing import marks, picture, svg
from unit import synthetic
from unit.anyhost import hosts
from unit.goldens import HOSTS, load, names
from unit.simhost import MemoryStore, SimHost

NS = "{http://www.w3.org/2000/svg}"


def laid_out(name: str) -> Snapshot:
    """The fixture host after its own plan, interrupts where they were put."""
    snapshot, _ = load(name)
    sim = SimHost(snapshot)
    wanted = policy.from_plain(json.loads((HOSTS / name / "policy.json").read_text()))
    apply(sim, MemoryStore(), wanted)
    after = sim.observe()
    return replace(after, irqs=tuple(replace(i, effective=i.cpus[:1]) for i in after.irqs))


def check(snapshot: Snapshot) -> ElementTree.Element:
    """The picture's root, once everything in it lies inside its frame."""
    root = ElementTree.fromstring(svg.render(snapshot, snapshot.links))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter(f"{NS}rect"):
        x, y = float(box.attrib["x"]), float(box.attrib["y"])
        assert 0 <= x and x + float(box.attrib["width"]) <= width
        assert 0 <= y and y + float(box.attrib["height"]) <= height
    for text in root.iter(f"{NS}text"):
        assert 0 <= float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) <= height
    return root


@pytest.mark.parametrize("name", names())
def test_every_lane_is_drawn(name: str) -> None:
    host = laid_out(name)
    root = check(host)
    shown = picture.layout(host, host.links)
    rows = [row for band in shown.bands for card in band.cards for row in card.rows]
    lanes = [place for place in shown_places(host) if place.lane.napi]
    assert len(rows) == len(lanes)
    drawn = [path.find(f"{NS}title") for path in root.iter(f"{NS}path")]
    titles = {title.text for title in drawn if title is not None}
    assert titles == {strand.title for strand in shown.strands}
    # A lane whose polling CPU is known has a strand to it.
    with_cpu = {place.name for place in lanes if place.threaded or place.irq_cpus}
    assert {title.partition(":")[0] for title in titles if title} == with_cpu


def shown_places(host: Snapshot) -> list[marks.Place]:
    up = {link.name for link in host.links if link.up}
    return [place for place in marks.places(host) if place.link.name in up]


def test_cores_are_told_by_their_siblings() -> None:
    """Clusters count theirs from 0 again; of an offline CPU the kernel tells no core at all."""
    start = synthetic.snapshot(
        {"cpus": [{"count": 8, "node": 0, "package": 0}], "links": [{"name": "eth0", "rx": 1}]}
    )
    cpus = tuple(
        replace(cpu, core=cpu.number % 4, online=cpu.number < 6) for cpu in start.topology.cpus
    )
    host = replace(start, topology=replace(start.topology, cpus=cpus))
    check(host)
    rows = [row.cpus for band in picture.layout(host, host.links).bands for row in band.rows]
    assert [[cpu.number for cpu in row] for row in rows] == [[n] for n in range(8)]


@pytest.mark.parametrize("name", names())
def test_cards_and_cores_do_not_overlap(name: str) -> None:
    host = laid_out(name)
    shown = picture.layout(host, host.links)
    bottom = 0.0
    for band in shown.bands:
        assert band.y >= bottom
        bottom = band.y + band.height
        for rows in (band.cards, band.rows):
            below = band.y
            for row in rows:
                assert below <= row.y and row.y + row.height <= bottom
                below = row.y + row.height


@settings(max_examples=60, deadline=None)
@given(hosts())
def test_any_host_can_be_drawn(host: Snapshot) -> None:
    check(host)


def test_names_are_text_and_nothing_else() -> None:
    row = {"name": "a<b&c", "driver": '"><script>', "node": 0}
    text = svg.render(one := synthetic.snapshot({"cpus": [{}], "links": [row]}), one.links)
    assert "<script" not in text and "a&lt;b&amp;c" in text


def test_unused_nodes_and_cores_are_folded() -> None:
    cpus = [{"count": 64, "node": node} for node in range(4)]
    row = {"rx": 2, "node": 3, "irq_cpus": "each"}
    host = synthetic.snapshot({"cpus": cpus, "isolated": "250-255", "links": [row]})
    shown = picture.layout(host, host.links)
    assert [band.node for band in shown.bands if not band.rows] == [0, 1, 2]
    rows = [row.folded or row.cpus[0].number for row in shown.bands[3].rows]
    assert rows == [192, 193, "194-249", "250-255"] and shown.height < 500


def test_what_is_in_the_way_is_marked() -> None:
    cpus = [{"count": 4, "smt": 2, "node": 0}, {"count": 4, "smt": 2, "node": 1}]
    link = {"name": "eth0", "rx": 2, "node": 1, "mode": "busy-poll", "thread_cpus": "each"}
    host = synthetic.snapshot({"cpus": cpus, "links": [link]})
    shown = picture.layout(host, host.links)
    assert shown.marked == {0, 1} and shown.polled == {0: "busy-poll", 1: "busy-poll"}
    assert {s.mode: s.crosses for s in shown.strands} == {"irq": False, "busy-poll": True}
    text = svg.render(host, host.links)
    assert "Worth a look" in text and "shares a core" in text and "crosses NUMA nodes" in text


def test_napis_of_no_rx_queue_are_told() -> None:
    host, _ = load("synthetic-4cpu-no-links")
    assert "2 NAPIs of no RX queue" in svg.render(host, host.links)


def test_a_device_without_a_carrier_says_so() -> None:
    host = synthetic.snapshot({"cpus": [{"count": 4}], "links": [{}, {}]})
    one, other = host.links
    text = svg.render(host, (replace(one, carrier=False), other))
    assert text.count("no carrier") == 1


def test_long_lists_stay_in_the_picture() -> None:
    host = synthetic.snapshot({"cpus": [{"count": 64}], "links": [{"irq_cpus": "each"}]})
    even = tuple(range(2, 64, 2))
    apart = replace(host.topology, isolated=even, nohz_full=even, partitioned=even)
    root = check(replace(host, topology=apart))
    texts = [text for text in root.iter(f"{NS}text") if text.attrib["font-size"] == "12.5"]
    summary, lists = [text.text or "" for text in texts]
    assert summary == "64 CPUs online on 1 NUMA node \u00b7 1 lane: 1 softirq"
    assert all(kind in lists for kind in ("isolated 2,4", "nohz_full 2,4", "partitioned 2,4"))
    room = picture.WIDTH - 2 * picture.MARGIN
    assert max(len(summary), len(lists)) * 12.5 * svg.CHAR <= room


def test_a_mode_that_nobody_knows_is_not_called_softirq() -> None:
    host = synthetic.snapshot({"cpus": [{}], "links": [{"irq_cpus": "each"}]})
    (link,) = host.links
    napis = tuple(replace(napi, threaded=None) for napi in link.napis)
    host = replace(host, links=(replace(link, napis=napis, threaded=None),))
    text = svg.render(host, host.links)
    assert "softirq" not in text and "1 lane: 1 unknown" in text and "polled: unknown" in text


def test_the_legend_explains_only_what_is_there() -> None:
    host = synthetic.snapshot({"cpus": [{"count": 2}], "links": [{"irq_cpus": "each"}]})
    text = svg.render(host, host.links)
    assert "polled: softirq" in text
    for absent in ("busy-poll", "crosses", "isolated", "offline", "Worth a look"):
        assert absent not in text
