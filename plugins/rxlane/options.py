# SPDX-License-Identifier: GPL-2.0-or-later
"""What an option is called, and reading one after the other out of a section's text. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from rxlane import cpulist
from rxlane.errors import Kind, RxlaneError


@dataclass(frozen=True, slots=True)
class Option:
    """An option's name and one line about it, shown by `rxlane --help` and TuneD."""

    name: str
    hint: str


def option_of(item: str) -> str:
    """Return the option of a ring, of coalescing or of a NAPI's timers, called as its item is."""
    return item.replace("-", "_")


def similar(name: str, names: Collection[str], manual: str, prefix: str = "") -> str:
    """Ask for the name that is most like this one. prefix: what stands before each of the names."""
    bare = name.rpartition(".")[2]
    near = [bare] if bare in names else difflib.get_close_matches(name, names, 1)
    return f"did you mean {prefix}{near[0]}?" if near else f"`man 7 {manual}` lists all"


class Reader:
    """Reads one section's options; every method raises OPTION naming section, option, value."""

    def __init__(self, section: str | None, options: Mapping[str, str]) -> None:
        self.section = section
        self.options = {name: str(value).strip() for name, value in options.items()}

    def fail(self, option: str, problem: str, remedy: str) -> RxlaneError:
        return RxlaneError(
            Kind.OPTION,
            problem,
            section=self.section,
            option=option,
            value=self.options.get(option),
            remedy=remedy,
        )

    def get(self, option: str) -> str:
        return self.options.get(option, "")

    def integer(self, option: str, low: int, high: int, *words: str) -> int | None:
        """Parse a whole number. words: what the option takes beside one, for the message."""
        text = self.get(option)
        if not text:
            return None
        remedy = f"give {' or '.join(filter(None, (', '.join(words), f'{low}..{high}')))}"
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            raise self.fail(option, "is no whole number", remedy)
        if not low <= int(text) <= high:
            raise self.fail(option, "is out of range", remedy)
        return int(text)

    def choice(self, option: str, allowed: Iterable[str]) -> str | None:
        text = self.get(option)
        if not text:
            return None
        if text not in allowed:
            raise self.fail(option, "is not known", f"give one of {', '.join(allowed)}")
        return text

    def cpus(self, option: str, words: str) -> tuple[int, ...]:
        """Parse a CPU list. words: what the option takes beside a list, for the message."""
        try:
            return cpulist.parse(self.get(option))
        except cpulist.ListError as error:
            remedy = f"give {words} or a CPU list (2,4-7)"
            raise self.fail(option, str(error), remedy) from None

    def reject_unknown(
        self, names: Collection[str], instead: Callable[[str], str] | None = None
    ) -> None:
        """instead: says what to write for a name, where it is not just a similar one."""
        for name in self.options:
            if name not in names:
                remedy = instead(name) if instead else similar(name, names, "rxlane-tuned")
                raise self.fail(name, "unknown option", remedy)

    def text(self) -> tuple[tuple[str, str], ...]:
        return tuple((n, v) for n, v in self.options.items() if v)
