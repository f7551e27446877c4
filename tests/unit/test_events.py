# SPDX-License-Identifier: GPL-2.0-or-later
"""What announcements of the kernel become; the messages are packed as the kernel packs them."""

from __future__ import annotations

import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rxlane import netlink
from rxlane import uapi as u
from rxlane.errors import Kind, RxlaneError
from rxlane.keeping.events import LOST, Event, Links, Sources, Threads, ethtool_event, uevent
from rxlane.netlink import Message
from rxlane.wire import genl, rtnetlink
from rxlane.wire.rtnetlink import LinkState


def link_message(
    index: int,
    name: str,
    up: bool = True,
    *,
    mtu: int = 1500,
    xdp: bytes = b"",
    carriers: int | None = None,
    kind: str = "",
    gone: bool = False,
    family: int = 0,
) -> Message:
    body = struct.pack("=BxHiII", family, 1, index, u.IFF_UP if up else 0, 0)
    body += netlink.pack_attr(u.IFLA_IFNAME, name.encode() + b"\0")
    body += netlink.pack_u32(u.IFLA_MTU, mtu)
    body += netlink.pack_attr(u.IFLA_XDP, xdp)
    if carriers is not None:
        # It starts without, so an even count leaves it so.
        body += netlink.pack_attr(u.IFLA_CARRIER, bytes([carriers % 2]))
        body += netlink.pack_u32(u.IFLA_CARRIER_CHANGES, carriers)
    if kind:
        named = netlink.pack_attr(u.IFLA_INFO_KIND, kind.encode() + b"\0")
        body += netlink.pack_attr(u.IFLA_LINKINFO, named)
    return Message(u.RTM_DELLINK if gone else u.RTM_NEWLINK, 0, 0, body)


@pytest.fixture
def links() -> Links:
    return Links([LinkState(2, "eth0", True), LinkState(3, "eth1", False)])


def told(links: Links, *messages: Message) -> list[str]:
    return [str(event) for message in messages if (event := links.feed(message))]


def test_links_that_come_and_go_up(links: Links) -> None:
    seen = told(
        links,
        link_message(2, "eth0"),
        link_message(3, "eth1"),
        link_message(9, "eth9", False),
        link_message(9, "eth9"),
    )
    assert seen == ["eth1 went up", "eth9 appeared", "eth9 went up"]


def test_a_link_that_goes_down_or_away_needs_nothing(links: Links) -> None:
    assert told(links, link_message(2, "eth0", False), link_message(2, "eth0", gone=True)) == []
    assert links.names == {3: "eth1"}
    assert told(links, link_message(2, "eth0")) == ["eth0 appeared"]


def test_a_port_that_leaves_its_bridge_stays(links: Links) -> None:
    assert told(links, link_message(2, "eth0", gone=True, family=7)) == []
    assert links.names[2] == "eth0"


def test_rename_costs_no_settings(links: Links) -> None:
    event = links.feed(link_message(2, "lan0"))
    assert event == Event("renamed from eth0", "lan0", 2, reset=False)
    assert links.names[2] == "lan0" and links.index("lan0") == 2 and links.index("eth0") is None


def test_set_up_anew(links: Links) -> None:
    first = link_message(2, "eth0", mtu=1500, xdp=b"")
    assert told(links, first, first) == []
    assert told(links, link_message(2, "eth0", mtu=9000)) == ["eth0 got another MTU"]
    seen = told(links, link_message(2, "eth0", mtu=9000, xdp=b"\1"))
    assert seen == ["eth0 got another XDP program"]


def test_the_first_announcement_of_a_link_that_was_there_counts() -> None:
    """What it is compared with is what the links were found with."""
    found = Links([LinkState(2, "eth0", True, 1500, b"")])
    assert told(found, link_message(2, "eth0", xdp=b"\1")) == ["eth0 got another XDP program"]
    known = Links([LinkState(2, "eth0", True, 1500, b"\1")])
    assert told(known, link_message(2, "eth0", mtu=9000, xdp=b"\1")) == ["eth0 got another MTU"]


def test_a_reset_shows_by_the_carrier(links: Links) -> None:
    """Lost and found again between two messages it is the same, but the count is not."""
    assert told(links, link_message(2, "eth0", carriers=1)) == []
    assert told(links, link_message(2, "eth0", carriers=2)) == []
    assert told(links, link_message(2, "eth0", carriers=3)) == ["eth0 got its carrier back"]
    assert told(links, link_message(2, "eth0", carriers=3)) == []
    assert told(links, link_message(2, "eth0", carriers=5)) == ["eth0 got its carrier back"]
    event = links.feed(link_message(2, "eth0", carriers=7))
    assert event is not None and event.reset and not event.tun


def test_ports_announced_by_their_bridge_change_nothing(links: Links) -> None:
    assert told(links, link_message(2, "eth0", carriers=1)) == []
    assert told(links, link_message(2, "eth0", mtu=9000, family=7)) == []
    assert told(links, link_message(2, "eth0", carriers=1)) == []


def test_taps_are_known(links: Links) -> None:
    event = links.feed(link_message(7, "tap0", kind="tun"))
    assert event == Event("appeared", "tap0", 7, tun=True)
    bridge = links.feed(link_message(8, "br0", kind="bridge"))
    assert bridge is not None and not bridge.tun


def test_other_messages(links: Links) -> None:
    assert links.feed(Message(u.NLMSG_DONE, 0, 0, b"")) is None


def news(command: int, index: int | None) -> Message:
    body = struct.pack("=BBH", command, 1, 0)
    if index is not None:
        header = netlink.pack_u32(u.ETHTOOL_A_HEADER_DEV_INDEX, index)
        body += netlink.pack_attr(u.ETHTOOL_A_HEADER, header)
    return Message(30, 0, 0, body)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (u.ETHTOOL_MSG_CHANNELS_NTF, Event("channels changed", "eth0", 2)),
        (u.ETHTOOL_MSG_COALESCE_NTF, Event("coalescing changed", "eth0", 2, reset=False)),
        (5, None),  # link modes
        (200, None),
    ],
)
def test_ethtool_news(links: Links, command: int, expected: Event | None) -> None:
    assert ethtool_event(news(command, 2), links) == expected


def test_ethtool_news_of_a_device_not_known_yet(links: Links) -> None:
    event = ethtool_event(news(u.ETHTOOL_MSG_RINGS_NTF, 77), links)
    assert event == Event("rings changed")
    assert ethtool_event(Message(30, 0, 0, b""), links) is None


def kobject(action: str, path: str, subsystem: str) -> bytes:
    fields = (f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}")
    return "\0".join(fields).encode() + b"\0"


CPU3 = "/devices/system/cpu/cpu3"
QUEUE = "/devices/pci0000:00/0000:00:03.0/net/eth0/queues/rx-5"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (kobject("offline", CPU3, "cpu"), Event("CPU 3 went offline")),
        (kobject("online", CPU3, "cpu"), Event("CPU 3 went online")),
        (kobject("change", CPU3, "cpu"), None),
        (kobject("add", QUEUE, "queues"), Event("got other queues", "eth0", 2)),
        (kobject("remove", QUEUE, "queues"), None),
        (kobject("add", QUEUE.replace("eth0", "eth7"), "queues"), None),
        (kobject("add", "/devices/virtual/net/veth1", "net"), None),
        (b"libudev\0\xfe\xed\xca\xfe", None),
        (b"", None),
        (b"\xff\0=\0==\0ACTION", None),
    ],
)
def test_uevents(links: Links, data: bytes, expected: Event | None) -> None:
    assert uevent(data, links) == expected


def test_multicast_group_of_a_family() -> None:
    def group(name: str, number: int) -> bytes:
        return netlink.pack_attr(u.CTRL_ATTR_MCAST_GRP_NAME, name.encode() + b"\0") + (
            netlink.pack_u32(u.CTRL_ATTR_MCAST_GRP_ID, number)
        )

    nests = netlink.pack_attr(1, group("other", 4)) + netlink.pack_attr(2, group("monitor", 9))
    body = struct.pack("=BBH", 1, 2, 0) + netlink.pack_attr(u.CTRL_ATTR_MCAST_GROUPS, nests)
    assert genl.parse_group(body, "monitor") == 9
    assert genl.parse_group(body, "nothing") is None
    assert genl.parse_group(struct.pack("=BBH", 1, 2, 0), "monitor") is None


# -- threads, on processes in their place -----------------------------------------------------


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_thread_that_ends(child: subprocess.Popen[bytes]) -> None:
    rows = [(child.pid, 2), (2**22 + 1, 3)]  # no pid is that high
    threads = Threads(lambda: rows)
    threads.refresh()
    (descriptor,) = threads.descriptors
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(0) == []
    child.kill()
    assert poller.poll(5000)
    assert threads.read(descriptor) == 2 and not threads.descriptors
    assert threads.read(descriptor) is None


def test_threads_are_followed_once_and_let_go(child: subprocess.Popen[bytes]) -> None:
    rows = [(child.pid, 2)]
    threads = Threads(lambda: rows)
    threads.refresh()
    first = threads.descriptors
    threads.refresh()
    assert threads.descriptors == first
    rows.clear()
    threads.refresh()
    assert threads.descriptors == ()
    with pytest.raises(OSError):
        os.fstat(first[0])


def test_no_more_threads_than_descriptors(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (7, 7))
    threads = Threads(lambda: [(child.pid, 2), (os.getpid(), 3)])
    threads.refresh()
    assert len(threads.descriptors) == 1
    assert threads.missed == 0, "of no layout"
    threads.close()
    assert not threads.descriptors


def test_threads_of_the_layout_come_first(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (7, 7))
    threads = Threads(lambda: [(child.pid, 2), (os.getpid(), 3)])
    threads.refresh({2})
    assert threads.read(threads.descriptors[0]) == 2
    threads.refresh({2})
    threads.refresh({3})
    assert threads.missed == 0
    assert threads.read(threads.descriptors[0]) == 3, "the place of another's is given up"
    threads.refresh({2, 3})
    assert threads.missed == 1
    threads.close()


def test_no_more_threads_than_there_is_room_for(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others in TuneD's daemon may have taken all descriptors."""
    opened, code = os.pidfd_open, errno.EMFILE

    def full(pid: int) -> int:
        if pid == os.getpid():
            raise OSError(code, os.strerror(code))
        return opened(pid)

    monkeypatch.setattr(os, "pidfd_open", full)
    threads = Threads(lambda: [(child.pid, 2), (os.getpid(), 3)])
    threads.refresh({2, 3})
    threads.refresh({2, 3})
    assert len(threads.descriptors) == 1
    assert threads.missed == 1
    code = errno.EINVAL
    with pytest.raises(OSError, match="Invalid argument"):
        threads.refresh()
    threads.close()


def test_no_room_to_ask_for_threads(child: subprocess.Popen[bytes]) -> None:
    rows = iter([[(child.pid, 2)]])

    def ask() -> list[tuple[int, int]]:
        for found in rows:
            return found
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    threads = Threads(ask)
    threads.refresh()
    threads.refresh()
    assert len(threads.descriptors) == 1, "what is followed stays so"
    threads.close()


def test_sources_without_room_leave_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "eventfd", none)
        with pytest.raises(OSError, match="Too many open files"):
            Sources()
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_that_are_up(links: Links) -> None:
    assert links.is_up(2) and not links.is_up(3) and not links.is_up(99)


# -- sockets ----------------------------------------------------------------------------------


def test_real_sources_open_without_root() -> None:
    sources = Sources()
    try:
        assert len(sources.descriptors) >= 2 and sources.links.names
        for descriptor in sources.descriptors:
            sources.read(descriptor)
    finally:
        sources.close()


def test_lost_announcements_are_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources()

    class Full:
        def __init__(self) -> None:
            self.left = 1

        def recvfrom(self, size: int) -> object:
            if self.left:
                self.left -= 1
                raise OSError(105, "No buffer space available")
            raise BlockingIOError

        def close(self) -> None: ...

    try:
        monkeypatch.setattr(rtnetlink, "states", lambda: [LinkState(4, "new0", True)])
        descriptor = sources.descriptors[0]
        monkeypatch.setitem(sources._sockets, descriptor, Full())
        known = sources.links.names
        assert sources.read(descriptor) == [LOST] and sources.links.names == known
        sources.renew()
        assert sources.links.names == {4: "new0"}
    finally:
        monkeypatch.undo()
        sources.close()


def test_links_that_cannot_be_read_after_events_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources()

    def fail() -> list[LinkState]:
        raise RxlaneError(Kind.KERNEL, "links: changed during each of 5 readings")

    try:
        known = sources.links.names
        # A message that is cut short; the kernel sends none.
        monkeypatch.setitem(sources._readers, sources.descriptors[0], sources._link)
        with pytest.raises(RxlaneError, match="malformed"):
            sources._understood(sources.descriptors[0], b"short")
        monkeypatch.setattr(rtnetlink, "states", fail)
        for _ in range(2):
            with pytest.raises(RxlaneError):
                sources.renew()
            assert sources.links.names == known
        monkeypatch.setattr(rtnetlink, "states", lambda: [LinkState(4, "new0", True)])
        sources.renew()
        assert sources.links.names == {4: "new0"}
        monkeypatch.setattr(rtnetlink, "states", fail)
        sources.renew()
    finally:
        monkeypatch.undo()
        sources.close()
