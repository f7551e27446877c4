# SPDX-License-Identifier: GPL-2.0-or-later
"""A layout that is kept standing, and one that goes unless a new login confirms it."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import pytest
from profiled import laid_out, words_of

from conftest import OURS, SCRIPTS, TUNED_LOG, Host, Settings, device_of, differing
from rxlane.tuned.tuned_keep import AGAIN_MOST, SOON

# Attaches an XDP program to the driver and detaches it, with what it imports.
XDP = ("napi_survives.py", "napi_contract.py", "napi_threads_kept.py")
# Seconds from the end of the operation to the layout standing again, on a machine that does little
# else; until it counts as never, on any.
LIMIT, PATIENCE = 2.0, 60
IDLE_S, IDLE_MOST = 5, 0.001  # of a CPU
NUMBERS = count(1)
POLICY = {
    "napi": {
        "threaded": "on@1-", "thread_cpus": "auto", "thread_nice": "-5", "defer_hard_irqs": "7",
        "gro_flush_timeout": "33000",
    },
    "irq_layout": {"irq_cpus": "auto"},
    "flow_steering": {"rps": "0-3"},
}  # fmt: skip
WORDS = words_of(POLICY)
PROFILE = "net-low-latency"
# Two queues would be left, and be laid out in another way: without threads or a ring of the policy.
REFUSED = {"channels": "2", "management_queues": "2", "threaded": "on", "ring_tx": "128"}
BALANCE = """
for irq in /proc/irq/[0-9]*; do cat $irq/smp_affinity_list > /root/of-irq-${irq##*/}; done
irqbalance --oneshot --foreground
for irq in /proc/irq/[0-9]*; do
    set -- $irq/*
    case "$*" in
    *-input.*|*-rxtx-*) ;;
    *) read cpus < /root/of-irq-${irq##*/}; echo $cpus > $irq/smp_affinity_list || : ;;
    esac
done 2> /dev/null
"""


def operation(host: Host, name: str) -> tuple[str, list[str]]:
    """The device, and the commands that do something to it."""
    virtio, other = host.vm.nic, device_of(host, "vmxnet3")
    cpu = "/sys/devices/system/cpu/cpu5/online"
    bus = "/sys/bus/pci/drivers/vmxnet3"
    slot = host.run("readlink", "-f", f"/sys/class/net/{other}/device").stdout.strip()
    address = slot.rpartition("/")[2]
    return {
        # As irqbalance would, or a script.
        "interrupts moved": (
            other,
            [f"for lane in /proc/irq/*/{other}-rxtx-*; do"
             " echo 0 > ${lane%/*}/smp_affinity_list; done"],
        ),
        "RPS off": (
            virtio,
            [f"for q in /sys/class/net/{virtio}/queues/rx-*; do echo 0 > $q/rps_cpus; done"],
        ),
        # The program itself. Interrupts that are nobody's layout are put back here.
        "irqbalance": (virtio, [BALANCE]),
        "threads off": (other, [f"echo 0 > /sys/class/net/{other}/threaded"]),
        "down, up": (other, [f"ip link set {other} down", f"ip link set {other} up"]),
        "channels": (virtio, [f"ethtool -L {virtio} combined 2; ethtool -L {virtio} combined 4"]),
        "unbind, bind": (
            other,
            [f"echo {address} > {bus}/unbind; echo {address} > {bus}/bind",
             f"udevadm settle; ip link set {other} up"],
        ),
        "XDP": (
            virtio,
            [f"cd /root; python3 -c 'import napi_survives as n; list(n.xdp(\"{virtio}\"))'"],
        ),
        "MTU": (other, [f"ip link set {other} mtu 1400; ip link set {other} mtu 1500"]),
        "rename": (other, [f"ip link set {other} name lane0", "sleep 1",
                           f"ip link set lane0 name {other}"]),
        "namespace": (
            other,
            [f"ip netns add away; ip link set {other} netns away", "sleep 1",
             f"ip -n away link set {other} netns 1; ip netns delete away; ip link set {other} up"],
        ),
        "CPU off, on": (virtio, [f"echo 0 > {cpu}", "sleep 2", f"echo 1 > {cpu}"]),
    }[name]  # fmt: skip


# What other programs write comes first: had it been put right before, it would wait a minute.
OPERATIONS = ("interrupts moved", "RPS off", "threads off", "down, up", "channels", "unbind, bind",
              "XDP", "MTU", "rename", "namespace", "CPU off, on")  # fmt: skip
# What those cost settings that our kernels do not keep themselves, as the watcher's log names it.
COST = (r"\S+ had smp_affinity_list written", r"\S+ had rps_cpus written",
        r"\S+ had threaded written", r"\S+ channels changed", r"\S+ went up",
        "CPU 5 went offline", "CPU 5 went online")  # fmt: skip


def stands_again(host: Host, name: str) -> dict[str, object]:
    device, commands = operation(host, name)
    for script in ("kept.py", *(XDP if name == "XDP" else ())):
        host.vm.put(SCRIPTS / script, f"/root/{script}")
    answer = host.run("python3", "/root/kept.py", device, str(PATIENCE), *commands, timeout=180)
    found: dict[str, object] = json.loads(answer.stdout)
    print(f"\n{host.kernel} {name} on {device}: {found['lost']} of {found['settings']} settings"
          f" were lost, all stood again after {found['seconds']} s")  # fmt: skip
    return found


def late(found: dict[str, dict[str, object]]) -> dict[str, object]:
    """{operation: seconds or None} of those after which the layout did not soon stand again."""
    seconds = {name: one["seconds"] for name, one in found.items()}
    return {n: took for n, took in seconds.items() if took is None or float(str(took)) > LIMIT}


@dataclass(frozen=True)
class Watcher:
    """`rxlane watch`, as a unit of its own: the journal has no other's lines under its name."""

    host: Host
    unit: str

    def said(self) -> str:
        words = ("journalctl", "--no-pager", "-o", "cat", "-u", self.unit)
        text: str = self.host.run(*words).stdout
        return text

    @property
    def pid(self) -> str:
        found: str = self.host.run("systemctl", "show", "-P", "MainPID", self.unit).stdout.strip()
        return found

    def until_said(self, words: str) -> None:
        """Wait for a line of it: what it writes is there before it tells so."""
        end = time.monotonic() + PATIENCE
        while not re.search(words, text := self.said()):
            assert time.monotonic() < end, f"rxlane watch never said {words!r}, but:\n{text}"
            time.sleep(0.5)

    def until_it_watches(self) -> None:
        """Wait until all is laid out, and until it has had its first look at what it keeps.

        That look puts right what is done before it, without a cause; the files that it follows
        from then on tell that it is over.
        """
        self.until_said(r"\d+ settings written, \d+ as wanted already")
        follows = f"grep -qs '^inotify wd' /proc/{self.pid}/fdinfo/*"
        _until(self.host, follows, "rxlane watch did not come to follow files")
        verified = self.host.run("rxlane", "verify", check=False)
        whole = verified.rc == 0 and not verified.stdout.startswith("0 of 0")
        assert whole, f"it is not laid out:\n{verified.stdout}{self.said()}"


@contextmanager
def watching(host: Host, *words: str) -> Iterator[Watcher]:
    before = host.settings()
    watcher = Watcher(host, f"rxlane-test-watch-{next(NUMBERS)}")
    unit = ("systemd-run", "--quiet", f"--unit={watcher.unit}", "--collect")
    host.run(*unit, "rxlane", "watch", *words)
    try:
        watcher.until_it_watches()
        yield watcher
    finally:
        print(watcher.said())
        host.run("systemctl", "stop", watcher.unit, check=False)
        host.run("rxlane", "rollback")
    assert differing(before, host.settings()) == {}


@pytest.fixture
def watched(guest: Host) -> Iterator[Watcher]:
    with watching(guest, *WORDS, guest.vm.nic, device_of(guest, "vmxnet3")) as watcher:
        yield watcher


@pytest.mark.kernels(OURS)
def test_watch_keeps_the_layout(watched: Watcher) -> None:
    """Each operation in turn; then idle: under 0.1 % of a CPU, and 40 MB."""
    found = {name: stands_again(watched.host, name) for name in OPERATIONS}
    assert {name: f for name, f in found.items() if f["seconds"] is None} == {}
    # Not by what is lost at the first look: it may stand again before.
    for cause in COST:
        watched.until_said(f"put right after {cause}")
    host, pid = watched.host, watched.pid
    time.sleep(5)  # the last operation's echo
    idle = _ran(host, pid)
    time.sleep(IDLE_S)
    assert _ran(host, pid) - idle < IDLE_MOST * IDLE_S * 1e9
    status = host.run("cat", f"/proc/{pid}/status").stdout
    assert int(status.split("VmHWM:")[1].split()[0]) < 40_000


@pytest.mark.long
@pytest.mark.kernels(OURS)
def test_watch_is_prompt(watched: Watcher) -> None:
    assert late({name: stands_again(watched.host, name) for name in OPERATIONS}) == {}


@pytest.mark.long
@pytest.mark.kernels(OURS)
def test_irqbalance_is_put_right(watched: Watcher) -> None:
    found = stands_again(watched.host, "irqbalance")
    # Unless it moved none of the layout.
    watched.until_said(r"put right after .*smp_affinity written")
    assert late({"irqbalance": found}) == {}


@pytest.mark.kernels(OURS)
def test_watch_hears_the_first_change_and_a_reset(guest: Host) -> None:
    """Neither the device nor its threads go: only the MTU, or the carrier, tell of it."""
    nic = device_of(guest, "e1000e")
    with watching(guest, "-o", "threaded=on", "-o", "thread_cpus=3", nic) as watcher:
        for command, words in (
            (f"ip link set {nic} mtu 1400; ip link set {nic} mtu 1500", "got another MTU"),
            (f"ethtool -r {nic}", "got its carrier back"),
        ):
            pid = guest.run("sh", "-c", f"pgrep -x 'napi/{nic}-[0-9]*'").stdout.strip()
            guest.run("taskset", "-pc", "1", pid)
            guest.run("sh", "-c", command)
            _until(guest, f"taskset -pc {pid} | grep -q ': 3$'", f"{words}: CPU 3 is not back")
            watcher.until_said(f"put right after {nic} {words}")


@pytest.mark.kernels(OURS)
def test_taps_that_come_later(guest: Host) -> None:
    """As those of guests that are started after the host was laid out."""
    with watching(guest, "-o", "tap_rps=2-3", "-o", "defer_hard_irqs=7", guest.vm.nic):
        guest.run("sh", "-c", "ip tuntap add mode tap tap7 && ip link set tap7 up")
        try:
            rps = "/sys/class/net/tap7/queues/rx-0/rps_cpus"
            _until(guest, f"grep -qx '0*c' {rps}", "the tap has no RPS")
            assert "drifted" not in guest.run("rxlane", "verify").stdout
        finally:
            guest.run("ip", "link", "delete", "tap7")


def _until(host: Host, condition: str, otherwise: str) -> None:
    """Wait until a shell command says that it is so."""
    loop = f"until {condition}; do sleep 0.1; done"
    done = host.run("timeout", str(PATIENCE), "sh", "-c", loop, timeout=3 * PATIENCE, check=False)
    assert done.rc == 0, f"{otherwise} within {PATIENCE} s: {done.stdout}{done.stderr}"


def _ran(host: Host, pid: str) -> int:
    """Nanoseconds that all threads of a process were on a CPU so far."""
    lines = host.run("sh", "-c", f"cat /proc/{pid}/task/*/schedstat").stdout.splitlines()
    return sum(int(line.split()[0]) for line in lines)


@pytest.mark.kernels(OURS)
def test_what_stood_by_anothers_hand_comes_back_as_it_stood(guest: Host) -> None:
    """Interrupts that are where they are wanted are not written, until other channels move them."""
    by_hand, nic = ("--state", "/root/by-hand"), guest.vm.nic
    placed = ("-o", "irq_cpus=1", nic)
    guest.run("rxlane", "apply", *by_hand, *placed)
    try:
        with watching(guest, "-o", "defer_hard_irqs=7", *placed) as watcher:
            stands_again(guest, "channels")
            watcher.until_said(r"put right after \S+ channels changed.*/irq-cpus")
    finally:
        guest.run("rxlane", "rollback", *by_hand)


@pytest.mark.kernels(OURS)
def test_tuned_keeps_the_profile(guest: Host) -> None:
    before = guest.settings()
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    try:
        # By the first something is surely lost; after the others all may stand at the first look.
        operations = ("threads off", "down, up", "unbind, bind")
        found = {name: stands_again(guest, name) for name in operations}
        guest.verify_by_tuned()
    finally:
        print(guest.run("grep", "put right", TUNED_LOG, check=False).stdout)
        guest.run("tuned-adm", "off", timeout=180)
    assert differing(before, guest.settings()) == {}
    never = {n: f for n, f in found.items() if f["seconds"] is None}
    assert never == {} and found["threads off"]["lost"]


@pytest.mark.long
@pytest.mark.kernels(OURS)
@pytest.mark.parametrize("names", [OPERATIONS, ("irqbalance",)], ids=["operations", "irqbalance"])
def test_tuned_is_prompt(guest: Host, names: Sequence[str]) -> None:
    """As the watcher is, in TuneD's daemon."""
    before = guest.settings()
    with laid_out(guest, POLICY, (guest.vm.nic, device_of(guest, "vmxnet3"))):
        found = {name: stands_again(guest, name) for name in names}
        guest.verify_by_tuned()
        print(guest.run("grep", "put right", TUNED_LOG, check=False).stdout)
    assert differing(before, guest.settings()) == {}
    assert late(found) == {} and found[names[0]]["lost"]


@pytest.mark.kernels(OURS)
def test_tuned_keeps_the_queues_whose_channels_a_driver_refuses(guest: Host) -> None:
    """Neither the first look nor verify plans for the two that channels would have left."""
    before, device = guest.settings(), device_of(guest, "vmxnet3")
    policy = {"napi": REFUSED, "flow_steering": {"xps": "auto"}}
    guest.run("truncate", "--size=0", TUNED_LOG)
    with laid_out(guest, policy, (guest.vm.nic, device)):
        found = stands_again(guest, "threads off")
        guest.verify_by_tuned()
        log = guest.vm.read(TUNED_LOG).decode()
    print(log)
    assert f"{device}: channels-combined unsupported: " in log
    assert found["lost"] and found["seconds"] is not None
    looks = [line for line in log.splitlines() if "put right after" in line]
    assert looks and "ring-tx" not in "".join(looks) and "layout was applied" not in "".join(looks)
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_tuned_keeps_what_is_left_of_a_profile(guest: Host) -> None:
    """One section is taken away over D-Bus: the other two stay, and are kept."""
    before = guest.settings()
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    try:
        done = guest.run("busctl", "call", "com.redhat.tuned", "/Tuned", "com.redhat.tuned.control",
                         "instance_destroy", "s", "flow_steering", timeout=180)  # fmt: skip
        assert done.stdout.startswith("(bs) true"), done.stdout
        time.sleep(SOON + 5)
        found = stands_again(guest, "threads off")
    finally:
        guest.run("tuned-adm", "off", timeout=180)
    assert differing(before, guest.settings()) == {}
    assert found["lost"] and found["seconds"] is not None


@pytest.mark.kernels(OURS)
def test_what_was_down_at_tuned_off_comes_back_when_it_is_up(guest: Host) -> None:
    before, nic = guest.settings(), device_of(guest, "vmxnet3")
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    guest.run("ip", "link", "set", nic, "down")
    try:
        guest.run("tuned-adm", "off", timeout=180)
    finally:
        guest.run("ip", "link", "set", nic, "up")
    assert restored(guest, before, 2 * AGAIN_MOST), differing(before, guest.settings())
    guest.run("test", "!", "-e", "/var/lib/rxlane/journal.json")


@pytest.mark.kernels(OURS)
def test_tuned_that_comes_back_with_another_profile(guest: Host) -> None:
    before = guest.settings()
    guest.run("tuned-adm", "profile", PROFILE, timeout=180)
    during = guest.settings()
    guest.run("systemctl", "kill", "--signal=KILL", "tuned.service")
    guest.run("systemctl", "restart", "tuned.service", timeout=180)
    assert differing(during, guest.settings()) == {}, "the same profile: nothing is undone"
    guest.run("systemctl", "kill", "--signal=KILL", "tuned.service")
    guest.run("sh", "-c", "echo balanced > /etc/tuned/active_profile")
    guest.run("sh", "-c", "echo manual > /etc/tuned/profile_mode")
    guest.run("systemctl", "restart", "tuned.service", timeout=180)
    guest.run("tuned-adm", "off", timeout=180)
    assert differing(before, guest.settings()) == {}


@pytest.mark.kernels(OURS)
def test_a_nic_that_comes_back_with_another_index_gets_its_originals(guest: Host) -> None:
    """Where it was, another device had its index; our settings came back with it."""
    before = guest.settings()
    nic = device_of(guest, "vmxnet3")
    index = ("cat", f"/sys/class/net/{nic}/ifindex")
    had = guest.run(*index).stdout.strip()
    guest.run("rxlane", "apply", *WORDS, nic)
    there_and_back = (
        f"ip netns add away && ip -n away link add taken index {had} type veth peer name other"
        f" && ip link set {nic} netns away && ip -n away link set {nic} netns 1"
        f" && ip netns delete away && ip link set {nic} up"
    )
    guest.run("sh", "-c", there_and_back)
    assert guest.run(*index).stdout.strip() != had and differing(before, guest.settings())
    guest.run("rxlane", "apply", *WORDS, nic)
    guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}


# -- confirm ----------------------------------------------------------------------------------


def restored(host: Host, before: Settings, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while differing(before, host.settings()) and time.monotonic() < end:
        time.sleep(0.5)
    return differing(before, host.settings()) == {}


@pytest.mark.kernels(OURS)
def test_unconfirmed_comes_back(guest: Host) -> None:
    """Also when the waiting process itself was killed."""
    before = guest.settings()
    guest.run("rxlane", "apply", "--confirm", "20", *WORDS, guest.vm.nic)
    assert differing(before, guest.settings())
    guest.run("systemctl", "kill", "--signal=KILL", "rxlane-confirm-*")
    end = time.monotonic() + 15
    while "priority: 99" not in (class_ := _scheduling(guest)) and time.monotonic() < end:
        time.sleep(0.5)
    assert "SCHED_FIFO" in class_ and "priority: 99" in class_
    assert restored(guest, before, 40)
    # It tells so only when all is back.
    told = "journalctl --no-pager -t rxlane | grep -q 'not confirmed'"
    _until(guest, told, "nobody said that it was not confirmed")
    assert guest.run("rxlane", "confirm", check=False).rc == 2


def _scheduling(host: Host) -> str:
    """How the process that waits for a confirmation is scheduled; systemd starts it again."""
    units = host.run("systemctl", "list-units", "--plain", "--no-legend", "rxlane-confirm-*")
    if not units.stdout.split():
        return ""
    pid = host.run("systemctl", "show", "-P", "MainPID", units.stdout.split()[0]).stdout.strip()
    found: str = host.run("chrt", "-p", pid, check=False).stdout
    return found


@pytest.mark.kernels(OURS)
def test_only_a_new_login_confirms(guest: Host) -> None:
    before = guest.settings()
    words = " ".join(WORDS)
    both = f"rxlane apply --confirm 30 {words} {guest.vm.nic} && rxlane confirm"
    same = guest.run("setsid", "--wait", "sh", "-c", both, check=False)
    assert same.rc == 2 and "log in anew" in same.stderr
    again = guest.run("rxlane", "apply", *WORDS, guest.vm.nic, check=False)
    assert again.rc == 2 and "waits to be confirmed" in again.stderr
    during = guest.settings()
    guest.run("setsid", "--wait", "rxlane", "confirm")
    gone = "test -z \"$(systemctl list-units --plain --no-legend 'rxlane-confirm-*')\""
    _until(guest, gone, "what waited for the confirmation is still there")
    assert differing(during, guest.settings()) == {}
    guest.run("rxlane", "rollback")
    assert differing(before, guest.settings()) == {}
