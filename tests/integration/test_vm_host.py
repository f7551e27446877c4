# SPDX-License-Identifier: GPL-2.0-or-later
"""net-vm-host beside machines: their taps, the vhost threads that receive for these, their vCPUs.

On Debian's kernel, which has vhost. guest/vm_stand_in.py is what the kernel sees of a machine; the
vhost threads are real. What was done is read by taskset and from /sys.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from profiled import profile

from conftest import DEBIAN_612, SCRIPTS, Host, differing

STAND_IN = "vm_stand_in.py"
# Lists as taskset writes them.
EVERY_CPU, WITHOUT_3, WITHOUT_3_AND_5 = "0-7", "0-2,4-7", "0-2,4,6,7"
PATIENCE = 60.0


@contextmanager
def machine(host: Host, tap: str, cpu: int) -> Iterator[None]:
    """A machine with this tap, whose vCPU is bound to this CPU."""
    unit = f"rxlane-test-{tap}"
    host.vm.put(SCRIPTS / STAND_IN, f"/root/{STAND_IN}")
    host.run("modprobe", "--all", "tun", "vhost_net")
    words = ("systemd-run", "--quiet", f"--unit={unit}", "--collect", "--slice=-.slice")
    host.run(*words, "python3", f"/root/{STAND_IN}", tap, str(cpu))
    try:
        until(lambda: len(vhost_cpus(host, tap)) == 1 and carrier(host, tap), f"{tap} is not up")
        yield
    finally:
        host.run("systemctl", "stop", unit)


def until(so: Callable[[], bool], otherwise: str) -> float:
    """Wait until it is so; return the seconds."""
    begin = time.monotonic()
    while not so():
        assert time.monotonic() - begin < PATIENCE, otherwise
        time.sleep(0.2)
    return time.monotonic() - begin


def carrier(host: Host, tap: str) -> bool:
    found = host.run("cat", f"/sys/class/net/{tap}/carrier", check=False)
    return bool(found.stdout.strip() == "1")


def vhost_cpus(host: Host, tap: str) -> list[str]:
    """The CPUs that each vhost thread of the tap's machine may run on, by taskset(1)."""
    pid = host.run("systemctl", "show", "-P", "MainPID", f"rxlane-test-{tap}").stdout.strip()
    look = (
        f"for t in /proc/{pid}/task/*; do grep -q ^vhost- $t/comm && taskset -cp ${{t##*/}}; done"
    )
    lines = host.run("sh", "-c", look, check=False).stdout.splitlines()
    return [line.split()[-1] for line in lines]


def rps(host: Host, tap: str) -> int:
    return int(host.run("cat", f"/sys/class/net/{tap}/queues/rx-0/rps_cpus").stdout.strip(), 16)


@pytest.mark.kernels(DEBIAN_612)
def test_vhost_threads_keep_off_the_cpus_of_vcpus(guest: Host) -> None:
    """Of machines that are there, and of one that starts while the profile is on."""
    with machine(guest, "tap7", 3):
        assert vhost_cpus(guest, "tap7") == [EVERY_CPU] and rps(guest, "tap7") == 0
        given = {"vm_host_vhost_cpus": "auto", "vm_host_tap_rps": "0-1"}
        with profile(guest, "net-vm-host", vm_host_threaded="off", **given) as before:
            assert vhost_cpus(guest, "tap7") == [WITHOUT_3] and rps(guest, "tap7") == 0b11
            guest.verify_by_tuned()
            threads = json.loads(guest.run("rxlane", "map", "--json", "tap7").stdout)["devices"]
            assert {*threads[0]["vhost-threads"][0]["cpus"]} == {0, 1, 2, 4, 5, 6, 7}
            with machine(guest, "tap8", 5):

                def placed() -> bool:
                    own = vhost_cpus(guest, "tap7") + vhost_cpus(guest, "tap8")
                    return own == [WITHOUT_3_AND_5] * 2 and rps(guest, "tap8") == 0b11

                print(f"tap8 laid out after {until(placed, 'tap8 is not laid out')} s")
        assert vhost_cpus(guest, "tap7") == [EVERY_CPU] and rps(guest, "tap7") == 0
        assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(DEBIAN_612)
def test_a_tap_has_no_napi_which_is_said(guest: Host) -> None:
    with machine(guest, "tap7", 3):
        done = guest.run("rxlane", "apply", "-o", "threaded=on", "-o", "defer_hard_irqs=2", "tap7")
        said = done.stdout + done.stderr
        assert "tap7: napi unsupported: tap7 is a virtual device without NAPI" in said, said
        assert "0 settings written" in said, said
