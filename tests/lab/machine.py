# SPDX-License-Identifier: GPL-2.0-or-later
"""What machine a guest is, and QEMU's command line for it. Nothing here starts anything."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lab import counted, hung
from lab.kernel import KernelImage
from lab.monitor import SOCKET
from lab.net import Tap
from lab.qemu import Qemu
from lab.rootfs import SUITE, root_image, share_image

# In the guest's folder: the socket of its agent, and what its kernel says.
AGENT, CONSOLE = "qga", "console.log"
SLOT = "lab-slot"


@dataclass(frozen=True)
class GuestSpec:
    """What machine the guest is. sockets × cores × threads must be cpus when given."""

    cpus: int = 1
    sockets: int = 1
    cores: int = 0
    threads: int = 1
    numa: int = 1
    memory_mb: int = 1024
    queues: int = 4
    e1000e: bool = False
    vmxnet3: bool = False
    igb: bool = False
    # Its driver is a module of the debug flavour.
    e1000: bool = False
    # virtio_net hashes flows by a key and a table of its own.
    rss: bool = False
    # The guest's clocks count its instructions, one a nanosecond: emulated, one CPU.
    icount: bool = False
    # Instructions are counted by CPU, see Guest.instructions(): emulated, and slower by it.
    counted: bool = False
    # A PCI Express port of the id SLOT, into which the monitor plugs devices.
    slot: bool = False
    # The Debian that runs on a kernel of ours.
    suite: str = SUITE
    extra_cmdline: str = ""
    share: list[Path] = field(default_factory=list)

    def nics(self) -> list[tuple[str, int]]:
        extra = ("e1000e", "vmxnet3", "igb", "e1000")
        return [("virtio", self.queues), *((n, 1) for n in extra if getattr(self, n))]

    def devices(self) -> tuple[str, ...]:
        """QEMU's names of the NICs that not every QEMU emulates."""
        return tuple(kind for kind, _queues in self.nics() if kind != "virtio")


@dataclass(frozen=True)
class Machine:
    """One guest's machine: ``program`` emulates it by ``accel``, its files lie in ``folder``."""

    kernel: KernelImage
    spec: GuestSpec
    program: Qemu
    accel: str
    folder: Path

    def command(self, taps: Iterable[Tap]) -> list[str]:
        """The words that start it, its NICs at ``taps``; makes the disk of what is shared."""
        spec = self.spec
        argv = [
            *self.program.argv, "-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35",
            *self._processor(), "-m", str(spec.memory_mb),
            "-kernel", str(self.kernel.bzimage), "-append", self._cmdline(),
            "-serial", f"file:{self.folder / CONSOLE}",
            "-qmp", f"unix:{self.folder / SOCKET},server=on,wait=off",
            "-device", "virtio-rng-pci",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=qga,path={self.folder / AGENT},server=on,wait=off",
            "-device", "virtserialport,chardev=qga,name=org.qemu.guest_agent.0",
            *disk("root", self._root(), "snapshot=on,cache=unsafe"),
        ]  # fmt: skip
        if self.kernel.initrd is not None:
            argv += ["-initrd", str(self.kernel.initrd)]
        if spec.share:
            argv += disk("share", share_image(spec.share, self.folder), "readonly=on")
        argv += nodes(spec) + cards(spec, taps)
        if spec.slot:
            argv += ["-device", f"pcie-root-port,id={SLOT},chassis=1,slot=1"]
        return argv

    def _processor(self) -> list[str]:
        spec = self.spec
        cores = spec.cores or spec.cpus // (spec.sockets * spec.threads)
        # The topology leaves that every kernel reads; an AMD model hides SMT under emulation.
        model = "host" if self.accel == "kvm" else "max,vendor=GenuineIntel"
        fast = "kvm" if self.accel == "kvm" else "tcg,thread=multi"
        if spec.icount:
            fast = "tcg,thread=single"
        argv = [
            "-accel", fast, "-cpu", model,
            "-smp", f"{spec.cpus},sockets={spec.sockets},cores={cores},threads={spec.threads}",
        ]  # fmt: skip
        if spec.icount:
            argv += ["-icount", "shift=0,sleep=off"]
        if spec.counted:
            argv += counted.arguments(self.program, self.folder)
        return argv

    def _root(self) -> Path:
        with_modules = self.kernel.bzimage.parent / "root.ext4"
        return with_modules if self.kernel.root_package else root_image(self.spec.suite)

    def _cmdline(self) -> str:
        words = [
            "root=/dev/vda rw console=ttyS0 earlyprintk=ttyS0 panic=-1 loglevel=6",
            "systemd.show_status=0 systemd.journald.forward_to_console=0",
            "random.trust_cpu=on",
            hung.NMI_WORDS,
        ]
        if self.accel == "tcg":
            # An emulated CPU stands still while this machine's cores are taken: that is no fault
            # of the guest's kernel, so its stall detectors wait longer (seconds), and a timer
            # that ticks late in the first milliseconds is no broken one, which is a panic.
            words.append("no_timer_check")
            words.append("rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60")
            if self.kernel.base == "7.2":
                # It compares the TSCs of two CPUs with interrupts off, and takes the time that it
                # waits from a clock which, where boot is slow, still counts its own CPU's ticks.
                # If the other CPU is stopped meanwhile, to change the clock, that is for ever.
                words.append("tsc=nowatchdog")
        if "debug" in self.kernel.flavour:
            # Jiffies of 4 ms: a poll loop that starves rcu_tasks is told of after 60 s, not 600.
            words.append("rcupdate.rcu_task_stall_timeout=15000")
        words.append(self.spec.extra_cmdline)
        return " ".join(word for word in words if word)


def disk(name: str, image: Path, options: str) -> list[str]:
    drive = f"file={image},format=raw,if=none,id={name},{options}"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name}"]


def nodes(spec: GuestSpec) -> list[str]:
    """NUMA nodes of equal memory, the CPUs shared out in a row."""
    if spec.numa < 2:
        return []
    argv: list[str] = []
    each, memory = spec.cpus // spec.numa, spec.memory_mb // spec.numa
    for node in range(spec.numa):
        first = node * each
        argv += ["-object", f"memory-backend-ram,id=m{node},size={memory}M"]
        cpus = f"cpus={first}-{first + each - 1}"
        argv += ["-numa", f"node,nodeid={node},memdev=m{node},{cpus}"]
    return argv


def cards(spec: GuestSpec, taps: Iterable[Tap]) -> list[str]:
    """A NIC of the guest at each tap."""
    argv: list[str] = []
    for tap in taps:
        queues = f",queues={tap.queues}" if tap.queues > 1 else ""
        net = f"tap,id=n-{tap.nic},ifname={tap.name},script=no,downscript=no{queues}"
        device = {"virtio": "virtio-net-pci"}.get(tap.nic, tap.nic)
        many = f",mq=on,vectors={2 * tap.queues + 2}" if tap.queues > 1 else ""
        if spec.rss and tap.nic == "virtio":
            many += ",hash=on,rss=on"
        argv += ["-netdev", net]
        # Nothing boots from the network: no option ROM to find and run.
        argv += ["-device", f"{device},netdev=n-{tap.nic},mac={tap.mac},romfile={many}"]
    return argv
