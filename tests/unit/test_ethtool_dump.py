# SPDX-License-Identifier: GPL-2.0-or-later
"""A device whose driver does not answer ethtool."""

from __future__ import annotations

import errno

import pytest

from rxlane import uapi
from rxlane.model import Tunable
from rxlane.netlink import NetlinkError, attr_uint, parse_attrs
from rxlane.wire import ethtool, rtnetlink
from unit.fakenet import about, attr

ANSWERING, DETACHED = 3, 2


class Failing(ethtool.Ethtool):
    """A kernel that ends dumps at the driver of DETACHED."""

    def __init__(self, asked: list[int]) -> None:
        self._asked = asked

    def dump(self, command: int, what: str, attributes: bytes = b"") -> list[bytes]:
        raise NetlinkError(errno.ENODEV, what)

    def call(self, command: int, what: str, attributes: bytes) -> bytes:
        header = dict(parse_attrs(attributes))[uapi.ETHTOOL_A_HEADER]
        ifindex = attr_uint(dict(parse_attrs(header))[uapi.ETHTOOL_A_HEADER_DEV_INDEX])
        self._asked.append(ifindex)
        if ifindex == DETACHED or command != uapi.ETHTOOL_MSG_CHANNELS_GET:
            raise NetlinkError(errno.ENODEV, what)
        return about(ifindex, attr(5, 8), attr(9, 4))


def test_a_device_that_does_not_answer_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [rtnetlink.LinkRow(number, f"eth{number}", up=True) for number in (DETACHED, ANSWERING)]
    monkeypatch.setattr(rtnetlink, "links", lambda: rows)
    asked: list[int] = []
    found = Failing(asked).tunables(features=False)
    assert found == {ANSWERING: (Tunable("channels-combined", 4, 8),)}
    assert set(asked) == {DETACHED, ANSWERING}
