# SPDX-License-Identifier: GPL-2.0-or-later
"""The operator's main job: tuned-adm profile net-low-latency, verify, off, on each kernel.

What the profile did is read from the kernel (sysfs, /proc, chrt, taskset), what it left behind by
the lab's reader; rxlane's own word counts only where its word is the subject.
"""

from collections.abc import Iterator

import pytest
from profiled import profile

from conftest import DEBIAN_612, OURS, STOCK_72, TUNED_LOG, Host, Settings, device_of, differing
from demo_story import dormant
from lab.vm import CommandFailed

PROFILE, OTHER = "net-low-latency", "net-forwarding"
VARIABLES = f"/etc/tuned/{PROFILE}-variables.conf"


def not_restored(host: Host, before: Settings) -> dict[str, tuple[object, object]]:
    """What differs from ``before``, but for the sleeping threads that stock 6.12 never ends."""
    after = host.settings()
    return differing(before, dormant(before, after) if host.kernel == DEBIAN_612 else after)


def thread_pids(host: Host) -> dict[int, int]:
    """{queue: pid} of the NAPI threads on the virtio NIC, as the kernel reports them."""
    return {lane["queue"]: lane["pid"] for lane in host.lanes(host.vm.nic) if "pid" in lane}


@pytest.fixture
def switched_on(guest: Host) -> Iterator[tuple[Host, Settings]]:
    """The profile is on; the settings from before come with it, and off is sure to follow."""
    before = guest.settings()
    try:
        guest.run("tuned-adm", "profile", PROFILE, timeout=180)
        yield guest, before
    finally:
        guest.run("tuned-adm", "off", timeout=180)


@pytest.mark.kernels(OURS, STOCK_72)
def test_threads_on_all_queues_but_the_first(switched_on: tuple[Host, Settings]) -> None:
    host, _before = switched_on
    assert host.vm.nic in host.run("ls", "/sys/class/net").stdout
    lanes = host.lanes(host.vm.nic)
    assert [lane["mode"] for lane in lanes] == ["off", "on", "on", "on"]
    pids = thread_pids(host)
    assert sorted(pids) == [1, 2, 3]
    cpus = set()
    for pid in pids.values():
        assert host.run("cat", f"/proc/{pid}/comm").stdout.startswith("napi/")
        words = host.run("taskset", "-cp", str(pid)).stdout.split()
        cpus.add(words[-1])
        assert "SCHED_OTHER" in host.run("chrt", "-p", str(pid)).stdout
    assert len(cpus) == 3 and "0" not in cpus, f"one CPU a thread, never CPU 0: {cpus}"


@pytest.mark.kernels(DEBIAN_612)
def test_stock_kernel_gets_what_it_can(switched_on: tuple[Host, Settings]) -> None:
    host, _before = switched_on
    threaded = host.run("cat", f"/sys/class/net/{host.vm.nic}/threaded").stdout.strip()
    assert threaded == "1"
    said = host.run("cat", TUNED_LOG).stdout
    told = "threaded=on is set for the whole device, so management queue 0 is threaded too"
    assert f"{host.vm.nic}: kernel does not support NAPI_SET: {told}" in said


def test_verify_and_traffic(switched_on: tuple[Host, Settings]) -> None:
    host, _before = switched_on
    host.vm.ping()
    host.verify_by_tuned()


def test_verify_finds_drift(switched_on: tuple[Host, Settings]) -> None:
    host, _before = switched_on
    pid = max(thread_pids(host).items())[1]
    host.run("taskset", "-cp", "0", str(pid))
    done = host.run("tuned-adm", "verify", timeout=180, check=False)
    assert done.rc != 0
    assert "drifted" in host.run("rxlane", "verify", check=False).stdout


def test_off_restores_every_setting(guest: Host) -> None:
    before = guest.settings()
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    during = guest.settings()
    assert differing(before, during), "the profile changed nothing, so this test shows nothing"
    guest.run("tuned-adm", "off", timeout=180)
    assert not_restored(guest, before) == {}


@pytest.mark.kernels(OURS, long=(STOCK_72, DEBIAN_612))
def test_originals_survive_a_killed_tuned(guest: Host) -> None:
    before = guest.settings()
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    guest.run("systemctl", "kill", "--signal=KILL", "tuned.service")
    guest.run("systemctl", "restart", "tuned.service", timeout=180)
    guest.run("tuned-adm", "off", timeout=180)
    assert not_restored(guest, before) == {}


@pytest.mark.kernels(OURS)
def test_another_profile_starts_from_the_originals(guest: Host) -> None:
    """What it leaves alone is as it was before the first, and all is in the end."""
    before, found = guest.settings(), []
    for profiles in ((OTHER,), (PROFILE, OTHER)):
        for name in profiles:
            guest.run("tuned-adm", "profile", name, timeout=180)
        found.append(guest.settings())
        guest.verify_by_tuned()
        guest.run("tuned-adm", "off", timeout=180)
        assert not_restored(guest, before) == {}
    assert differing(before, found[0]) and differing(*found) == {}


@pytest.mark.kernels(OURS)
def test_variables_are_the_operators(guest: Host) -> None:
    """Policy, priority, nice, CPUs, queues and timers of the variables file reach the kernel."""
    wanted = {
        "rx_management_queues": "2",
        "rx_thread_cpus": "5,7",
        "rx_thread_policy": "fifo",
        "rx_thread_priority": "40",
        "rx_thread_nice": "",
        "rx_defer_hard_irqs": "7",
        "rx_gro_flush_timeout": "33000",
    }
    with profile(guest, PROFILE, **wanted) as before:
        pids = thread_pids(guest)
        assert sorted(pids) == [2, 3]
        for queue, cpu in ((2, "5"), (3, "7")):
            shown = guest.run("chrt", "-p", str(pids[queue])).stdout
            assert "SCHED_FIFO" in shown and "priority: 40" in shown
            assert guest.run("taskset", "-cp", str(pids[queue])).stdout.split()[-1] == cpu
        lanes = guest.lanes(guest.vm.nic)
        assert [lane["defer-hard-irqs"] for lane in lanes] == [0, 0, 7, 7]
        assert [lane["gro-flush-timeout"] for lane in lanes] == [0, 0, 33000, 33000]
    assert differing(before, guest.settings()) == {}


@pytest.fixture
def composed(guest: Host) -> Iterator[Host]:
    """A profile with a variables file of its own, and one that includes ours."""
    original = guest.vm.read(VARIABLES)
    files = {
        "partner-variables.conf": "isolated_cores=5-7\n",
        "profiles/partner/tuned.conf": "[variables]\ninclude=/etc/tuned/partner-variables.conf\n"
        "[sysctl]\nvm.swappiness=11\n",
        "profiles/child/tuned.conf": f"[main]\ninclude={PROFILE}\n"
        "[variables]\nrx_defer_hard_irqs=55\n",
    }
    for name, text in files.items():
        guest.run("mkdir", "-p", f"/etc/tuned/{name}".rpartition("/")[0])
        guest.vm.put(text.encode(), f"/etc/tuned/{name}")
    try:
        yield guest
    finally:
        guest.vm.put(original, VARIABLES)
        guest.run("tuned-adm", "off", timeout=180)
        guest.run("rm", "-r", *(f"/etc/tuned/{name}".removesuffix("/tuned.conf") for name in files))


@pytest.mark.kernels(OURS)
def test_beside_another_profile_and_below_a_child(composed: Host) -> None:
    """The file of each profile counts, the child's variables win over it, and plan knows all."""
    host, before = composed, composed.settings()
    text = "rx_thread_cpus=${isolated_cores}\nrx_gro_flush_timeout=33000\nrx_defer_hard_irqs=7\n"
    host.vm.put(f"{text}rx_thraeded=off\n".encode(), VARIABLES)
    host.run("tuned-adm", "profile", "partner", "child", timeout=180)
    assert host.run("cat", "/proc/sys/vm/swappiness").stdout.strip() == "11"
    cpus = {
        host.run("taskset", "-cp", str(pid)).stdout.split()[-1]
        for pid in thread_pids(host).values()
    }
    assert cpus == {"5", "6", "7"}
    lanes = host.lanes(host.vm.nic)
    assert [lane["defer-hard-irqs"] for lane in lanes] == [0, 55, 55, 55]
    assert [lane["gro-flush-timeout"] for lane in lanes] == [0, 33000, 33000, 33000]
    said = host.run("tail", "-n", "40", TUNED_LOG).stdout
    assert "rx_thraeded has no effect" in said and "did you mean rx_threaded?" in said
    planned = host.run("rxlane", "plan", "--profile", "partner child")
    assert "\n0 to change, " in planned.stdout and "rx_thraeded" in planned.stderr
    host.verify_by_tuned()
    host.run("tuned-adm", "off", timeout=180)
    assert differing(before, host.settings()) == {}


@pytest.mark.kernels(OURS)
def test_the_command_does_the_same(guest: Host) -> None:
    before = guest.settings()
    words = ("-o", "threaded=on@1-", "-o", "thread_cpus=auto", guest.vm.nic)
    planned = guest.run("rxlane", "plan", *words).stdout
    assert "to change" in planned
    assert differing(before, guest.settings()) == {}, "plan must change nothing"
    guest.run("rxlane", "apply", *words)
    try:
        assert sorted(thread_pids(guest)) == [1, 2, 3]
        guest.run("rxlane", "verify")
        again = guest.run("rxlane", "apply", *words).stdout
        assert again.startswith("0 settings written"), again
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_lanes_survive_nothing_lost_over_down_and_up(switched_on: tuple[Host, Settings]) -> None:
    """Link down and up under the profile: off still finds the way back (the fixture's off)."""
    host, before = switched_on
    host.run("ip", "link", "set", host.vm.nic, "down")
    host.run("ip", "link", "set", host.vm.nic, "up")
    host.run("tuned-adm", "off", timeout=180)
    assert differing(before, host.settings()) == {}


@pytest.mark.kernels(OURS)
def test_what_happened_before_the_profile_is_no_news(guest: Host) -> None:
    """TuneD tells plugins that it loads of all that happened while it had no profile."""
    before, nic = guest.settings(), device_of(guest, "vmxnet3")
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    guest.run("tuned-adm", "off", timeout=180)
    there_and_back = (
        f"ip link set {nic} name lane0 && ip link set lane0 name {nic} && ip netns add away"
        f" && ip link set {nic} netns away && ip -n away link set {nic} netns 1"
        f" && ip netns delete away && ip link set {nic} up && udevadm settle"
    )
    guest.run("sh", "-c", there_and_back)
    said = len(guest.vm.read(TUNED_LOG))
    try:
        guest.run("tuned-adm", "profile", PROFILE, timeout=180)
        during = guest.settings()
        guest.verify_by_tuned()
        lines = guest.vm.read(TUNED_LOG)[said:].decode().splitlines()
        news = [line for line in lines if "lane0" in line or f"device '{nic}'" in line]
        assert news == [] and differing(during, guest.settings()) == {}
    finally:
        guest.run("tuned-adm", "off", timeout=180)
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_profile_with_a_bad_value_changes_nothing(guest: Host) -> None:
    before, original = guest.settings(), guest.vm.read(VARIABLES)
    try:
        guest.vm.put(b"rx_thread_cpus=0-99999999999\n", VARIABLES)
        with pytest.raises(CommandFailed):
            guest.run("tuned-adm", "profile", PROFILE, timeout=180)
            guest.run("tuned-adm", "verify", timeout=180)
        assert "thread_cpus" in guest.run("tail", "-n", "30", TUNED_LOG).stdout
        assert differing(before, guest.settings()) == {}
    finally:
        guest.vm.put(original, VARIABLES)
        guest.run("tuned-adm", "off", timeout=180)
