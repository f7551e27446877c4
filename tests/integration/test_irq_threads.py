# SPDX-License-Identifier: GPL-2.0-or-later
"""`make check-long`: receive interrupts in threads by queue; where the kernel cannot, that is said.

What was done is read from /proc/irq, chrt and taskset; what is left behind by the lab's reader.
"""

import re

import pytest

from conftest import DEBIAN_612, OURS, Host, differing

pytestmark = pytest.mark.long

WORDS = ("-o", "irq_cpus=auto", "-o", "irq_layout.threaded=on@1-",
         "-o", "irq_layout.thread_cpus=auto", "-o", "irq_layout.thread_nice=-5")  # fmt: skip
REALTIME = ("threaded=on@1", "thread_cpus=3", "thread_policy=fifo", "thread_priority=7")
VARIABLES = "/etc/tuned/net-vm-host-variables.conf"


def switchable(host: Host) -> bool:
    """The kernel has the mode; which it has is not this test's to know."""
    found = host.run("sh", "-c", "ls /proc/irq/*/*/threaded", check=False)
    return bool(found.stdout.strip())


def irqs(host: Host, nic: str = "") -> list[int]:
    return [int(lane["irq"]) for lane in host.lanes(nic or host.vm.nic)]


def threaded(host: Host, irq: int) -> str:
    text: str = host.run("sh", "-c", f"cat /proc/irq/{irq}/*/threaded").stdout.strip()
    return text


def thread_of(host: Host, irq: int) -> list[str]:
    words: list[str] = host.run("pgrep", f"^irq/{irq}-", check=False).stdout.split()
    return words


def said_to_lack_it(host: Host) -> bool:
    """On a kernel without: a line for each queue of WORDS says so, and everything else is done."""
    lacks = not switchable(host)
    assert lacks == (host.kernel != OURS), f"{host.kernel} {'lacks' if lacks else 'has'} it"
    if not lacks:
        return False
    plan = host.run("rxlane", "plan", *WORDS, host.vm.nic).stdout
    assert plan.count("irq-threaded unsupported: kernel has no threaded mode") == 3, plan
    assert "/irq-cpus: " in plan
    return True


@pytest.mark.kernels(OURS, DEBIAN_612)
def test_queues_whose_interrupts_run_in_threads(guest: Host) -> None:
    if said_to_lack_it(guest):
        return
    before = guest.settings()
    guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
    try:
        numbers = irqs(guest)
        assert [threaded(guest, irq) for irq in numbers] == ["0", "1", "1", "1"]
        for irq in numbers[1:]:
            (pid,) = thread_of(guest, irq)
            cpus = guest.run("cat", f"/proc/irq/{irq}/smp_affinity_list").stdout.strip()
            assert guest.run("taskset", "-cp", pid).stdout.split()[-1] == cpus
            assert guest.run("ps", "-o", "ni=", "-p", pid).stdout.strip() == "-5"
        guest.vm.ping()
        shown = guest.run("rxlane", "map", guest.vm.nic).stdout
        assert shown.count("irq-thread") >= 3 and "softirq" in shown
        guest.run("rxlane", "verify")
        guest.run("sh", "-c", f"echo 0 | tee /proc/irq/{numbers[2]}/*/threaded")
        assert "irq-threaded" in guest.run("rxlane", "verify", check=False).stdout
        again = guest.run("rxlane", "apply", *WORDS, guest.vm.nic).stdout
        assert not again.startswith("0 settings")
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_class_and_cpus_of_a_thread(guest: Host) -> None:
    """As asked, told of when another program changed them, and gone afterwards."""
    before = guest.settings()
    words = [f"irq_layout.{word}" for word in REALTIME]
    guest.run("rxlane", "apply", *(w for word in words for w in ("-o", word)), guest.vm.nic)
    try:
        irq = irqs(guest)[1]
        (pid,) = thread_of(guest, irq)
        shown = guest.run("ps", "-o", "cls=,rtprio=", "-p", pid).stdout.split()
        assert shown == ["FF", "7"]
        assert guest.run("taskset", "-cp", pid).stdout.split()[-1] == "3"
        told = guest.lanes(guest.vm.nic)[1]["irq-thread"]
        assert (told["policy"], told["priority"], told["cpus"]) == ("fifo", 7, [3])
        guest.run("rxlane", "verify")
        for change in (["chrt", "-r", "-p", "7", pid], ["taskset", "-cp", "2", pid]):
            guest.run(*change)
        found = guest.run("rxlane", "verify", check=False)
        assert found.rc == 1
        assert "rx1/irq-thread-sched" in found.stdout and "rx1/irq-thread-cpus" in found.stdout
    finally:
        guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_interrupts_that_refuse_are_told_of(guest: Host) -> None:
    """Each has the file; the kernel says of which it can switch when it is written."""
    before, nic = guest.settings(), guest.vm.nic_of("vmxnet3")
    done = guest.run("rxlane", "apply", "-o", "irq_layout.threaded=on", nic)
    guest.run("rxlane", "rollback")
    said = re.findall(rf"{nic} queue \d+: irq-threaded unsupported: .*let IRQ \d+ be", done.stderr)
    assert len(said) == len(irqs(guest, nic)) > 1, done.stderr
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_the_next_thread_is_not_given_ours(guest: Host) -> None:
    """The kernel gives the next thread what the last one had: that must be the original."""
    irq = irqs(guest)[1]

    def born() -> list[str]:
        guest.run("sh", "-c", f"echo 1 | tee /proc/irq/{irq}/*/threaded")
        (pid,) = thread_of(guest, irq)
        found = [guest.run("taskset", "-cp", pid).stdout.split()[-1],
                 guest.run("ps", "-o", "ni=,cls=", "-p", pid).stdout.strip()]  # fmt: skip
        guest.run("sh", "-c", f"echo 0 | tee /proc/irq/{irq}/*/threaded")
        return found

    before = born()
    guest.run("rxlane", "apply", *WORDS, guest.vm.nic)
    guest.run("rxlane", "rollback")
    assert born() == before


@pytest.mark.kernels(OURS)
def test_vm_host_without_threads_of_napis(guest: Host) -> None:
    """vm_host_threaded=off leaves the polls to the interrupts' threads, where there are such."""
    before, original = guest.settings(), guest.vm.read(VARIABLES)
    try:
        guest.vm.put(b"vm_host_threaded=off\n", VARIABLES)
        guest.run("tuned-adm", "profile", "net-vm-host", timeout=180)
        assert [threaded(guest, irq) for irq in irqs(guest)] == ["1"] * 4
        guest.vm.ping()
        guest.verify_by_tuned()
        guest.vm.put(b"vm_host_threaded=on\n", VARIABLES)
        guest.run("tuned-adm", "profile", "net-vm-host", timeout=180)
        assert [threaded(guest, irq) for irq in irqs(guest)] == ["0"] * 4
    finally:
        guest.vm.put(original, VARIABLES)
        guest.run("tuned-adm", "off", timeout=180)
    assert differing(before, guest.settings()) == {}
