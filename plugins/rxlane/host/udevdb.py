# SPDX-License-Identifier: GPL-2.0-or-later
"""What udev knows of a network interface: its database's files, read without a library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rxlane.host import linktext
from rxlane.host.linktext import LINK, Assignment
from rxlane.sysfs import Sysfs

DATABASE = "run/udev/data"
BY_RULE = "a udev rule"
# Keys of [Match]: whether the file counts at all on this host.
_OF_HOST = {
    "Host",
    "Virtualization",
    "KernelCommandLine",
    "KernelVersion",
    "Version",
    "Credential",
    "Architecture",
    "Firmware",
}
_AFFINITY = "IRQAffinity"  # what such keys begin with
# Set by udev's net_setup_link; the drop-ins separated by colons, later ones win.
FILE, DROPINS = "ID_NET_LINK_FILE", "ID_NET_LINK_FILE_DROPINS"


def entry(ifindex: int) -> str:
    """Return the name of an interface's file in DATABASE."""
    return f"n{ifindex}"


def properties(files: Sysfs, ifindex: int) -> dict[str, str] | None:
    """Return an interface's properties, None while udev has not finished with it, or it is gone."""
    text = files.read(f"{DATABASE}/{entry(ifindex)}")
    if text is None:
        return None
    rows = (line[2:].partition("=") for line in text.splitlines() if line.startswith("E:"))
    found = {name: value for name, _, value in rows}
    # While udev renames an interface its database has but what was there before the event.
    return None if found.get("ID_RENAMING") == "1" else found


def indexes(files: Sysfs) -> list[int]:
    """Return the indexes of the interfaces that udev knows."""
    names = files.names(DATABASE)
    return sorted(int(n[1:]) for n in names if n.startswith("n") and n[1:].isdecimal())


def link_files(known: Mapping[str, str]) -> list[str]:
    """Return the interface's .link file and its drop-ins, in the order in which they are read."""
    dropins = [path for path in known.get(DROPINS, "").split(":") if path]
    return [*([known[FILE]] if FILE in known else []), *dropins]


def _said(files: Sysfs, paths: Iterable[str]) -> Iterator[tuple[str, Assignment]]:
    """Yield what the files of an interface say, each with the file; what comes later wins."""
    for path in paths:
        for found in linktext.assignments(files.read(path.lstrip("/")) or ""):
            yield path, found


def shares(files: Sysfs, ifindex: int) -> bool:
    """True where the interface's .link file is another one's, too, or would be any new one's."""
    known = properties(files, ifindex) or {}
    file = known.get(FILE)
    others = (properties(files, n) or {} for n in indexes(files) if n != ifindex)
    used = file is not None and any(other.get(FILE) == file for other in others)
    return used or _means_any(files, link_files(known))


def _means_any(files: Sysfs, paths: Iterable[str]) -> bool:
    """True where [Match] tells no interface from another, as that of 99-default.link."""
    match = [found for _, found in _said(files, paths) if found.section == "Match"]
    wanted = (found.value for found in match if found.value and found.key not in _OF_HOST)
    return bool(match) and all("*" in linktext.words(value) for value in wanted)


def moves_interrupts(files: Sysfs, ifindexes: Iterable[int]) -> bool:
    """True where a .link file of one of the interfaces says on which CPUs its interrupts are."""
    # A hundred interfaces may share one file: it is read once.
    used = {tuple(link_files(properties(files, n) or {})) for n in ifindexes}
    return any(_places(files, paths) for paths in sorted(used))


def _places(files: Sysfs, paths: Iterable[str]) -> bool:
    """True unless what is said last of each key takes back what was said before."""
    said = (found for _, found in _said(files, paths) if found.section == LINK)
    last = {found.key: found.value for found in said if found.key.startswith(_AFFINITY)}
    return any(last.values())


def origin(files: Sysfs, known: Mapping[str, str], name: str) -> str:
    """Return the path of the .link file or drop-in that a property is from, BY_RULE when of none.

    It is from the last that gives it the value that udev has.
    """
    pair = f"{name}={known.get(name, '')}"
    place = BY_RULE
    for path, found in _said(files, link_files(known)):
        if (found.section, found.key) != (LINK, "Property"):
            continue
        if not found.value:
            place = BY_RULE  # it takes back what was given before
        elif pair in linktext.words(found.value):
            place = path
    return place
