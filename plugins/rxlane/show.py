# SPDX-License-Identifier: GPL-2.0-or-later
"""Text and JSON for people and programs. Pure; the text fits 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rxlane import cpulist
from rxlane.codec import to_plain
from rxlane.model import (
    HOST,
    REALTIME,
    THREAD_ITEMS,
    WHOLE,
    Change,
    Index,
    Irq,
    Lane,
    Link,
    Mismatch,
    Plan,
    Queue,
    Snapshot,
    Thread,
    lanes,
    napi_mode,
)

WIDTH = 80
HEADINGS = ("queue", "NAPI", "IRQ", "IRQ CPUs", "mode", "PID", "CPU", "policy", "node")
# Columns that give way, widest first, when a row is too long: CPU lists can be any length.
ELASTIC = (3, 6)


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _mode(mode: str | None) -> str:
    return {"off": "softirq", "on": "threaded", None: "-"}.get(mode, mode or "-")


def _class(thread: Thread | None) -> str:
    """`fifo/50` for a priority, `other/-5` for a nice level, the bare class without either."""
    if thread is None:
        return "-"
    number = thread.priority if thread.policy in REALTIME else thread.nice
    return f"{thread.policy}/{number}" if number else thread.policy


def _nodes(snapshot: Snapshot, cpus: Iterable[int], fallback: int | None) -> str:
    known = {c.number: c.node for c in snapshot.topology.cpus}
    found = sorted({known[n] for n in cpus if n in known})
    return cpulist.render(found) if found else _cell(fallback)


def _row(snapshot: Snapshot, link: Link, lane: Lane) -> tuple[str, ...]:
    irq, thread, queue = lane.irq, lane.thread, lane.queue
    cpus = () if irq is None else irq.effective or irq.cpus
    # The thread polls when there is one in use, else the CPU that took the interrupt does.
    used = thread.cpus if thread is not None and lane.mode not in (None, "off") else cpus
    return (
        f"rx{queue.index}",
        _cell(queue.napi_id),
        _cell(queue.irq),
        _cell(cpulist.render(cpus)),
        _mode(lane.mode),
        _cell(None if lane.napi is None else lane.napi.pid),
        _cell(None if thread is None else cpulist.render(thread.cpus)),
        _class(thread),
        _nodes(snapshot, used, link.node),
    )


def _rest(link: Link) -> list[tuple[str, ...]]:
    """Rows of NAPIs that no RX queue is known to use."""
    linked = {q.napi_id for q in link.queues if q.kind == "rx"}
    sends = {q.napi_id: f"tx{q.index}" for q in link.queues if q.kind == "tx"}
    return [
        (
            sends.get(n.napi_id, "?"),
            str(n.napi_id),
            _cell(n.irq),
            "-",
            _mode(napi_mode(link, n)),
            _cell(n.pid),
            "-",
            "-",
            "-",
        )
        for n in link.napis
        if n.napi_id not in linked
    ]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    gap = len(HEADINGS) - 1
    while sum(widths) + gap > WIDTH:
        widest = max(ELASTIC, key=lambda i: widths[i])
        if widths[widest] <= len(HEADINGS[widest]):
            break
        widths[widest] -= 1
    return [
        " ".join(_fit(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _fit(cell: str, width: int) -> str:
    """Pad to width; a list that is cut ends with `+`, so that it is not taken for whole."""
    return cell.ljust(width) if len(cell) <= width else f"{cell[: width - 1]}+"


def _heading(link: Link) -> list[str]:
    state = "up" if link.up else "down"
    node = "" if link.node is None else f", node {link.node}"
    queues = f"{link.count('rx')} RX and {link.count('tx')} TX queues"
    lines = [f"{link.name}: {link.driver or 'no driver'}, {state}{node}, {queues}"]
    if not link.up:
        lines.append(f"  interface {link.name} is down, no NAPI instances")
    return lines


def _sources(link: Link) -> list[str]:
    """One line that says where the links between queue, NAPI and IRQ are known from."""
    own = [q for q in link.queues if q.kind == "rx"]
    if not own or not link.up:
        return []
    napi = ", ".join(sorted({q.napi_source for q in own}))
    irq = ", ".join(sorted({q.irq_source for q in own}))
    return [f"  queue-NAPI links from: {napi}; IRQ links from: {irq}"]


def _timers(link: Link) -> list[str]:
    """One line for the timers when all NAPIs agree or the device has them, else one a NAPI."""
    seen = {(n.defer_hard_irqs, n.gro_flush_timeout, n.irq_suspend_timeout): n for n in link.napis}
    if set(seen) <= {(None, None, None)}:
        if link.defer_hard_irqs is None:
            return []
        return [_timer_line("device", link.defer_hard_irqs, link.gro_flush_timeout, None)]
    if len(seen) == 1:
        return [_timer_line("all NAPIs", *next(iter(seen)))]
    return [
        _timer_line(
            f"NAPI {n.napi_id}", n.defer_hard_irqs, n.gro_flush_timeout, n.irq_suspend_timeout
        )
        for n in link.napis
    ]


def _timer_line(who: str, defer: int | None, flush: int | None, suspend: int | None) -> str:
    parts = [f"defer {_cell(defer)}", f"flush {_cell(flush)} ns"]
    if suspend is not None:
        parts.append(f"suspend {suspend} ns")
    return f"  {who}: {', '.join(parts)}"


def _steering(index: Index, link: Link) -> list[str]:
    """A line for queues that are steered alike; none for queues without RPS, RFS or XPS."""
    groups: dict[str, list[int]] = {}
    for queue in link.queues:
        words = _steered(queue)
        if words:
            groups.setdefault(f"{queue.kind}{{}}: {words}", []).append(queue.index)
    lines = [_cut(f"  {text.format(cpulist.render(own))}") for text, own in groups.items()]
    irqs = (_irq(index, queue) for queue in link.queues)
    fixed = {irq.number for irq in irqs if irq is not None and not irq.movable}
    if fixed:
        lines.append(_cut(f"  IRQs that the kernel keeps in place: {cpulist.render(fixed)}"))
    return lines


def _irq(index: Index, queue: Queue) -> Irq | None:
    return None if queue.irq is None else index.irqs.get(queue.irq)


def _steered(queue: Queue) -> str:
    parts = [
        f"RPS to {cpulist.render(queue.rps_cpus)}" if queue.rps_cpus else "",
        f"RFS {queue.rps_flow_cnt} flows" if queue.rps_flow_cnt else "",
        f"XPS from RX queue {cpulist.render(queue.xps_rxqs)}" if queue.xps_rxqs else "",
        f"XPS from CPU {cpulist.render(queue.xps_cpus)}" if queue.xps_cpus else "",
    ]
    return ", ".join(part for part in parts if part)


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}+"


def _host(snapshot: Snapshot) -> list[str]:
    """The settings of the host and who else writes, shown once."""
    lines = [f"  {s.name} {s.value}" for s in snapshot.sysctls]
    lines += [f"  {writer} runs and may move interrupts" for writer in snapshot.writers]
    return ["", "host:", *lines] if lines else []


def map_text(snapshot: Snapshot, links: Sequence[Link]) -> str:
    """Return the lanes of each link as a table, with notes about what the kernel lacks."""
    lines = [f"note: {note}" for note in snapshot.notes]
    index = Index.of(snapshot)
    for link in links:
        if lines:
            lines.append("")
        lines += _heading(link)
        rows = [_row(snapshot, link, lane) for lane in lanes(index, link)] + _rest(link)
        if link.up and rows:
            lines += _table([HEADINGS, *rows])
            lines += _timers(link)
            lines += _steering(index, link)
            lines += _sources(link)
    if lines:
        lines += _host(snapshot)
    return "\n".join(lines) + "\n" if lines else ""


def map_json(snapshot: Snapshot, links: Sequence[Link]) -> str:
    """Return the lanes as JSON: dashes in keys, what the kernel does not report is absent."""
    index = Index.of(snapshot)
    found = [_link_plain(index, link) for link in links]
    data = {
        "devices": found,
        "sysctls": {s.name: s.value for s in snapshot.sysctls},
        "writers": list(snapshot.writers),
        "notes": list(snapshot.notes),
    }
    return json.dumps(data, indent=1) + "\n"


def _link_plain(index: Index, link: Link) -> dict[str, Any]:
    return _present(
        {
            "name": link.name,
            "ifindex": link.ifindex,
            "driver": link.driver or None,
            "up": link.up,
            "node": link.node,
            "threaded": link.threaded,
            "defer-hard-irqs": link.defer_hard_irqs,
            "gro-flush-timeout": link.gro_flush_timeout,
            "lanes": [_lane_plain(lane) for lane in lanes(index, link)],
            "tx-queues": [_sender_plain(q) for q in link.queues if q.kind == "tx"],
        }
    )


def _sender_plain(queue: Queue) -> dict[str, Any]:
    return _present(
        {
            "queue": queue.index,
            "xps-cpus": _plain_list(queue.xps_cpus),
            "xps-rxqs": _plain_list(queue.xps_rxqs),
        }
    )


def _plain_list(numbers: Iterable[int] | None) -> list[int] | None:
    return None if numbers is None else list(numbers)


def _lane_plain(lane: Lane) -> dict[str, Any]:
    queue, napi, irq, thread = lane.queue, lane.napi, lane.irq, lane.thread
    plain: dict[str, Any] = {
        "queue": queue.index,
        "napi-id": queue.napi_id,
        "napi-source": queue.napi_source,
        "irq": queue.irq,
        "irq-source": queue.irq_source,
        "mode": lane.mode,
        "rps-cpus": _plain_list(queue.rps_cpus),
        "rps-flow-cnt": queue.rps_flow_cnt,
    }
    if irq is not None:
        plain |= {
            "irq-cpus": list(irq.cpus),
            "irq-effective-cpus": list(irq.effective),
            "irq-movable": irq.movable,
        }
    if napi is not None:
        plain |= {
            "pid": napi.pid,
            "defer-hard-irqs": napi.defer_hard_irqs,
            "gro-flush-timeout": napi.gro_flush_timeout,
            "irq-suspend-timeout": napi.irq_suspend_timeout,
        }
    if thread is not None:
        plain["thread"] = {
            "name": thread.name,
            "policy": thread.policy,
            "priority": thread.priority,
            "nice": thread.nice,
            "cpus": list(thread.cpus),
        }
    return _present(plain)


def _present(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if value is not None}


def change_text(change: Change) -> str:
    new = "(new thread)" if change.target.item in THREAD_ITEMS else "(new queue)"
    before = new if change.before is None else change.before
    lines = f"{change.target}: {before} -> {change.after}"
    if change.disruption != "none":
        lines += f"  [{change.disruption}]"
    return f"{lines}\n    {change.reason}" if change.reason else lines


def plan_text(plan: Plan) -> str:
    """Return the plan as a diff with reasons; what is skipped and warned of comes after."""
    lines = [change_text(c) for c in plan.changes]
    lines += [f"skipped: {skip}" for skip in plan.skips]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines.append(f"{len(plan.changes)} to change, {len(plan.holds)} as wanted already")
    return "\n".join(lines) + "\n"


def _plain_change(change: Change) -> dict[str, Any]:
    target = change.target
    queue = None if target.queue == WHOLE else target.queue
    return {
        "device": None if target.device == HOST else target.device,
        "queue": queue,
        "setting": target.item,
        "before": change.before,
        "after": change.after,
        "reason": change.reason,
        "disruption": change.disruption,
    }


def plan_json(plan: Plan) -> str:
    data = {
        "changes": [_plain_change(c) for c in plan.changes],
        "holds": [_plain_change(c) for c in plan.holds],
        "skips": to_plain(plan.skips),
        "warnings": list(plan.warnings),
    }
    return json.dumps(data, indent=1) + "\n"


def verify_text(checked: int, mismatches: Sequence[Mismatch]) -> str:
    lines = [f"drifted: {m}" for m in mismatches]
    lines.append(f"{checked - len(mismatches)} of {checked} settings as planned")
    return "\n".join(lines) + "\n"


def verify_json(checked: int, mismatches: Sequence[Mismatch]) -> str:
    drifted = [
        {
            "setting": str(m.target),
            "expected": m.expected,
            "found": m.found,
            "cause": m.cause,
        }
        for m in mismatches
    ]
    return json.dumps({"checked": checked, "drifted": drifted}, indent=1) + "\n"
