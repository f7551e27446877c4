# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rxlane.decide import decide
from rxlane.plan import Change, Entry, Journal, Plan, Target
from rxlane.policy import parse_section
from rxlane.revert import carry, revert
from rxlane.sections import Policy
from rxlane.settings import View
from unit import simhost
from unit.simhost import SimHost


def perform(host: SimHost, plan: Plan) -> None:
    """Write a plan as it stands, one setting after the other, without apply()."""
    for change in plan.changes:
        target, values = change.target, {change.target.item: change.after}
        link = host.links[target.device]
        if target.queue < 0:
            host.write_device(link, values)
            continue
        napi = link.napis[target.queue]
        if target.item.startswith("thread-"):
            assert napi.pid is not None
            host.write_thread(napi.pid, values)
        else:
            host.write_napi(napi.napi_id, values)


OPTIONS = st.fixed_dictionaries(
    {
        "threaded": st.sampled_from(["off", "on", "busy-poll@1", "off@0-1,on@2-", ""]),
        "thread_cpus": st.sampled_from(["", "1-4"]),
        "thread_nice": st.sampled_from(["", "3"]),
        "defer_hard_irqs": st.sampled_from(["", "0", "8"]),
    }
)


@given(OPTIONS, st.lists(st.booleans(), min_size=4, max_size=4))
def test_revert_restores_the_snapshot(options: dict[str, str], on: list[bool]) -> None:
    host = SimHost(simhost.snapshot(), ends_threads=False)
    for napi, mode in zip(host.links["eth0"].napis, on, strict=True):
        host.write_napi(napi.napi_id, {"threaded": "on" if mode else "off"})
    before, start = simhost.settings(host), host.observe()
    plan = decide(start, Policy((parse_section("napi", [], options),)))
    perform(host, plan)
    perform(host, revert(plan, start))
    after = simhost.settings(host)
    # A thread that the plan gave birth to has no original; all else is as it was.
    for key, value in before.items():
        assert isinstance(value, tuple)
        now = after[key]
        assert isinstance(now, tuple)
        assert now[:4] == value[:4]
        assert value[4:] in ((None,), now[4:])


def test_carry_prefers_the_first_originals() -> None:
    target = Target("eth0", 1, "threaded")
    old = Journal("b", (Entry("eth0", 2, 1, "threaded", "off", "on"),))
    plan = Plan((Change(target, "on", "busy-poll"),))
    carried = carry(old, plan, View.of(simhost.snapshot()))
    assert carried.entries == (Entry("eth0", 2, 1, "threaded", "off", "busy-poll"),)


def test_carry_brings_back_what_nobody_wants_in_its_scope() -> None:
    host = SimHost(simhost.snapshot())
    host.write_napi(8194, {"threaded": "on", "defer-hard-irqs": 9})
    old = Journal(
        "b",
        (
            Entry("eth0", 2, 1, "threaded", "off", "on"),
            Entry("eth0", 2, 1, "defer-hard-irqs", 0, 9),
        ),
    )
    hold = Change(Target("eth0", 1, "defer-hard-irqs"), 9, 9)
    carried = carry(old, Plan(holds=(hold,)), View.of(host.observe()))
    assert [(str(c.target), c.after) for c in carried.changes] == [("eth0/rx1/threaded", "off")]
    assert carry(old, Plan(holds=(hold,)), View.of(host.observe()), ["eth9"]).changes == ()
