# SPDX-License-Identifier: GPL-2.0-or-later
"""Properties of planning on hosts of any shape: made from random recipes (unit.anyhost).

The rules are written down here once more, from what the issue of a host is, not from the code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from rxlane import cpulist
from rxlane.apply import apply
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.items import EVERY_ITEM, UNRESET_ITEMS
from rxlane.model import Snapshot, Thread
from rxlane.plan import WHOLE, Change, Plan, Target
from rxlane.revert import revert
from rxlane.sections import Policy
from rxlane.settings import View
from unit import simhost
from unit.anyhost import ODD, alone, dangerous_hosts, hosts, odd_hosts, policies
from unit.faults import all_stays_and_comes_back
from unit.simhost import MemoryStore, SimHost


def odd_threads(host: Snapshot) -> Iterator[tuple[str, int, str, Thread]]:
    """Threads with one of these classes: device, queue or number, and what settings begin with."""
    for (device, queue), lane in View.of(host).lanes.items():
        handler = None if lane.irq is None else lane.irq.thread
        for kind, thread in (("thread", lane.thread), ("irq-thread", handler)):
            if thread is not None and thread.policy in ODD:
                yield device, queue, kind, thread
    for link in host.links:
        for helper in link.helpers:
            if helper.thread is not None and helper.thread.policy in ODD:
                yield link.name, helper.number, "rx-thread", helper.thread


def hits(change: Change, device: str, number: int, kind: str) -> bool:
    """Whether a change moves or ends this thread, or gives it another class."""
    target, after = change.target, change.after
    if target.device != device:
        return False
    if target.item == "rx-threads":
        return kind == "rx-thread" and number >= int(after)
    if target.queue not in (number, WHOLE):
        return False
    if target.item == {"thread": "threaded", "irq-thread": "irq-threaded"}.get(kind):
        return after == "off"
    return target.item in (f"{kind}-cpus", f"{kind}-sched")


def followers(view: View, change: Change) -> Iterator[int]:
    """Such threads that a change moves with their interrupt."""
    lane = view.lane(change.target)
    if change.target.item != "irq-cpus" or lane is None or lane.irq is None:
        return
    for thread in view.snapshot.irq_threads if lane.irq.threaded is None else ():
        stays = thread.cpus == cpulist.parse(str(change.after))
        if thread.irq == lane.irq.number and thread.sched == "ext:0" and not stays:
            yield thread.pid


def touched(host: Snapshot, plan: Plan) -> set[int]:
    """The threads with one of these classes that a plan would move, end or change the class of."""
    view, odd = View.of(host), list(odd_threads(host))
    found = {t.pid for c in plan.changes for name, n, kind, t in odd if hits(c, name, n, kind)}
    return found.union(pid for change in plan.changes for pid in followers(view, change))


def planned(host: Snapshot, policy: Policy) -> Plan:
    """The plan; an example whose policy is refused on this host is another test's business."""
    try:
        return decide(host, policy)
    except RxlaneError as error:
        assert error.kind in (Kind.REFUSED, Kind.OPTION) and len(str(error).splitlines()) == 1
        event(f"refused: {error.option}")
        assume(False)
        raise


def wanted(host: Snapshot, plan: Plan, item: str) -> dict[tuple[str, int], str]:
    """What every lane will have of this setting."""
    view = View.of(host)
    found: dict[tuple[str, int], str] = {}
    if item == "threaded":
        found = {key: lane.mode for key, lane in view.lanes.items() if lane.mode is not None}
    for change in (*plan.changes, *plan.holds):
        target = change.target
        if target.item != item:
            continue
        if target.queue >= 0:
            found[target.device, target.queue] = str(change.after)
        else:
            found |= {key: str(change.after) for key in view.lanes if key[0] == target.device}
    return found


def check_separation(host: Snapshot, plan: Plan, policy: Policy) -> None:
    """A device with rx threads has no RPS and no RFS, and no more threads than CPUs are online."""
    view = View.of(host)
    after = {c.target: c.after for c in (*plan.changes, *plan.holds)}
    for link in host.links:
        count = after.get(Target(link.name, WHOLE, "rx-threads"), link.rx_threads)
        assert link.rx_threads is not None or not count
        if not count:
            continue
        assert int(count) <= max(len(host.topology.online), link.rx_threads or 0)
        for target in (t for t in after if t.device == link.name and t.item.startswith("rx-thr")):
            assert target.queue < int(count)
        for queue in (q.index for q in link.queues if q.kind == "rx"):
            for item, off in (("rps-cpus", "off"), ("rps-flow-cnt", 0)):
                target = Target(link.name, queue, item)
                assert after.get(target, view.read(target)) in (off, None)


def check_realtime(host: Snapshot, plan: Plan, policy: Policy) -> None:
    """Real-time threads leave two housekeeping CPUs, and CPU 0 unless permitted."""
    own = {c.target: str(c.after) for c in (*plan.changes, *plan.holds)}
    helped = {t for t, value in own.items() if t.item == "rx-thread-sched" and value[:2] == "rr"}
    cpu0 = bool(policy.steering) and policy.steering[0].rx_realtime_cpu0
    aside: set[int] = set()
    for target in helped:
        placed = own.get(target._replace(item="rx-thread-cpus"), "kernel")
        assert placed != "kernel", "it could be on any CPU"
        aside.update(cpulist.parse(placed))
    assert not aside or len(set(host.topology.housekeeping) - aside) >= 2
    assert 0 not in aside or cpu0
    taken = {n for _, cpus in realtime_after(host, plan).values() for n in cpus}
    if not taken:
        return
    assert len(set(host.topology.housekeeping) - taken - aside) >= 2
    assert 0 not in taken or policy.sections[0].allow_realtime_cpu0


def realtime_after(host: Snapshot, plan: Plan) -> dict[tuple[str, int], tuple[int, set[int]]]:
    """Priority and CPUs of each NAPI's real-time thread that the plan gives its class, its CPUs or
    its mode; what it says nothing of stays the thread's own.
    """
    view, online = View.of(host), set(host.topology.online)
    changed = {(c.target.device, c.target.queue) for c in plan.changes if c.target.item in OF_NAPI}
    classes, cpus = wanted(host, plan, "thread-sched"), wanted(host, plan, "thread-cpus")
    modes, found = wanted(host, plan, "threaded"), {}
    for key, lane in view.lanes.items():
        thread = lane.thread
        own = None if thread is None or key not in changed else thread.sched
        sched = classes.get(key, own) or ""
        if modes.get(key) == "off" or not sched.startswith(("fifo", "rr")):
            continue
        placed = set(cpulist.parse(cpus[key])) if key in cpus else online
        if key not in cpus and thread is not None:
            placed = set(thread.cpus) & online or online
        found[key] = int(sched.split(":")[1]), placed
    return found


OF_NAPI = ("threaded", "thread-cpus", "thread-sched")
OF_IRQ = tuple(f"irq-{item}" for item in OF_NAPI)


def silent(host: Snapshot, plan: Plan) -> set[int]:
    """The interrupts that will be off: those of which every queue busy-polls."""
    modes = wanted(host, plan, "threaded")
    found: defaultdict[int, set[str]] = defaultdict(set)
    for key, lane in View.of(host).lanes.items():
        if lane.irq is not None:
            first = key if lane.shared_with is None else (key[0], lane.shared_with)
            found[lane.irq.number].add(modes.get(first, str(lane.mode)))
    return {number for number, own in found.items() if own == {"busy-poll"}}


def check_dangers(host: Snapshot, plan: Plan, policy: Policy) -> None:
    """No real-time thread holds up others' IRQ threads, which can run nowhere else, or what has no
    reserve, and nothing busy-polls beside polling sockets.
    """
    moved, brought = {t.irq: set(t.cpus) for t in host.irq_threads}, set()
    view = View.of(host)
    for key, placed in wanted(host, plan, "irq-cpus").items():
        irq = view.lanes[key].irq
        if irq is not None and irq.number in moved and irq.threaded is None:
            if moved[irq.number] != set(cpulist.parse(placed)):
                brought.add(irq.number)
            moved[irq.number] = set(cpulist.parse(placed))
    ours = {key for item in OF_IRQ for key in wanted(host, plan, item)}
    for key, lane in view.lanes.items():
        # Those that the plan sets anything of are where it puts them: another test's business.
        if lane.irq is not None and key in ours:
            moved.pop(lane.irq.number, None)
    for number in silent(host, plan):
        moved.pop(number, None)
    changed = {(c.target.device, c.target.queue) for c in plan.changes if c.target.item in OF_NAPI}
    after = realtime_after(host, plan)
    high = {n for priority, cpus in after.values() if priority >= 50 for n in cpus}
    for key, (priority, cpus) in after.items():
        assert host.stalld or cpus.isdisjoint(host.unreserved)
        irq = view.lanes[key].irq
        own = None if irq is None else irq.number
        for number, taken in moved.items():
            kept = number == own or cpus.isdisjoint(taken) or not taken <= high
            joined = key not in changed and number not in brought
            assert priority < 50 or kept or joined, "the plan brought neither there"
    polled = any(c.after == "busy-poll" for c in (*plan.changes, *plan.holds))
    sockets = {s.name: s.value for s in host.sysctls}["net.core.busy_read"]
    assert not polled or not sockets


def check_handlers(host: Snapshot, plan: Plan) -> None:
    """No interrupt is moved to a thread that only wakes a poller, or a sleeping interrupt's."""
    modes = wanted(host, plan, "threaded")
    for key, mode in wanted(host, plan, "irq-threaded").items():
        asked = any(c.reason.startswith("threaded=auto ") for c in plan.changes)
        assert mode == "off" or modes.get(key) != "busy-poll"
        assert mode == "off" or not asked or modes.get(key) != "on"


def left_alone(host: Snapshot, plan: Plan) -> set[int]:
    """The CPUs of bound pollers that the plan leaves where they are."""
    modes, cpus = wanted(host, plan, "threaded"), wanted(host, plan, "thread-cpus")
    return {
        lane.thread.cpus[0]
        for key, lane in View.of(host).lanes.items()
        if lane.thread is not None and len(lane.thread.cpus) == 1 and lane.shared_with is None
        if lane.mode == modes[key] == "busy-poll" and key not in cpus
    }


def check_pollers(host: Snapshot, plan: Plan) -> None:
    """No CPU has two busy pollers that this plan binds, no lane is beside a real-time one, and none
    comes to a poller of which the plan says nothing.
    """
    modes, cpus = wanted(host, plan, "threaded"), wanted(host, plan, "thread-cpus")
    bound = [key for key, mode in modes.items() if mode == "busy-poll" and key in cpus]
    own = Counter(cpus[key] for key in bound if len(cpulist.parse(cpus[key])) == 1)
    assert max(own.values(), default=1) == 1
    classes = wanted(host, plan, "thread-sched")
    realtime = {cpus[key] for key in bound if classes.get(key, "").startswith(("fifo", "rr"))}
    alone = {value for value in realtime if len(cpulist.parse(value)) == 1}
    assert alone.isdisjoint(value for key, value in cpus.items() if key not in bound)
    there = {
        key: cpulist.render(lane.thread.cpus)
        for key, lane in View.of(host).lanes.items()
        if lane.thread is not None and lane.mode == "busy-poll"
    }
    come = {cpus[key] for key in bound if there.get(key) != cpus[key]}
    assert come.isdisjoint(map(str, left_alone(host, plan)))


def check_steering(host: Snapshot, plan: Plan, policy: Policy) -> None:
    """What chooses CPUs for RPS keeps off those that a poller of this plan has for itself."""
    if not policy.steering or policy.steering[0].rps not in ("auto", "numa-local"):
        return
    modes, cpus = wanted(host, plan, "threaded"), wanted(host, plan, "thread-cpus")
    busy = [
        cpulist.parse(cpus[key])
        for key, mode in modes.items()
        if mode == "busy-poll" and key in cpus
    ]
    polled = {own[0] for own in busy if len(own) == 1}
    if set(host.topology.housekeeping) <= polled | left_alone(host, plan):
        return
    for steered in wanted(host, plan, "rps-cpus").values():
        assert steered == "off" or not polled & {*cpulist.parse(steered)}


def check_values(host: Snapshot, plan: Plan, policy: Policy) -> None:
    """CPUs exist and are online, RPS keeps off isolated CPUs, every change has its reason."""
    online, ordinary = set(host.topology.online), set(host.topology.housekeeping)
    fixed = {irq.number for irq in host.irqs if not irq.movable}
    view, aside = View.of(host), policy.sections[0].management_queues
    for change in (*plan.changes, *plan.holds):
        target, value = change.target, str(change.after)
        assert change.reason and change.disruption in ("none", "thread-restart")
        if target.item.endswith("-cpus") and value not in ("off", "kernel"):
            cpus = set(cpulist.parse(value))
            assert cpus and cpus <= online
            assert target.item != "rps-cpus" or cpus <= ordinary
        if target.item == "irq-cpus":
            lane = view.lane(target)
            assert lane is not None and lane.irq is not None and lane.irq.number not in fixed
        if target.item in ("threaded", "thread-cpus", "thread-sched") and target.queue >= 0:
            assert target.queue >= aside
    assert all(skip.reason for skip in plan.skips)


ANY = st.one_of(dangerous_hosts(), dangerous_hosts().flatmap(odd_hosts))


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.tuples(ANY, policies()), alone()))
def test_no_plan_breaks_a_rule(case: tuple[Snapshot, Policy]) -> None:
    host, policy = case
    plan = planned(host, policy)
    assert not touched(host, plan)
    check_dangers(host, plan, policy)
    check_realtime(host, plan, policy)
    check_pollers(host, plan)
    check_handlers(host, plan)
    check_separation(host, plan, policy)
    check_steering(host, plan, policy)
    check_values(host, plan, policy)
    targets = [change.target for change in (*plan.changes, *plan.holds)]
    assert len(targets) == len(set(targets))
    assert plan == decide(host, policy)


@settings(max_examples=200, deadline=None)
@given(dangerous_hosts().flatmap(odd_hosts), policies())
def test_a_class_that_could_not_be_restored_is_not_touched(host: Snapshot, policy: Policy) -> None:
    """Such a refusal is never of a plan that leaves these threads alone, and names one it has."""
    try:
        plan = decide(host, policy)
    except RxlaneError as error:
        assume("could not be restored" in str(error))
        pids = touched(host, decide(host, policy, compared=True))
        assert error.kind is Kind.REFUSED and "`chrt --other --pid 0 " in str(error)
        assert any(f" thread {pid} (" in str(error) for pid in pids)
        event("refused for a class")
        return
    assert not touched(host, plan)
    event("planned beside such a class" if plan.changes else "nothing to change")


@settings(max_examples=60, deadline=None)
@given(hosts().flatmap(odd_hosts), policies())
def test_classes_stay_through_an_apply_and_its_rollback(host: Snapshot, policy: Policy) -> None:
    sim, store = SimHost(host), MemoryStore()
    before = simhost.settings(sim)
    try:
        apply(sim, store, policy)
    except RxlaneError as error:
        assert error.kind.refused and sim.writes == 0 and store.text is None
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None


@settings(max_examples=100, deadline=None)
@given(hosts(), policies())
def test_revert_names_every_original(host: Snapshot, policy: Policy) -> None:
    plan = planned(host, policy)
    view = View.of(host)
    undone = {change.target: change.after for change in revert(plan, host).changes}
    assert undone == {c.target: c.before for c in plan.changes if c.before is not None}
    assert all(view.read(target) == value for target, value in undone.items())


def applied_twice_and_back(host: Snapshot, policy: Policy) -> None:
    """The second apply writes nothing, and the rollback restores every setting."""
    sim = SimHost(host)
    planned(sim.observe(), policy)
    all_stays_and_comes_back(sim, policy)


@settings(max_examples=100, deadline=None)
@given(ANY, policies())
def test_applied_twice_and_back(host: Snapshot, policy: Policy) -> None:
    applied_twice_and_back(host, policy)


@settings(max_examples=200, deadline=None)
@given(alone())
def test_applied_twice_beside_threads_of_interrupts(case: tuple[Snapshot, Policy]) -> None:
    """These follow their interrupts, which a plan brings to its own threads."""
    applied_twice_and_back(*case)


@settings(max_examples=100, deadline=None)
@given(ANY, policies(), st.integers(0, 7))
def test_what_stood_has_its_originals(host: Snapshot, policy: Policy, first: int) -> None:
    """Of devices that were laid out by hand, and that a reset takes after an apply."""
    sim, by_hand, store = SimHost(host), MemoryStore(), MemoryStore()
    planned(sim.observe(), policy)
    apply(sim, by_hand, policy)
    names = sorted(sim.links) or ["eth0"]
    rollback(sim, by_hand, {names[first % len(names)]})
    before = simhost.settings(sim)
    try:
        apply(sim, store, policy)
        assume(store.text is not None)
        hardware = {name for name, link in sim.links.items() if link.physical}
        rollback(sim, by_hand, hardware, EVERY_ITEM - UNRESET_ITEMS)
        apply(sim, store, policy)
    except RxlaneError as error:
        assert error.kind.refused
        assume(False)
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None
