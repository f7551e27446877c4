# SPDX-License-Identifier: GPL-2.0-or-later
"""How a NIC spreads flows: the driver's answers, what is kept of them and what is not."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import codec
from rxlane.errors import Kind, RxlaneError
from rxlane.host import rss
from rxlane.model import Hashed, Link, Rss

KEY = bytes(range(40))
FIELDS = 1 << 4 | 1 << 5


def rxfh(table: list[int], key: bytes, function: int = 1) -> bytes:
    """struct ethtool_rxfh as include/uapi/linux/ethtool.h has it."""
    head = struct.pack("=IIIIBBBBI", 0x46, 0, len(table), len(key), function, 0, 0, 0, 0)
    return head + struct.pack(f"={len(table)}I", *table) + key


def test_table_function_and_digest_of_the_key() -> None:
    found = rss.parse_rxfh(rxfh([0, 1, 0, 1], KEY))
    assert found == Rss("toeplitz", (0, 1, 0, 1), hashlib.sha256(KEY).hexdigest()[:16])
    bare = rss.parse_rxfh(rxfh([3], b"", function=64))
    assert bare == Rss("64", (3,), ""), "a function that is not known yet is its number"
    assert rss.parse_rxfh(rxfh([], b"")) is None


def test_fields() -> None:
    answer = struct.pack("=IIQ", 0x29, 1, FIELDS | 1 << 6 | 1 << 7)
    assert rss.parse_fields("tcp4", answer) == Hashed(
        "tcp4", ("ip-src", "ip-dst", "port-src", "port-dst")
    )
    assert rss.parse_fields("udp6", struct.pack("=IIQ", 0x29, 6, 0)) is None


@pytest.mark.parametrize("cut", [0, 3, 23, 24, 30, -1])
def test_what_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(RxlaneError) as raised:
        rss.parse_rxfh(rxfh([0, 1], KEY)[:cut])
    assert raised.value.kind is Kind.FORMAT
    with pytest.raises(RxlaneError):
        rss.parse_fields("tcp4", b"1")


@given(st.binary(max_size=120))
def test_any_bytes_parse_or_give_a_format_error(data: bytes) -> None:
    for parse in (rss.parse_rxfh, lambda d: rss.parse_fields("tcp4", d)):
        try:
            parse(data)
        except RxlaneError as error:
            assert error.kind is Kind.FORMAT


class Simulated(rss.Reader):
    """A driver that answers in two steps: sizes first, as the kernel's do."""

    def __init__(self, answers: dict[int, bytes], told: int | None = None) -> None:
        super().__init__()
        self.answers, self.told = answers, told

    def ask(self, device: str, request: bytes, room: int = 0) -> bytes | None:
        command, flow = struct.unpack_from("=II", request)
        if command == 0x46 and len(request) == 24:
            whole = self.answers.get(0)
            if whole is None:
                return None
            sizes = bytearray(whole[:24])
            if self.told is not None:
                sizes[8:12] = struct.pack("=I", self.told)
            return bytes(sizes)
        return self.answers.get(0 if command == 0x46 else flow)


def test_reading_a_driver() -> None:
    fields = struct.pack("=IIQ", 0x29, 2, FIELDS)
    found = Simulated({0: rxfh([1, 0], KEY), 2: fields}).read("eth0")
    assert found is not None and found.table == (1, 0)
    assert found.fields == (Hashed("udp4", ("ip-src", "ip-dst")),)
    assert Simulated({}).read("eth0") is None
    assert Simulated({0: rxfh([1, 0], KEY)}, told=2**31).read("eth0") is None, "not believed"
    assert rss.Reader().read("lo") is None


def test_recordings_hold_it_without_the_key() -> None:
    link = Link("eth0", 2, True, True, rss=rss.parse_rxfh(rxfh([0, 1], KEY)))
    text = codec.dumps(link)
    assert codec.loads(Link, text, "x") == link
    assert KEY.hex() not in text and json.loads(text)["rss"]["table"] == [0, 1]
    assert "rss" not in json.loads(codec.dumps(Link("eth0", 2, True, True)))


@pytest.mark.parametrize("broken", [5, {"function": "xor"}, {"function": "xor", "table": ["0"]}])
def test_broken_recordings_are_refused(broken: object) -> None:
    plain = json.loads(codec.dumps(Link("eth0", 2, True, True)))
    with pytest.raises(RxlaneError, match="rss"):
        codec.from_plain(Link, plain | {"rss": broken})
