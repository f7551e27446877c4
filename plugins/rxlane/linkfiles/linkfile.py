# SPDX-License-Identifier: GPL-2.0-or-later
"""The properties that give an interface the layout it has. Pure.

For each setting the values that could have led there are tried on the planner; the first from
which it would change nothing is taken. So what is printed is sure to change nothing when it is
given back, and what no value leads to is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rxlane import cpulist, policy
from rxlane.decide import decide
from rxlane.errors import RxlaneError
from rxlane.items import (
    CPUS,
    DEFER,
    ETHTOOL_ITEMS,
    FLOW_ENTRIES,
    FLUSH,
    IRQ_CPUS,
    IRQ_THREAD_CPUS,
    IRQ_THREAD_SCHED,
    IRQ_THREADED,
    KERNEL,
    NTUPLE,
    OFF,
    REALTIME,
    RFS,
    RPS,
    RX_ITEMS,
    RX_THREAD_CPUS,
    RX_THREAD_ITEMS,
    RX_THREAD_SCHED,
    RX_THREADS,
    SCHED,
    SUSPEND,
    THREADED,
    XPS_ITEMS,
    Value,
)
from rxlane.linkfiles.linkkeys import NAMES, Key
from rxlane.model import Link, Snapshot
from rxlane.options import option_of
from rxlane.plan import HOST, WHOLE, Entry, Target
from rxlane.policy import FLOW_STEERING, IRQ_LAYOUT, KINDS, NAPI, Given
from rxlane.settings import View
from rxlane.showing import sanitize
from rxlane.topology import AUTO, NUMA_LOCAL, PLACEMENTS

NETWORK = "/etc/systemd/network"
DROPIN = "50-rxlane.conf"
Options = Mapping[str, str]
Values = Mapping[int, Value]  # by queue


@dataclass(frozen=True, slots=True)
class Step:
    """Options that belong together: the items they set, and what they could have been.

    What they could have been is told from the values of the first item.
    """

    kind: str
    items: tuple[str, ...]
    tries: Callable[[Values], Iterator[Options]]


@dataclass(frozen=True, slots=True)
class Found:
    """properties: by name. missing: what no property gives, one line each."""

    properties: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def _modes(values: Values) -> Iterator[Options]:
    modes = list(dict.fromkeys(str(mode) for mode in values.values()))
    if len(modes) == 1:
        yield {"threaded": modes[0]}
    queues = {mode: cpulist.render(q for q, m in values.items() if m == mode) for mode in modes}
    yield {"threaded": ",".join(f"{mode}@{of}" for mode, of in queues.items())}


def _cpus(option: str, words: Sequence[str]) -> Callable[[Values], Iterator[Options]]:
    """Try the CPUs as a list, then the words that stand for CPUs."""

    def tries(values: Values) -> Iterator[Options]:
        lists = {str(value) for value in values.values()}
        if lists.isdisjoint((OFF, KERNEL)):
            every = cpulist.render(n for text in lists for n in cpulist.parse(text))
            yield {option: every}
            if option == "thread_cpus" and len(lists) == 1:
                yield {option: every, "thread_spread": "all"}
        yield from ({option: word} for word in words)

    return tries


def _sched(prefix: str = "") -> Callable[[Values], Iterator[Options]]:
    """Try the class. prefix: what its options begin with."""

    def tries(values: Values) -> Iterator[Options]:
        for text in {str(value) for value in values.values()}:
            name, _, numbers = text.partition(":")
            first = numbers.partition(":")[0]
            level = "thread_priority" if name in REALTIME else "thread_nice"
            options = {f"{prefix}thread_policy": name}
            options |= {f"{prefix}{level}": first} if name != "idle" else {}
            yield options
            yield {**options, f"{prefix}allow_realtime_cpu0": "1"}

    return tries


def _count(values: Values) -> Iterator[Options]:
    yield from ({"rx_threads": str(value) if value else OFF} for value in values.values())


def _same(option: str) -> Callable[[Values], Iterator[Options]]:
    def tries(values: Values) -> Iterator[Options]:
        yield from ({option: str(value)} for value in sorted(set(values.values()), key=str))

    return tries


def _words(option: str, *words: str) -> Callable[[Values], Iterator[Options]]:
    return lambda values: ({option: word} for word in words)


def _flows(view: View) -> Callable[[Values], Iterator[Options]]:
    entries = view.sysctls.get(FLOW_ENTRIES)

    def tries(values: Values) -> Iterator[Options]:
        yield {"rfs": str(entries) if entries else OFF}
        yield {"rfs": AUTO}

    return tries


def _steps(view: View) -> tuple[Step, ...]:
    """Return them in an order in which each leaves what was found before as it is."""
    return (
        Step(NAPI, (THREADED,), _modes),
        *(Step(NAPI, (i,), _same(option_of(i))) for i in (DEFER, FLUSH, SUSPEND)),
        Step(NAPI, (CPUS,), _cpus("thread_cpus", PLACEMENTS)),
        Step(NAPI, (SCHED,), _sched()),
        Step(IRQ_LAYOUT, (IRQ_CPUS,), _cpus("irq_cpus", PLACEMENTS)),
        Step(IRQ_LAYOUT, (IRQ_THREADED,), _modes),
        Step(IRQ_LAYOUT, (IRQ_THREAD_CPUS,), _cpus("thread_cpus", (AUTO,))),
        Step(IRQ_LAYOUT, (IRQ_THREAD_SCHED,), _sched()),
        Step(FLOW_STEERING, (RX_THREADS,), _count),
        Step(FLOW_STEERING, (RX_THREAD_CPUS,), _cpus("rx_thread_cpus", (KERNEL, *PLACEMENTS))),
        Step(FLOW_STEERING, (RX_THREAD_SCHED,), _sched("rx_")),
        Step(FLOW_STEERING, (RPS,), _cpus("rps", (OFF, AUTO, NUMA_LOCAL))),
        Step(FLOW_STEERING, (RFS,), _flows(view)),
        Step(FLOW_STEERING, (NTUPLE,), _same("arfs")),
        Step(FLOW_STEERING, XPS_ITEMS, _words("xps", OFF, AUTO, "rxqs")),
    )


class _Search:
    """aside: how many of the lowest queues are to be left alone."""

    def __init__(self, view: View, link: Link, aside: int) -> None:
        self._view = view
        self._link = link
        self._aside = aside
        self.options: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        if aside:
            self.options[NAPI]["management_queues"] = str(aside)
        self.missing: list[str] = []

    def values(self, item: str) -> dict[int, Value]:
        """Return what the queues to be laid out have of an item, the device's under WHOLE."""
        link = self._link
        if item in (NTUPLE, RX_THREADS):
            queues: Iterable[int] = (WHOLE,)
        elif item in RX_THREAD_ITEMS:
            queues = (helper.number for helper in link.helpers)
        else:
            kind = "rx" if item in RX_ITEMS else "tx"
            queues = (q.index for q in link.queues if q.kind == kind)
        found = {q: self._view.read(Target(link.name, q, item)) for q in queues}
        lowest = self._aside if item in RX_ITEMS else WHOLE
        return {q: value for q, value in found.items() if value is not None and q >= lowest}

    def take(self, step: Step) -> None:
        """Adopt the first try that changes nothing."""
        item = step.items[0]
        values = self.values(item)
        if not values:
            return
        for options in step.tries(values):
            if all(self.options[step.kind].get(name) == value for name, value in options.items()):
                return
            trial = {**self.options, step.kind: {**self.options[step.kind], **options}}
            if self._nothing(trial):
                self.options = trial
                return
        what = "thread" if item in RX_THREAD_ITEMS else "queue"
        shown = ", ".join(f"{what} {number}: {value}" for number, value in values.items())
        self.missing.append(f"{item}: no property gives {shown}")

    def _nothing(self, options: Mapping[str, Options]) -> bool:
        sections = [
            Given(kind, self._link.name, (self._link.name,), own)
            for kind, own in options.items()
            if own
        ]
        try:
            plan = decide(self._view.snapshot, policy.parse(sections))
        except RxlaneError:
            return False
        return not any(c.target.device in (self._link.name, HOST) for c in plan.changes)

    def found(self) -> Found:
        pairs = {
            NAMES[Key(kind, name)]: value
            for kind, own in self.options.items()
            for name, value in own.items()
        }
        return Found(pairs, tuple(self.missing))


def changed(snapshot: Snapshot, link: Link, entries: Iterable[Entry]) -> set[Target]:
    """Return the settings of an interface that are not as they were before rxlane."""
    view = View.of(snapshot)
    own = (e for e in entries if e.ifindex == link.ifindex)
    targets = ((Target(link.name, e.queue, e.item), e.before) for e in own)
    return {t for t, before in targets if (now := view.read(t)) is not None and now != before}


def layout(snapshot: Snapshot, link: Link, entries: Iterable[Entry] = ()) -> Found:
    """Return the properties for what rxlane changed; for all there is if it changed nothing.

    Queues below the lowest that was changed may have been left aside: what needs that is tried.
    """
    view = View.of(snapshot)
    targets = changed(snapshot, link, entries)
    items = {t.item for t in targets}
    steps = [step for step in _steps(view) if not items or not items.isdisjoint(step.items)]
    others = items & {*ETHTOOL_ITEMS} - {NTUPLE}
    foreign = tuple(f"{item}: systemd.link(5) has a key of its own" for item in sorted(others))
    queues = [t.queue for t in targets if t.item in RX_ITEMS and t.queue != WHOLE]
    best: Found | None = None
    for aside in range(min(queues, default=0) + 1):
        search = _Search(view, link, aside)
        search.missing.extend(foreign)
        for step in steps:
            search.take(step)
        found = search.found()
        if best is None or len(found.missing) < len(best.missing):
            best = found
        if len(best.missing) == len(foreign):
            break
    return best or Found()


def render(found: Found, device: str, files: Sequence[str] = (), shared: bool = False) -> str:
    """Return a drop-in with the properties. files: the interface's .link file and its drop-ins.

    shared: they are for other interfaces too, as another drop-in would be.
    """
    lines = [f"# Layout of {device}, to be put into", *_place(device, files, shared), "[Link]"]
    lines += [f"Property={key}={value}" for key, value in found.properties.items()]
    lines += [f"# {line}" for line in found.missing]
    return sanitize.lines("\n".join(lines)) + "\n"


def _place(device: str, files: Sequence[str], shared: bool) -> list[str]:
    """Say where the drop-in is to be. In /etc it counts for a file of the distribution as well.

    Without any file the name stays: a policy for it would rename the interface.
    """
    file = files[0] if files else ""
    name = file.rpartition("/")[2]
    first = name if name and not shared else _before(device, name)
    lines = [f"# {NETWORK}/{first}.d/{DROPIN}"]
    if first == name:
        return lines
    copy = f"is a copy of {file}" if file else "has NamePolicy=keep in [Link]"
    lines.append(f"# once {first} beside it {copy}")
    lines.append(f"# with a [Match] that means {device} alone; see rxlane.link(7).")
    # One of our name is what this one is printed to replace.
    others = [path for path in files[1:] if path.rpartition("/")[2] != DROPIN]
    if others:
        lines.append(f"# Copy these, too, to {NETWORK}/{first}.d/, without a [Match]:")
        lines += [f"# {path}" for path in others]
    return lines


def _before(device: str, name: str) -> str:
    """Return a name for a file that is to win over another: the first by name does, wherever it is.

    The last one is before all that begin with a letter or a digit.
    """
    names = [f"{start}-{device}.link" for start in ("70", "00", "0", "+")]
    return next((one for one in names if one < name or not name), names[-1])
