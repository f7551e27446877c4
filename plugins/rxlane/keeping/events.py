# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel announces that may have cost a lane its settings. Blocks, never polls.

rtnetlink tells of links that come, go up, are renamed or set up anew, the ethtool family of changed
channels and rings, uevents of queues and of CPUs, inotify of files that were written. Nothing
announces that another program set a NAPI by netlink or moved a thread: that is found when one of
these makes us look.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rxlane import netlink
from rxlane import uapi as u
from rxlane.errors import RxlaneError
from rxlane.host.places import Folder
from rxlane.keeping.notify import IN_MODIFY, Folders
from rxlane.netlink import Message
from rxlane.sysfs import Sysfs
from rxlane.wire import genl, rtnetlink
from rxlane.wire.netdev import Netdev
from rxlane.wire.rtnetlink import LinkState

ROOM = 1 << 20  # bytes for what arrives while we plan; hundreds of links going up fit
APPEARED = "appeared"
RENAMED = "renamed from"
KERNEL = 0  # the sender's netlink port; anything else is no announcement
FULL = (errno.EMFILE, errno.ENFILE)  # this process, or the host, may have no more descriptors


@dataclass(frozen=True, slots=True)
class Event:
    """device and ifindex are None when it is about all devices; what is for the log.

    reset: the kernel or the driver may have lost settings by this, without another's doing. tun:
    it is about a tap or its like.
    """

    what: str
    device: str | None = None
    ifindex: int | None = None
    reset: bool = True
    tun: bool = False

    @property
    def anew(self) -> bool:
        """True where the name may have been another device's until now."""
        return self.what == APPEARED or self.what.startswith(RENAMED)

    def __str__(self) -> str:
        return self.what if self.device is None else f"{self.device} {self.what}"


# Leads to the first look of who keeps a layout, which finds what is to be followed.
APPLIED = Event("the layout was applied", reset=False)
# Of whatever it was.
LOST = Event("events were lost")


class Links:
    """The network namespace's links as the messages so far tell them."""

    def __init__(self, states: Iterable[LinkState]) -> None:
        self._known = {state.ifindex: state for state in states}

    @property
    def names(self) -> dict[int, str]:
        return {index: state.name for index, state in self._known.items()}

    def is_up(self, index: int) -> bool:
        return index in self._known and self._known[index].up

    def index(self, name: str) -> int | None:
        return next((i for i, state in self._known.items() if state.name == name), None)

    def feed(self, message: Message) -> Event | None:
        """Take in one rtnetlink message; return what it tells of interest to a layout."""
        if message.type not in (u.RTM_NEWLINK, u.RTM_DELLINK):
            return None
        new = rtnetlink.parse_state(message.body)
        if message.body[0] != socket.AF_UNSPEC:
            # Bridges and the like send these of their ports, in a family of their own and with
            # little in them: DELLINK for one that only leaves.
            return None
        if message.type == u.RTM_DELLINK:
            self._known.pop(new.ifindex, None)
            return None
        old = self._known.get(new.ifindex)
        self._known[new.ifindex] = new if old is None else _completed(old, new)
        what = APPEARED if old is None else _difference(old, new)
        if what is None:
            return None
        return Event(what, new.name, new.ifindex, not what.startswith(RENAMED), new.tun)


def _completed(old: LinkState, new: LinkState) -> LinkState:
    """Return the state with what a message did not tell as it was."""
    kept = {name: getattr(old, name) for name in _TOLD if getattr(new, name) is None}
    return replace(new, tun=new.tun or old.tun, **kept)


_TOLD = ("mtu", "xdp", "carrier", "carriers")


def _difference(old: LinkState, new: LinkState) -> str | None:
    """Say what happened; a link that went down has nothing to lay out, so that is nothing.

    Many drivers set up queues anew for another MTU or XDP program; one that resets its NIC loses
    the carrier meanwhile, be it for so short that only the count tells.
    """
    if old.name != new.name:
        return f"{RENAMED} {old.name}"
    if new.up and not old.up:
        return "went up"
    if None not in (old.mtu, new.mtu) and old.mtu != new.mtu:
        return "got another MTU"
    if None not in (old.xdp, new.xdp) and old.xdp != new.xdp:
        return "got another XDP program"
    if new.up and new.carrier and None not in (old.carriers, new.carriers):
        return None if old.carriers == new.carriers else "got its carrier back"
    return None


# Announcements of the ethtool family: (words, whether queues may have been set up anew).
ETHTOOL_NEWS = {
    u.ETHTOOL_MSG_FEATURES_NTF: ("features changed", False),
    u.ETHTOOL_MSG_PRIVFLAGS_NTF: ("private flags changed", True),
    u.ETHTOOL_MSG_RINGS_NTF: ("rings changed", True),
    u.ETHTOOL_MSG_CHANNELS_NTF: ("channels changed", True),
    u.ETHTOOL_MSG_COALESCE_NTF: ("coalescing changed", False),
}


def ethtool_event(message: Message, links: Links) -> Event | None:
    if not message.body or message.body[0] not in ETHTOOL_NEWS:
        return None
    what, reset = ETHTOOL_NEWS[message.body[0]]
    header = dict(genl.generic_attrs(message.body)).get(u.ETHTOOL_A_HEADER, b"")
    index = dict(netlink.parse_attrs(header)).get(u.ETHTOOL_A_HEADER_DEV_INDEX)
    number = None if index is None else netlink.attr_uint(index)
    name = None if number is None else links.names.get(number)
    return Event(what, name, number if name else None, reset)


_CPU = re.compile(r"/devices/system/cpu/cpu(\d+)$")
_QUEUE = re.compile(r"/net/([^/]+)/queues/[rt]x-\d+$")


def uevent(data: bytes, links: Links) -> Event | None:
    """Return what a kernel uevent tells; its fields follow a line ACTION@PATH, NUL between."""
    fields = dict(
        part.split("=", 1) for part in data.decode("utf-8", "replace").split("\0") if "=" in part
    )
    action, path = fields.get("ACTION", ""), fields.get("DEVPATH", "")
    cpu = _CPU.search(path)
    if fields.get("SUBSYSTEM") == "cpu" and cpu and action in ("online", "offline"):
        return Event(f"CPU {cpu[1]} went {action}")
    queue = _QUEUE.search(path)
    if fields.get("SUBSYSTEM") == "queues" and queue and action == "add":
        index = links.index(queue[1])
        return None if index is None else Event("got other queues", queue[1], index)
    return None


class Threads:
    """A descriptor for each NAPI's thread, which becomes readable when the thread ends.

    As many as a quarter of the descriptors that this process may have, and as there is room for,
    those of the layout first; the rest is not followed. In TuneD's daemon others have theirs:
    [scheduler] one for each CPU. missed: threads of the layout among that rest.
    """

    def __init__(self, threads: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """threads: returns (pid, ifindex) of those that there are."""
        self._threads = threads
        self._open: dict[int, tuple[int, int]] = {}
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        self.missed = 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(self._open)

    def refresh(self, laid_out: Container[int] = ()) -> None:
        """Follow the threads that there are now. laid_out: indexes of the layout's devices."""
        try:
            present = self._threads()
        except OSError as error:
            if error.errno not in FULL:
                raise
            return
        first = sorted(present, key=lambda row: row[1] not in laid_out)
        self.missed = sum(index in laid_out for _, index in first[self._most :])
        try:
            self._follow(dict(first[: self._most]))
        except OSError as error:
            if error.errno not in FULL:
                raise
            followed = {pid for pid, _ in self._open.values()}
            self.missed = sum(pid not in followed and i in laid_out for pid, i in first)

    def _follow(self, wanted: dict[int, int]) -> None:
        for descriptor, (pid, index) in list(self._open.items()):
            if wanted.get(pid) == index:
                del wanted[pid]
            else:
                self._close(descriptor)
        for pid, index in wanted.items():
            with contextlib.suppress(ProcessLookupError):
                self._open[os.pidfd_open(pid)] = (pid, index)

    def read(self, descriptor: int) -> int | None:
        """Return the device whose thread ended."""
        _, index = self._open.get(descriptor, (0, None))
        self._close(descriptor)
        return index

    def _close(self, descriptor: int) -> None:
        if self._open.pop(descriptor, None) is not None:
            os.close(descriptor)

    def close(self) -> None:
        for descriptor in list(self._open):
            self._close(descriptor)


class Written:
    """The folders whose settings are followed.

    A watch is on an inode, and procfs makes a new one for each name that it has forgotten: so the
    folder is held open, too. Not for more than an eighth of the descriptors that this process may
    have, and not in more folders than fs.inotify.max_user_watches allows; the rest is not followed.
    """

    def __init__(self, watcher: Folders, files: Sysfs) -> None:
        self._watcher = watcher
        self._files = files
        self._known: dict[int, Folder] = {}
        self._pins: dict[int, int] = {}
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8

    def refresh(self, wanted: Mapping[str, Folder]) -> None:
        """Follow these folders; one that was made anew under its old name is another one."""
        known: dict[int, Folder] = {}
        for path, folder in wanted.items():
            try:
                number = self._follow(path)
            except OSError as error:
                if error.errno in FULL:
                    # Not even a folder that is followed can be looked at: all of them stay so.
                    known = self._known | known
                    break
                # It has just gone, or no new one can be followed.
                continue
            known[number] = folder
        for number in self._known.keys() - known.keys():
            self._leave(number)
        self._known = known

    def _follow(self, path: str) -> int:
        pin = self._files.pin(path)
        try:
            number = self._watcher.watch(f"/proc/self/fd/{pin}", IN_MODIFY)
            if number not in self._known and len(self._pins) < self._most:
                self._pins[number], pin = pin, -1
            return number
        finally:
            if pin >= 0:
                os.close(pin)

    def _leave(self, number: int) -> None:
        # The kernel has removed the watch of a folder that is gone.
        with contextlib.suppress(OSError):
            self._watcher.unwatch(number)
        if number in self._pins:
            os.close(self._pins.pop(number))

    def told(self, seen: Collection[tuple[int, str]], links: Links) -> list[Event]:
        """Return what the writes are about: the same files of all queues are one event."""
        found = dict[Event, None]()
        for number, name in sorted(seen):
            folder = self._known.get(number, NOTHING)
            index = links.index(folder.device)
            if name in folder.names and (index is not None or not folder.device):
                device = folder.device or None
                what = f"had {name} written" if device else f"{name} was written"
                found[Event(what, device, index, reset=False)] = None
        return list(found)

    def close(self) -> None:
        for pin in self._pins.values():
            os.close(pin)
        self._pins.clear()


NOTHING = Folder("", frozenset())


def napi_threads() -> list[tuple[int, int]]:
    netdev = Netdev()
    try:
        return [(napi.pid, index) for index, napi in netdev.napis() if napi.pid]
    finally:
        netdev.close()


class Sources:
    """The descriptors that these come by, for the caller's network namespace."""

    def __init__(self, threads: Callable[[], list[tuple[int, int]]] = napi_threads) -> None:
        """threads: see Threads."""
        self._readers: dict[int, Callable[[bytes], Iterator[Event | None]]] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._threads = Threads(threads)
        self._announced: deque[Event] = deque()
        self.folders = Folders()
        try:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self.folders.close()
            raise
        self._written = Written(self.folders, Sysfs())
        try:
            self._open(u.NETLINK_ROUTE, u.RTNLGRP_LINK, self._link)
            self._open(u.NETLINK_KOBJECT_UEVENT, u.UEVENT_GROUP_KERNEL, self._uevent)
            group = genl.multicast_group(u.ETHTOOL_FAMILY_NAME, u.ETHTOOL_MCGRP_MONITOR)
            if group is not None:
                self._open(u.NETLINK_GENERIC, group, self._ethtool)
            # After the subscription, so that no change falls between.
            self.links = Links(rtnetlink.states())
            self._outdated = False
        except (OSError, RxlaneError):
            self.close()
            raise

    def _open(
        self, protocol: int, group: int, reader: Callable[[bytes], Iterator[Event | None]]
    ) -> None:
        one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._sockets[one.fileno()] = one
        self._readers[one.fileno()] = reader
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        one.bind((0, 0))
        one.setsockopt(u.SOL_NETLINK, u.NETLINK_ADD_MEMBERSHIP, group)

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()
        self._threads.close()
        self._written.close()
        self.folders.close()
        os.close(self._bell)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What to wait on; other ones after refresh() and read()."""
        own = (self._bell, self.folders.descriptor)
        return (*self._sockets, *own, *self._threads.descriptors)

    def announce(self, event: Event) -> None:
        """Tell something oneself, from any thread."""
        self._announced.append(event)
        os.eventfd_write(self._bell, 1)

    def refresh(self, folders: Mapping[str, Folder]) -> None:
        """After a look at the host: follow these folders, and the threads that lanes have now."""
        self._written.refresh(folders)
        devices = {folder.device for folder in folders.values()}
        laid_out = {index for index, name in self.links.names.items() if name in devices}
        try:
            self._threads.refresh(laid_out)
        except RxlaneError:
            return  # they come and go right now: another look follows

    @property
    def missed(self) -> int:
        """Threads of the layout that are not followed, for want of descriptors."""
        return self._threads.missed

    def renew(self, anyway: bool = False) -> None:
        """Before a look at the host: read the links anew if events about them were lost.

        Until that succeeds they stay as they were, and the next call tries again. anyway: also if
        there may be events that nobody has read.
        """
        if self._outdated or anyway:
            self.links = Links(rtnetlink.states())
            self._outdated = False

    def read(self, descriptor: int) -> list[Event]:
        """Return everything that one descriptor holds by now.

        Raises FORMAT for what cannot be understood; the rest is read by the next call.
        """
        if descriptor == self._bell:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(descriptor)
            return [self._announced.popleft() for _ in range(len(self._announced))]
        if descriptor == self.folders.descriptor:
            return self.noticed(self.folders.read())
        if descriptor not in self._sockets:
            index = self._threads.read(descriptor)
            name = None if index is None else self.links.names.get(index)
            ended = "thread of a queue ended"
            return [] if name is None else [Event(ended, name, index, reset=False)]
        found: list[Event] = []
        while True:
            try:
                data, (port, _) = self._sockets[descriptor].recvfrom(netlink.BUFFER)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._outdated = True
                found.append(LOST)
                continue
            if port == KERNEL:
                found += self._understood(descriptor, data)

    def _understood(self, descriptor: int, data: bytes) -> list[Event]:
        try:
            return [e for e in self._readers[descriptor](data) if e is not None]
        except RxlaneError:
            self._outdated = True
            raise

    def noticed(self, seen: set[tuple[int, str]] | None) -> list[Event]:
        """Return what happened in folders; None: the kernel lost count of it."""
        if seen is None:
            return [Event("writes of settings were lost", reset=False)]
        return self._written.told(seen, self.links)

    def _link(self, data: bytes) -> Iterator[Event | None]:
        return (self.links.feed(message) for message in netlink.parse_messages(data))

    def _ethtool(self, data: bytes) -> Iterator[Event | None]:
        return (ethtool_event(m, self.links) for m in netlink.parse_messages(data))

    def _uevent(self, data: bytes) -> Iterator[Event | None]:
        yield uevent(data, self.links)


def wake_up(descriptor: int) -> None:
    """End a wait from another thread or a signal handler."""
    os.eventfd_write(descriptor, 1)
