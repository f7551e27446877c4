# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's story in one guest: install, look, apply, verify, measure, switch off, compare."""

import json
import time
from pathlib import Path
from typing import Any

from bench.flood import Bench
from bench.gain import Gain, Gauge
from demo_text import Outcome, act, chapter, gain_text, line, quote
from lab.kernel import KernelImage
from lab.machine import GuestSpec
from lab.paths import TREE
from lab.vm import Guest

PROFILE = "net-low-latency"
VARIABLES = f"/etc/tuned/{PROFILE}-variables.conf"
READER = TREE / "tests" / "lab" / "reader.py"
READER_IN_GUEST = "/root/reader.py"
CPUS = 8
TUNED_S = 240.0  # TuneD's own fixed waits, under software emulation
# Everything the plan can be asked for: what comes back as skipped is what the kernel lacks. It is
# asked for one NIC: busy polling on all queues of all three would take every CPU and is refused.
EVERYTHING = {
    "threaded": "busy-poll",
    "management_queues": "1",
    "thread_cpus": "auto",
    "defer_hard_irqs": "100",
    "gro_flush_timeout": "15000",
    "irq_suspend_timeout": "20000000",
}

Settings = dict[str, Any]


class NotRestored(Exception):
    """A setting differs from its original after `tuned-adm off`."""


def differing(before: Settings, after: Settings) -> list[str]:
    """One line for each setting that differs, "key: before -> after"."""
    keys = sorted(before.keys() | after.keys())
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def dormant(before: Settings, after: Settings) -> Settings:
    """``after`` without the sleeping NAPI threads of devices whose threaded mode is off again.

    Stock 6.12 ends no NAPI thread while its device lives: dev_set_threaded only clears the mode.
    Such a thread polls nothing and is no setting, as long as it is scheduled as the kernel made
    it; one that is not stays in and is reported.
    """
    cpus = list(range(CPUS))
    fresh = {"policy": "other", "priority": 0, "nice": 0, "affinity": cpus}
    return {
        key: value
        for key, value in after.items()
        if key in before
        or not key.endswith("/thread")
        or value != fresh
        or after.get(f"{key.split('/')[0]}/threaded") != "0"
    }


def variables(text: str) -> dict[str, str]:
    """The profile's variables file as options of `rxlane plan`; empty values are left out."""
    found = {}
    for row in text.splitlines():
        name, equals, value = row.partition("=")
        if equals and not row.startswith("#") and value.strip():
            found[name.strip().removeprefix("rx_")] = value.strip()
    return found


def lacks(plan: dict[str, Any], notes: list[str]) -> list[str]:
    """What `rxlane map --json` notes and `rxlane plan --json` skips as unsupported or warns of.

    A reason is said once, with the devices it holds for.
    """
    devices: dict[str, list[str]] = {}
    for skip in plan["skips"]:
        if skip["kind"] == "unsupported":
            named = devices.setdefault(f"{skip['item']}: {skip['reason']}", [])
            if skip["device"] not in named:
                named.append(skip["device"])
    skipped = [f"{reason} ({', '.join(named)})" for reason, named in devices.items()]
    return list(dict.fromkeys([*notes, *skipped, *plan["warnings"]]))


class Story:
    """One guest with rxlane's packages."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def shown(self, *argv: str, timeout: float = 120) -> None:
        quote(argv, self.guest.run(list(argv), timeout=timeout).stdout)

    def settings(self) -> Settings:
        """By the lab's reader, which imports nothing of rxlane."""
        printed = self.guest.run(["python3", READER_IN_GUEST]).stdout
        found: Settings = json.loads(printed)
        return found

    def install(self, debs: list[Path], tools: list[Path]) -> None:
        with act("the packages, with apt, from a disk: this guest has no other network"):
            files = [f"{deb.parent.name}/{deb.name}" for deb in debs] + [deb.name for deb in tools]
            names = [f"/mnt/share/{file}" for file in files]
            self.guest.run(["apt-get", "install", "-y", *names], timeout=400)
            for deb in (*debs, *tools):
                line(f"    {deb.name}")

    def quiet(self) -> None:
        """irqbalance moves interrupts on its own: its changes would be taken for the profile's."""
        self.guest.run(["systemctl", "stop", "irqbalance"], timeout=90)
        self.guest.put(READER.read_bytes(), READER_IN_GUEST)

    def switch(self, on: bool) -> None:
        words = ["profile", PROFILE] if on else ["off"]
        self.guest.run(["tuned-adm", *words], timeout=TUNED_S)

    def plan(self, options: dict[str, str]) -> dict[str, Any]:
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        printed = self.guest.run(["rxlane", "plan", "--json", *words, self.guest.nic]).stdout
        found: dict[str, Any] = json.loads(printed)
        return found

    def lacks(self) -> list[str]:
        with act("what this kernel and these drivers lack, in rxlane's words"):
            notes = json.loads(self.guest.run(["rxlane", "map", "--json"]).stdout)["notes"]
            found = lacks(self.plan(EVERYTHING), notes)
            for text in found or ["nothing"]:
                line(f"    {text}")
        return found

    def apply(self) -> None:
        with act("the lanes before"):
            self.shown("rxlane", "map")
        with act("the profile"):
            self.shown("tuned-adm", "profile", PROFILE, timeout=TUNED_S)
        with act("the lanes after"):
            self.shown("rxlane", "map")
        with act("the same NIC, as ethtool and ip with our patches show it"):
            self.shown("ethtool", "--show-napi", self.guest.nic, "napi", self.last_napi())
            self.shown("ip", "-d", "-d", "link", "show", self.guest.nic)
        with act("verification"):
            self.shown("tuned-adm", "verify", timeout=TUNED_S)

    def last_napi(self) -> str:
        """The highest NAPI ID of the virtio NIC: one of them is enough to be looked at."""
        shown = self.guest.run(["ethtool", "--json", "--show-napi", self.guest.nic]).stdout
        return str(json.loads(shown)[0]["napis"][-1]["id"])

    def measure(self, rounds: int) -> Gain:
        with act("what an application gets done under UDP flood, profile off and on in turn"):
            gauge = Gauge(Bench(self.guest))
            managed = variables(self.guest.read(VARIABLES).decode()).get("management_queues", "0")
            self.switch(False)
            target = gauge.find(int(managed))
            line(
                f"    the flow arrives on queue {target.queue}; the application is pinned to the "
                f"CPU that takes its interrupt, {target.cpu} at first"
            )
            gain = gauge.measure(target, self.switch, rounds)
            line(f"    {gain_text(gain)}")
        return gain

    def restore(self, originals: Settings) -> None:
        with act("the profile off; every setting against its original"):
            self.shown("tuned-adm", "off", timeout=TUNED_S)
            read = self.settings()
            kept = dormant(originals, read)
            left = differing(originals, kept)
            if left:
                raise NotRestored("after `tuned-adm off`:\n" + "\n".join(left))
            line(f"    all {len(originals)} settings equal their originals")
            if len(kept) < len(read):
                line(f"    ({len(read) - len(kept)} NAPI threads sleep on: this kernel ends none)")


def tell(kernel: KernelImage, debs: list[Path], tools: list[Path], rounds: int) -> Outcome:
    """Boots the guest and runs the whole story in it."""
    outcome = Outcome(kernel.name)
    chapter(f"Debian 13 guest on {kernel.name}")
    start = time.monotonic()
    spec = GuestSpec(
        cpus=CPUS, sockets=2, cores=2, threads=2, numa=2, memory_mb=2048, queues=4,
        e1000e=True, vmxnet3=True, share=[debs[0].parent, *tools],
    )  # fmt: skip
    with Guest(kernel, spec) as guest:
        line(f"    booted: {CPUS} CPUs, 2 sockets, 2 NUMA nodes, SMT; accelerator {guest.accel}")
        story = Story(guest)
        story.quiet()
        story.install(debs, tools)
        originals = story.settings()
        outcome.settings = len(originals)
        outcome.lacks = story.lacks()
        story.apply()
        outcome.changed = len(differing(originals, story.settings()))
        outcome.gain = story.measure(rounds)
        story.restore(originals)
        guest.check_splats()
    outcome.seconds = time.monotonic() - start
    return outcome
