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


ETC, VENDOR = "/etc/systemd/network", "/usr/lib/systemd/network"
ANY = "OriginalName=*"
OWN = "PermanentMACAddress=52:54:00:12:34:56"


def known_to_udev(root: Path, file: str | None, match: str, others: bool) -> Sysfs:
    """What udev's database says of eth0 and eth1; nothing where no file matches."""
    (root / udevdb.DATABASE).mkdir(parents=True)
    rows = {2: file, 3: file if others else "/etc/systemd/network/20-b.link"}
    for index, own in rows.items():
        text = "" if own is None else f"E:{udevdb.FILE}={own}\n"
        (root / udevdb.DATABASE / udevdb.entry(index)).write_text(text)
    if file is not None:
        (root / file[1:]).parent.mkdir(parents=True)
        (root / file[1:]).write_text(f"[Match]\n{match}\n[Link]\nNamePolicy=keep\n")
    return Sysfs(root)


@pytest.mark.parametrize(("file", "match", "others", "place", "copy"), [
    (f"{ETC}/10-a.link", OWN, False, "10-a.link.d", ""),
    (f"{ETC}/10-a.link", "Driver=ixgbe", False, "10-a.link.d", ""),
    (f"{ETC}/10-a.link", "Driver=ixgbe", True, "00-eth0.link.d", "is a copy of /etc/"),
    (f"{ETC}/80-a.link", "Driver=ixgbe", True, "70-eth0.link.d", "is a copy of /etc/"),
    (f"{ETC}/99-default.link", ANY, False, "70-eth0.link.d", "is a copy of /etc/"),
    (f"{ETC}/00-all.link", ANY, True, "0-eth0.link.d", "is a copy of /etc/"),
    (f"{ETC}/00-zoo.link", ANY, True, "00-eth0.link.d", "is a copy of /etc/"),
    (f"{ETC}/0-all.link", ANY, True, "+-eth0.link.d", "is a copy of /etc/"),
    (f"{ETC}/70-eth0.link", "OriginalName=eth*", True, "00-eth0.link.d", "is a copy of /etc/"),
    (f"{VENDOR}/10-vendor.link", OWN, False, "10-vendor.link.d", ""),
    (f"{VENDOR}/10-vendor.link", "Driver=ixgbe", True, "00-eth0.link.d", "is a copy of /usr/lib/"),
    (f"{VENDOR}/99-default.link", ANY, True, "70-eth0.link.d", "is a copy of /usr/lib/"),
    (f"{VENDOR}/99-default.link", ANY, False, "70-eth0.link.d", "is a copy of /usr/lib/"),
    (None, "", False, "70-eth0.link.d", "has NamePolicy=keep in [Link]"),
])  # fmt: skip
def test_the_file_is_the_interface_s_alone(
    tmp_path: Path, file: str | None, match: str, others: bool, place: str, copy: str
) -> None:
    shared = udevdb.shares(known_to_udev(tmp_path, file, match, others), 2)
    assert shared == (file is not None and (others or match == ANY))
    text = linkfile.render(linkfile.Found(), "eth0", [file] if file else [], shared)
    assert f"# /etc/systemd/network/{place}/50-rxlane.conf\n" in text and copy in text
    assert ("means eth0 alone" in text) == bool(copy)
    name = (file or "").rpartition("/")[2]
    assert not copy or not name or place.removesuffix(".d") < name, "the first by name wins"


@pytest.mark.parametrize(("match", "means"), [
    (ANY, True),
    ("OriginalName=eth* *", True),
    ("OriginalName=*\nKernelVersion=>=6.1\nHost=this", True),
    ("Virtualization=kvm", True),
    ("OriginalName=*\nDriver=", True),
    ("OriginalName=*\nDriver=ixgbe", False),
    ("OriginalName=eth0", False),
    ("# OriginalName=*\nOriginalName=eth0", False),
    ("", False),
])  # fmt: skip
def test_a_file_for_any_interface(tmp_path: Path, match: str, means: bool) -> None:
    """Such a file is not one interface's, even while there is no other."""
    assert udevdb.shares(known_to_udev(tmp_path, f"{ETC}/a.link", match, False), 2) is means


DROPINS = [f"{ETC}/99-default.link.d/10-mtu.conf", f"{VENDOR}/99-default.link.d/20-mac.conf"]


def test_the_drop_ins_of_a_file_that_is_copied() -> None:
    """Without them the interface loses its MTU or its name by the advice."""
    files = [f"{VENDOR}/99-default.link", *DROPINS]
    told = linkfile.render(linkfile.Found(), "eth0", files, shared=True).splitlines()
    start = told.index(f"# Copy these, too, to {ETC}/70-eth0.link.d/, without a [Match]:")
    assert told[start + 1 :] == [*(f"# {path}" for path in DROPINS), "[Link]"]


def test_drop_ins_that_stay_where_they_are() -> None:
    """No copy is made, or the only one is that which is replaced."""
    file = f"{VENDOR}/99-default.link"
    ours = f"{ETC}/99-default.link.d/{linkfile.DROPIN}"
    assert "Copy" not in linkfile.render(linkfile.Found(), "eth0", [file, *DROPINS])
    assert "Copy" not in linkfile.render(linkfile.Found(), "eth0", [file, ours], shared=True)
    assert ours not in linkfile.render(linkfile.Found(), "eth0", [file, ours, *DROPINS], True)
