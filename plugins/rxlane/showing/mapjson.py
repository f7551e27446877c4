# SPDX-License-Identifier: GPL-2.0-or-later
"""The lanes as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rxlane.codec import to_plain
from rxlane.model import Helper, Index, Lane, Link, Queue, Snapshot, Thread, lanes, others
from rxlane.settings import requested
from rxlane.showing import marks
from rxlane.showing.marks import Mark


def map_json(snapshot: Snapshot, links: Sequence[Link]) -> str:
    """Return the lanes as JSON: dashes in keys, what the kernel does not report is absent."""
    index, marked = Index.of(snapshot), marks.find(snapshot)
    found = [_link_plain(index, link, marked) for link in links]
    data = {
        "devices": found,
        "sysctls": {s.name: s.value for s in snapshot.sysctls},
        "workqueue-cpus": _plain_list(requested(snapshot)),
        "workqueue-effective-cpus": _plain_list(snapshot.workqueue_cpus),
        "writers": list(snapshot.writers),
        "sessions": list(snapshot.sessions),
        "notes": list(snapshot.notes),
    }
    return json.dumps(present(data), indent=1) + "\n"


def _link_plain(index: Index, link: Link, marked: Iterable[Mark]) -> dict[str, Any]:
    return present(
        {
            "name": link.name,
            "ifindex": link.ifindex,
            "driver": link.driver or None,
            "up": link.up,
            "carrier": link.carrier if link.up else None,
            "node": link.node,
            "threaded": link.threaded,
            "defer-hard-irqs": link.defer_hard_irqs,
            "gro-flush-timeout": link.gro_flush_timeout,
            "tunables": {
                t.item: present({"value": t.value, "highest": t.top}) for t in link.tunables
            },
            "rx-threads": None if link.rx_threads is None else _helpers_plain(link),
            "lanes": [_lane_plain(lane) for lane in lanes(index, link)],
            "napis": _others_plain(index, link) or None,
            "vhost-threads": [
                {"pid": thread.pid, **_thread_plain(thread)} for thread in link.vhosts
            ]
            or None,
            "marks": [
                present(
                    {
                        "queue": mark.queue,
                        "napi-id": mark.napi,
                        "kind": mark.kind,
                        "text": mark.text,
                    }
                )
                for mark in marked
                if mark.device == link.name
            ],
            "tx-queues": [_sender_plain(q) for q in link.queues if q.kind == "tx"],
        }
    )


def _helpers_plain(link: Link) -> dict[str, Any]:
    return {"count": link.rx_threads, "threads": [_helper_plain(h) for h in link.helpers]}


def _helper_plain(helper: Helper) -> dict[str, Any]:
    """Return an rx thread; reserved-cpu is absent where somebody set the thread's CPUs."""
    thread, plain = helper.thread, {"number": helper.number, "reserved-cpu": helper.reserved}
    counters = {} if helper.handled is None else to_plain(helper.handled)
    plain |= {name.replace("_", "-"): value for name, value in counters.items()}
    own = {} if thread is None else {"pid": thread.pid, "thread": _thread_plain(thread)}
    return present({**plain, **own})


def _sender_plain(queue: Queue) -> dict[str, Any]:
    return present(
        {
            "queue": queue.index,
            "xps-cpus": _plain_list(queue.xps_cpus),
            "xps-rxqs": _plain_list(queue.xps_rxqs),
        }
    )


def _plain_list(numbers: Iterable[int] | None) -> list[int] | None:
    return None if numbers is None else list(numbers)


def _lane_plain(lane: Lane) -> dict[str, Any]:
    queue = lane.queue
    plain = {
        "queue": queue.index,
        "napi-source": queue.napi_source,
        "rps-cpus": _plain_list(queue.rps_cpus),
        "rps-flow-cnt": queue.rps_flow_cnt,
    }
    return present(plain) | _served_plain(lane)


def _others_plain(index: Index, link: Link) -> list[dict[str, Any]]:
    """Return NAPIs that no RX queue is known to use, with the TX queues that they have."""
    senders = link.senders()
    return [
        {"tx-queues": senders.get(lane.queue.napi_id, []), **_served_plain(lane)}
        for lane in others(index, link)
    ]


def _served_plain(lane: Lane) -> dict[str, Any]:
    """Return a NAPI with its interrupt and thread."""
    queue, napi, irq, thread = lane.queue, lane.napi, lane.irq, lane.thread
    plain: dict[str, Any] = {
        "napi-id": queue.napi_id,
        "irq": queue.irq,
        "irq-source": queue.irq_source,
        "mode": lane.mode,
    }
    if irq is not None:
        plain |= {
            "irq-cpus": list(irq.cpus),
            "irq-effective-cpus": list(irq.effective),
            "irq-movable": irq.movable,
            "irq-threaded": None if irq.threaded is None else bool(irq.threaded),
            "irq-thread": None if irq.thread is None else _thread_plain(irq.thread),
        }
    if napi is not None:
        plain |= {
            "pid": napi.pid,
            "defer-hard-irqs": napi.defer_hard_irqs,
            "gro-flush-timeout": napi.gro_flush_timeout,
            "irq-suspend-timeout": napi.irq_suspend_timeout,
        }
    if thread is not None:
        plain["thread"] = _thread_plain(thread)
    return present(plain)


def _thread_plain(thread: Thread) -> dict[str, Any]:
    return {
        "name": thread.name,
        "policy": thread.policy,
        "priority": thread.priority,
        "nice": thread.nice,
        "cpus": list(thread.cpus),
    }


def present(plain: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not known."""
    return {key: value for key, value in plain.items() if value is not None}
