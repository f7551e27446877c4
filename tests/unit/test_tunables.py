# SPDX-License-Identifier: GPL-2.0-or-later
"""The ethtool family's messages, and over which devices somebody is logged in."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxlane import uapi
from rxlane.errors import Kind, RxlaneError
from rxlane.host import logins, slices
from rxlane.items import ETHTOOL_ITEMS, FEATURE_ITEMS
from rxlane.model import Tunable
from rxlane.netlink import NetlinkError, pack_attr, pack_nest, pack_u32, parse_attrs
from rxlane.sysfs import Sysfs
from rxlane.wire import ethtool, rtnetlink
from unit.fakenet import DONE, GENL, FakeNet, FakeSocket, about, attr, error_body, family, message

CHANNELS, RINGS, COALESCING = ethtool.NUMBERS
BITS = {"rx-checksum": 3, "rx-ntuple-filter": 38}


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_give_a_format_error(data: bytes) -> None:
    for parse in (
        lambda: ethtool.parse_numbers(CHANNELS, data),
        lambda: ethtool.parse_features(BITS, data),
        lambda: ethtool.parse_active(BITS, data),
        lambda: ethtool.parse_strings(data),
    ):
        try:
            parse()
        except RxlaneError as error:
            assert error.kind is Kind.FORMAT


def test_every_item_has_its_message() -> None:
    carried = [item for m in ethtool.NUMBERS for item in m.fields]
    assert sorted([*carried, *FEATURE_ITEMS]) == sorted(ETHTOOL_ITEMS)


def test_channels_of_a_driver_with_pairs_and_others() -> None:
    body = about(7, attr(4, 1), attr(5, 8), attr(8, 1), attr(9, 4))
    assert ethtool.parse_numbers(CHANNELS, body) == (7, (Tunable("channels-combined", 4, 8),))
    filled = about(7, attr(2, 0), attr(6, 0), attr(5, 8), attr(9, 4))
    assert ethtool.parse_numbers(CHANNELS, filled)[1] == (Tunable("channels-combined", 4, 8),)


def test_coalescing_that_the_driver_has() -> None:
    body = about(7, attr(2, 3), pack_attr(11, b"\1"))
    found = ethtool.parse_numbers(COALESCING, body)[1]
    assert found == (Tunable("adaptive-rx", 1), Tunable("rx-usecs", 3))


def bitset(*bits: int) -> bytes:
    value = sum(1 << bit for bit in bits)
    return pack_u32(2, 64) + pack_attr(4, struct.pack("=2I", value & 0xFFFFFFFF, value >> 32))


@pytest.mark.parametrize(
    ("hw", "wanted", "active", "fixed", "value"),
    [
        ((38,), (), (), (), 0),
        ((38,), (38,), (38,), (), 1),
        ((3,), (), (), (), None),
        ((38,), (38,), (38,), (38,), None),
        ((38,), (38,), (), (), None),
    ],
)
def test_features(
    hw: tuple[int, ...],
    wanted: tuple[int, ...],
    active: tuple[int, ...],
    fixed: tuple[int, ...],
    value: int | None,
) -> None:
    sets = zip((2, 3, 4, 5), (hw, wanted, active, fixed), strict=True)
    body = about(7, *(pack_nest(n, bitset(*bits)) for n, bits in sets))
    expected = () if value is None else (Tunable("rx-ntuple-filter", value, 1),)
    assert ethtool.parse_features(BITS, body) == (7, expected)
    assert ethtool.parse_features({}, body) == (7, ()), "a kernel that does not know the name"


def test_features_that_are_on() -> None:
    names = {"rx-gro": 14, "rx-lro": 15, "rx-hashing": 28, "rx-ntuple-filter": 40}
    body = about(7, pack_nest(4, bitset(14, 40, 50)))
    assert ethtool.parse_active(names, body) == (7, ("rx-gro", "rx-ntuple-filter"))
    assert ethtool.parse_active(names, about(7)) == (7, ())


def test_numbers_to_set() -> None:
    """Byte for byte: the header of device 7, then 2 pairs; a switch is one byte."""
    nest = struct.pack("=HHHHI", 12, 0x8001, 8, 1, 7)
    packed = ethtool.pack_numbers(CHANNELS, 7, {"channels-combined": 2})
    assert packed == nest + struct.pack("=HHI", 8, 9, 2)
    packed = ethtool.pack_numbers(COALESCING, 7, {"adaptive-rx": "on"})
    assert packed == nest + struct.pack("=HHBxxx", 5, 11, 1)


def test_features_to_set() -> None:
    """A bit that is to be set has the flag, one that is to be cleared has not."""
    on, off = (ethtool.pack_features(7, {"rx-ntuple-filter": v}) for v in ("on", "off"))
    assert b"rx-ntuple-filter\0" in on and len(on) == len(off) + 4


def opened(monkeypatch: pytest.MonkeyPatch, answers: FakeNet) -> tuple[ethtool.Ethtool, FakeSocket]:
    fake = FakeSocket(answers)
    monkeypatch.setattr("socket.socket", lambda *_: fake)
    return ethtool.Ethtool(), fake


def test_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    string = pack_nest(1, pack_u32(1, 38) + pack_attr(2, b"rx-ntuple-filter\0"))
    names = pack_nest(2, pack_nest(1, pack_u32(1, 4) + pack_nest(3, string)))
    features = about(7, *(pack_nest(n, bitset(*b)) for n, b in ((2, (38,)), (3, ()), (4, ()))))
    answers = [
        family(1, 11, 15, 17, 19),
        [message(31, about(7, attr(5, 8), attr(9, 4))), DONE],
        [message(31, about(8, attr(2, 512), attr(6, 256))), DONE],
        [DONE],
        [message(31, features), DONE],
        [message(31, GENL + names), message(uapi.NLMSG_ERROR, error_body(0))],
    ]
    tools, _ = opened(monkeypatch, answers)
    assert tools.tunables() == {
        7: (Tunable("channels-combined", 4, 8), Tunable("rx-ntuple-filter", 0, 1)),
        8: (Tunable("ring-rx", 256, 512),),
    }


def test_writes_are_one_request_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = [message(uapi.NLMSG_ERROR, error_body(0))]
    tools, fake = opened(monkeypatch, [family(12, 16, 18, 20), fine, fine])
    tools.write(7, {"ring-rx": 64, "ring-tx": 64, "rx-ntuple-filter": "on"})
    assert [sent[16] for sent in fake.sent[1:]] == [16, 12]


def test_a_driver_without_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [message(uapi.NLMSG_ERROR, error_body(errno.EOPNOTSUPP))]
    tools, _ = opened(monkeypatch, [family(18), refused])
    for values in ({"channels-rx": 1}, {"ring-rx": 1}):
        with pytest.raises(RxlaneError) as caught:
            tools.write(7, values)
        assert caught.value.kind is Kind.UNSUPPORTED


@pytest.mark.parametrize(("usecs", "kind"), [(0, Kind.UNSUPPORTED), (2000, Kind.KERNEL)])
def test_a_driver_that_takes_no_delay_of_zero(
    monkeypatch: pytest.MonkeyPatch, usecs: int, kind: Kind
) -> None:
    """The profile's default, which must not cost the host all the rest; a number is an error."""
    refused = [message(uapi.NLMSG_ERROR, error_body(errno.EINVAL))]
    tools, _ = opened(monkeypatch, [family(20), refused])
    with pytest.raises(RxlaneError, match=f"coalescing rx-usecs={usecs}: ") as caught:
        tools.write(7, {"rx-usecs": usecs})
    assert caught.value.kind is kind
    # By which it is tried again, one part after the other: see writing.
    assert isinstance(caught.value, NetlinkError)


# -- logins -------------------------------------------------------------------------------------


def process(root: Path, pid: int, parent: int, environ: str = "") -> None:
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a b) c) S {parent} 1 1")
    (folder / "environ").write_bytes(environ.encode())


@pytest.mark.parametrize("tree", slices.TREES)
def test_logins_of_ancestors_and_sessions(tmp_path: Path, tree: str) -> None:
    """Also where control groups are those of version 1, or of both."""
    process(tmp_path, 40, 30, "SUDO_USER=x")
    process(tmp_path, 30, 1, "A=b\0SSH_CONNECTION=10.0.0.9 5 10.0.0.1 22\0C=d")
    process(tmp_path, 50, 1, "SSH_CONNECTION=fe80::2%eth3 5 fe80::1%eth3 22")
    process(tmp_path, 60, 1, "NOT_SSH_CONNECTION=10.9.9.9 5 10.0.0.1 22")
    scope = tmp_path / tree / "user.slice/user-0.slice/session-4.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text("50\n60\n")
    bond = tmp_path / "sys/class/net/bond0"
    for port in ("eth0", "eth1"):
        (bond / f"lower_{port}").mkdir(parents=True)
    sysfs = Sysfs(tmp_path)
    pairs = {("10.0.0.9", "10.0.0.1"), ("fe80::2%eth3", "fe80::1%eth3")}
    assert logins.look(sysfs, 40) == logins.Logins(frozenset(pairs), hidden=False)
    routes = {("10.0.0.9", "10.0.0.1"): 5, ("fe80::2%eth3", "fe80::1%eth3"): 3}
    names = {5: "bond0", 3: "eth3", 7: "eth7"}

    def route(*pair: str) -> set[int]:
        return {routes[pair[0], pair[1]]}

    def nobody(_: Iterable[str]) -> set[int]:
        return set()

    found = logins.devices(sysfs, pairs, names, route, nobody)
    assert found == ("bond0", "eth0", "eth1", "eth3")
    assert logins.devices(sysfs, pairs, names, lambda *_: (), nobody) == ()
    asked: list[set[str]] = []

    def holders(addresses: Iterable[str]) -> set[int]:
        asked.append(set(addresses))
        return {7, 9}

    found = logins.devices(sysfs, pairs, names, route, holders)
    assert found == ("bond0", "eth0", "eth1", "eth3", "eth7"), "it may come in by another device"
    assert sorted(map(sorted, asked)) == [["10.0.0.1"], ["fe80::1%eth3"]]


def test_a_login_over_a_tunnel_may_come_by_any_hardware(tmp_path: Path) -> None:
    """As over a bridge of Open vSwitch, or a tunnel that ends in a program on this host."""
    for name in ("eth0/device", "eth1/device", "tun0"):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
    names, sysfs = {1: "lo", 2: "eth0", 3: "eth1", 4: "tun0"}, Sysfs(tmp_path)

    def over(index: int) -> tuple[str, ...]:
        pair = ("10.0.0.9", "10.0.0.1")
        return logins.devices(sysfs, [pair], names, lambda *_: {index}, lambda _: {index})

    assert over(2) == ("eth0",)
    assert over(4) == ("eth0", "eth1", "tun0") and over(1) == ("eth0", "eth1", "lo")


@pytest.mark.parametrize("unit", ["ssh.service", "sshd@3-10.0.0.1:22.service", "dropbear.service"])
def test_a_login_without_a_session(tmp_path: Path, unit: str) -> None:
    """Without PAM a login's processes stay with the service, of which TuneD is no child."""
    process(tmp_path, 70, 1)
    process(tmp_path, 50, 1, "SSH_CONNECTION=10.0.0.9 5 10.0.0.1 22")
    for name, pids in ((unit, "50\n60\n"), ("tuned.service", "70\n")):
        service = tmp_path / "sys/fs/cgroup/system.slice" / name
        service.mkdir(parents=True)
        (service / "cgroup.procs").write_text(pids)
    pair = ("10.0.0.9", "10.0.0.1")
    assert logins.look(Sysfs(tmp_path), 70) == logins.Logins(frozenset([pair]), hidden=False)


def session(root: Path, name: str, *pids: int) -> Path:
    scope = root / f"sys/fs/cgroup/user.slice/user-0.slice/{name}"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return scope / "cgroup.procs"


def test_nobody_who_is_logged_in_is_hidden(tmp_path: Path) -> None:
    assert not logins.look(Sysfs(tmp_path)).hidden, "without systemd there are no sessions"
    process(tmp_path, 40, 1, "SSH_CONNECTION=10.0.0.9 5 10.0.0.1 22")
    process(tmp_path, 50, 1, "TERM=linux")
    session(tmp_path, "session-1.scope", 40, 41)
    session(tmp_path, "session-2.scope", 50)
    session(tmp_path, "session-3.scope")
    session(tmp_path, "user@0.service", 60)
    assert not logins.look(Sysfs(tmp_path)).hidden, "what lingers is no login"


@pytest.mark.parametrize("pids", [(60,), (50, 60), (0,)])
def test_a_login_that_cannot_be_read_is_hidden(tmp_path: Path, pids: tuple[int, ...]) -> None:
    """0 stands for a process of another PID namespace."""
    process(tmp_path, 50, 1, "TERM=linux")
    session(tmp_path, "session-4.scope", *pids)
    assert logins.look(Sysfs(tmp_path), 50) == logins.Logins(frozenset(), hidden=True)


def test_a_process_that_ends_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = iter([{50, 60}, {50}])
    process(tmp_path, 50, 1, "TERM=linux")
    session(tmp_path, "session-4.scope")
    monkeypatch.setattr(logins, "processes", lambda *_: next(listed))
    assert not logins.look(Sysfs(tmp_path)).hidden


def test_one_session_that_tells_shows_no_other(tmp_path: Path) -> None:
    """A process of the first has ended or is not to be read: which login it is of is known."""
    pair = ("10.0.0.9", "10.0.0.1")
    process(tmp_path, 40, 1, f"SSH_CONNECTION={pair[0]} 5 {pair[1]} 22")
    session(tmp_path, "session-1.scope", 40, 41)
    assert logins.look(Sysfs(tmp_path), 40) == logins.Logins(frozenset([pair]), hidden=False)
    session(tmp_path, "session-2.scope", 60)
    assert logins.look(Sysfs(tmp_path), 40) == logins.Logins(frozenset([pair]), hidden=True)


def test_the_environ_of_a_process_is_read_once(tmp_path: Path) -> None:
    class Counting(Sysfs):
        def read(self, name: str) -> str | None:
            if name.endswith("environ"):
                asked.append(name)
            return super().read(name)

    asked: list[str] = []
    process(tmp_path, 40, 30)
    process(tmp_path, 30, 1)
    process(tmp_path, 50, 1)
    session(tmp_path, "session-1.scope", 30, 40)
    session(tmp_path, "session-2.scope", 50, 60)
    logins.look(Counting(tmp_path), 40)
    assert sorted(asked) == [f"proc/{pid}/environ" for pid in (30, 40, 50, 60)]


@pytest.mark.parametrize(
    ("environ", "pair"),
    [
        ("SSH_CONNECTION=10.0.0.9 5 10.0.0.1 22\0A=b", ("10.0.0.9", "10.0.0.1")),
        ("SSH_CONNECTION=fd00::2 5 fd00::1 22", ("fd00::2", "fd00::1")),
        ("SSH_CONNECTION=10.0.0.9 5\0A=b c d", ("10.0.0.9", "")),
        ("SSH_CONNECTION=10.0.0.9 \0A=b c d", ("10.0.0.9", "")),
    ],
)
def test_addresses_of_a_login(tmp_path: Path, environ: str, pair: tuple[str, str]) -> None:
    process(tmp_path, 40, 1, environ)
    assert logins.look(Sysfs(tmp_path), 40).connections == {pair}


class Routes:
    """A kernel with routes by source, and one of its devices with an address of a line."""

    asked: ClassVar[list[tuple[int, bytes]]] = []

    def __init__(self, _: int) -> None:
        pass

    def close(self) -> None:
        pass

    def request(self, kind: int, body: bytes, what: str) -> bytes:
        self.asked.append((kind, body))
        found = dict(parse_attrs(body, 12))
        source = found.get(uapi.RTA_SRC)
        if source == bytes([192, 0, 2, 1]):
            raise NetlinkError(errno.EINVAL, what)
        assert body[1] == 8 * len(found[uapi.RTA_DST])
        assert body[2] == 8 * len(source or b"")
        return bytes(12) + pack_u32(uapi.RTA_OIF, 2 if source is None else 3)

    def dump(self, kind: int, body: bytes, what: str) -> list[bytes]:
        assert kind == uapi.RTM_GETADDR
        head = struct.Struct("=BBBBI")
        line = pack_attr(uapi.IFA_ADDRESS, bytes([10, 0, 0, 9]))
        return [
            head.pack(2, 24, 0, 0, 4) + pack_attr(uapi.IFA_ADDRESS, bytes([10, 0, 0, 1])),
            head.pack(2, 32, 0, 0, 5) + line + pack_attr(uapi.IFA_LOCAL, bytes([10, 0, 0, 7])),
            head.pack(10, 64, 0, 0, 6) + pack_attr(uapi.IFA_ADDRESS, bytes(15) + b"\1"),
        ]


def test_the_way_to_a_client_is_by_the_servers_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtnetlink, "Socket", Routes)
    assert rtnetlink.routes("10.0.0.9") == {2}
    assert rtnetlink.routes("10.0.0.9", "10.0.0.1") == {3}
    assert rtnetlink.routes("10.0.0.9", "192.0.2.1") == {2}, "an address that is not the host's"
    assert rtnetlink.routes("10.0.0.9", "fd00::1") == {2}, "nothing of another family"
    assert rtnetlink.routes("UNKNOWN", "UNKNOWN") == set()


def test_a_route_of_several_uplinks() -> None:
    hops = b"".join(
        struct.pack("=HBBi", 8 + len(own), 0, 0, index) + own
        for index, own in ((5, pack_attr(5, bytes(4))), (6, b""))
    )
    assert rtnetlink.parse_route(bytes(12) + pack_attr(uapi.RTA_MULTIPATH, hops)) == {5, 6}
    with pytest.raises(RxlaneError, match="next hop of 0 bytes"):
        rtnetlink.parse_route(bytes(12) + pack_attr(uapi.RTA_MULTIPATH, bytes(8)))


def test_who_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtnetlink, "Socket", Routes)
    monkeypatch.setattr(rtnetlink, "links", lambda: [rtnetlink.LinkRow(8, "eth8", True)])
    assert rtnetlink.holders(["10.0.0.1", "::1"]) == {4, 6}
    assert rtnetlink.holders(["10.0.0.7"]) == {5}
    assert rtnetlink.holders(["10.0.0.9"]) == set(), "that is who is at the other end"
    assert rtnetlink.holders(["192.0.2.1", "UNKNOWN"]) == set()
    assert rtnetlink.holders(iter(["fe80::1%eth8", "fe80::1%eth9"])) == {8}


def test_no_login(tmp_path: Path) -> None:
    process(tmp_path, 40, 1)
    sysfs = Sysfs(tmp_path)
    assert logins.look(sysfs, 40) == logins.Logins(frozenset(), hidden=False)
    assert logins.devices(sysfs, (), {1: "lo"}, lambda *_: {1}) == ()
