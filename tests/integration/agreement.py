# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether ethtool, ip, sysfs and the lab's reader say the same of a NIC, in text and in JSON.

Takes the steps that guest/tools_agree.py prints. Text is read back into the shape of the JSON of
the same tool, so that both are compared as a whole; what both tools and the reader know of a NAPI
is then compared between them.
"""

import re
from typing import Any

from tool_schema import link_faults, napi_faults

MODES = ("off", "on", "busy-poll")
ETHTOOL_LABELS = {
    "RX queues": "rx-queues", "TX queues": "tx-queues", "IRQ": "irq", "Threaded": "threaded",
    "PID": "pid", "Defer hard IRQs": "defer-hard-irqs", "GRO flush timeout": "gro-flush-timeout",
    "IRQ suspend timeout": "irq-suspend-timeout",
}  # fmt: skip
TIMERS = ("defer-hard-irqs", "gro-flush-timeout", "irq-suspend-timeout")
# Steps after which the whole device was switched by ip, and what sysfs says then.
SYSFS = {"device on": "1", "up": "1", "renamed": "0", "on there": "1", "all off": "0"}
# Modes that the device may have by ip after a step: that the walk did what it says.
AFTER: dict[str, set[str | None]] = {
    "found": {"off"}, "one polls": {"mixed", "busy-poll"}, "all back": {"off"},
    "device on": {"on"}, "down": {None}, "up": {"on"}, "renamed": {"off"}, "on there": {"on"},
    "off there": {"off"}, "on again": {"on"}, "all off": {"off"}, "returned": {"off"},
}  # fmt: skip

Napi = dict[str, Any]
Step = dict[str, Any]


def ethtool_value(key: str, text: str) -> Any:
    if key == "threaded":
        return text
    if key.endswith("queues"):
        return [int(word) for word in text.split()]
    return int(text.removesuffix(" ns"))


def ethtool_text(text: str) -> dict[str, Any] | None:
    """What ``ethtool --show-napi`` prints for one device, as its JSON has it; None for nothing."""
    if not text:
        return None
    head, *lines = text.splitlines()
    napis: list[Napi] = []
    for line in lines:
        if found := re.fullmatch(r"NAPI (\d+):", line):
            napis.append({"id": int(found[1])})
            continue
        label, _, value = line.strip().partition(":")
        if value.strip() != "n/a":
            key = ETHTOOL_LABELS[label]
            napis[-1][key] = ethtool_value(key, value.strip())
    return {"ifname": head.removeprefix("NAPI parameters for ").removesuffix(":"), "napis": napis}


def ip_text(text: str) -> dict[str, Any]:
    """The patch's part of ``ip -d -d link show`` of one device, as its JSON has it."""
    found: dict[str, Any] = {}
    napis: list[Napi] = []
    for line in text.splitlines():
        words = line.split()
        if words[0] == "napi":
            pairs = dict(zip(words[::2], words[1::2], strict=True))
            napis.append(ip_napi(pairs))
        elif mode := re.search(r" threaded (\S+) gso_max_size ", line):
            found["threaded"] = mode[1]
    return {**found, "napis": napis} if napis else found


def ip_napi(pairs: dict[str, str]) -> Napi:
    napi: Napi = {"napi_id": int(pairs.pop("napi"))}
    for word, key in (("rx", "rx_queues"), ("tx", "tx_queues")):
        if word in pairs:
            napi[key] = [int(number) for number in pairs.pop(word).split(",")]
    return napi | {key: pairs[key] if key == "threaded" else int(pairs[key]) for key in pairs}


def by_reader(step: Step) -> list[Napi]:
    """The reader's NAPIs as ethtool's JSON names them, the timers included."""
    found = []
    for read in step["napis"]:
        napi: Napi = dict(read)
        for key, kind in (("rx-queues", 0), ("tx-queues", 1)):
            of_it = [
                queue["id"]
                for queue in step["queues"]
                if (queue["napi"], queue["type"]) == (read["id"], kind)
            ]
            if of_it:
                napi[key] = sorted(of_it)
        if "threaded" in napi:
            napi["threaded"] = MODES[napi["threaded"]]
        found.append(napi)
    return found


def by_ip(step: Step) -> list[Napi]:
    """The NAPIs of ip as ethtool's JSON names them; ip shows no timers."""
    names = {"napi_id": "id", "rx_queues": "rx-queues", "tx_queues": "tx-queues"}
    return [
        {names.get(key, key): value for key, value in napi.items()}
        for napi in step["ip"].get("napis", [])
    ]


def without_timers(napis: list[Napi]) -> list[Napi]:
    return [{key: value for key, value in napi.items() if key not in TIMERS} for napi in napis]


def summary(napis: list[Napi]) -> str | None:
    """The mode of the device as ip shows it."""
    modes = {napi["threaded"] for napi in napis if "threaded" in napi}
    return "mixed" if len(modes) > 1 else next(iter(modes), None)


def disagreements(step: Step) -> list[str]:
    """What two of the four say differently, or the schemas forbid, in one step."""
    shown, napis = step["ethtool"], by_reader(step)
    link = {key: step["ip"][key] for key in ("threaded", "napis") if key in step["ip"]}
    checks: dict[str, tuple[Any, Any]] = {
        "ethtool and the reader": (shown["napis"] if shown else [], napis),
        "ethtool's name": (shown["ifname"] if shown else step["nic"], step["nic"]),
        "ethtool's text and JSON": (ethtool_text(step["ethtool_text"]), shown),
        "ip and the reader": (by_ip(step), without_timers(napis)),
        "ip's summary": (link.get("threaded"), summary(napis)),
        "ip's text and JSON": (ip_text(step["ip_text"]), link),
        "ip -n and ip netns exec": (step.get("ip_n_agrees", True), True),
        "sysfs": (step["sysfs"], SYSFS.get(step["step"], step["sysfs"])),
    }
    mode, expected = link.get("threaded"), AFTER.get(step["step"])
    if expected and mode not in expected:
        checks["mode"] = (mode, expected)
    found = [f"{name}: {one} {other}" for name, (one, other) in checks.items() if one != other]
    return found + link_faults(step["ip"]) + (napi_faults([shown]) if shown else [])
