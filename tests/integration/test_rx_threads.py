# SPDX-License-Identifier: GPL-2.0-or-later
"""Helper threads of network devices, by the selftest of the series.

On our 6.12; with `make check-long` on our 7.2, with `make check-variants` on other preemption
models. In the same guest of 6.12 the other selftest that its series has for networking, of NAPIs'
settings, their threads and suspended interrupts.
"""

from collections.abc import Iterator

import pytest
from kselftest import outcomes, results

from conftest import MANAGERS, our_bases, our_kernel
from lab.machine import GuestSpec
from lab.selftests import selftests
from lab.vm import Guest

CPUS = 3
FOLDER = "/mnt/share/ksrc/tools/testing/selftests/net"
CASES = {
    "values and errors",
    "names, CPUs and end of threads",
    "neither with RPS nor with RFS",
    "flows are spread",
    "flows in order while resized",
    "flows in order while switched off and on",
    "forwarded flows in order while resized",
    "neighbours are found while packets are dropped",
    "policy and affinity are kept",
    "nothing is delivered after down",
    "what waits is bounded over resizes",
    "switching off takes no longer than it may",
    "CPUs come and go",
    "policy and affinity of users while CPUs are away",
    "CPUs of users count as taken",
    "batches of a bridge's port",
    "thread that does not get its CPU is stopped",
    "moves between namespaces",
    "device is removed under load",
}
# Of napi_set.
NAPI_CASES = 16
# netconsole, which the lab's kernels have as Debian's do, leaves PREEMPT_RT without it.
NEEDS_BUSY_POLL = {"napi_veth.irq_suspend": "ok # SKIP needs CONFIG_NET_RX_BUSY_POLL"}


@pytest.fixture(scope="module", params=our_bases())
def machine(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """A guest that runs the base with our series."""
    base = request.param
    with Guest(our_kernel(base), GuestSpec(cpus=CPUS, share=[selftests(base)])) as vm:
        yield vm
        vm.check_splats()


@pytest.fixture(scope="module")
def printed(machine: Guest) -> str:
    """What rx_threads.sh printed, and how it ended."""
    slow = "yes" if machine.kernel.flavour == "debug" else "no"
    run = f"KSFT_MACHINE_SLOW={slow} ./rx_threads.sh 2>&1; echo ended with $?"
    return machine.run(["sh", "-c", f"cd {FOLDER} && {run}"], timeout=1500).stdout


def test_every_case_ran(printed: str) -> None:
    assert outcomes(printed).keys() == CASES, printed
    assert printed.endswith("ended with 0\n"), printed


@pytest.mark.parametrize("case", sorted(CASES))
def test_of_the_series(printed: str, case: str) -> None:
    assert outcomes(printed).get(case) == "OK", printed


def test_refusals_tell_the_remedy(machine: Guest, printed: str) -> None:
    """In the kernel's log: the selftest was refused in both directions, and EBUSY cannot say it."""
    log = machine.run(["dmesg"]).stdout
    assert "rx_threads: RPS or RFS is in use, clear rps_cpus and rps_flow_cnt" in log
    assert "RPS: rx_threads is in use, write 0 to it first" in log


# 7.2 has the interface without us, and upstream's tests of it.
@pytest.mark.parametrize(
    "machine", [one for one in our_bases() if one.values == ("6.12",)], indirect=True
)
def test_settings_of_napis(machine: Guest) -> None:
    # The interfaces that it makes must keep their names, and its device is taken down and up.
    machine.run(["systemctl", "stop", *MANAGERS])
    argv = ["env", f"NAPI_SET_DEV={machine.nic}", f"{FOLDER}/napi_set"]
    done = machine.run(argv, timeout=300, check=False)
    found = results(done.stdout)
    assert len(found) == NAPI_CASES, f"{done.stdout}{done.stderr}"
    others = {case: outcome for case, outcome in found.items() if outcome != "ok"}
    wanted = NEEDS_BUSY_POLL if machine.kernel.flavour == "rt" else {}
    assert others == wanted, f"{done.stdout}{done.stderr}"
