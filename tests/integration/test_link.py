# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces laid out by their .link files, under systemd 257 in a guest of its own.

One boot with the files in place, then everything that costs an interface its layout or gives it
another. The kernel of the lab has no driver for PCI Express hot plug: a card that QEMU's monitor
plugs in is given power, and let go again, by a script in the guest.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from linked import Linked

from conftest import DEBS, KERNELS, OURS, READER, Host, Settings, device_of, install
from lab import monitor
from lab.machine import SLOT, GuestSpec
from lab.vm import Guest

SLOT_SCRIPT = Path(__file__).parent / "guest" / "slot.py"
FOLDER = "/etc/systemd/network/10-lane.link"
LINK = """[Match]
Driver=virtio_net
[Link]
NamePolicy=keep kernel database onboard slot path
AlternativeNamesPolicy=database onboard slot path
MACAddressPolicy=none
"""
DROPIN = f"{FOLDER}.d/rx.conf"
WANTED = {
    "NAPI_THREADED": "on", "NAPI_THREAD_CPUS": "auto", "NAPI_THREAD_NICE": "-5",
    "NAPI_DEFER_HARD_IRQS": "7", "NAPI_GRO_FLUSH_TIMEOUT": "33000", "NAPI_IRQ_CPUS": "auto",
    "NAPI_RPS": "0-3", "NAPI_RFS": "512",
}  # fmt: skip
WRONG = {"NAPI_THREDED": "busy-poll", "NAPI_XPS": "sideways"}
RULE = """ACTION!="remove", SUBSYSTEM=="net", DRIVERS=="vmxnet3", ENV{NAPI_THREADED}="on"
"""
CARD_MAC = "52:54:00:77:00:99"
HOST_FLOWS = "sysctl/rps_sock_flow_entries"
# Another target would end what this machine speaks to.
AGENT_UNIT = "/run/systemd/system/qemu-guest-agent.service.d"
KEEP_AGENT = f"""mkdir -p {AGENT_UNIT}; printf '[Unit]\\nIgnoreOnIsolate=yes\\n' \\
    > {AGENT_UNIT}/lab.conf; systemctl daemon-reload"""


def dropin(properties: dict[str, str]) -> bytes:
    rows = " ".join(f"{name}={value}" for name, value in properties.items())
    return f"[Link]\nProperty={rows}\n".encode()


@pytest.fixture(scope="module")
def linked(debs: list[Path]) -> Iterator[Linked]:
    spec = GuestSpec(cpus=4, queues=4, vmxnet3=True, slot=True, share=[DEBS])
    with Guest(KERNELS[OURS](), spec) as vm:
        host = Host(OURS, vm)
        vm.put(READER, "/root/reader.py")
        vm.put(SLOT_SCRIPT, "/root/slot.py")
        host.run("systemctl", "disable", "--now", "irqbalance", "tuned")
        made = Linked(host, vm.nic, device_of(host, "vmxnet3"), host.settings())
        vm.put(RULE.encode(), "/etc/udev/rules.d/70-lane.rules")
        host.run("udevadm", "control", "--reload")
        host.run("udevadm", "trigger", "--settle", f"/sys/class/net/{made.other}")
        install(host, debs, [])
        assert made.until(lambda: made.threaded(made.other) == 4), "what udev knew already"
        host.run("mkdir", "-p", f"{FOLDER}.d")
        vm.put(LINK.encode(), FOLDER)
        vm.put(dropin(WANTED | WRONG), DROPIN)
        host.run("sync")
        vm.power_cut()
        try:
            yield made
        finally:
            print(
                host.run("journalctl", "--no-pager", "-b", "-t", "rxlane-link", check=False).stdout
            )
            vm.check_splats()


@pytest.fixture(scope="module")
def wanted(linked: Linked) -> Settings:
    """What the NIC has after the boot."""
    assert linked.until(lambda: linked.threaded(linked.nic) == 4)
    assert linked.until(lambda: linked.host.settings()[HOST_FLOWS] == "512")
    return linked.own(linked.nic)


def test_cold_boot(linked: Linked, wanted: Settings) -> None:
    """By the .link file, and by a rule as on systemd 252; what is wrong is told once."""
    assert wanted != linked.own(linked.nic, linked.before)
    assert linked.threaded(linked.other) == 4
    linked.host.run("udevadm", "verify", "/usr/lib/udev/rules.d/85-rxlane.rules")
    log = linked.host.run("journalctl", "--no-pager", "-b", "-o", "cat", "-t", "rxlane-link")
    for name, value in WRONG.items():
        assert log.stdout.count(f"[{DROPIN}] {name}={value}: ") == 1
    unit = linked.unit(linked.nic)
    said = linked.host.run(
        "systemd-analyze", "security", "--no-pager", "--threshold=30", unit, check=False
    )
    print(said.stdout.splitlines()[-1])
    assert said.rc == 0
    status = linked.host.run("cat", f"/proc/{linked.property(unit, 'MainPID')}/status").stdout
    print(status.split("VmHWM:")[1].splitlines()[0])
    assert int(status.split("VmHWM:")[1].split()[0]) < 40_000


def test_kept(linked: Linked, wanted: Settings) -> None:
    """Down and up, other queues, a rename, another namespace, another target; `udevadm trigger`
    writes nothing.
    """
    nic, unit = linked.nic, linked.unit(linked.nic)
    pid = linked.property(unit, "MainPID")
    journal = linked.host.run("cat", "/var/lib/rxlane/journal.json").stdout
    linked.host.run("udevadm", "trigger", "--settle", f"/sys/class/net/{nic}")
    time.sleep(2)
    assert linked.host.run("cat", "/var/lib/rxlane/journal.json").stdout == journal
    operations = {
        "down, up": f"ip link set {nic} down; ip link set {nic} up",
        "channels": f"ethtool -L {nic} combined 2; sleep 1; ethtool -L {nic} combined 4",
        "rename": f"ip link set {nic} down; ip link set {nic} name lane0;"
        f" ip link set lane0 up; sleep 1; ip link set lane0 down;"
        f" ip link set lane0 name {nic}; ip link set {nic} up",
        "namespace": f"ip netns add a; ip link set {nic} netns a; sleep 1;"
        f" ip -n a link set {nic} netns 1; ip netns delete a; ip link set {nic} up",
        "target": f"{KEEP_AGENT}; systemctl isolate multi-user.target",
    }
    for name, command in operations.items():
        linked.host.run("sh", "-c", command)
        assert linked.stands(wanted), name
    assert linked.property(unit, "MainPID") == pid


def test_stopped_for_a_trial_it_stays_so(linked: Linked, wanted: Settings) -> None:
    """Through events that tell nothing new of the interface, until it is added again."""
    nic, unit = linked.nic, linked.unit(linked.nic)
    linked.host.run("systemctl", "stop", unit)
    original = linked.own(nic, linked.before)
    assert linked.stands(original)
    linked.host.run("udevadm", "trigger", "--settle", path(linked))
    linked.host.run("sh", "-c", f"ip link set {nic} down; ip link set {nic} up")
    time.sleep(2)
    assert linked.property(unit, "ActiveState") == "inactive"
    assert linked.own(nic) == original
    linked.host.run("udevadm", "trigger", "--settle", "-c", "add", path(linked))
    assert linked.until(lambda: linked.property(unit, "ActiveState") == "active")
    assert linked.stands(wanted)


def test_driver_bound_again(linked: Linked) -> None:
    """The interface is another one by its index, and so is its service."""
    bus, old = "/sys/bus/pci/drivers/vmxnet3", linked.unit(linked.other)
    slot = linked.host.run("readlink", "-f", f"/sys/class/net/{linked.other}/device").stdout
    address = slot.strip().rpartition("/")[2]
    linked.host.run("sh", "-c", f"echo {address} > {bus}/unbind; echo {address} > {bus}/bind")
    linked.host.run("udevadm", "settle")
    linked.host.run("ip", "link", "set", linked.other, "up")
    assert linked.until(lambda: linked.threaded(linked.other) == 4)
    assert linked.unit(linked.other) != old
    assert linked.until(lambda: linked.property(old, "ActiveState") == "inactive")


def test_hot_plug(linked: Linked, wanted: Settings) -> None:
    """A card that comes while the host runs has its lane; its service goes with it."""
    links = set(linked.host.run("ls", "/sys/class/net").stdout.split())
    vm = linked.host.vm
    card = {"driver": "virtio-net-pci", "bus": SLOT, "netdev": "n-hot", "mac": CARD_MAC}
    monitor.ask(vm.folder, "netdev_add", type="hubport", id="n-hot", hubid=7)
    monitor.ask(vm.folder, "device_add", id="hot", **card)
    linked.host.run("python3", "/root/slot.py", "on")
    linked.host.run("udevadm", "settle")
    (name,) = set(linked.host.run("ls", "/sys/class/net").stdout.split()) - links
    linked.host.run("ip", "link", "set", name, "up")
    assert linked.until(lambda: linked.threaded(name) == 1)
    unit = linked.unit(name)
    monitor.ask(vm.folder, "device_del", id="hot")
    linked.host.run("python3", "/root/slot.py", "off")
    assert linked.until(lambda: linked.property(unit, "ActiveState") == "inactive")
    assert linked.property(unit, "Result") == "success"
    assert linked.own(linked.nic) == wanted


def test_tuned_wins_and_gives_back(linked: Linked, wanted: Settings) -> None:
    """The profile is on as soon as TuneD has started."""
    linked.host.vm.put(b"net-low-latency\n", "/etc/tuned/active_profile")
    linked.host.vm.put(b"manual\n", "/etc/tuned/profile_mode")
    linked.host.run("systemctl", "start", "tuned", timeout=180)
    assert linked.until(lambda: 0 < linked.threaded(linked.nic) < 4)
    during = linked.own(linked.nic)
    linked.host.run("sh", "-c", f"ip link set {linked.nic} down; ip link set {linked.nic} up")
    assert linked.stands(during), "TuneD's, also after an event"
    linked.host.run("tuned-adm", "off", timeout=180)
    assert linked.stands(wanted)


def test_other_properties(linked: Linked, wanted: Settings) -> None:
    """At once, also what `rxlane link` prints for the layout that was there."""
    printed = linked.host.run("rxlane", "link", linked.nic).stdout
    linked.host.vm.put(dropin({"NAPI_THREADED": "on@1-"}), DROPIN)
    reload = (
        "sh",
        "-c",
        f"udevadm control --reload; udevadm trigger --settle -c add {path(linked)}",
    )
    linked.host.run(*reload)
    assert linked.until(lambda: linked.threaded(linked.nic) == 3)
    assert f"# {DROPIN.rpartition('/')[0]}/" in printed and "NAPI_RFS=512" in printed
    linked.host.vm.put(printed.encode(), DROPIN)
    linked.host.run(*reload)
    assert linked.stands(wanted)


def path(linked: Linked) -> str:
    return f"/sys/class/net/{linked.nic}"


def test_rollback_and_removal(linked: Linked, wanted: Settings, debs: list[Path]) -> None:
    """A rollback by hand ends the service; so does the package's removal, with the originals.

    One that was removed but not purged lays the interfaces out when it is installed again.
    """
    unit = linked.unit(linked.nic)
    linked.host.run("rxlane", "rollback", linked.nic)
    original = linked.own(linked.nic, linked.before)
    assert linked.until(lambda: linked.property(unit, "ActiveState") == "inactive")
    assert linked.own(linked.nic) == original
    linked.host.run("systemctl", "start", unit)
    assert linked.stands(wanted)
    assert linked.threaded(linked.other) == 4
    # A service that was killed starts again and knows the originals from the journal.
    pid = linked.property(unit, "MainPID")
    linked.host.run("systemctl", "kill", "--signal=KILL", unit)
    assert linked.until(lambda: linked.property(unit, "MainPID") not in ("0", pid))
    assert linked.own(linked.nic) == wanted
    linked.host.run("dpkg", "--remove", "tuned-profiles-rxlane", "rxlane", timeout=180)
    assert linked.own(linked.nic) == original
    assert linked.own(linked.other) == linked.own(linked.other, linked.before)
    assert linked.host.settings()[HOST_FLOWS] == linked.before[HOST_FLOWS]
    install(linked.host, debs, [])
    assert linked.stands(wanted)
    assert linked.until(lambda: linked.threaded(linked.other) == 4)
