# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import netlink, uapi
from rxlane.errors import Kind, RxlaneError
from rxlane.kernel import Linux
from rxlane.model import Capabilities
from rxlane.netlink import Message
from rxlane.wire import genl, rtnetlink
from rxlane.wire.netdev import Netdev, QueueRow, pack_napi_set, parse_napi, parse_queue
from unit.fakenet import (
    DONE,
    FAMILY,
    GENL,
    FakeSocket,
    attr,
    error_body,
    family,
    message,
    napi,
    opened,
)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_give_a_format_error(data: bytes) -> None:
    for parse in (
        lambda: list(netlink.parse_messages(data)),
        lambda: list(netlink.parse_attrs(data)),
        lambda: parse_napi(data),
        lambda: parse_queue(data),
        lambda: genl.parse_family(data),
        lambda: genl.parse_policy([data], 14),
        lambda: rtnetlink.parse_link(data),
        lambda: netlink.parse_ack(Message(uapi.NLMSG_ERROR, uapi.NLM_F_ACK_TLVS, 1, data), "x"),
        lambda: netlink.parse_ack(Message(uapi.NLMSG_DONE, uapi.NLM_F_ACK_TLVS, 1, data), "x"),
    ):
        try:
            parse()
        except RxlaneError as error:
            assert error.kind is Kind.FORMAT


@pytest.mark.parametrize("kind", ["", "veth"])
def test_virtual_links_tell_their_kind(kind: str) -> None:
    info = netlink.pack_attr(uapi.IFLA_INFO_KIND, kind.encode() + b"\0") if kind else b""
    body = struct.pack("=BxHiII", 0, 1, 7, uapi.IFF_UP, 0)
    body += netlink.pack_attr(uapi.IFLA_IFNAME, b"lan\0")
    body += netlink.pack_attr(uapi.IFLA_LINKINFO, info)
    assert rtnetlink.parse_link(body) == rtnetlink.LinkRow(7, "lan", True, kind=kind)


@pytest.mark.parametrize(("up", "said", "carrier"), [
    (True, 1, True), (True, 0, False), (True, None, True), (False, 0, True),
])  # fmt: skip
def test_a_carrier_is_missed_only_by_links_that_are_up(
    up: bool, said: int | None, carrier: bool
) -> None:
    body = struct.pack("=BxHiII", 0, 1, 7, uapi.IFF_UP if up else 0, 0)
    body += netlink.pack_attr(uapi.IFLA_IFNAME, b"lan\0")
    if said is not None:
        body += netlink.pack_attr(uapi.IFLA_CARRIER, bytes([said]))
    assert rtnetlink.parse_link(body).carrier is carrier


@given(st.lists(st.tuples(st.integers(1, 200), st.binary(max_size=40)), max_size=8))
def test_attributes_come_back(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.pack_attr(n, p) for n, p in pairs)
    assert list(netlink.parse_attrs(data)) == pairs


@given(st.lists(st.tuples(st.integers(16, 60), st.binary(max_size=40)), max_size=5))
def test_messages_come_back(pairs: list[tuple[int, bytes]]) -> None:
    data = b""
    for kind, body in pairs:
        data += message(kind, body)
        data += bytes(-len(data) % 4)
    assert [(m.type, m.body) for m in netlink.parse_messages(data)] == pairs


def test_napi_of_an_old_and_a_new_kernel() -> None:
    ifindex, old = parse_napi(napi(8193, 7, a3=40))
    assert (ifindex, old.napi_id, old.irq, old.pid, old.threaded) == (7, 8193, 40, None, None)
    _, new = parse_napi(napi(1, a4=99, a5=2, a6=200000, a7=5, a8=2))
    assert (new.pid, new.defer_hard_irqs, new.gro_flush_timeout) == (99, 2, 200000)
    assert (new.irq_suspend_timeout, new.threaded) == (5, 2)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 2, 4, 8])), max_size=8), st.data()
)
def test_numbers_of_like_messages(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """The second message of a shape is read in one piece; what comes out is the same."""
    for _ in range(3):
        rows = [(n, data.draw(st.integers(0, 256**size - 1)), size) for n, size in sizes]
        body = b"".join(
            netlink.pack_attr(n, v.to_bytes(size, sys.byteorder)) for n, v, size in rows
        )
        assert netlink.parse_uints(body, 0, 8) == {n: v for n, v, _ in rows if n <= 8}


@given(st.binary(max_size=60))
def test_any_bytes_are_numbers_or_none(data: bytes) -> None:
    """With what was read before them as well: bytes decide, not what came earlier."""
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(netlink.parse_uints(data, 0, 8))
        except RxlaneError as error:
            outcomes.append({-1: len(str(error))})
    assert outcomes[0] == outcomes[1]


@given(st.lists(st.tuples(st.integers(1, 40), st.binary(max_size=20)), max_size=12))
def test_picked_attributes(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.pack_attr(n, p) for n, p in pairs)
    found = netlink.pick_attrs(data, 0, {3, 32})
    assert found.keys() == {n for n, _ in pairs} & {3, 32}
    assert all((n, p) in pairs for n, p in found.items())
    with pytest.raises(RxlaneError):
        netlink.pick_attrs(data + b"\0", 0, {3, 99})


def test_wide_and_narrow_timeouts() -> None:
    """nla_put_uint() sends 4 bytes when the value fits, else 8."""
    body = GENL + attr(2, 1) + attr(1, 2) + attr(6, 2**40, "=Q")
    assert parse_napi(body)[1].gro_flush_timeout == 2**40
    packed = dict(netlink.parse_attrs(pack_napi_set(5, {8: 2, 6: 2**40})))
    assert (len(packed[8]), len(packed[6]), len(packed[2])) == (4, 8, 4)


def test_napi_set_bytes() -> None:
    """The message of the contract, byte for byte: id 8193, threaded 2."""
    body = genl.pack_command(14, 1) + pack_napi_set(8193, {8: 2})
    assert body == struct.pack("=BBHHHIHHI", 14, 1, 0, 8, 2, 8193, 8, 8, 2)


def test_queue_with_and_without_napi() -> None:
    body = GENL + attr(1, 3) + attr(2, 9) + attr(3, 0)
    assert parse_queue(body) == QueueRow(9, "rx", 3, None)
    assert parse_queue(body + attr(4, 70) + netlink.pack_attr(6, b"")).napi_id == 70
    with pytest.raises(RxlaneError):
        parse_queue(GENL + attr(1, 3) + attr(2, 9) + attr(3, 2))


def test_extended_acknowledgement() -> None:
    words = netlink.pack_attr(uapi.NLMSGERR_ATTR_MSG, b"integer out of range\0")
    where = attr(uapi.NLMSGERR_ATTR_OFFS, 28)
    flags = uapi.NLM_F_CAPPED | uapi.NLM_F_ACK_TLVS
    found = netlink.parse_ack(
        Message(uapi.NLMSG_ERROR, flags, 1, error_body(errno.ERANGE, words, where)), "NAPI 5"
    )
    assert found is not None
    assert (found.code, found.words, found.offset) == (errno.ERANGE, "integer out of range", 28)
    assert str(found) == "NAPI 5: integer out of range"
    plain = Message(uapi.NLMSG_ERROR, 0, 1, error_body(errno.EOPNOTSUPP))
    bare = netlink.parse_ack(plain, "x")
    assert bare is not None and bare.kind is Kind.UNSUPPORTED
    fine = Message(uapi.NLMSG_ERROR, uapi.NLM_F_CAPPED, 1, error_body(0))
    assert netlink.parse_ack(fine, "x") is None


def test_words_after_an_uncapped_request() -> None:
    """Without NETLINK_CAP_ACK the whole request stands before the words."""
    request = struct.pack("=IHHII", 24, 31, 5, 1, 0) + bytes(8)
    words = netlink.pack_attr(uapi.NLMSGERR_ATTR_MSG, b"no\0")
    body = struct.pack("=i", -errno.EINVAL) + request + words
    found = netlink.parse_ack(Message(uapi.NLMSG_ERROR, uapi.NLM_F_ACK_TLVS, 1, body), "x")
    assert found is not None and found.words == "no"


def test_dump_error_inside_done() -> None:
    """A bad ifindex in a dump answers ENODEV inside NLMSG_DONE."""
    done = Message(uapi.NLMSG_DONE, 0, 1, struct.pack("=i", -errno.ENODEV))
    found = netlink.parse_ack(done, "napi-get")
    assert found is not None and found.code == errno.ENODEV
    assert netlink.parse_ack(Message(uapi.NLMSG_DONE, 0, 1, struct.pack("=i", 0)), "x") is None


def test_dump_without_multi_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 1024 NAPIs arrive, in 43 parts that carry no NLM_F_MULTI, as the kernel sends them."""
    parts = []
    for start in range(0, 1024, 24):
        ids = range(1024 - start, max(0, 1000 - start), -1)
        parts.append(b"".join(message(FAMILY, napi(i)) for i in ids))
    netdev, _ = opened(monkeypatch, [family(10, 11), [*parts, DONE]])
    found = [n.napi_id for _, n in netdev.napis()]
    assert found == list(range(1024, 0, -1))


def test_stale_messages_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = message(FAMILY, napi(666), seq=999)
    netdev, _ = opened(monkeypatch, [family(10, 11), [stale + message(FAMILY, napi(5)), DONE]])
    assert [n.napi_id for _, n in netdev.napis()] == [5]


def test_interrupted_dump_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = message(FAMILY, napi(4), flags=uapi.NLM_F_DUMP_INTR)
    whole = [message(FAMILY, napi(5)) + message(FAMILY, napi(4)), DONE]
    netdev, _ = opened(monkeypatch, [family(10, 11), [torn, DONE], whole])
    assert [n.napi_id for _, n in netdev.napis()] == [5, 4]


def test_links_that_always_change_are_those_of_two_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a host of thousands, of which some always come or go, no reading is whole."""

    def link(index: int, name: str) -> bytes:
        body = rtnetlink._IFINFO.pack(0, 0, index, 0, 0)
        body += netlink.pack_attr(uapi.IFLA_IFNAME, name.encode() + b"\0")
        return message(uapi.RTM_NEWLINK, body, flags=uapi.NLM_F_DUMP_INTR)

    torn = [[link(2, "eth0")]] * 3 + [[link(2, "old"), link(3, "a")], [link(2, "eth0")]]
    fake = FakeSocket([[*parts, DONE] for parts in torn])
    monkeypatch.setattr(socket, "socket", lambda *_: fake)
    assert [(row.ifindex, row.name) for row in rtnetlink.links()] == [(2, "eth0"), (3, "a")]


def test_silence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    netdev, _ = opened(monkeypatch, [family(10, 11), [message(FAMILY, napi(4))]])
    with pytest.raises(RxlaneError) as caught:
        netdev.napis()
    assert caught.value.kind is Kind.KERNEL


def policy_dump(top: int | None) -> list[bytes]:
    """napi-set takes attributes 2, 5, 6, 7 and, up to top, 8."""
    ops = netlink.pack_attr(9, netlink.pack_attr(14, attr(1, 3)))
    facts = {2: b"", 5: attr(5, 2**31 - 1, "=Q"), 6: b"", 7: b""}
    if top is not None:
        facts[8] = attr(5, top, "=Q")
    nests = [message(uapi.GENL_ID_CTRL, GENL + ops)]
    for number, fact in facts.items():
        inner = netlink.pack_attr(3, netlink.pack_attr(number, attr(1, 4) + fact))
        nests.append(message(uapi.GENL_ID_CTRL, GENL + netlink.pack_attr(8, inner)))
    return [*nests, DONE]


@pytest.mark.parametrize(
    ("top", "settable", "highest"),
    [(None, (5, 6, 7), 0), (1, (5, 6, 7, 8), 1), (2, (5, 6, 7, 8), 2)],
)
def test_probing(
    monkeypatch: pytest.MonkeyPatch, top: int | None, settable: tuple[int, ...], highest: int
) -> None:
    netdev, _ = opened(monkeypatch, [family(10, 11, 14), policy_dump(top)])
    found = netdev.capabilities()
    assert (found.napi_set, found.settable, found.max_threaded) == (True, settable, highest)


def test_probing_stock_6_12(monkeypatch: pytest.MonkeyPatch) -> None:
    netdev, _ = opened(monkeypatch, [family(10, 11, 13)])
    assert netdev.capabilities() == Capabilities(netdev=True)
    with pytest.raises(RxlaneError) as caught:
        netdev.napi_set([(1, {8: 1})])
    assert caught.value.kind is Kind.UNSUPPORTED
    assert str(caught.value) == "kernel does not support NAPI_SET"


def test_kernel_without_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = [message(uapi.NLMSG_ERROR, error_body(errno.ENOENT))]
    netdev, _ = opened(monkeypatch, [refusal])
    assert netdev.capabilities() == Capabilities()
    assert netdev.napis() == [] and netdev.queues() == []


def test_refused_set_carries_the_kernels_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = netlink.pack_attr(uapi.NLMSGERR_ATTR_MSG, b"integer out of range\0")
    flags = uapi.NLM_F_CAPPED | uapi.NLM_F_ACK_TLVS
    refusal = [message(uapi.NLMSG_ERROR, error_body(errno.ERANGE, words), flags=flags)]
    netdev, fake = opened(monkeypatch, [family(10, 11, 14), refusal])
    failed = netdev.napi_set([(7, {8: 3})])
    assert {at: str(error) for at, error in failed.items()} == {0: "NAPI 7: integer out of range"}
    assert fake.sent[-1].endswith(genl.pack_command(14, 1) + pack_napi_set(7, {8: 3}))


class Setter(FakeSocket):
    """Answers napi-sets as the kernel does: errors always, else only what asks for it."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__([family(10, 11, 14)])
        self.bad = bad
        self.order: list[int] = []

    def sendto(self, data: bytes, where: object) -> None:
        if not self.order and not self.sent:
            super().sendto(data, where)
            return
        self.sent.append(data)
        answers = []
        for one in netlink.parse_messages(data):
            number = dict(netlink.parse_attrs(one.body, 4))[uapi.NETDEV_A_NAPI_ID]
            self.order.append(int.from_bytes(number, "little"))
            code = errno.ENOENT if self.order[-1] in self.bad else 0
            if code or one.flags & uapi.NLM_F_ACK:
                body = error_body(code)
                answers.append(message(uapi.NLMSG_ERROR, body, one.seq, uapi.NLM_F_CAPPED))
        self.queue = iter(answers)


@pytest.mark.parametrize("bad", [set(), {1}, {63, 64, 65}, {150}, set(range(1, 151))])
def test_many_are_set_in_few_datagrams(monkeypatch: pytest.MonkeyPatch, bad: set[int]) -> None:
    """Errors are told of the right NAPI, wherever in a datagram it stands."""
    fake = Setter(bad)
    monkeypatch.setattr(socket, "socket", lambda *_: fake)
    netdev = Netdev()
    failed = netdev.napi_set([(n, {8: 1}) for n in range(1, 151)])
    assert fake.order == list(range(1, 151)) and len(fake.sent) == 1 + 3
    assert {at + 1 for at in failed} == bad
    assert all(str(e) == f"NAPI {at + 1}: No such file or directory" for at, e in failed.items())


def test_workers_tell_errors_by_the_callers_position(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def napi_set(self, jobs: Iterable[tuple[int, object]]) -> dict[int, RxlaneError]:
            part = [napi for napi, _ in jobs]
            done.extend(part)
            bad = {at: napi for at, napi in enumerate(part) if napi % 50 == 0}
            return {at: RxlaneError(Kind.KERNEL, f"NAPI {napi}") for at, napi in bad.items()}

        def capabilities(self) -> Capabilities:
            return Capabilities()

        def close(self) -> None:
            pass

    done: list[int] = []
    monkeypatch.setattr("rxlane.kernel.Netdev", Part)
    failed = Linux().write_napis([(n, {"threaded": "on"}) for n in range(1000)])
    assert sorted(done) == list(range(1000))
    assert {at: str(e) for at, e in failed.items()} == {n: f"NAPI {n}" for n in range(0, 1000, 50)}


@pytest.mark.parametrize("name", ["", "a/b", "x" * 200])
def test_names_that_no_device_has(name: str) -> None:
    assert rtnetlink.resolve(name) is None
