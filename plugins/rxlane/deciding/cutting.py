# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a plan could cut off who is logged in over a device, and may be done all the same. Pure.

Whoever applies with a guard that brings the originals back, or says so for the device, may.
"""

from __future__ import annotations

from collections.abc import Iterable

from rxlane.items import CHANNEL_ITEMS
from rxlane.model import Snapshot
from rxlane.plan import LINK_RESET, Change, Target, disruption
from rxlane.sections import Policy
from rxlane.settings import View

LOGIN = "somebody is logged in over this device"
PERMIT = "use `rxlane apply --confirm` or set allow_session_reset=1 in [napi]"


def cuts(view: View, device: str, item: str) -> bool:
    """True when writing the setting may cut off whoever is logged in over the device."""
    link = view.links.get(device)
    if link is None:
        return False
    return item in CHANNEL_ITEMS or disruption(item, link.driver) == LINK_RESET


def guarded(view: View, policy: Policy, device: str) -> bool:
    """True for a device that somebody is logged in over and nobody permits to cut off."""
    return device in view.snapshot.sessions and not _permitted(view, policy, device)


def at_risk(view: View, policy: Policy, device: str, item: str) -> str | None:
    """Say who may be cut off by writing a setting, None for nobody, or who may be.

    Hidden logins count as well: who keeps a layout may have fewer privileges than who asked for
    the setting.
    """
    who = _who(view.snapshot, device)
    if who is None or not cuts(view, device, item) or _permitted(view, policy, device):
        return None
    return who


def left_alone(view: View, device: str, reason: str, who: str = LOGIN) -> str:
    """Say why a setting that resets the link of such a device is not written."""
    driver = view.links[device].driver
    return f"{reason}: {who}, and driver {driver} resets the link for it; {PERMIT}"


def _permitted(view: View, policy: Policy, device: str) -> bool:
    hardware = [name for name, link in view.links.items() if link.physical]
    free = (s.devices or hardware for s in policy.sections if s.allow_session_reset)
    return policy.confirmed or any(device in names for names in free)


def _who(snapshot: Snapshot, device: str) -> str | None:
    if device in snapshot.sessions:
        return LOGIN
    if snapshot.hidden_logins:
        return "somebody is logged in, over which device cannot be told from here"
    return None


def staying(view: View, policy: Policy, changes: Iterable[Change]) -> dict[Target, str]:
    """Return which originals stay away, with the reason: nobody asks for a setting any more, and
    bringing it back could cut off a login.
    """
    found = {}
    for change in changes:
        who = at_risk(view, policy, change.target.device, change.target.item)
        if who is not None:
            found[change.target] = (
                f"{who}, and going back to {change.after} could cut that off;"
                " use `rxlane apply --confirm`, or keep the option"
            )
    return found
