# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane.command import look
from rxlane.items import ADAPTIVE_RX, CHANNELS_COMBINED, RING_RX, RING_TX, RX_USECS
from rxlane.model import Irq, Napi, Thread, Tunable
from rxlane.plan import HOST, WHOLE, Target
from rxlane.settings import View
from rxlane.showing import cells, mapjson, table
from unit import simhost, synthetic
from unit.simhost import SimHost
from unit.taps import tap


def test_map_names_every_part_of_a_lane() -> None:
    link = simhost.link(queues=2)
    napis = (replace(link.napis[0], pid=77, threaded=2), link.napis[1])
    queues = tuple(replace(q, irq=40, irq_source="irq-name") for q in link.queues)
    host = replace(
        simhost.snapshot(replace(link, napis=napis, queues=queues)),
        irqs=(Irq(40, "virtio0-input.0", (0, 1), (1,)),),
        threads=(Thread(77, "napi/eth0-8193", "fifo", 50, 0, (3,)),),
    )
    lines = table.map_text(host, host.links).splitlines()
    assert lines[0] == "eth0: virtio_net, up, 2 RX and 2 TX queues"
    assert lines[1].split() == "queue NAPI IRQ IRQ CPUs mode PID CPU policy node".split()
    assert lines[2].split() == "rx0 8193 40 1 busy-poll 77 3 fifo/50 0".split()
    assert lines[3].split() == "rx1 8194 40 1 softirq - - - 0".split()
    assert lines[-1] == "  queue-NAPI links from: netdev; IRQ links from: irq-name"


CPUS = st.sets(st.integers(0, 511), min_size=1, max_size=200).map(lambda s: tuple(sorted(s)))


@given(CPUS, CPUS, st.integers(1, 2**31 - 1), st.integers(1, 2**22))
def test_map_fits_80_columns(
    irq_cpus: tuple[int, ...], cpus: tuple[int, ...], napi_id: int, pid: int
) -> None:
    """On hosts of 512 CPUs with any affinity, the longest ids and a huge IRQ number."""
    link = simhost.link(queues=1)
    napi = Napi(napi_id, 2_000_000, pid, 2, 100, 15000, 20000)
    queue = replace(link.queues[0], napi_id=napi_id, irq=2_000_000)
    host = replace(
        simhost.snapshot(replace(link, napis=(napi,), queues=(queue,))),
        irqs=(Irq(2_000_000, "x", irq_cpus, irq_cpus),),
        threads=(Thread(pid, "napi/eth0-1", "other", 0, -20, cpus),),
    )
    lines = table.map_text(host, host.links).splitlines()
    assert max(map(len, lines)) <= 80
    assert str(napi_id) in lines[2] and str(pid) in lines[2] and "busy-poll" in lines[2]


def test_cut_lists_say_so() -> None:
    assert cells.fit("0,2,4,6,8", 6) == "0,2,4+"
    assert cells.fit("0-3", 6) == "0-3   "


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("0,4,8,52,56", 10, "0,4,8,52+"),
        ("0,4,8,52,56", 9, "0,4,8,52+"),
        ("0,4,8,52,56", 8, "0,4,8+"),
        ("0-3,16-31,64", 8, "0-3+"),
        ("100-200,300", 3, "+"),
        ("eth0 rx10-20", 10, "eth0 rx+"),
    ],
)
def test_no_number_is_cut(text: str, width: int, shown: str) -> None:
    """What is left of it would be the number of another CPU or queue."""
    assert cells.cut(text, width) == shown


def test_json_leaves_out_what_is_not_reported() -> None:
    host = simhost.snapshot(capabilities=simhost.STOCK)
    lane = json.loads(mapjson.map_json(host, host.links))["devices"][0]["lanes"][0]
    assert lane["napi-id"] == 8193 and lane["mode"] == "off" and lane["napi-source"] == "netdev"
    assert "irq" not in lane and "pid" not in lane and "defer-hard-irqs" not in lane


def test_napis_without_a_queue_are_shown() -> None:
    link = simhost.link(queues=1)
    more = replace(link, napis=(*link.napis, Napi(9999, None, None, 1, 0, 0, 0)))
    host = simhost.snapshot(more)
    assert "?     9999" in table.map_text(host, host.links)


def test_napis_without_an_rx_queue_are_shown_with_what_serves_them() -> None:
    link = simhost.link(queues=2)
    rx = link.queues_of("rx")
    tx = [replace(q, napi_id=9998, irq=77) for q in link.queues_of("tx")]
    more = (Napi(9998, None, 778, 2, 0, 0, 0), Napi(9999, 79, 779, 2, 0, 0, 0))
    link = replace(link, napis=(*link.napis, *more), queues=(*rx, *tx))
    threads = tuple(Thread(n, f"napi/eth0-{n}", "fifo", 50, 0, (0,)) for n in (778, 779))
    irqs = (Irq(77, "a", (1,), (1,)), Irq(79, "b", (2, 3)))
    host = replace(simhost.snapshot(link), threads=threads, irqs=irqs)
    rows = [line.split() for line in table.map_text(host, host.links).splitlines()]
    assert "tx0-1 9998 77 1 busy-poll 778 0 fifo/50 0 !".split() in rows
    assert "? 9999 79 2-3 busy-poll 779 0 fifo/50 0 !".split() in rows
    assert ["!", "NAPI", "9998-9999:", "CPU", "0", "polls", "eth0", "NAPI", "9998-9999"] in rows
    (device,) = json.loads(mapjson.map_json(host, host.links))["devices"]
    sender, unknown = device["napis"]
    assert sender["tx-queues"] == [0, 1] and sender["irq-cpus"] == [1] and sender["pid"] == 778
    assert unknown["napi-id"] == 9999 and unknown["tx-queues"] == []
    assert unknown["mode"] == "busy-poll" and unknown["thread"]["policy"] == "fifo"
    assert {(m.get("queue"), m["napi-id"]) for m in device["marks"]} == {(None, 9998), (None, 9999)}
    assert len(device["lanes"]) == 2


def test_napis_with_the_same_timers_share_a_line() -> None:
    link = simhost.link(queues=64)
    first, *rest = link.napis
    napis = (first, *(replace(napi, defer_hard_irqs=100) for napi in rest))
    host = simhost.snapshot(replace(link, napis=napis))
    lines = [line for line in table.map_text(host, host.links).splitlines() if " defer " in line]
    assert lines == [
        "  NAPI 8193: defer 0, flush 0 ns, suspend 0 ns",
        "  NAPI 8194-8256: defer 100, flush 0 ns, suspend 0 ns",
    ]


def test_taps_show_their_vhost_threads() -> None:
    one = tap()
    moved = replace(one.vhosts[1], cpus=(0, 1), nice=-5)
    host = simhost.snapshot(replace(one, vhosts=(one.vhosts[0], moved)))
    assert look._shown(host) == list(host.links)
    text = table.map_text(host, host.links)
    assert "  vhost threads on CPUs 0-7, other: 5090\n" in text
    assert "  vhost threads on CPUs 0-1, other/-5: 5091\n" in text
    (device,) = json.loads(mapjson.map_json(host, host.links))["devices"]
    assert [thread["pid"] for thread in device["vhost-threads"]] == [5090, 5091]
    assert device["vhost-threads"][1]["cpus"] == [0, 1]


def test_down_device() -> None:
    host = simhost.snapshot(simhost.link(up=False))
    assert "interface eth0 is down, no NAPI instances" in table.map_text(host, host.links)
    (device,) = json.loads(mapjson.map_json(host, host.links))["devices"]
    assert device["up"] is False and "carrier" not in device


def test_a_device_without_a_carrier_is_told_from_one_that_is_up() -> None:
    host = simhost.snapshot(replace(simhost.link(), carrier=False))
    heading = table.map_text(host, host.links).splitlines()[0]
    assert ", no carrier, " in heading and ", up" not in heading
    (device,) = json.loads(mapjson.map_json(host, host.links))["devices"]
    assert (device["up"], device["carrier"]) == (True, False)


def test_map_shows_steering_once_for_queues_alike() -> None:
    host = simhost.whole(simhost.snapshot(simhost.link(queues=3)))
    queues = tuple(
        replace(q, rps_cpus=(4, 5), rps_flow_cnt=4096)
        if q.kind == "rx"
        else replace(q, xps_cpus=(q.index,))
        for q in host.links[0].queues
    )
    irqs = tuple(replace(i, movable=i.number != 41) for i in host.irqs)
    link = replace(host.links[0], queues=queues)
    host = replace(host, links=(link,), irqs=irqs, writers=("irqbalance",))
    text = table.map_text(host, host.links)
    for line in (
        "  rx0-2: RPS to 4-5, RFS 4096 flows",
        "  tx2: XPS from CPU 2",
        "  IRQs that the kernel keeps in place: 41",
        "  net.core.netdev_max_backlog 1000",
        "  irqbalance runs and may change settings of lanes",
    ):
        assert line in text.splitlines()
    plain = json.loads(mapjson.map_json(host, host.links))
    lane = plain["devices"][0]["lanes"][1]
    assert lane["rps-cpus"] == [4, 5] and not lane["irq-movable"]
    assert plain["devices"][0]["tx-queues"][0] == {"queue": 0, "xps-cpus": [0], "xps-rxqs": []}
    assert plain["sysctls"]["net.core.busy_read"] == 0 and plain["writers"] == ["irqbalance"]


def test_steering_of_many_queues_names_its_cpus() -> None:
    link = simhost.link(queues=64)
    halves = (tuple(range(32, 64)), tuple(range(32)))
    queues = [replace(q, rps_cpus=halves[q.index % 2]) for q in link.queues_of("rx")]
    host = simhost.snapshot(replace(link, queues=tuple(queues)))
    assert [line for line in table.map_text(host, host.links).splitlines() if "RPS" in line] == [
        "  rx0,2,4,6,8,10,12,14,16,18,20,22,24+: RPS to 32-63",
        "  rx1,3,5,7,9,11,13,15,17,19,21,23,25+: RPS to 0-31",
    ]


def test_steering_is_told_apart_where_it_is_cut() -> None:
    link, many = simhost.link(queues=2), range(0, 128, 2)
    queues = [replace(q, xps_cpus=(*many, 200 + q.index)) for q in link.queues_of("tx")]
    host = simhost.snapshot(replace(link, queues=tuple(queues)))
    text = table.map_text(host, host.links)
    assert "  tx0: XPS from CPU 0,2,4" in text and "  tx1: XPS from CPU 0,2,4" in text


@given(CPUS, CPUS)
def test_steering_fits_80_columns(rps: tuple[int, ...], xps: tuple[int, ...]) -> None:
    link = simhost.link(queues=2)
    rx, _, tx, _ = link.queues
    tx = replace(tx, xps_cpus=xps, xps_rxqs=rps)
    queues = (replace(rx, rps_cpus=rps, rps_flow_cnt=1 << 20), tx)
    link = replace(link, queues=queues)
    text = table.map_text(simhost.snapshot(link), [link])
    assert max(map(len, text.splitlines())) <= 80 and "RPS to" in text and "XPS from CPU" in text


def test_marks_have_a_sign_and_a_line() -> None:
    link = {"name": "eth0", "rx": 2, "node": 1, "mode": "busy-poll", "thread_cpus": "each"}
    cpus = [{"count": 2, "node": 0}, {"count": 2, "node": 1}]
    host = synthetic.snapshot({"cpus": cpus, "links": [{**link, "irq_cpus": "each"}]})
    threads = (host.threads[0], replace(host.threads[1], cpus=(3,)))
    host = replace(host, threads=threads)
    text = table.map_text(host, host.links)
    assert "  ~ rx0: polled on node 0, the device is on node 1" in text.splitlines()
    first, second = text.splitlines()[2:4]
    assert first.endswith(" 0    ~") and second.endswith("1") and text.isascii()
    marked = json.loads(mapjson.map_json(host, host.links))["devices"][0]["marks"]
    assert [(m["queue"], m["kind"]) for m in marked] == [(0, "hop")]
    styled = table.map_text(host, host.links, table.Style(colour=True, unicode=True))
    assert "\x1b[35mbusy-poll\x1b[0m" in styled and "\x1b[33m\u21c4\x1b[0m" in styled
    plain = re.sub(r"\x1b\[[0-9;]*m", "", styled)
    assert plain.replace("\u21c4", "~").replace("\u25cf ", "") == text


class _Terminal(io.StringIO):
    def __init__(self, encoding: str, person: bool) -> None:
        super().__init__()
        self._encoding, self._person = encoding, person

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._person


UTF8 = {"LANG": "en_US.UTF-8"}


@pytest.mark.parametrize(
    ("stream", "environment", "choice", "style"),
    [
        (_Terminal("utf-8", True), {"TERM": "xterm", **UTF8}, "auto", (True, True)),
        (_Terminal("UTF-8", True), {"TERM": "xterm", **UTF8}, "never", (False, True)),
        (_Terminal("latin-1", True), {"TERM": "xterm", **UTF8}, "auto", (True, False)),
        (_Terminal("utf-8", True), {"TERM": "dumb", **UTF8}, "auto", (False, True)),
        (_Terminal("utf-8", True), UTF8, "auto", (False, True)),
        (
            _Terminal("utf-8", True),
            {"TERM": "xterm", "NO_COLOR": "1", **UTF8},
            "auto",
            (False, True),
        ),
        (_Terminal("utf-8", False), {"TERM": "xterm"}, "auto", (False, False)),
        (_Terminal("utf-8", False), {"TERM": "xterm"}, "always", (True, False)),
    ],
)
def test_style_follows_the_terminal(
    stream: _Terminal, environment: dict[str, str], choice: str, style: tuple[bool, bool]
) -> None:
    assert look.terminal(stream, environment, choice) == style


@pytest.mark.parametrize(
    ("environment", "unicode"),
    [
        ({"LC_ALL": "C", **UTF8}, False),
        ({"LC_ALL": "POSIX"}, False),
        ({}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),
        ({"LC_CTYPE": "C.UTF-8", **UTF8}, True),
        ({"LC_ALL": "", "LC_CTYPE": "de_DE.utf8@euro", "LANG": "C"}, True),
        ({"LC_CTYPE": "de_DE", **UTF8}, False),
        ({"LANG": "C.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8"}, True),
    ],
)
def test_what_the_locale_says_about_utf8(environment: dict[str, str], unicode: bool) -> None:
    """Python's own encoding is UTF-8 in the C locale as well (PEP 538 and 540)."""
    stream = _Terminal("utf-8", True)
    assert look.terminal(stream, {"TERM": "vt220", **environment}, "never") == (False, unicode)


def test_what_the_driver_lets_change_and_who_is_there() -> None:
    rows = [
        Tunable(CHANNELS_COMBINED, 4, 8),
        Tunable(RING_RX, 256, 4096),
        Tunable(RX_USECS, 50),
        Tunable(ADAPTIVE_RX, 1),
        Tunable(RING_TX, 512, 4096),
    ]
    link = replace(simhost.link(queues=1), tunables=tuple(rows))
    host = replace(
        simhost.snapshot(link), workqueue_cpus=tuple(range(0, 200, 2)), sessions=("eth0",)
    )
    lines = table.map_text(host, host.links).splitlines()
    at = lines.index(
        "  channels-combined 4 of 8, ring-rx 256 of 4096, rx-usecs 50, adaptive-rx on,"
    )
    assert lines[at + 1] == "  ring-tx 512 of 4096"
    assert "  somebody is logged in over eth0" in lines and max(map(len, lines)) <= 80
    assert any(line.startswith("  unbound kernel workers on CPUs 0,2,") for line in lines)
    plain = json.loads(mapjson.map_json(host, host.links))
    assert plain["devices"][0]["tunables"]["ring-rx"] == {"value": 256, "highest": 4096}
    assert plain["sessions"] == ["eth0"] and plain["workqueue-cpus"][1] == 2


def test_workers_that_isolated_partitions_keep_off_cpus() -> None:
    """What plans compare and the journal keeps is shown under the name that it has there."""
    sim = SimHost(replace(simhost.snapshot(), workqueue_cpus=(0, 1, 2, 3)))
    sim.workqueue_requested = (0, 1, 2, 3)
    lines = table.map_text(sim.observe(), sim.observe().links).splitlines()
    assert [line for line in lines if "work" in line] == ["  unbound kernel workers on CPUs 0-3"]
    sim.isolate(3)
    host = sim.observe()
    lines = table.map_text(host, host.links).splitlines()
    assert [line for line in lines if "work" in line] == [
        "  unbound kernel workers on CPUs 0-2",
        "  workqueue-cpus 0-3, of which isolated partitions took the rest",
    ]
    plain = json.loads(mapjson.map_json(host, host.links))
    assert plain["workqueue-cpus"] == [0, 1, 2, 3]
    assert plain["workqueue-effective-cpus"] == [0, 1, 2]
    assert View.of(host).read(Target(HOST, WHOLE, "workqueue-cpus")) == "0-3"
