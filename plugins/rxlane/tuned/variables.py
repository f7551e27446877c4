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
import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping

from rxlane.errors import Kind, RxlaneError, printable

Read = Callable[[str], str | None]  # text of a file, None when it is not there

FUNCTION = "rxlane_variable"
_ARGUMENT = r"((?:\\:|\$\{\w+\}|(?!\$\{)[^:}])*)"
CALL = re.compile(rf"(?<!\\)\$\{{f:{FUNCTION}:{_ARGUMENT}:{_ARGUMENT}:{_ARGUMENT}\}}")
REFERENCE = re.compile(r"(?<!\\)\$\{(\w+)\}")
PROFILE = re.compile(r"[A-Za-z0-9_.-]+")  # what TuneD takes for the name of one
DEPTH = 8  # of variables that name variables
# Later ones win, as in TuneD's profile_dirs.
FOLDERS = ("/usr/lib/tuned/profiles", "/etc/tuned/profiles")


def path_of(profile: str) -> str:
    if not PROFILE.fullmatch(profile):
        raise RxlaneError(Kind.OPTION, f"{printable(profile, 60)} is no name of a profile")
    return f"/etc/tuned/{profile}-variables.conf"


def places(profile: str) -> Iterator[str]:
    """Yield where the tuned.conf of a profile may be, first what wins."""
    if "/" in profile:
        yield profile if profile.endswith(".conf") else f"{profile.rstrip('/')}/tuned.conf"
        return
    for folder in reversed(FOLDERS):
        yield f"{folder}/{profile}/tuned.conf"


def parsed(text: str, where: str, bare: bool = False) -> configparser.ConfigParser:
    """Read a file of TuneD's. bare: names without a value may stand there; they say nothing."""
    parser = configparser.ConfigParser(
        delimiters=("=",), inline_comment_prefixes=("#",), allow_no_value=bare, strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, where)
    except (configparser.Error, AttributeError) as error:
        # The latter up to Python 3.12, for a bare name with an indented line below it.
        problem = _wrong_line(error, 1 if bare else 0) or str(error).splitlines()[0]
        raise RxlaneError(Kind.FORMAT, f"{where}: {printable(problem, 120)}") from None
    return parser


def _wrong_line(error: Exception, added: int) -> str | None:
    """Say which line cannot be parsed. added: lines that are before the file's own."""
    wrong = getattr(error, "errors", ())
    if not wrong:
        return None
    number, line = wrong[0]
    return f"line {number - added} is no NAME=VALUE: {line}"


def rows(parser: configparser.ConfigParser, section: str) -> dict[str, str]:
    return {k: v for k, v in parser.items(section, raw=True) if v is not None}


def file_rows(text: str, where: str) -> dict[str, str]:
    """Return what a variables file sets, as it is written."""
    return rows(_parsed_file(text, where), "variables")


def _parsed_file(text: str, where: str) -> configparser.ConfigParser:
    return parsed(f"[variables]\n{text}", where, bare=True)


def _idle(parser: configparser.ConfigParser) -> Iterator[str]:
    """Yield why what stands in a variables file sets nothing, for each name of which that is so."""
    for name, value in parser.items("variables", raw=True):
        if value is None:
            yield f"{printable(name)} has no effect, it has no value: write NAME=VALUE"
    for section in parser.sections():
        names = [] if section == "variables" else parser.options(section)
        for name in names:
            yield f"{printable(name)} has no effect, it stands below [{printable(section)}]"


def expand(text: str, values: Mapping[str, str]) -> str:
    """Put the values of variables in; unknown ones stay, as TuneD has it."""
    found = REFERENCE.sub(lambda match: values.get(match[1], match[0]), text)
    return re.sub(r"\\(\$\{\w+\})", r"\1", found)


def add(written: Mapping[str, str], values: dict[str, str]) -> None:
    """Put the variables of a file to the others, each expanded by those before it."""
    for name, text in written.items():
        values[name] = expand(text, values)


def settled(text: str, once: Callable[[str], str]) -> str:
    """Expand until nothing changes: a value of a file may name variables of other profiles."""
    for _ in range(DEPTH):
        before, text = text, once(text)
        if text == before:
            break
    return text


class Variables:
    """Answers what profiles ask for, and remembers it to tell what nobody asks for."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._asked: dict[str, Mapping[str, str] | None] = {}  # what the profile's file has
        self._idle: list[str] = []  # what stands in a file and sets nothing
        self._failed: set[str] = set()

    def value(self, profile: str, name: str, default: str) -> str:
        """Return what the file of a profile has for a variable, else the default.

        Variables of the same file above it have their values in place. Raises OPTION or FORMAT.
        """
        path = path_of(profile)
        text = self._read(path)
        parser = None if text is None else _parsed_file(text, path)
        found = None if parser is None else rows(parser, "variables")
        if parser is not None and profile not in self._asked:
            self._idle += [f"{path}: {why}" for why in _idle(parser)]
        self._asked[profile] = found
        values: dict[str, str] = {}
        add(found or {}, values)
        return values.get(name, default)

    def expand(self, text: str) -> str:
        """Do what TuneD does with calls of the function, the innermost first."""

        def answer(call: re.Match[str]) -> str:
            return self.value(*(argument.replace("\\:", ":") for argument in call.groups()))

        return settled(text, lambda before: CALL.sub(answer, before))

    def is_news(self, failure: str) -> bool:
        """Tell whether a failure was not told yet: each variable of a broken file has the same."""
        news = failure not in self._failed
        self._failed.add(failure)
        return news

    def files(self) -> list[str]:
        """Return the files that were found."""
        return [path_of(profile) for profile, found in self._asked.items() if found is not None]

    def notes(self) -> list[str]:
        """Tell of files that are not there and of what in them has no effect, and forget."""
        asked, self._asked, self._failed = self._asked, {}, set()
        idle, self._idle = self._idle, []
        read = [note for profile, found in asked.items() for note in self._note(profile, found)]
        return [*read, *idle]

    def _note(self, profile: str, found: Mapping[str, str] | None) -> list[str]:
        path = path_of(profile)
        if found is None:
            return [f"{path} is not there: the profile's own defaults hold"]
        names = self._names(profile)
        used = {word for value in found.values() for word in REFERENCE.findall(value)}
        strangers = [name for name in found if name not in names | used]
        near = sorted(names - found.keys())
        return [_stranger(path, name, near) for name in strangers] if names else []

    def _names(self, profile: str) -> set[str]:
        """Return all variables that a profile asks for, also those that a child profile sets."""
        with contextlib.suppress(RxlaneError):
            for path in places(profile):
                text = self._read(path)
                if text is not None:
                    return {call[1] for call in CALL.findall(text) if call[0] == profile}
        return set()


def _stranger(path: str, name: str, near: list[str]) -> str:
    like = difflib.get_close_matches(name, near, n=1)
    hint = f"; did you mean {like[0]}?" if like else ""
    return f"{path}: {printable(name, 60)} has no effect, the profile does not read it{hint}"
