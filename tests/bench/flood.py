# SPDX-License-Identifier: GPL-2.0-or-later
"""One flood against one guest: set up, switch the guest's polling mode, offer load, read the sink.

Conditions that hold for every mode alike, and why:

* the neighbour entry of the guest is permanent, or softirq mode would also lose its ARP answers;
* the tap has no queueing discipline, as the seed had it: drops happen where the guest is full;
* a full flood is the lowest of FLOOD_RATES of which the guest's NIC, in softirq mode, takes in less
  than TAKEN, found anew for each message size and flow count: all of the guest's CPU is then the
  network's. More offered is less flood: the sender shares its host CPU with QEMU's main loop, which
  fills the guest's ring, and what the tap then drops spares the guest (seen on a two-CPU host, 100
  flows × 1 byte: softirq carried 4 to 22 kpps of 210, and 73 or 90 of 280 or 330). What the
  application gets plays no part in the choice;
* a sender gives each flow BATCH messages a turn: the 200 netperf of the seed share a few CPUs
  too, so each sends for a time slice and then waits;
* the virtual CPU has a host CPU of its own (bench/placement.py).
"""

import enum
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import tools
from lab.qga import Completed
from lab.vm import CommandFailed, Guest

GUEST_ADDRESS = "10.77.0.2"
SINK_PORT = 6000
REMOTE = "/opt/bench"
RESULT = "/run/udpsink.json"
BATCH = 32
FLOOD_RATE = 180_000  # messages a second, where the rate is not sought
FLOOD_RATES = (150_000, 180_000, 210_000, 240_000, 280_000, 330_000)
SEEK_MS = 800
SEEK_TURNS = 2
TAKEN = 0.9
WINDOW_MS = 2000
RAMP_STEPS = 3  # first 300 ms: ring, sockets and scheduler settle
LONGEST_MS = 600_000
LEAD_MS = 300  # the flood outlasts the sink's window by this


class Mode(enum.Enum):
    """How the guest's receive queue is polled.

    (sysfs `threaded`, nice of its thread, `threaded` of the interrupts).
    """

    SOFTIRQ = ("softirq", 0, 0, 0)
    THREADED = ("threaded", 1, 0, 0)
    NICE10 = ("threaded, nice 10", 1, 10, 0)
    IRQ = ("threaded interrupt", 0, 0, 1)

    def __init__(self, label: str, threaded: int, nice: int, irq: int) -> None:
        self.label = label
        self.threaded = threaded
        self.nice = nice
        self.irq = irq


class ModeRefused(Exception):
    """The guest's kernel did not take the polling mode; the message says what it holds instead."""


@dataclass(frozen=True)
class Reading:
    """One run, in messages a second; ``spun`` is the idle-priority spinner's rounds a second.

    ``sent`` is the number of messages, those before and after the sink's window among them.
    """

    offered: float
    carried: float
    spun: float
    sent: int

    @property
    def share(self) -> float:
        """Share of the offered messages that the application received."""
        return self.carried / self.offered


def steady(steps: list[int], step_ms: int, skip: int = RAMP_STEPS) -> float:
    """Events a second over the window without its first ``skip`` steps."""
    if len(steps) <= skip:
        raise ValueError(f"a window of {len(steps)} steps has nothing after the ramp of {skip}")
    return statistics.fmean(steps[skip:]) * 1000 / step_ms


def reading(flood: dict[str, Any], sink: dict[str, Any]) -> Reading:
    """From what udpflood and udpsink printed."""
    return Reading(
        offered=flood["sent"] / flood["seconds"],
        carried=steady(sink["received"], sink["step_ms"]),
        spun=steady(sink["spun"], sink["step_ms"]) if "spun" in sink else 0.0,
        sent=flood["sent"],
    )


class Bench:
    """A booted guest ready for floods. ``device`` is the host interface the flood leaves by.

    ``unfilled``: a line for each flood that was sought and not found.
    """

    def __init__(self, guest: Guest, built: dict[str, Path] | None = None) -> None:
        self.guest = guest
        self.built = built or tools.build_tools()
        self.nic = guest.nic
        self.unfilled: list[str] = []
        guest.run(["mkdir", "-p", REMOTE])
        for name in ("udpsink", "udpecho"):
            guest.put(self.built[name], f"{REMOTE}/{name}", mode=0o755)
        self.mac = guest.run(["cat", f"/sys/class/net/{self.nic}/address"]).stdout.strip()
        self.device = self._device_to_guest()
        guest.host(["tc", "qdisc", "replace", "dev", self.device, "root", "noqueue"])
        self.pin_neighbour(self.device)

    def _device_to_guest(self) -> str:
        route = json.loads(self.guest.host(["ip", "-j", "route", "get", GUEST_ADDRESS]).stdout)
        return str(route[0]["dev"])

    def pin_neighbour(self, device: str) -> None:
        """Resolves the guest on ``device`` for good."""
        self.guest.host(
            ["ip", "neigh", "replace", GUEST_ADDRESS, "lladdr", self.mac, "dev", device,
             "nud", "permanent"]
        )  # fmt: skip

    def threads(self, mode: Mode) -> list[str]:
        """Pids of the threads that may poll the guest's NIC, by the names the kernel gives them.

        Of interrupts those of other devices, too.
        """
        if not mode.threaded and not mode.irq:
            return []
        name = f"napi/{self.nic}-" if mode.threaded else "irq/"
        return self.guest.run(["pgrep", f"^{name}"], check=False).stdout.split()

    def irq_files(self) -> list[str]:
        """Of the interrupts of the NIC's queues, on kernels that can switch them."""
        vectors = f"/sys/class/net/{self.nic}/device/../msi_irqs"
        line = "cd -P $0 && for irq in *; do ls /proc/irq/$irq/*put.*/threaded; done"
        return self.guest.run(["sh", "-c", line, vectors], check=False).stdout.split()

    def set_interrupts(self, mode: Mode) -> None:
        files = self.irq_files()
        if mode.irq and not files:
            raise ModeRefused("the kernel has no file that switches the NIC's interrupts")
        for file in files:
            self.guest.put(f"{mode.irq}\n".encode(), file)

    def set_mode(self, mode: Mode) -> None:
        """Switches the whole NIC by sysfs, which every kernel since 5.12 has. ModeRefused."""
        self.set_interrupts(mode)
        switch = f"/sys/class/net/{self.nic}/threaded"
        self.guest.put(f"{mode.threaded}\n".encode(), switch)
        held = self.guest.run(["cat", switch]).stdout.strip()
        if held != str(mode.threaded):
            raise ModeRefused(f"{switch} holds {held} after {mode.threaded} was written")
        if mode.threaded:
            pids = self.threads(mode)
            if not pids:
                raise ModeRefused(f"{self.nic} is threaded but has no thread")
            for pid in pids:
                self.guest.run(["renice", "-n", str(mode.nice), "-p", pid])

    def start_sink(self, flows: int, *, spin: bool, window_ms: int) -> None:
        """Starts the receiving processes; returns when their sockets are bound."""
        argv = [f"{REMOTE}/udpsink", "--ms", str(window_ms), "--result", RESULT]
        if flows:
            argv += ["--port", str(SINK_PORT), "--flows", str(flows)]
        self.guest.run(argv + (["--spin"] if spin else []))

    def read_sink(self) -> dict[str, Any]:
        """What the sink counted, once its window is over and the guest has come to itself."""
        done = self.guest.run([f"{REMOTE}/udpsink", "--await", RESULT, "--wait", "60"], timeout=120)
        counted: dict[str, Any] = json.loads(done.stdout)
        return counted

    def flood(
        self, flows: int, size: int, rate: float = FLOOD_RATE, *, spin: bool = False,
        window_ms: int = WINDOW_MS,
    ) -> Reading:  # fmt: skip
        """Offers ``rate`` messages a second and reads the sink."""
        self.start_sink(flows, spin=spin, window_ms=window_ms)
        sent = self.guest.host(
            [str(self.built["udpflood"]), "--to", GUEST_ADDRESS, "--port", str(SINK_PORT),
             "--flows", str(flows), "--size", str(size), "--rate", str(round(rate)),
             "--batch", str(BATCH), "--ms", str(window_ms + LEAD_MS)]
        )  # fmt: skip
        return reading(json.loads(sent.stdout), self.read_sink())

    @contextmanager
    def flooding(self, flows: int, size: int, rate: int, to: str = GUEST_ADDRESS) -> Iterator[None]:
        """A flood for as long as the block takes; nobody receives it. CommandFailed if it ended."""
        sender = self.guest.popen(
            [str(self.built["udpflood"]), "--to", to, "--port", str(SINK_PORT),
             "--flows", str(flows), "--size", str(size), "--rate", str(rate),
             "--batch", str(BATCH), "--ms", str(LONGEST_MS)]
        )  # fmt: skip
        try:
            yield
            if sender.poll() is not None:
                said = sender.communicate()
                raise CommandFailed(Completed(("udpflood",), sender.returncode, *said))
        finally:
            sender.kill()
            sender.communicate()

    def taken_in(self) -> int:
        """Packets that the guest's NIC has handed to the kernel since it came up."""
        path = f"/sys/class/net/{self.nic}/statistics/rx_packets"
        return int(self.guest.run(["cat", path], timeout=120).stdout)

    def full_rate(self, flows: int, size: int) -> int:
        """The rate of a full flood, messages a second (module docstring); leaves softirq mode.

        Where the guest takes in the highest that is tried, that one, which ``unfilled`` tells.
        """
        self.set_mode(Mode.SOFTIRQ)
        for rate in FLOOD_RATES:
            before = self.taken_in()
            sent = sum(
                self.flood(flows, size, rate, window_ms=SEEK_MS).sent for _turn in range(SEEK_TURNS)
            )
            if self.taken_in() - before < TAKEN * sent:
                return rate
        most = FLOOD_RATES[-1]
        self.unfilled.append(
            f"{flows} flows × {size} bytes: {most} messages/s do not fill the guest"
        )
        return most

    def idle_spin(self, window_ms: int = WINDOW_MS) -> float:
        """Rounds a second of the spinner in the guest without load: the whole CPU's worth."""
        self.start_sink(0, spin=True, window_ms=window_ms)
        sink = self.read_sink()
        return steady(sink["spun"], sink["step_ms"])
