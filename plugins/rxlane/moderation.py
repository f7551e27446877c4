# SPDX-License-Identifier: GPL-2.0-or-later
"""By which requests a driver's interrupt moderation is set. Pure.

One for all of it is right for most: of drivers that set the numbers anew with the mode, mlx5 among
them, the kernel asks twice what came in one request (ethnl_set_coalesce()). Others refuse numbers
that differ in a request which has adaptive mode on, also where it only goes on with that:
__i40e_set_coalesce(), ice_set_rc_coalesce(), virtnet_send_rx_notf_coal_cmds().
"""

from __future__ import annotations

from collections.abc import Mapping

from rxlane.items import ADAPTIVE_RX, ADAPTIVE_TX, ON, RX_USECS, SWITCHES, TX_USECS, Value

_ADAPTIVE = {RX_USECS: ADAPTIVE_RX, TX_USECS: ADAPTIVE_TX}
Numbers = Mapping[str, Value | None]  # by item, None where the driver has none


def in_order(values: Mapping[str, Value]) -> tuple[dict[str, Value], ...]:
    """Return the requests for a driver that refuses one for all: switches that go on come last.

    One that goes off stays with the numbers, which the driver takes from then on.
    """
    last = {item for item, value in values.items() if item in SWITCHES and value == ON}
    parts = ([i for i in values if i not in last], [i for i in values if i in last])
    return tuple({item: values[item] for item in part} for part in parts if part)


def again(asked: Mapping[str, Value], before: Numbers, now: Numbers) -> dict[str, Value]:
    """Return the microseconds to be set once more, one above what the driver made less of.

    Some count ticks of a clock and round down both when a number is set and when it is read:
    stmmac_usec2riwt() and stmmac_riwt2usec(), skge_usecs2clk() and skge_clk2usec(). What was read
    gives less when it is set, and one more gives it again. That goes for numbers that were not
    asked for, too: the kernel fills in what is read.
    """
    found: dict[str, Value] = {}
    for item, switch in _ADAPTIVE.items():
        wanted, has = asked.get(item, before.get(item)), now.get(item)
        if now.get(switch) == ON or not isinstance(wanted, int) or not isinstance(has, int):
            continue  # in adaptive mode the driver shows what it has chosen
        if has < wanted:
            found[item] = wanted + 1
    return found
