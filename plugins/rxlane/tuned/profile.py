# SPDX-License-Identifier: GPL-2.0-or-later
"""A TuneD profile as sections of ours, read the way TuneD reads it. Pure: files come by a reader.

TuneD's own loader is not used, although it may be installed: it runs the built-in functions of
every variable, `${f:exec:...}` among them, and a plan must change nothing; and the profile may be
for a recorded host, of which this one's functions know nothing. The rules are those of TuneD
2.25 and 2.27 (tuned/profiles/{loader,merger,variables,unit}.py, hardware/device_matcher.py,
plugins/base.py); what they need a function or this host for is refused, not guessed. The one
function that is ours, which reads a profile's variables file, is in variables.py.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from rxlane.errors import Kind, RxlaneError, printable
from rxlane.model import Link
from rxlane.policy import KINDS, Given
from rxlane.tuned.variables import (
    REFERENCE,
    Read,
    Variables,
    add,
    expand,
    file_rows,
    parsed,
    places,
    rows,
    settled,
)

DEFAULT_PRIORITY = 0  # default_instance_priority in tuned-main.conf
TRUE = ("True", "true", "1")
# Conditions that TuneD asks of the host it runs on.
CONDITIONS = ("cpuinfo_regex", "uname_regex", "devices_udev_regex")
# What a section says to TuneD, not to its plugin.
OF_TUNED = ("type", "devices", "enabled", "priority", "script_pre", "script_post")
FUNCTION = re.compile(r"\$\{f:")


@dataclass(slots=True)
class Unit:
    """A section of the merged profile, with the variables' values in place."""

    name: str
    kind: str
    devices: str
    options: dict[str, str]
    priority: int = DEFAULT_PRIORITY


@dataclass(slots=True)
class Profile:
    """units: sections of our kinds in TuneD's order. notes: what TuneD would only log.

    values: the files that variables have their values from.
    """

    name: str
    units: list[Unit]
    notes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def sections(self, links: Collection[Link]) -> tuple[Given, ...]:
        """Give devices to the units as TuneD does: each to the first of its kind that matches."""
        free = {kind: {link.name: link for link in links} for kind in KINDS}
        given = []
        for unit in self.units:
            named = exact_names(unit.devices)
            own = [
                link.name
                for link in free[unit.kind].values()
                if matches(unit.devices, link.name) and (link.physical or link.name in named)
            ]
            # A name that no device has must become an error of the plan, not be passed over.
            own += [name for name in named if name not in {link.name for link in links}]
            for name in own:
                free[unit.kind].pop(name, None)
            if own:
                given.append(Given(unit.kind, unit.name, tuple(own), unit.options))
            else:
                self.notes.append(f"[{unit.name}]: no matching device")
        return tuple(given)


def unquote(value: str) -> str:
    return re.sub(r'^"(.*)"$', r"\1", str(value).strip())


def exact_names(expression: str | None) -> tuple[str, ...]:
    """Return the names in a `devices=` expression that are no pattern and not negated."""
    words = re.split(r"[\s,]+", expression or "")
    return tuple(w for w in words if w and not re.search(r"[!*?\[]", w))


def matches(expression: str, name: str) -> bool:
    """Tell whether TuneD's `devices=` expression takes in a device."""
    words = [word for word in re.split(r"[\s,]+", expression) if word]
    wanted = [word for word in words if not word.startswith("!")] or ["*"]
    unwanted = [word[1:] for word in words if word.startswith("!")]
    hit = any(fnmatch.fnmatchcase(name, word) for word in wanted)
    return hit and not any(fnmatch.fnmatchcase(name, word) for word in unwanted)


def load(names: str, read: Read) -> Profile:
    """Read a profile, or several separated by spaces, later ones over earlier ones.

    A name with a slash is a tuned.conf or the folder of one. Raises OPTION when a file is not
    there, is no profile, or needs what only TuneD on the host itself can find out.
    """
    merged = _Merged(read)
    for name in names.split():
        merged.load(name)
    if not names.split():
        raise RxlaneError(Kind.OPTION, "no profile is named")
    once, expanded = merged.expanders()
    ours = [
        _unit(names, name, options, once, expanded)
        for name, options in merged.units.items()
        if options["type"] in KINDS and options["enabled"] in TRUE
    ]
    if not ours:
        known = ", ".join(f"[{kind}]" for kind in KINDS)
        raise _wrong(names, f"has no section of {known}, so there is nothing to plan")
    return Profile(names, sorted(ours, key=lambda unit: unit.priority), merged.notes, merged.files)


def kinds(names: str, read: Read) -> frozenset[str]:
    """Return which kinds of our sections profiles have switched on; raises as load() does."""
    merged = _Merged(read)
    for name in names.split():
        merged.load(name)
    on = {unit["type"] for unit in merged.units.values() if unit["enabled"] in TRUE}
    return frozenset(on) & frozenset(KINDS)


def _wrong(profile: str, problem: str, remedy: str | None = None) -> RxlaneError:
    problem = f"profile {printable(profile, 60)}: {problem}"
    return RxlaneError(Kind.OPTION, problem, remedy=remedy)


class _Merged:
    """Profiles in the making: sections by name, the variables as text."""

    def __init__(self, read: Read) -> None:
        self.units: dict[str, dict[str, str]] = {}
        self.variables: dict[str, str] = {}
        self.notes: list[str] = []
        self.files: list[str] = []
        self._read = read
        self._seen: set[str] = set()

    def load(self, name: str) -> None:
        found = self._find(name)
        if found is None:
            return
        path, text = found
        self._seen.add(path)
        folder = path.rpartition("/")[0]
        parser = parsed(text.replace("${i:PROFILE_DIR}", folder), path)
        sections = {section: rows(parser, section) for section in parser.sections()}
        for parent in re.split(r"\s*[,;]\s*", sections.pop("main", {}).get("include", "")):
            if REFERENCE.search(parent) or FUNCTION.search(parent):
                raise _wrong(name, f"include={parent}: only TuneD can tell which profile that is")
            if parent.strip():
                self.load(parent.strip())
        for section, options in sections.items():
            self._merge(section, options)

    def _text(self, path: str) -> str | None:
        """Return a file's text; no file has a path with a zero byte."""
        return None if "\0" in path else self._read(path)

    def _find(self, name: str) -> tuple[str, str] | None:
        """Return path and text; None when it was read already or may be missing (`-name`)."""
        wanted = name.removeprefix("-")
        for path in places(wanted):
            if path in self._seen:
                return None
            text = self._text(path)
            if text is not None:
                return path, text
        if name.startswith("-"):
            return None
        raise _wrong(name, "is not there", f"looked for {' and '.join(places(wanted))}")

    def _merge(self, section: str, options: dict[str, str]) -> None:
        fresh = options.pop("replace", "") in TRUE
        drop = re.split(r"\s*[,;]\s*", options.pop("drop", ""))
        if section == "variables":
            self._merge_variables(options, fresh)
            return
        # Of these the newer section's value or default counts, whatever the older one said.
        anew = {"type": section, "devices": "*", "enabled": "1"}
        old = {} if fresh else self.units.get(section, {})
        kept = {key: value for key, value in old.items() if key not in drop}
        self.units[section] = kept | anew | options

    def _merge_variables(self, options: dict[str, str], fresh: bool) -> None:
        first = options.pop("prepend", "") in TRUE
        old = {} if fresh else self.variables
        before = {name: text for name, text in options.items() if first and name not in old}
        self.variables = before | old | options

    def expanders(self) -> tuple[Callable[[str], str], Callable[[str], str]]:
        """Return what puts variables' values in, each expanded by those before it.

        The first as TuneD does in keys of its own, the second as our plugins do in options.
        """
        values: dict[str, str] = {}
        asked = Variables(self._text)

        def once(text: str) -> str:
            return expand(text, values)

        for name, text in self.variables.items():
            if name == "include":
                self._include(once(text), values)
            else:
                values[name] = asked.expand(once(text))
        self.files += asked.files()
        self.notes += asked.notes()
        return (
            lambda text: asked.expand(once(text)),
            lambda text: asked.expand(settled(text, once)),
        )

    def _include(self, path: str, values: dict[str, str]) -> None:
        text = self._text(path)
        if text is None:
            self.notes.append(f"{path} is not there: the profile's own defaults hold")
            return
        self.files.append(path)
        add(file_rows(text, path), values)


def _unit(
    profile: str,
    name: str,
    given: Mapping[str, str],
    once: Callable[[str], str],
    expanded: Callable[[str], str],
) -> Unit:
    for word in CONDITIONS:
        if word in given:
            problem = f"[{name}] has {word}, which only TuneD on the host itself can answer"
            raise _wrong(profile, problem)
    found = {key: (once if key in OF_TUNED else expanded)(value) for key, value in given.items()}
    # TuneD takes the quotes for a part of the devices' names.
    found = {key: value if key == "devices" else unquote(value) for key, value in found.items()}
    for key, value in found.items():
        _check_expanded(profile, f"[{name}] {key}", value)
    try:
        priority = int(found.get("priority", DEFAULT_PRIORITY))
    except ValueError:
        raise _wrong(profile, f"[{name}] priority is no number") from None
    options = {key: value for key, value in found.items() if key not in OF_TUNED}
    return Unit(name, found["type"], found["devices"], options, priority)


def _check_expanded(profile: str, where: str, value: str) -> None:
    if FUNCTION.search(value):
        remedy = "write the value that it gives there into the variables file"
        raise _wrong(profile, f"{where} needs a built-in function of TuneD on the host", remedy)
    unknown = REFERENCE.search(value)
    if unknown:
        raise _wrong(profile, f"{where}: variable {unknown[1]} is not set")
