# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane.errors import Kind, RxlaneError
from rxlane.policy import (
    KINDS,
    NAPI,
    OPTIONS,
    from_plain,
    names,
    parse_assignments,
    parse_mixed,
    parse_modes,
    parse_section,
)
from rxlane.sections import ModeRule


def bad(options: dict[str, str]) -> str:
    with pytest.raises(RxlaneError) as caught:
        parse_section("napi", [], options)
    assert caught.value.kind is Kind.OPTION
    text = str(caught.value)
    assert "\n" not in text and text.startswith("[napi] ")
    return text


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("on", (ModeRule("on"),)),
        ("busy-poll@0-3,off@4-", (ModeRule("busy-poll", ((0, 3),)), ModeRule("off", ((4, None),)))),
        ("on@0,2-3,off@5", (ModeRule("on", ((0, 0), (2, 3))), ModeRule("off", ((5, 5),)))),
    ],
)
def test_modes(text: str, rules: tuple[ModeRule, ...]) -> None:
    assert parse_modes(text) == rules


@pytest.mark.parametrize(
    "text",
    [
        "om",
        "on@",
        "on@x",
        "on@3-1",
        "1-",
        "on,off",
        "on@0-,off@3",
        "on@4-,off@4-5",
        "on@4-5,off@4-",
        "on@4-,off@4-",
        "on@1,1",
        "busy_poll",
        "@1",
        "on@0-99999999",
        "on@1@2",
        ",",
        "on@1,",
        "2",
    ],
)
def test_malformed_modes(text: str) -> None:
    message = bad({"threaded": text})
    assert f"threaded={text}" in message and "NoneType" not in message


@pytest.mark.parametrize("text", ["on@4-,off@4-5", "on@2-5,off@4-", "on@4-,off@4-"])
def test_a_queue_that_is_named_twice(text: str) -> None:
    assert "queue 4 is named twice" in bad({"threaded": text})


MODE = st.sampled_from(["off", "on", "busy-poll"])


@given(st.lists(st.tuples(MODE, st.integers(1, 5)), min_size=1, max_size=6), st.booleans())
def test_every_written_queue_gets_its_mode(parts: list[tuple[str, int]], open_end: bool) -> None:
    """Consecutive ranges of random length: each queue is in the mode that was written for it."""
    texts: list[str] = []
    expected: dict[int, str] = {}
    start = 0
    for mode, length in parts:
        texts.append(f"{mode}@{start}-{start + length - 1}")
        expected |= {queue: mode for queue in range(start, start + length)}
        start += length
    if open_end:
        texts.append(f"off@{start}-")
        expected[start + 1000] = "off"
    rules = parse_modes(",".join(texts))
    for queue, mode in expected.items():
        assert [r.mode for r in rules if r.covers(queue)] == [mode]


@given(st.dictionaries(st.sampled_from(names(NAPI)), st.text(max_size=12), max_size=4))
def test_any_text_is_a_section_or_one_line(options: dict[str, str]) -> None:
    try:
        parse_section("napi", [], options)
    except RxlaneError as error:
        assert error.kind is Kind.OPTION
        assert "\n" not in str(error) and len(str(error)) < 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threded": "on"}, "did you mean threaded"),
        ({"zzz": "1"}, "rxlane-tuned"),
        ({"thread_priority": "99", "thread_policy": "fifo"}, "1..98"),
        ({"thread_priority": "0", "thread_policy": "fifo"}, "1..98"),
        ({"thread_policy": "fifo"}, "needs a priority"),
        ({"thread_priority": "5"}, "real-time class"),
        ({"thread_policy": "other", "thread_priority": "5"}, "real-time class"),
        ({"thread_policy": "rr", "thread_priority": "5", "thread_nice": "1"}, "no meaning"),
        ({"thread_policy": "idle", "thread_nice": "1"}, "no meaning"),
        ({"thread_policy": "deadline"}, "give one of"),
        ({"thread_nice": "20"}, "-20..19"),
        ({"thread_nice": "1.5"}, "whole number"),
        ({"management_queues": "-1"}, "out of range"),
        ({"management_queues": "9" * 30}, "whole number"),
        ({"thread_cpus": "all"}, "CPU list"),
        ({"thread_cpus": "4-2"}, "backwards"),
        ({"defer_hard_irqs": str(2**31)}, "out of range"),
        ({"gro_flush_timeout": "-5"}, "out of range"),
        ({"irq_suspend_timeout": "20us"}, "whole number"),
        ({"allow_realtime_cpu0": "yes"}, "give one of"),
        ({"threaded": "\x1b[31mon"}, "no mode"),
    ],
)
def test_bad_options(options: dict[str, str], words: str) -> None:
    assert words in bad(options)


def test_empty_values_leave_everything_alone() -> None:
    section = parse_section("napi", [], dict.fromkeys(names(NAPI), ""))
    assert section.modes == () and section.cpus is None and section.sched is None
    assert section.defer_hard_irqs is None and section.management_queues == 0


def test_nice_alone_means_the_fair_class() -> None:
    assert parse_section("napi", [], {"thread_nice": "-5"}).sched == "other:-5"
    fifo = {"thread_policy": "fifo", "thread_priority": "50"}
    assert parse_section("napi", [], fifo).sched == "fifo:50"


@pytest.mark.parametrize("text", ["threaded", "=on", "", " = "])
def test_malformed_assignments(text: str) -> None:
    with pytest.raises(RxlaneError):
        parse_assignments([text])
    with pytest.raises(RxlaneError):
        parse_assignments(["a=1", "a=2"])


@pytest.mark.parametrize("data", [None, [], {}, {"sections": [1]}, {"sections": [{}]}])
def test_malformed_policy_files(data: object) -> None:
    with pytest.raises(RxlaneError) as caught:
        from_plain(data)
    assert caught.value.kind is Kind.FORMAT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"irq_cpus": "all"}, "one-per-core, spread-llc or a CPU list"),
        ({"irq_cpus": "4-2"}, "backwards"),
        ({"rps": "on"}, "give off, auto, numa-local or a CPU list"),
        ({"rps": "ff"}, "CPU list"),
        ({"rfs": "on"}, "whole number"),
        ({"rfs": "0"}, "give off, auto or 1..16777216"),
        ({"rx_threads": "0"}, "give off, auto or 1..65535"),
        ({"channels": "0"}, "give max or 1..65535"),
        ({"xps": "cpus"}, "off, auto, rxqs"),
        ({"netdev_max_backlog": "0"}, "1..1000000"),
        ({"busy_read": "1001"}, "0..1000"),
        ({"irq_cpu": "1"}, "did you mean irq_cpus"),
        ({"irq_layout.irq_cpus": "auto"}, "did you mean irq_cpus"),
        ({"irq_layout.thread_cpu": "auto"}, "did you mean irq_layout.thread_cpus"),
        ({"threaded": "on@0,busy-poll"}, "needs its queues: busy-poll@QUEUES"),
        ({"thread_spread": "all"}, "needs thread_cpus"),
        ({"rx_frames": "0", "rx_usecs": "0"}, "give rx_frames=1"),
        ({"tx_frames": "0", "tx_usecs": "0"}, "no interrupt beside tx_usecs=0"),
        ({"thread_spread": "some", "thread_cpus": "1"}, "give one of one, all"),
    ],
)
def test_bad_options_of_any_kind(options: dict[str, str], words: str) -> None:
    with pytest.raises(RxlaneError) as caught:
        parse_mixed([], options)
    text = str(caught.value)
    assert caught.value.kind is Kind.OPTION and words in text
    option, value = next(iter(options.items()))
    kind = next((f"[{kind}] " for kind in KINDS if option in names(kind)), "")
    assert "\n" not in text and text.startswith(f"{kind}{option}={value}: ")


@given(
    st.dictionaries(st.sampled_from([o.name for o in OPTIONS]), st.text(max_size=12), max_size=4)
)
def test_any_text_of_any_kind_is_a_policy_or_one_line(options: dict[str, str]) -> None:
    try:
        parse_mixed([], options)
    except RxlaneError as error:
        assert error.kind is Kind.OPTION and "\n" not in str(error)


def test_options_go_to_the_kind_that_knows_them() -> None:
    found = parse_mixed(["eth0"], {"threaded": "on", "irq_cpus": "auto", "rps": "1-2"})
    assert [len(part) for part in (found.sections, found.irq, found.steering)] == [1, 1, 1]
    assert found.irq[0].cpus == () and found.steering[0].rps_cpus == (1, 2)
    assert parse_mixed([], {"irq_cpus": "numa-local"}).irq[0].node
    assert parse_mixed([], {"rfs": "off", "busy_read": "0"}).steering[0].rfs == 0


def test_policy_files_name_the_kind() -> None:
    row = {"kind": "irq_layout", "options": {"irq_cpus": "2"}}
    assert from_plain({"sections": [row]}).irq[0].cpus == (2,)
    with pytest.raises(RxlaneError, match="no kind of section"):
        from_plain({"sections": [row | {"kind": "irq"}]})
