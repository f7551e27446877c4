# SPDX-License-Identifier: GPL-2.0-or-later
"""Values in /etc/tuned/PROFILE-variables.conf, for TuneD and for plans without it. Pure.

TuneD has `include=` for such a file, once in all profiles that are named together: one file is
read, and where the first of them has its include, so that defaults of the others come after it and
win. And it wins over what a child profile sets. Therefore each variable of our profiles asks for
its own value, `name=${f:rxlane_variable:PROFILE:name:DEFAULT}`: a child replaces the whole line.
Rules of TuneD 2.25 and 2.27: tuned/profiles/{variables,loader}.py, functions/parser.py.
"""

from __future__ import annotations

import configparser
import difflib
import re
from collections.abc import Callable, Mapping

from rxlane.errors import Kind, RxlaneError, printable

Read = Callable[[str], str | None]  # text of a file, None when it is not there

FUNCTION = "rxlane_variable"
CALL = re.compile(rf"(?<!\\)\$\{{f:{FUNCTION}:([^:}}]*):([^:}}]*):([^}}]*)\}}")
REFERENCE = re.compile(r"(?<!\\)\$\{(\w+)\}")
PROFILE = re.compile(r"[A-Za-z0-9_.-]+")  # what TuneD takes for the name of one
DEPTH = 8  # of variables that name variables


def path_of(profile: str) -> str:
    if not PROFILE.fullmatch(profile):
        raise RxlaneError(Kind.OPTION, f"{printable(profile, 60)} is no name of a profile")
    return f"/etc/tuned/{profile}-variables.conf"


def parsed(text: str, where: str, bare: bool = False) -> configparser.ConfigParser:
    """Read a file of TuneD's. bare: names without a value may stand there; they say nothing."""
    parser = configparser.ConfigParser(
        delimiters=("=",), inline_comment_prefixes=("#",), allow_no_value=bare, strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, where)
    except configparser.Error as error:
        problem = str(error).splitlines()[0]
        raise RxlaneError(Kind.FORMAT, f"{where}: {printable(problem, 120)}") from None
    return parser


def rows(parser: configparser.ConfigParser, section: str) -> dict[str, str]:
    return {k: v for k, v in parser.items(section, raw=True) if v is not None}


def file_rows(text: str, where: str) -> dict[str, str]:
    """Return what a variables file sets, as it is written."""
    return rows(parsed(f"[variables]\n{text}", where, bare=True), "variables")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Put the values of variables in; unknown ones stay, as TuneD has it."""
    found = REFERENCE.sub(lambda match: values.get(match[1], match[0]), text)
    return re.sub(r"\\(\$\{\w+\})", r"\1", found)


def settled(text: str, once: Callable[[str], str]) -> str:
    """Expand until nothing changes: a value of a file may name variables of other profiles."""
    for _ in range(DEPTH):
        before, text = text, once(text)
        if text == before:
            break
    return text


class Variables:
    """Answers what profiles ask for, and remembers it to tell what nobody asked for."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._asked: dict[str, set[str]] = {}  # by path
        self._found: dict[str, dict[str, str] | None] = {}  # None: there is no such file

    def value(self, profile: str, name: str, default: str) -> str:
        """Return what the file of a profile has for a variable, else the default.

        Variables of the same file above it have their values in place. Raises OPTION or FORMAT.
        """
        path = path_of(profile)
        text = self._read(path)
        found = None if text is None else file_rows(text, path)
        self._found[path] = found
        self._asked.setdefault(path, set()).add(name)
        values: dict[str, str] = {}
        for key, written in (found or {}).items():
            values[key] = expand(written, values)
        return values.get(name, default)

    def expand(self, text: str) -> str:
        """Do what TuneD does with calls of the function."""
        return CALL.sub(lambda call: self.value(*call.groups()), text)

    def notes(self) -> list[str]:
        """Tell of files that are not there and of names in them that nothing took, and forget."""
        told = [note for path, names in self._asked.items() for note in self._note(path, names)]
        self._asked.clear()
        return told

    def _note(self, path: str, names: set[str]) -> list[str]:
        found = self._found[path]
        if found is None:
            return [f"{path} is not there: the profile's own defaults hold"]
        used = {word for value in found.values() for word in REFERENCE.findall(value)}
        return [_stranger(path, name, names) for name in found if name not in names | used]


def _stranger(path: str, name: str, names: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{path}: {printable(name, 60)} has no effect, the profile does not read it{hint}"
