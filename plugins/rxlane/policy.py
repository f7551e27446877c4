# SPDX-License-Identifier: GPL-2.0-or-later
"""Options as text to a Policy: one grammar and one set of error messages for every door.

Pure. An empty value means "leave alone", so that a profile's variable can switch an option off.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rxlane import cpulist
from rxlane.errors import Kind, RxlaneError
from rxlane.model import FAIR, MODES, REALTIME, ModeRule, Policy, Section

# One second: a longer pause between polls is a dead link, not a tuning.
MAX_TIMEOUT = 1_000_000_000
MAX_DEFER = 2**31 - 1  # S32_MAX, netdev_a_napi_defer_hard_irqs_range in netdev-genl-gen.c


@dataclass(frozen=True, slots=True)
class Option:
    """An option's name and one line about it, shown by `rxlane plan --help` and TuneD."""

    name: str
    hint: str


OPTIONS = (
    Option("threaded", "off, on or busy-poll, for all queues or as MODE@QUEUES,... (on@1-)"),
    Option("management_queues", "how many of the lowest RX queues are left alone"),
    Option("thread_cpus", "CPUs for the NAPI threads, one each in turn, or auto"),
    Option("thread_policy", "scheduling class of the threads: other, batch, idle, fifo or rr"),
    Option("thread_priority", "real-time priority 1..98, with fifo and rr"),
    Option("thread_nice", "nice level -20..19, with other and batch"),
    Option("defer_hard_irqs", "empty polls before the interrupt is enabled again"),
    Option("gro_flush_timeout", "nanoseconds between polls while interrupts are deferred"),
    Option("irq_suspend_timeout", "nanoseconds interrupts stay off while the application polls"),
    Option("allow_realtime_cpu0", "1 permits real-time threads on CPU 0"),
)
NAMES = tuple(option.name for option in OPTIONS)


class _Reader:
    """Reads one section's options; every method raises OPTION naming section, option, value."""

    def __init__(self, section: str, options: Mapping[str, str]) -> None:
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

    def integer(self, option: str, low: int, high: int) -> int | None:
        text = self.get(option)
        if not text:
            return None
        if not re.fullmatch(r"-?[0-9]{1,20}", text):
            raise self.fail(option, "is no whole number", f"give {low}..{high}")
        if not low <= int(text) <= high:
            raise self.fail(option, "is out of range", f"give {low}..{high}")
        return int(text)

    def choice(self, option: str, allowed: Iterable[str]) -> str | None:
        text = self.get(option)
        if not text:
            return None
        if text not in allowed:
            raise self.fail(option, "is not known", f"give one of {', '.join(allowed)}")
        return text


def parse_modes(text: str) -> tuple[ModeRule, ...]:
    """Parse `MODE` or `MODE@QUEUES,...`; raises cpulist.ListError with the wrong part.

    A part without `@` that starts with a digit continues the queues of the part before it:
    `on@0,2-3,busy-poll@4-`.
    """
    if text in MODES:
        return (ModeRule(text),)
    groups: list[tuple[str, list[tuple[int, int | None]]]] = []
    for part in (p.strip() for p in text.split(",")):
        mode, at, queues = part.partition("@")
        if at:
            if mode not in MODES:
                raise cpulist.ListError(f"'{mode[:20]}' is no mode")
            groups.append((mode, []))
        elif not groups or not part[:1].isdigit():
            raise cpulist.ListError(f"'{part[:20]}' is no mode")
        else:
            queues = part
        groups[-1][1].append(cpulist.parse_spans(queues.strip()))
    rules = tuple(ModeRule(mode, tuple(spans)) for mode, spans in groups)
    _reject_overlap(rules)
    return rules


def _reject_overlap(rules: Iterable[ModeRule]) -> None:
    spans = sorted(s for rule in rules for s in rule.spans or ())
    for (_, high), (low, _) in zip(spans, spans[1:], strict=False):
        if high is None or low <= high:
            raise cpulist.ListError(f"queue {low} is named twice")


def _modes(read: _Reader) -> tuple[ModeRule, ...]:
    text = read.get("threaded")
    if not text:
        return ()
    try:
        return parse_modes(text)
    except (cpulist.ListError, TypeError) as error:
        remedy = f"give {', '.join(MODES)} or MODE@QUEUES such as on@1-"
        raise read.fail("threaded", str(error), remedy) from None


def _cpus(read: _Reader) -> tuple[int, ...] | None:
    text = read.get("thread_cpus")
    if not text:
        return None
    if text == "auto":
        return ()
    try:
        return cpulist.parse(text)
    except cpulist.ListError as error:
        raise read.fail("thread_cpus", str(error), "give auto or a CPU list (2,4-7)") from None


def _sched(read: _Reader) -> str | None:
    policy = read.choice("thread_policy", FAIR + REALTIME)
    priority = read.integer("thread_priority", 1, 98)
    nice = read.integer("thread_nice", -20, 19)
    if policy in REALTIME:
        if nice is not None:
            raise read.fail("thread_nice", f"has no meaning with {policy}", "leave it empty")
        if priority is None:
            remedy = "set thread_priority to 1..98"
            raise read.fail("thread_policy", "needs a priority", remedy)
        return f"{policy}:{priority}"
    if priority is not None:
        remedy = "set thread_policy to fifo or rr, or leave thread_priority empty"
        raise read.fail("thread_priority", "needs a real-time class", remedy)
    if policy == "idle" and nice is not None:
        raise read.fail("thread_nice", "has no meaning with idle", "leave it empty")
    if policy is None and nice is None:
        return None
    return f"{policy or 'other'}:{nice or 0}"


def _reject_unknown(read: _Reader) -> None:
    for name in read.options:
        if name in NAMES:
            continue
        near = difflib.get_close_matches(name, NAMES, 1)
        remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMES)}"
        raise read.fail(name, "unknown option", remedy)


def parse_section(name: str, devices: Iterable[str], options: Mapping[str, str]) -> Section:
    """Parse one section; raises OPTION at the first option that cannot be understood."""
    read = _Reader(name, options)
    _reject_unknown(read)
    allow = read.choice("allow_realtime_cpu0", ("0", "1"))
    return Section(
        name=name,
        devices=tuple(devices),
        modes=_modes(read),
        management_queues=read.integer("management_queues", 0, cpulist.HIGHEST) or 0,
        cpus=_cpus(read),
        sched=_sched(read),
        defer_hard_irqs=read.integer("defer_hard_irqs", 0, MAX_DEFER),
        gro_flush_timeout=read.integer("gro_flush_timeout", 0, MAX_TIMEOUT),
        irq_suspend_timeout=read.integer("irq_suspend_timeout", 0, MAX_TIMEOUT),
        allow_realtime_cpu0=allow == "1",
        text=tuple((n, v) for n, v in read.options.items() if v),
    )


def parse_assignments(texts: Iterable[str], section: str) -> dict[str, str]:
    """Turn `name=value` arguments into options; a name given twice is an error."""
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            problem = f"'{text[:40]}' is no NAME=VALUE"
            remedy = "give for instance threaded=on"
            raise RxlaneError(Kind.OPTION, problem, section=section, remedy=remedy)
        if name in options:
            problem = "is given twice"
            raise RxlaneError(
                Kind.OPTION, problem, section=section, option=name, remedy="give it once"
            )
        options[name] = value
    return options


def from_plain(data: object) -> Policy:
    """Build a Policy from {"sections": [{"name", "devices", "options"}]}, as fixtures hold it."""

    def wrong(what: str) -> RxlaneError:
        return RxlaneError(Kind.FORMAT, f"policy: {what}")

    if not isinstance(data, dict) or not isinstance(data.get("sections"), list):
        raise wrong("no list of sections")
    sections = []
    for row in data["sections"]:
        if not isinstance(row, dict) or not isinstance(row.get("options"), dict):
            raise wrong("a section has no options")
        options = {str(k): str(v) for k, v in row["options"].items()}
        devices = [str(d) for d in row.get("devices", ())]
        sections.append(parse_section(str(row.get("name", "napi")), devices, options))
    return Policy(tuple(sections))
