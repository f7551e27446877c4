# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels on veths of the host: a layout over growing and shrinking queues, and all comes back.

veth is a driver that forgets: its NAPIs, their threads and XPS of all queues are new after each
change. What was there is read by tests/lab/reader.py and from sysfs, not by rxlane.
"""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iproute2_space import Done, Space, space

from lab.paths import TREE

QUEUES = 8
ROUNDS = 3

READ = """
import json, sys
from pathlib import Path
import reader
family, name, found = reader.netdev_family(), sys.argv[1], {}
for path in sorted(Path(f"/sys/class/net/{name}/queues").glob("*/*")):
    if path.is_file() and (value := reader.text(path)) is not None:
        found[f"{path.parent.name}/{path.name}"] = value
for order, napi in enumerate(reader.napis(name, family)):
    napi.pop("id")
    pid = napi.pop("pid", None)
    found[f"napi-{order}"] = [napi, pid and reader.thread(pid)]
print(json.dumps(found))
"""
# What is traffic's or the kernel's own, and no setting.
COUNTERS = ("tx_timeout", "traffic_class", "byte_queue_limits", "tx_maxrate")


@pytest.fixture
def pair() -> Iterator[Space]:
    """A pair of veths with NAPIs, in a namespace of its own."""
    with space(f"rxlane-channels-{os.getpid()}", Path("/sbin/ip")) as one:
        one.pair("c0", "c1", QUEUES)
        yield one


def rxlane(one: Space, state: Path, verb: str, *words: str, want: int = 0) -> Done:
    plugins = {"PYTHONPATH": str(TREE / "plugins")}
    state_words = [] if verb == "plan" else ["--state", str(state)]
    done = one.inside(sys.executable, "-m", "rxlane", verb, *words, *state_words, env=plugins)
    assert done.returncode == want, (verb, words, done.stdout, done.stderr)
    return done


def settings(one: Space) -> dict[str, Any]:
    path = {"PYTHONPATH": str(TREE / "tests" / "lab")}
    done = one.inside(sys.executable, "-c", READ, "c0", env=path)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {key: value for key, value in found.items() if not key.endswith(COUNTERS)}


def count(one: Space, kind: str) -> int:
    names = one.inside("ls", "/sys/class/net/c0/queues").stdout.split()
    return sum(name.startswith(kind) for name in names)


def chosen(chance: random.Random) -> list[str]:
    """Options of one random layout; always with channels."""
    offers = {
        "threaded": ["", "on", "on@1-", "off"],
        "thread_nice": ["", "-3", "5"],
        "defer_hard_irqs": ["", "3"],
        "rps": ["", "0", "off"],
        "rfs": ["", "off", "auto"],
        "xps": ["", "off", "rxqs", "auto"],
    }
    given = {name: chance.choice(values) for name, values in offers.items()}
    given["channels"] = str(chance.randint(1, QUEUES))
    return [word for name, value in given.items() if value for word in ("-o", f"{name}={value}")]


def test_random_layouts_over_random_channels(pair: Space, tmp_path: Path) -> None:
    """From a host where another layout stands already, two policies one after the other."""
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        own, other = tmp_path / f"own{seed}", tmp_path / f"other{seed}"
        rxlane(pair, other, "apply", "c0", *chosen(chance))
        before = settings(pair)
        for _ in range(2):
            words = chosen(chance)
            rxlane(pair, own, "apply", "c0", *words)
            rxlane(pair, own, "verify")
            wanted = int(next(w for w in words if w.startswith("channels=")).partition("=")[2])
            assert (count(pair, "rx"), count(pair, "tx")) == (wanted, wanted), words
            again = rxlane(pair, own, "apply", "c0", *words)
            assert again.stdout.startswith("0 settings written"), (seed, words, again.stdout)
        rxlane(pair, own, "rollback")
        after = settings(pair)
        differing = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
        assert not differing, (seed, {k: (before.get(k), after.get(k)) for k in differing})
        rxlane(pair, other, "rollback")


def test_a_plan_changes_nothing(pair: Space, tmp_path: Path) -> None:
    before = settings(pair)
    said = rxlane(pair, tmp_path, "plan", "c0", "-o", "channels=2", "-o", "rps=0").stdout
    assert "c0/all/channels-rx: 8 -> 2  [link-reset]" in said and "c0/rx2" not in said
    assert settings(pair) == before


def test_more_than_the_device_has(pair: Space, tmp_path: Path) -> None:
    done = rxlane(pair, tmp_path, "apply", "c0", "-o", f"channels={QUEUES + 1}", "-o", "rx_usecs=1")
    more = f"channels={QUEUES + 1}: the device has at most {QUEUES}; give up to {QUEUES}, or max"
    assert f"channels unsupported: {more}" in done.stderr
    assert "rx-usecs unsupported" in done.stderr and done.stdout.startswith("0 settings written")
