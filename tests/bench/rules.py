# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules of tc that nothing matches: what a packet of an interface costs, made dear.

They are lists at ingress, so that each IPv4 packet is compared with every one, by whoever delivers
it: a softirq, RPS or a helper thread.
"""

from lab.vm import Guest

FILE = "/run/bench-rules"
RULE = "filter add dev {} ingress protocol ip prio {} u32 match ip src 203.0.{}.{} action drop"
MOST = 1 << 16
# What a list holds: cls_u32 has 12 bits for the number of a rule, and no rule 0.
LIST = 0xFFF


def put(guest: Guest, dev: str, count: int) -> None:
    """``count`` rules for an interface that has none, as lines of FILE. ValueError above MOST."""
    if count > MOST:
        raise ValueError(f"{count} rules: there are addresses for {MOST}")
    lines = [f"qdisc add dev {dev} clsact"]
    lines += [RULE.format(dev, number // LIST + 1, *divmod(number, 256)) for number in range(count)]
    guest.put("\n".join([*lines, ""]).encode(), FILE)


def load(guest: Guest, dev: str, count: int) -> None:
    put(guest, dev, count)
    guest.run(["tc", "-batch", FILE], timeout=300)


def clear(guest: Guest, dev: str) -> None:
    guest.run(["tc", "qdisc", "del", "dev", dev, "clsact"])
