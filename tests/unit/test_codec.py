# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import codec
from rxlane.errors import Kind, RxlaneError
from rxlane.model import Snapshot
from rxlane.plan import Entry
from unit import simhost

WHOLE = codec.dumps(simhost.snapshot())


def test_snapshot_comes_back() -> None:
    assert codec.loads(Snapshot, WHOLE, "x") == simhost.snapshot()


def mutate(path: str, value: object) -> str:
    data = json.loads(WHOLE)
    place = data
    *parents, last = path.split(".")
    for step in parents:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("links", {}),
        ("links.0.name", 5),
        ("links.0.ifindex", "2"),
        ("links.0.ifindex", True),
        ("links.0.up", 1),
        ("links.0.napis.0.napi_id", None),
        ("links.0.napis.0.pid", 1.5),
        ("topology.isolated", ["1"]),
        ("format", "1"),
        ("extra", 1),
        ("links.0.address", "02:00:00:00:00:01"),
    ],
)
def test_wrong_types_name_their_place(path: str, value: object) -> None:
    with pytest.raises(RxlaneError) as caught:
        codec.loads(Snapshot, mutate(path, value), "file.json")
    assert caught.value.kind is Kind.FORMAT
    assert path.rpartition(".")[2] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 5000, '{"format": 1}'])
def test_no_snapshot_at_all(text: str) -> None:
    with pytest.raises(RxlaneError) as caught:
        codec.loads(Snapshot, text, "file.json")
    assert caught.value.kind is Kind.FORMAT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.sampled_from(["links", "topology", "capabilities", "irqs", "notes", "format"]), JSON)
def test_any_json_is_taken_or_refused(field: str, value: object) -> None:
    data = json.loads(WHOLE)
    data[field] = value
    try:
        codec.loads(Snapshot, json.dumps(data), "x")
    except RxlaneError as error:
        assert error.kind is Kind.FORMAT


def test_values_of_entries_are_numbers_or_text() -> None:
    for value in (None, 5, "on"):
        entry = Entry("eth0", 2, 0, "threaded", value, value)
        assert codec.from_plain(Entry, codec.to_plain(entry)) == entry
    bad = codec.to_plain(Entry("eth0", 2, 0, "threaded", None, None)) | {"after": True}
    with pytest.raises(RxlaneError):
        codec.from_plain(Entry, bad)


def fields_of(kind: object) -> Iterator[str]:
    """The names of a model's fields, and of those of all that is in it."""
    for part in get_args(kind):
        yield from fields_of(part)
    if isinstance(kind, type) and is_dataclass(kind):
        for name, inner in get_type_hints(kind).items():
            yield name
            yield from fields_of(inner)


def test_a_snapshot_holds_no_addresses() -> None:
    """Nothing in the model could hold one, not even what a file leaves out where it is None."""
    found = {*fields_of(Snapshot)}
    assert {"links", "ifindex", "rx_threads", "backlog_bytes"} <= found
    words = ("address", "mac", "hostname", "ip_")
    assert not [name for name in found if any(word in name for word in words)]
