# SPDX-License-Identifier: GPL-2.0-or-later
"""By which requests a driver's interrupt moderation is set. Pure.

One for all of it is right for most: of drivers that set the numbers anew with the mode, mlx5 among
them, the kernel asks twice what came in one request (ethnl_set_coalesce()). Others refuse numbers
that differ in a request which has adaptive mode on, also where it only goes on with that:
__i40e_set_coalesce(), ice_set_rc_coalesce(), virtnet_send_rx_notf_coal_cmds().
"""

from __future__ import annotations

from collections.abc import Mapping

from rxlane.items import ON, SWITCHES, Value

# enetc_set_coalesce() takes no other number of packets than its own, which counts only beside
# microseconds.
FIXED_FRAMES = frozenset({"fsl_enetc", "fsl_enetc_vf", "nxp_enetc4"})


def in_order(values: Mapping[str, Value]) -> tuple[dict[str, Value], ...]:
    """Return the requests for a driver that refuses one for all: switches that go on come last.

    One that goes off stays with the numbers, which the driver takes from then on.
    """
    last = {item for item, value in values.items() if item in SWITCHES and value == ON}
    parts = ([i for i in values if i not in last], [i for i in values if i in last])
    return tuple({item: values[item] for item in part} for part in parts if part)
