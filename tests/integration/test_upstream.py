# SPDX-License-Identifier: GPL-2.0-or-later
"""Upstream's own selftests, from linux-source-7.2 as it came, on our 6.12 and on stock 7.2.

Each case of each of them passes on our kernel, but for those that need something else of 7.2:
these are listed with what it is, and must fail or be skipped, so that the list cannot grow stale.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from kselftest import results

from conftest import KERNELS, OURS, STOCK_72
from lab import apt
from lab.kernel import KernelImage, build
from lab.machine import GuestSpec
from lab.selftests import selftests
from lab.vm import Guest

TESTS = "/root/ksrc/tools/testing/selftests"
PYTHON = {
    "net/nl_netdev.py": 11,
    "drivers/net/napi_threaded.py": 3,
    "drivers/net/queues.py": 4,
    "drivers/net/napi_id.py": 1,
}
# {kernel: {case: what it needs that the kernel does not have}}
NOT_THERE = {
    OURS: {
        "nl_netdev.dev_dump_reject_attr": "7.2's policy for dumps of devices",
        "nl_netdev.napi_list_check": "netdevsim's queue_reset",
        "nl_netdev.nsim_rxq_reset_down": "netdevsim's queue_reset",
        "nl_netdev.page_pool_dump_ifindex": "dumps of the page pools of one device",
        "nl_netdev.page_pool_ifindex_leak_check": "dumps of the page pools of one device",
        "nl_netdev.page_pool_stats_ifindex_check": "dumps of the page pools of one device",
        "queues.check_xsk": "the attribute xsk of queue-get",
    },
    STOCK_72: {
        "nl_netdev.page_pool_stats_ifindex_check": "CONFIG_PAGE_POOL_STATS; `fast` has none",
    },
}
# The first that prints `ethtool --json -l`, which napi_threaded.py asks for, and is packaged.
ETHTOOL = "1:7.2-1"


# Netdevsim, which most cases are about, is not in Debian's own kernels.
BUILT: dict[str, Callable[[], KernelImage]] = {
    OURS: KERNELS[OURS],
    STOCK_72: partial(build, "7.2", patched=False),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(OURS, id="ours"),
        pytest.param(STOCK_72, id="stock", marks=pytest.mark.long),
    ],
)
def machine(request: pytest.FixtureRequest) -> Iterator[tuple[str, Guest]]:
    ethtool = apt.download("ethtool", apt.choose("ethtool", ETHTOOL))
    share = [selftests("7.2", patched=False), ethtool]
    with Guest(BUILT[request.param](), GuestSpec(cpus=2, share=share)) as vm:
        # They write beside themselves.
        vm.run(["cp", "-r", "/mnt/share/ksrc", "/root/ksrc"])
        vm.run(["dpkg", "--install", f"/mnt/share/{ethtool.name}"])
        yield request.param, vm
        vm.check_splats()


@pytest.mark.parametrize("test", list(PYTHON))
def test_upstreams_cases_pass(machine: tuple[str, Guest], test: str) -> None:
    kernel, vm = machine
    folder, _slash, name = test.rpartition("/")
    argv = ["sh", "-c", 'cd "$0" && exec python3 "$1"', f"{TESTS}/{folder}", name]
    done = vm.run(argv, timeout=300, check=False)
    found = results(done.stdout)
    assert len(found) == PYTHON[test], f"{done.stdout}{done.stderr}"
    print("\n".join(f"{kernel} {case}: {what}" for case, what in found.items()))
    passed = {case for case, what in found.items() if what == "ok"}
    assert found.keys() - passed == found.keys() & NOT_THERE[kernel].keys(), done.stdout


def test_upstreams_busy_poll_test_passes(machine: tuple[str, Guest]) -> None:
    """Inline busy polling, with interrupts suspended, and by a busy-polling thread."""
    _kernel, vm = machine
    script = 'cd "$0" && exec bash busy_poll_test.sh'
    done = vm.run(["sh", "-c", script, f"{TESTS}/net"], timeout=300, check=False)
    assert done.rc == 0, f"{done.stdout}{done.stderr}"
