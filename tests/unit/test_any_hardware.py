# SPDX-License-Identifier: GPL-2.0-or-later
"""Properties of channels, rings and coalescing on hosts of any shape, with logins over some
devices and partitions that take CPUs away. The rules are written down once more, as in
test_any_host.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from rxlane import cpulist
from rxlane.apply import apply, foresee
from rxlane.applying.rollback import rollback
from rxlane.decide import decide
from rxlane.errors import Kind, RxlaneError
from rxlane.items import CHANNEL_ITEMS, COALESCE_ITEMS, RESET_ITEMS
from rxlane.model import Link, Snapshot
from rxlane.plan import LINK_RESET, WHOLE, Change, Plan, disruption
from rxlane.policy import Given, parse
from rxlane.sections import Policy
from rxlane.settings import View
from unit import simhost
from unit.anyhost import IRQ, NAPI, flows, hosts, some
from unit.faults import all_stays_and_comes_back
from unit.simhost import MemoryStore, SimHost

NUMBERS = st.sampled_from(["0", "8", "50"])
HARDWARE = st.fixed_dictionaries(
    {},
    optional={
        "channels": st.sampled_from(["1", "2", "5", "max"]),
        "ring_rx": st.sampled_from(["512", "max", "5000"]),
        "ring_tx": st.sampled_from(["512", "max"]),
        "rx_usecs": NUMBERS,
        "tx_usecs": NUMBERS,
        "rx_frames": st.sampled_from(["1", "32"]),
        "adaptive_rx": st.sampled_from(["off", "on"]),
        "allow_session_reset": st.sampled_from(["0", "1"]),
    },
)
LACKING = ["channels", "ring", "adaptive", "rx-usecs"]  # what drivers do without
# Where kernels put no threads of their own.
CPUS_OF_THREADS = ("thread-cpus", "irq-thread-cpus", "rx-thread-cpus")
MOVING = (*RESET_ITEMS, *COALESCE_ITEMS)


def bare(link: Link, host: Snapshot) -> Link:
    """One of as many queues in its place, as simhost has them."""
    return simhost.link(
        link.name, link.count("rx"), ifindex=link.ifindex, base=8193 + 100 * link.ifindex,
        node=link.node, kernel=host.capabilities,
    )  # fmt: skip


@st.composite
def equipped(draw: st.DrawFn, threads: bool = False) -> Snapshot:
    """A host whose drivers keep some of this for every device, one NAPI and interrupt a queue.

    threads: it has rx threads and interrupts that can be switched to threads; simulated drivers
    make queues anew without.
    """
    start = draw(hosts(busy=True))
    links = tuple(bare(link, start) for link in start.links)
    host = simhost.whole(replace(start, links=links, irqs=(), threads=()))
    if threads:
        links = tuple(simhost.separable(link, draw(st.integers(0, 2))) for link in host.links)
        host = replace(host, links=links, irqs=tuple(replace(i, threaded=0) for i in host.irqs))
    return replace(
        host,
        links=tuple(draw(with_hardware(link)) for link in host.links),
        topology=replace(host.topology, partitioned=cpulist.parse(draw(taken(host)))),
        sessions=tuple(li.name for li in host.links if draw(st.sampled_from([0, 0, 1]))),
        hidden_logins=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def taken(draw: st.DrawFn, host: Snapshot) -> str:
    """CPUs of partitions: any but the first, which no kernel lets go."""
    return some(draw, range(1, len(host.topology.cpus)))


@st.composite
def with_hardware(draw: st.DrawFn, link: Link) -> Link:
    queues = link.count("rx")
    full = simhost.tuned(
        link, top=draw(st.integers(queues, queues + 6)), pairs=draw(st.booleans()),
        ntuple=draw(st.booleans()), rx_frames=draw(st.integers(0, 64)),
    )  # fmt: skip
    lacking = draw(st.sets(st.sampled_from(LACKING), max_size=2))
    own = tuple(t for t in full.tunables if not t.item.startswith(tuple(lacking)))
    return replace(full, tunables=own, driver=draw(st.sampled_from(["ice", "e1000e", "vmxnet3"])))


@st.composite
def demands(draw: st.DrawFn, hardware: bool = True) -> Policy:
    """hardware: it may ask for channels, rings and coalescing."""
    rows = [Given("napi", "napi", (), draw(NAPI) | (draw(HARDWARE) if hardware else {}))]
    if draw(st.booleans()):
        rows.append(Given("irq_layout", "irq", (), draw(IRQ)))
    if draw(st.booleans()):
        rows.append(Given("flow_steering", "flows", (), draw(flows())))
    return replace(parse(rows), confirmed=draw(st.sampled_from([False, False, True])))


def permitted(policy: Policy) -> bool:
    return policy.confirmed or policy.sections[0].allow_session_reset


def planned(host: Snapshot, policy: Policy) -> Plan:
    """The plan. What is refused for a login is one of a device that has one, and asked for it."""
    try:
        return decide(host, policy)
    except RxlaneError as error:
        assert error.kind in (Kind.REFUSED, Kind.OPTION) and len(str(error).splitlines()) == 1
        if "somebody is logged in" in str(error):
            assert error.device in host.sessions and not permitted(policy)
            assert error.option in ("channels", "ring_rx", "ring_tx")
        event(f"refused: {error.option}")
        assume(False)
        raise


def counts(link: Link, plan: Plan) -> dict[str, int]:
    """The queues that there will be of each kind."""
    held = {t.item: t.value for t in link.tunables if t.item in CHANNEL_ITEMS}
    held |= {
        change.target.item: int(change.after)
        for change in plan.changes
        if change.target.device == link.name and change.target.item in CHANNEL_ITEMS
    }
    if not held:
        return {kind: link.count(kind) for kind in ("rx", "tx")}
    pairs = held.get("channels-combined", 0)
    return {kind: pairs + held.get(f"channels-{kind}", 0) for kind in ("rx", "tx")}


def check_logins(host: Snapshot, plan: Plan, policy: Policy) -> None:
    for change in plan.changes:
        cut = change.target.item in RESET_ITEMS or change.disruption == LINK_RESET
        assert not cut or permitted(policy) or change.target.device not in host.sessions


def check_hardware(host: Snapshot, plan: Plan) -> None:
    """Nothing above what the device says it can, and nothing for queues that will not be."""
    links = {link.name: link for link in host.links}
    own = [c for c in (*plan.changes, *plan.holds) if c.target.device in links]
    for target, after in ((change.target, change.after) for change in own):
        tunable = links[target.device].tunable(target.item)
        if tunable is not None and tunable.top is not None:
            assert 0 < int(after) <= tunable.top
        kind = "tx" if target.item.startswith(("xps", "tx-irq")) else "rx"
        if target.queue != WHOLE and not target.item.startswith("rx-thread"):
            assert 0 <= target.queue < counts(links[target.device], plan)[kind]


def check_partitions(host: Snapshot, plan: Plan) -> None:
    allowed = {*host.topology.online} - {*host.topology.partitioned}
    for change in plan.changes:
        if change.target.item in CPUS_OF_THREADS and change.after != "kernel" and allowed:
            assert {*cpulist.parse(str(change.after))} <= allowed


@settings(max_examples=400, deadline=None)
@given(equipped(threads=True), demands())
def test_no_plan_breaks_a_rule_of_devices(host: Snapshot, policy: Policy) -> None:
    plan = planned(host, policy)
    check_logins(host, plan, policy)
    check_hardware(host, plan)
    check_partitions(host, plan)
    targets = [change.target for change in (*plan.changes, *plan.holds)]
    assert len(targets) == len(set(targets))
    event("sets queues up anew" if any(t.item in RESET_ITEMS for t in targets) else "leaves queues")


def reset(host: Snapshot, log: list[str]) -> set[str]:
    """The devices whose links went down by what was written."""
    drivers, found = {link.name: link.driver for link in host.links}, set[str]()
    for line in (line for line in log if line.startswith("tunables ")):
        name = line.split()[1]
        items = (item for item in MOVING if f"'{item}'" in line)
        if any(disruption(item, drivers[name]) == LINK_RESET for item in items):
            found.add(name)
    return found


def refuses(host: Snapshot, policy: Policy) -> bool:
    try:
        decide(host, policy)
    except RxlaneError:
        return True
    return False


@settings(max_examples=150, deadline=None)
@given(equipped(), demands())
def test_hardware_applied_twice_and_back(host: Snapshot, policy: Policy) -> None:
    """Nobody's queues are set up anew who is logged in over them, unless that is permitted."""
    sim = SimHost(host)
    planned(sim.observe(), policy)
    log = all_stays_and_comes_back(sim, policy)
    assert permitted(policy) or reset(host, log).isdisjoint(host.sessions)


def foreseen(sim: SimHost, store: MemoryStore, policy: Policy) -> Plan | str:
    """What would be written, or why it is refused."""
    try:
        return foresee(sim, store.load(), sim.observe(), policy, None)
    except RxlaneError as error:
        return str(error)


def astray(plan: Plan, now: Snapshot) -> list[Change]:
    """What is there and not as the plan has it."""
    view = View.of(now)
    return [c for c in plan.changes if view.read(c.target) not in (None, c.after)]


@settings(max_examples=150, deadline=None)
@given(equipped(), demands(), demands() | demands(hardware=False))
def test_a_policy_after_another(host: Snapshot, first: Policy, then: Policy) -> None:
    """What goes back because nobody asks for it any more resets nobody's link either. What is
    refused is refused for the queues that there will be, and what is shown is what comes.
    """
    sim, store = SimHost(host), MemoryStore()
    before = simhost.settings(sim)
    try:
        apply(sim, store, replace(first, confirmed=True))
    except RxlaneError:
        assume(False)
    present, done, sim.log = sim.observe(), sim.writes, []
    shown = foreseen(sim, store, then)
    try:
        apply(sim, store, then)
    except RxlaneError as error:
        assert error.kind.refused and sim.writes == done and shown == str(error)
        assert refuses(present, then) or refuses(host, then)
        event("refused")
    else:
        assert isinstance(shown, Plan)
        assert astray(shown, sim.observe()) == []
    # A login that cannot be told from here keeps back only what nobody asks for.
    hidden = host.hidden_logins and not then.tunes
    at_risk = {link.name for link in host.links} if hidden else {*host.sessions}
    assert permitted(then) or reset(host, sim.log).isdisjoint(at_risk)
    rollback(sim, store)
    assert simhost.settings(sim) == before and store.text is None
