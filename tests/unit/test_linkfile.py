# SPDX-License-Identifier: GPL-2.0-or-later
"""A trial becomes permanent: the drop-in that is printed brings the same layout, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxlane import policy
from rxlane.apply import apply
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.host import udevdb
from rxlane.linkfiles import linkfile, linkkeys
from rxlane.sections import Policy
from rxlane.sysfs import Sysfs
from unit import simhost
from unit.simhost import MemoryStore, SimHost

OPTIONS: dict[str, list[str]] = {
    "threaded": ["on", "off", "busy-poll@1-", "on@0,busy-poll@2-", "on@1-2"],
    "management_queues": ["0", "1", "2"],
    "thread_cpus": ["auto", "2-5", "6", "7,1", "spread-llc"],
    "thread_spread": ["all", "one"],
    "thread_policy": ["batch", "other", "idle"],
    "thread_nice": ["-5", "7"],
    "defer_hard_irqs": ["0", "3"],
    "gro_flush_timeout": ["20000"],
    "irq_suspend_timeout": ["5"],
    "irq_cpus": ["auto", "3-4", "numa-local"],
    "irq_layout.threaded": ["on", "off", "on@1-", "auto"],
    "irq_layout.thread_cpus": ["auto", "5"],
    "irq_layout.thread_nice": ["3"],
    "rps": ["auto", "1-3", "off"],
    "rfs": ["auto", "512", "off"],
    "xps": ["auto", "rxqs", "off"],
}
TRIAL = st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in OPTIONS.items()})


def host() -> SimHost:
    start = simhost.whole(
        simhost.snapshot(simhost.link(), simhost.link("eth1", ifindex=3, base=90))
    )
    made = SimHost(start)
    # A kernel whose interrupts can be switched.
    for number in made.irqs:
        made.write_irq_mode(number, "off")
    return made


def tried(options: dict[str, str]) -> tuple[SimHost, MemoryStore]:
    """A host after the operator's trial on eth0."""
    made, store = host(), MemoryStore()
    apply(made, store, policy.parse_mixed(["eth0"], options), {"eth0"})
    return made, store


def printed(made: SimHost, store: MemoryStore) -> linkfile.Found:
    journal = store.load()
    entries = () if journal is None else journal.entries
    snapshot = made.observe()
    link = snapshot.link("eth0")
    assert link is not None
    return linkfile.layout(snapshot, link, entries)


def back(found: linkfile.Found) -> Policy:
    sections, errors = linkkeys.sections("eth0", found.properties, str)
    assert errors == ()
    return policy.parse(sections)


@settings(max_examples=120, deadline=None)
@given(TRIAL)
def test_given_back_it_changes_nothing(options: dict[str, str]) -> None:
    try:
        made, store = tried(options)
    except RxlaneError as error:
        assert error.kind.refused
        return
    found = printed(made, store)
    assert decide(made.observe(), back(found)).changes == ()
    if not found.missing and store.load() is not None:
        fresh = host()
        apply(fresh, MemoryStore(), back(found), {"eth0"})
        assert simhost.settings(fresh) == simhost.settings(made)


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        (
            {"threaded": "busy-poll@1-", "thread_cpus": "2-4", "defer_hard_irqs": "7"},
            {
                "NAPI_THREADED": "off@0,busy-poll@1-3",
                "NAPI_DEFER_HARD_IRQS": "7",
                "NAPI_THREAD_CPUS": "2-4",
            },
        ),
        (
            {"management_queues": "1", "gro_flush_timeout": "9", "defer_hard_irqs": "1"},
            {
                "NAPI_MANAGEMENT_QUEUES": "1",
                "NAPI_GRO_FLUSH_TIMEOUT": "9",
                "NAPI_DEFER_HARD_IRQS": "1",
            },
        ),
        (
            {"threaded": "on", "thread_policy": "fifo", "thread_priority": "3", "rps": "1-3"},
            {
                "NAPI_THREADED": "on",
                "NAPI_THREAD_POLICY": "fifo",
                "NAPI_THREAD_PRIORITY": "3",
                "NAPI_RPS": "1-3",
            },
        ),
        (
            {"irq_cpus": "3-4", "irq_layout.threaded": "on", "rfs": "512", "xps": "rxqs"},
            {
                "NAPI_IRQ_CPUS": "3-4",
                "NAPI_IRQ_THREADED": "on",
                "NAPI_RFS": "512",
                "NAPI_XPS": "rxqs",
            },
        ),
    ],
)
def test_what_was_asked_is_what_is_printed(
    options: dict[str, str], properties: dict[str, str]
) -> None:
    if "thread_priority" in options:
        options = {**options, "thread_cpus": "2-5"}
        properties = {**properties, "NAPI_THREAD_CPUS": "2-5"}
    found = printed(*tried(options))
    assert found.properties == properties and found.missing == ()


def test_without_a_trial_all_there_is() -> None:
    found = printed(host(), MemoryStore())
    assert found.properties["NAPI_THREADED"] == "off" and found.properties["NAPI_RPS"] == "off"
    assert {"NAPI_DEFER_HARD_IRQS", "NAPI_XPS", "NAPI_RFS"} <= found.properties.keys()


def test_what_no_property_gives_is_said() -> None:
    made, store = tried({"threaded": "on", "thread_cpus": "2-5"})
    pids = [napi.pid for napi in made.links["eth0"].napis]
    odd: list[dict[str, Any]] = [{"thread-cpus": cpus} for cpus in ("5", "1", "0-3", "2")]
    for pid, values in zip(pids, odd, strict=True):
        made.write_thread(pid or 0, values)
    found = printed(made, store)
    assert "NAPI_THREAD_CPUS" not in found.properties
    shown = "queue 0: 5, queue 1: 1, queue 2: 0-3, queue 3: 2"
    assert found.missing == (f"thread-cpus: no property gives {shown}",)


@pytest.mark.parametrize(("file", "others", "place", "copy"), [
    ("/etc/systemd/network/10-a.link", False, "10-a.link.d", ""),
    ("/etc/systemd/network/10-a.link", True, "00-eth0.link.d", "is a copy of /etc/"),
    ("/usr/lib/systemd/network/99-default.link", True, "00-eth0.link.d", "is a copy of /usr/lib/"),
    ("/usr/lib/systemd/network/99-default.link", False, "70-eth0.link.d", "is a copy of /usr/lib/"),
    (None, False, "70-eth0.link.d", "has NamePolicy=keep in [Link]"),
])  # fmt: skip
def test_the_file_is_the_interface_s_alone(
    tmp_path: Path, file: str | None, others: bool, place: str, copy: str
) -> None:
    """What udev's database says of both interfaces; nothing where no file matches."""
    (tmp_path / udevdb.DATABASE).mkdir(parents=True)
    rows = {2: file, 3: file if others else "/etc/systemd/network/20-b.link"}
    for index, own in rows.items():
        text = "" if own is None else f"E:{udevdb.FILE}={own}\n"
        (tmp_path / udevdb.DATABASE / udevdb.entry(index)).write_text(text)
    shared = udevdb.shares(Sysfs(tmp_path), 2)
    assert shared == (others and file is not None)
    text = linkfile.render(linkfile.Found(), "eth0", file, shared)
    assert f"# /etc/systemd/network/{place}/50-rxlane.conf\n" in text and copy in text
    assert ("means eth0 alone" in text) == bool(copy)
