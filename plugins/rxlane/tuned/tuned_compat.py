# SPDX-License-Identifier: GPL-2.0-or-later
"""What the TuneD plugins share, and the only file that knows how TuneD versions differ.

Imports nothing of TuneD: the plugins hand over plain values and log what a Report says.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rxlane.apply import Applied, apply
from rxlane.applying.present import of_this_boot
from rxlane.applying.rollback import rollback
from rxlane.applying.stages import coming_back, reads, without_tunables
from rxlane.converge import Choose
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError, with_notes
from rxlane.items import (
    COALESCE_ITEMS,
    CPU_ITEMS,
    FEATURE_ITEMS,
    IRQ_ITEMS,
    IRQ_THREADED,
    NAPI_ITEMS,
    NET_ITEMS,
    RESET_ITEMS,
    SEPARATION_ITEMS,
    STEERING_ITEMS,
    THREADED,
    THREADS_OF,
    VHOST_CPUS,
)
from rxlane.journal import DIRECTORY, Store
from rxlane.keeping import claims, confirm
from rxlane.kernel import Kernel, Linux
from rxlane.plan import HOST, TUNED, Plan, Target
from rxlane.policy import FLOW_STEERING, IRQ_LAYOUT, NAPI, Given, parse
from rxlane.revert import called_now
from rxlane.sections import Policy
from rxlane.settings import View
from rxlane.sysfs import Sysfs
from rxlane.tuned.profile import unquote
from rxlane.verify import cause

OF_PROFILE = "of the profile"  # see confirm.patient()
NEEDS = "rxlane's TuneD plugins need TuneD 2.25 or newer: this one cannot order plugin instances"


def unsupported(create_instance: Callable[..., object]) -> str | None:
    """Return why this TuneD cannot run the plugins, None when it can.

    create_instance: TuneD's own Plugin.create_instance. It took no priority up to 2.21, which the
    plugins' constructor of instances relies on.
    """
    return None if "priority" in inspect.signature(create_instance).parameters else NEEDS


def is_hardware(device_path: str) -> bool:
    """Tell a hardware or virtual machine's device by its sysfs path from veth, tap, netdevsim."""
    return re.search(r"/(?:virtual|netdevsim\d*)/", device_path) is None


def function_arguments(constructor: Callable[..., object], name: str) -> tuple[str, ...]:
    """Return what comes before the numbers of arguments in the constructor of a TuneD function.

    The name, up to 2.27; 2.28 asks the function's class for it.
    """
    return (name,) if "name" in inspect.signature(constructor).parameters else ()


def index_of(name: str) -> int | None:
    return Sysfs().number(f"sys/class/net/{name}/ifindex")


def events_so_far() -> int:
    """Return the sequence number of the kernel's last event of any device (SEQNUM in udev)."""
    return Sysfs().number("sys/kernel/uevent_seqnum") or 0


# The settings that a kind of section speaks for.
ITEMS = {
    NAPI: frozenset((*RESET_ITEMS, *COALESCE_ITEMS, *NAPI_ITEMS, *THREADS_OF[THREADED])),
    IRQ_LAYOUT: frozenset((*IRQ_ITEMS, IRQ_THREADED, *THREADS_OF[IRQ_THREADED], *CPU_ITEMS)),
    FLOW_STEERING: frozenset(
        (*FEATURE_ITEMS, *STEERING_ITEMS, *SEPARATION_ITEMS, *NET_ITEMS, VHOST_CPUS)
    ),
}


@dataclass(frozen=True, slots=True)
class Report:
    """ok is the verdict; lines are (level, text) for TuneD's log: info, warning or error.

    again: the same may succeed a moment later. passing: so it may where something was so when it
    was planned, such as a NAPI of a link that went down and up meanwhile. waiting: originals are
    still to come back, of links that are down for example.
    """

    ok: bool
    lines: tuple[tuple[str, str], ...] = ()
    again: bool = False
    passing: bool = False
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A TuneD instance as the plugin knows it; options that are None or empty are left alone."""

    name: str
    devices: frozenset[str]
    options: tuple[tuple[str, str | None], ...]
    kind: str = NAPI


def _given(row: Row) -> Given:
    options = {key: unquote(value) for key, value in row.options if value is not None}
    return Given(row.kind, row.name, tuple(sorted(row.devices)), options)


def _failure(error: RxlaneError | OSError, stands: bool = False) -> Report:
    """stands: something does, so that the disk had room for the journal."""
    lines = tuple(("error", text) for text in with_notes(error))
    if isinstance(error, OSError):
        return Report(False, lines, passing=True)
    passing = error.passing or (stands and error.kind is Kind.JOURNAL)
    return Report(False, lines, error.kind.retry, passing)


def _plan_lines(plan: Plan) -> tuple[tuple[str, str], ...]:
    skips = [
        ("warning" if skip.kind in ("unsupported", "unmovable") else "info", str(skip))
        for skip in plan.skips
    ]
    return (*skips, *(("warning", text) for text in plan.warnings))


class Adapter:
    """Runs the library for a plugin: every failure becomes one line of a Report, never a raise."""

    def __init__(
        self,
        state: str | Path = DIRECTORY,
        open_kernel: Callable[[], Kernel] = Linux,
        index: Callable[[str], int | None] = index_of,
    ) -> None:
        self.store = Store(state)
        self._index = index
        # Opened for each use: TuneD's daemon lives for months, a socket need not.
        self._open_kernel = open_kernel
        # What the kernel refused for good at the last apply and since: known only by trying.
        self._unmovable: frozenset[Target] = frozenset()

    def apply(
        self, rows: Iterable[Row], stands: bool = False, choose: Choose | None = None
    ) -> Report:
        """Write one plan for all sections. Originals of a killed TuneD are carried over.

        stands: an earlier layout does, and goes on being kept if this one fails. choose: see
        rxlane.apply.apply(); what it raises that is no failure is the caller's.
        """
        try:
            done = self._write(self.policy(rows), choose)
        except (RxlaneError, OSError) as error:
            failed = _failure(error, stands)
            return failed if stands or failed.passing else self._released(failed)
        self._unmovable = done.unmovable
        lines = [*_plan_lines(done.plan), *(("info", note) for note in done.notes)]
        return Report(True, (*lines, ("info", str(done))))

    def policy(self, rows: Iterable[Row]) -> Policy:
        return parse(_given(row) for row in rows)

    def keep(
        self, policy: Policy, scope: Mapping[str, int] | None, choose: Choose | None
    ) -> Applied:
        """Write again what differs; raises as apply() does. The policy is for all, not for scope:
        what it does not ask for goes back.
        """
        done = self._write(policy, choose, scope)
        # One of the same name may be there instead, which lets itself be set.
        had = {held.target for held in done.plan.holds if held.before == held.after}
        self._unmovable = (self._unmovable - done.wrote - had) | done.unmovable
        return done

    def _write(
        self, policy: Policy, choose: Choose | None, called: Mapping[str, int] | None = None
    ) -> Applied:
        """Claim the policy's devices, then write; those that a .link file has alone are left."""
        kernel = self._open_kernel()
        with confirm.patient(OF_PROFILE):
            confirm.refuse_second(kernel, self.store)
        named = {name for s in policy.all for name in s.devices}
        indexes = {i for name in named if (i := self._index(name)) is not None}
        claims.update(self.store, kernel.boot_id(), claims.with_tuned(indexes))
        others = claims.Others(self.store, kernel)

        still = confirm.patiently(kernel, self.store, OF_PROFILE, choose)
        return apply(
            *(kernel, self.store, policy, others), owner=TUNED, choose=still, called=called
        )

    def give_up(self, taken: Collection[int | None]) -> None:
        """Leave to others what a rollback took while it was claimed; None is for all."""
        change = claims.without_tuned(taken)
        claims.update(self.store, self._open_kernel().boot_id(), change)

    def _released(self, report: Report) -> Report:
        """Leave every device to its .link file, unless what the report is of is tried again."""
        if report.again:
            return report
        try:
            claims.release_tuned(self.store, self._open_kernel().boot_id())
        except (RxlaneError, OSError) as error:
            failed = _failure(error)
            lines = (*report.lines, ("warning", f"services of .link files still yield: {error}"))
            return replace(report, lines=lines, again=failed.again)
        return report

    def verify(
        self, rows: Iterable[Row], devices: Collection[str], kind: str | None = None
    ) -> Report:
        """Compare the devices with what a plan for all sections wants now.

        kind: report only the settings of this kind of section.
        """
        rows = tuple(rows)
        named = {device for row in rows for device in row.devices}
        try:
            policy, kernel = self.policy(rows), self._open_kernel()
            journal = of_this_boot(self.store, kernel.boot_id())
            snapshot = without_tunables(kernel.observe(None, reads(policy, ())), self._unmovable)
            view, others = View.of(snapshot), claims.Others(self.store, kernel)
            journal = journal and called_now(journal, snapshot.links)
            # As apply() does: what auto gives may start from an original.
            back = coming_back(journal, view, others, policy)
            # What was left alone when it was applied, such as under a login, has not drifted.
            alone = [s for s in (journal.left if journal else ()) if s.kind == "left-alone"]
            left = {Target(s.device, s.queue, i): s for s in alone for i in s.item.split(", ")}
            back = {target: value for target, value in back.items() if target not in left}
            plan = decide(snapshot, policy, view, back, compared=True)
        except (RxlaneError, OSError) as error:
            return _failure(error)
        lines: list[tuple[str, str]] = []

        def own(target: Target) -> bool:
            mine = kind is None or target.item in ITEMS[kind]
            # Taps are laid out with the devices of a section, and no section names them.
            here = target.device in (*devices, HOST) or target.device not in named
            return mine and here and target not in self._unmovable and target not in left

        for change in (c for c in plan.changes if own(c.target)):
            found = view.read(change.target)
            text = f"{change.target} is {found}, expected {change.after}"
            text += f" ({cause(view, change.target)})"
            lines.append(("error", f"verify: failed: {text}"))
        ok = not lines
        for held in (c for c in plan.holds if own(c.target)):
            lines.append(("info", f"verify: passed: {held.target} = {held.after}"))
        waived = (left[c.target] for c in plan.changes if c.target in left)
        skipped = dict.fromkeys((*plan.skips, *waived))
        skips = [s for s in skipped if s.device in devices or s.device not in (*named, HOST)]
        lines += [("info", f"verify: not compared: {skip}") for skip in skips]
        return Report(ok, tuple(lines))

    def rollback(self, devices: Collection[str] | None = None, kind: str | None = None) -> Report:
        """Bring originals back for some devices and one kind of section, or all there are."""
        report = self._rolled_back(devices, None if kind is None else ITEMS[kind])
        return self._released(report) if devices is None and kind is None else report

    def rest(self) -> Report:
        """Bring back what a rollback had to leave, unless somebody laid out something since."""
        try:
            left = claims.of_tuned(self.store)
        except (RxlaneError, OSError) as error:
            return _failure(error)
        return self._rolled_back(None, None) if left else Report(True)

    def _rolled_back(
        self, devices: Collection[str] | None, items: Collection[str] | None
    ) -> Report:
        try:
            kernel = self._open_kernel()
            others = claims.others(self.store, kernel) if devices is None else devices
            done = rollback(kernel, self.store, others, items)
        except (RxlaneError, OSError) as error:
            return _failure(error)
        lines = [("info", note) for note in done.notes]
        lines += [("warning", f"not put back: {line}") for line in done.pending]
        if devices is None:
            kept = (f"{name} is not here, its originals are kept" for _, name in done.away)
            lines += [("info", line) for line in kept]
        waiting = bool(done.pending)
        return Report(not waiting, (*lines, ("info", str(done))), waiting=waiting)
