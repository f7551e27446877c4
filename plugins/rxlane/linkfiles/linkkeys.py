# SPDX-License-Identifier: GPL-2.0-or-later
"""The NAPI_... properties of a network interface: options of ours under names for udev. Pure.

The table is made from the options that there are; each value is read by the grammar of its option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rxlane import policy
from rxlane.errors import RxlaneError, with_notes
from rxlane.items import COALESCE_ITEMS, RING_ITEMS
from rxlane.options import Reader, option_of, similar
from rxlane.policy import IRQ_LAYOUT, KINDS, Given

PREFIX = "NAPI_"
# For these systemd.link(5) has RxChannels=, RxBufferSize=, RxCoalesceSec= and so on.
OF_SYSTEMD = {
    "channels",
    "allow_session_reset",
    *(option_of(item) for item in (*RING_ITEMS, *COALESCE_ITEMS)),
}
# These are one for the whole host, so no interface's.
OF_HOST = {
    "workqueue_cpus",
    "smt_siblings",
    "timer_migration",
    "netdev_max_backlog",
    "vhost_cpus",
    "tap_rps",
    "busy_read",
    "busy_poll",
}


@dataclass(frozen=True, slots=True)
class Key:
    """What a property stands for: an option of a kind of section."""

    kind: str
    option: str


def _name(kind: str, option: str) -> str:
    """Return the property's name; [irq_layout] calls some options as [napi] calls its own."""
    of_irq = kind == IRQ_LAYOUT and not option.startswith("irq_")
    return f"{PREFIX}{'IRQ_' if of_irq else ''}{option.upper()}"


KEYS: Mapping[str, Key] = {
    _name(kind, option): Key(kind, option)
    for kind in KINDS
    for option in policy.names(kind)
    if option not in OF_SYSTEMD | OF_HOST
}
NAMES: Mapping[Key, str] = {key: name for name, key in KEYS.items()}


def given(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those of an interface's properties that are ours, known or not."""
    return {name: value for name, value in properties.items() if name.startswith(PREFIX)}


def sections(
    device: str, properties: Mapping[str, str], where: Callable[[str], str]
) -> tuple[tuple[Given, ...], tuple[RxlaneError, ...]]:
    """Return what an interface's properties ask for, and what is wrong with the others.

    A wrong one is left out as if it were not there, and so is what needs it. where: says which
    file has a property.
    """
    errors: list[RxlaneError] = []
    left = given(properties)
    for kind in (None, *KINDS):
        while (error := _problem(kind, device, left)) is not None:
            option = error.option or ""
            name = option if kind is None else NAMES[Key(kind, option)]
            errors.append(located(error, name, left.pop(name), where))
    found = (_section(kind, device, left) for kind in KINDS)
    return tuple(section for section in found if section.options), tuple(errors)


def _problem(kind: str | None, device: str, properties: Mapping[str, str]) -> RxlaneError | None:
    """Return the first complaint about the names, for None, or about the values of a kind."""
    try:
        if kind is None:
            Reader(device, properties).reject_unknown(KEYS, _instead)
        else:
            policy.parse([_section(kind, device, properties)])
    except RxlaneError as error:
        return error
    return None


def _instead(name: str) -> str:
    """Say what to write for a property that there is not. The prefix makes none of them alike."""
    own = name.removeprefix(PREFIX)
    option = own.lower()
    if option in OF_SYSTEMD:
        return "channels, rings and coalescing have keys of their own in systemd.link(5)"
    if option in OF_HOST:
        return "it is the whole host's: a TuneD profile or `rxlane apply` sets it"
    known = [key.removeprefix(PREFIX) for key in KEYS]
    return similar(own.upper(), known, "rxlane.link", PREFIX)


def in_words(text: str, kind: str) -> str:
    """Return a message with a kind's options as the properties that they are here."""
    for key, name in NAMES.items():
        if key.kind == kind and "_" in key.option:
            text = re.sub(rf"\b{key.option}\b", name, text)
    return text


def _section(kind: str, device: str, properties: Mapping[str, str]) -> Given:
    options = {
        KEYS[name].option: value for name, value in properties.items() if KEYS[name].kind == kind
    }
    return Given(kind, device, (device,), options)


def located(error: RxlaneError, name: str, value: str, where: Callable[[str], str]) -> RxlaneError:
    """Return the error as of a property in a file."""
    kind = KEYS[name].kind if name in KEYS else ""
    found = RxlaneError(
        error.kind,
        in_words(error.problem, kind),
        section=where(name),
        option=name,
        value=value,
        device=error.device,
        queue=error.queue,
        remedy=error.remedy and in_words(error.remedy, kind),
    )
    for note in with_notes(error)[1:]:
        found.add_note(note)
    return found


def named(error: RxlaneError, own: Iterable[Given]) -> tuple[str, str] | None:
    """Return the property, with its value, that a plan was refused for; None for no single one."""
    for section in own:
        for option, value in section.options.items():
            if error.option == option and str(error.value or "") == value.strip():
                return NAMES[Key(section.kind, option)], value
    return None
