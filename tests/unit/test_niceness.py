# SPDX-License-Identifier: GPL-2.0-or-later
"""Nice levels that are auto: another one in a virtual machine than on its host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rxlane.decide import decide
from rxlane.deciding import niceness
from rxlane.errors import RxlaneError
from rxlane.host import hostfiles
from rxlane.policy import parse_mixed
from rxlane.sysfs import Sysfs
from unit import simhost
from unit.asking import values

HOST = simhost.whole(simhost.snapshot(simhost.separable(simhost.link())))
GUEST = replace(HOST, virtual=True)
THREADED = {"threaded": "on", "thread_nice": "auto"}


@pytest.mark.parametrize("policy", ["", "other", "batch"])
def test_by_what_the_host_is(policy: str) -> None:
    asked = parse_mixed(["eth0"], THREADED | {"thread_policy": policy})
    name = policy or "other"
    on_host = values(decide(HOST, asked), "thread-sched").values()
    in_guest = values(decide(GUEST, asked), "thread-sched").values()
    assert {*on_host} == {f"{name}:{niceness.ON_HOST}"}
    assert {*in_guest} == {f"{name}:{niceness.IN_GUEST}"}


def test_threads_of_all_kinds() -> None:
    options = {
        "irq_layout.threaded": "on",
        "irq_layout.thread_nice": "auto",
        "rx_threads": "2",
        "rx_thread_nice": "auto",
    }
    irqs = tuple(replace(irq, threaded=0) for irq in GUEST.irqs)
    plan = decide(replace(GUEST, irqs=irqs), parse_mixed(["eth0"], options))
    for item in ("irq-thread-sched", "rx-thread-sched"):
        assert {*values(plan, item).values()} == {f"other:{niceness.IN_GUEST}"}


@pytest.mark.parametrize(
    "more", [{"thread_policy": "fifo", "thread_priority": "5"}, {"thread_policy": "idle"}]
)
def test_classes_without_nice_levels(more: dict[str, str]) -> None:
    with pytest.raises(RxlaneError, match="has no meaning with") as caught:
        parse_mixed(["eth0"], THREADED | more)
    assert caught.value.option == "thread_nice"


AMAZON = {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        ({"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n"}, True),
        ({"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu lahf_lm\n"}, False),
        # Of another architecture's kernel.
        ({"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n"}, False),
        ({"sys/firmware/devicetree/base/hypervisor/compatible": "linux,kvm"}, True),
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, True),
        ({"sys/class/dmi/id/sys_vendor": "Dell Inc.\n"}, False),
        ({"sys/class/dmi/id/product_name": "KVM Virtual Machine\n"}, True),
        (AMAZON | {"sys/class/dmi/id/product_name": "m7g.large\n"}, True),
        (AMAZON | {"sys/class/dmi/id/product_name": "m7g.metal\n"}, False),
        (AMAZON | {"sys/class/dmi/id/product_name": "m8g.metal-24xl\n"}, False),
        ({}, False),
    ],
)
def test_what_is_a_virtual_machine(files: dict[str, str], virtual: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert hostfiles.virtual(Sysfs(tmp_path)) is virtual
