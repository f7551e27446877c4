# SPDX-License-Identifier: GPL-2.0-or-later
"""A recorded host read again, from its own /sys and /proc files (lab.collect).

So a field that a snapshot gains later, of a file that was collected, comes to recorded hosts by
`make hosts`. What no file tells stays as it was recorded: netlink's answers, and processes.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest import mock

from rxlane import observe
from rxlane.host import processors
from rxlane.model import Napi, Snapshot
from rxlane.sysfs import Sysfs
from rxlane.wire import rtnetlink
from rxlane.wire.netdev import Netdev, QueueRow
from rxlane.wire.rtnetlink import LinkRow

TREE = "sys.tar.xz"


class Answers:
    """What the netdev family said when the host was recorded."""

    def __init__(self, host: Snapshot) -> None:
        self._host = host

    def napis(self) -> list[tuple[int, Napi]]:
        return [(link.ifindex, napi) for link in self._host.links for napi in link.napis]

    def queues(self) -> list[QueueRow]:
        return [
            QueueRow(link.ifindex, q.kind, q.index, q.napi_id if said else None)
            for link in self._host.links
            for q in link.queues
            if (said := q.napi_source == "netdev") or link.napis
        ]


def unpack(archive: Path, folder: Path) -> Sysfs:
    with tarfile.open(archive) as tree:
        # Modes as they are: they say which interrupts are managed. Python before 3.11.4 has no
        # filters and always keeps them.
        tree.extraction_filter = getattr(tarfile, "tar_filter", None)
        tree.extractall(folder)
    return Sysfs(folder)


def again(host: Snapshot, sysfs: Sysfs) -> Snapshot:
    """Return the host as its files give it now."""
    rows = [LinkRow(li.ifindex, li.name, li.up, len(li.napis), li.driver) for li in host.links]
    tunables = {link.ifindex: link.tunables for link in host.links}
    answers, cpus = cast(Netdev, Answers(host)), processors.topology(sysfs)
    with mock.patch.object(rtnetlink, "links", lambda: rows):
        read = observe.observe(sysfs, answers, host.capabilities, cpus, None, None, tunables)
    found = {sysctl.name for sysctl in read.sysctls}
    said = {link.ifindex: (link.rss, link.features) for link in host.links}
    return replace(
        host,
        topology=read.topology,
        links=tuple(
            replace(link, rss=said[link.ifindex][0], features=said[link.ifindex][1])
            for link in read.links
        ),
        irqs=read.irqs,
        sysctls=(*read.sysctls, *(s for s in host.sysctls if s.name not in found)),
    )
