# SPDX-License-Identifier: GPL-2.0-or-later
"""One open-loop client in a guest against an echo on the host: set up, polling modes, readings.

The guest has two virtual CPUs: one takes the receive interrupt, the NAPI thread or the polling
thread, the other the client, its sender and everything else. What holds in every mode alike
follows the script of seed 003: one queue pair, no RPS, no timer migration, workqueues off the
polled CPU. What does not: ring size and coalescing, which QEMU's virtio-net does not offer; the
sender alone is SCHED_FIFO 50; the client sleeps where the seed's spins on its ring, but where it is
to poll by recvfrom.

The arrangement was sought on two host CPUs that other work shared; single short runs of AF_XDP:

* QEMU's main loop and the echo on the client's host CPU: when the answer is there, the client's
  virtual CPU still has its own sending to finish, so busy-poll's p5 is 0.99 of interrupts'
  (12K/0); on the polled one's 0.75;
* virtual CPUs SCHED_FIFO 10 on the host: throttling takes 50 ms of each second, p95 of 30 ms for
  busy-poll at 125K/6, against 2 ms at nice -20, where the client's virtual CPU waits 3.6 % of the
  time for the host, and 1.1 % with short slices;
* client, pollers and NAPI thread SCHED_FIFO 50 in the guest: the guest's throttling, which stays,
  does the same (p95 27 ms at 125K/6); 0.5 ms at nice -20;
* a loop of the idle class on the client's host CPU, so that it need not wake up: the client waits
  for it (25K/38 over UDP, interrupts: p50 of 6 ms, 0.8 ms without, p95 of 8 and 1);
* 100 times the seed's times: interrupts cannot carry 125K/6 (p50 22 ms); with 15 µs of
  gro_flush_timeout the timer is all that SO_BUSY_POLL does (p50 of 320 ms at 12K/0);
* work from the first answer on: the queue of a cold start lasts the whole window where 4 % of the
  time is left to drain it (70 ms), so the client works only once it measures.
"""

import enum
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import tools
from bench.flood import GUEST_ADDRESS, REMOTE
from bench.placement import CARRIER_PRIORITY
from lab.machine import GuestSpec
from lab.vm import Guest

HOST_ADDRESS = "10.77.0.1"
PORT = 6300
CLIENT_CPU, POLLED_CPU = 0, 1
FIFO, NICE = 50, -20
RESULT = "/run/turns.json"
SCRIPT = Path(__file__).parent / "tools" / "polled_turns.py"
LIBRARY = Path(__file__).parents[2] / "plugins" / "rxlane"
SPEC = GuestSpec(
    cpus=2, memory_mb=1024, queues=1, share=[LIBRARY],
    # Preemptible both on 6.12, which is not at boot, and on 7.2, which is lazily.
    extra_cmdline="mitigations=off preempt=full",
)  # fmt: skip
WINDOW_MS, REQUESTS = 1000, 60
WARM_MS = 300  # the first packets tell the socket its NAPI
TURN_OVERHEAD_S = 1.0  # of one client: XDP program, rings, the last answers


# Software emulation takes tens of microseconds for what the seed's machines do in one: periods,
# delays and the times of polling are this many times the seed's.
SCALE = 300
SEEDS_FLUSH_NS = 15_000
SEEDS_BUSY_US = 400
FLUSH_NS = SCALE * SEEDS_FLUSH_NS


class Transport(enum.Enum):
    XDP = "AF_XDP"
    UDP = "UDP"


class Polling(enum.Enum):
    """Who polls: (label, `threaded`, defer_hard_irqs, gro_flush_timeout ns, how openrr waits)."""

    INTERRUPTS = ("interrupts", 0, 0, SEEDS_FLUSH_NS, "block")
    INLINE = ("SO_BUSY_POLL", 0, 100, FLUSH_NS, "poll")
    OWN_THREAD = ("SO_BUSY_POLL, own thread", 0, 100, FLUSH_NS, "poller")
    THREADED = ("threaded", 1, 0, SEEDS_FLUSH_NS, "block")
    BUSY = ("threaded busy-poll", 2, 100, FLUSH_NS, "block")

    def __init__(self, label: str, threaded: int, defer: int, flush: int, wait: str) -> None:
        self.label = label
        self.threaded = threaded
        self.defer = defer
        self.flush = flush
        self.wait = wait


@dataclass(frozen=True)
class Load:
    """What the client does: one request a ``period_us``, ``delay_us`` of work after an answer."""

    period_us: int
    delay_us: int

    @property
    def window_ms(self) -> int:
        """As long as it takes to measure REQUESTS, and no blink."""
        return max(WINDOW_MS, REQUESTS * self.period_us // 1000)


@dataclass(frozen=True)
class Turn:
    """One run of the client."""

    polling: Polling
    transport: Transport
    load: Load


@dataclass(frozen=True)
class Reading:
    """Round trips in ns; ``recv_log2[i]`` recvfrom calls lasted 2^i to 2^(i+1) ns."""

    p5: float
    p50: float
    p95: float
    p99: float
    sent: int
    received: int
    recv_log2: tuple[int, ...]
    attached: str

    @property
    def percentiles(self) -> tuple[float, float, float, float]:
        return self.p5, self.p50, self.p95, self.p99


class TurnFailed(Exception):
    """A client did not run, or nothing came back to it; the message says which and why."""


def reading(turn: Turn, printed: dict[str, Any]) -> Reading:
    """From what openrr printed. TurnFailed when it received nothing."""
    if not printed["received"]:
        raise TurnFailed(f"{turn}: none of {printed['sent']} requests was answered")
    return Reading(
        **printed["rtt_ns"],
        sent=printed["sent"],
        received=printed["received"],
        recv_log2=tuple(printed["recv_log2"]),
        attached=printed["xdp"],
    )


def client_words(turn: Turn, device: str, peer_mac: str) -> list[str]:
    """openrr's command line in the guest."""
    words = [
        f"{REMOTE}/openrr", "--to", HOST_ADDRESS, "--port", str(PORT),
        "--period-us", str(turn.load.period_us), "--delay-us", str(turn.load.delay_us),
        "--warm-ms", str(WARM_MS), "--ms", str(WARM_MS + turn.load.window_ms),
        "--wait", turn.polling.wait, "--cpu", str(CLIENT_CPU), "--poller-cpu", str(POLLED_CPU),
        "--busy-us", str(SCALE * SEEDS_BUSY_US), "--nice", str(NICE),
        "--sender-fifo", str(FIFO),
    ]  # fmt: skip
    if turn.transport is Transport.XDP:
        words += ["--device", device, "--peer-mac", peer_mac]
    return words


def job(turns: Sequence[Turn], device: str, peer_mac: str) -> str:
    """What tools/polled_turns.py is to do."""
    return json.dumps(
        {
            "device": device, "polled_cpu": POLLED_CPU, "client_cpu": CLIENT_CPU, "nice": NICE,
            "result": RESULT,
            "turns": [
                {"threaded": turn.polling.threaded, "defer": turn.polling.defer,
                 "flush": turn.polling.flush,
                 "argv": client_words(turn, device, peer_mac)}
                for turn in turns
            ],
        }
    )  # fmt: skip


class Client:
    """A booted guest of SPEC ready for turns, and the echo on the host while the block lasts."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.built = tools.build_tools()
        self._prepare_guest()
        self.peer_mac = self._prepare_link()

    def _prepare_guest(self) -> None:
        guest = self.guest
        guest.run(["mkdir", "-p", REMOTE])
        for name in ("openrr", "udpsink"):
            guest.put(self.built[name], f"{REMOTE}/{name}", mode=0o755)
        guest.put(SCRIPT, f"{REMOTE}/{SCRIPT.name}")
        guest.run(["systemctl", "stop", "irqbalance.service", "tuned.service"], check=False)
        guest.put(b"0\n", "/proc/sys/kernel/timer_migration")
        guest.put(f"{1 << CLIENT_CPU:x}\n".encode(), "/sys/devices/virtual/workqueue/cpumask")

    def _prepare_link(self) -> str:
        """No queueing and no ARP between client and echo; returns the echo's MAC address."""
        guest = self.guest
        shown = guest.host(["ip", "-j", "route", "get", GUEST_ADDRESS]).stdout
        device = str(json.loads(shown)[0]["dev"])
        link = json.loads(guest.host(["ip", "-j", "link", "show", "dev", device]).stdout)
        peer = str(link[0]["address"])
        own = guest.run(["cat", f"/sys/class/net/{guest.nic}/address"]).stdout.strip()
        guest.host(["tc", "qdisc", "replace", "dev", device, "root", "noqueue"])
        permanent = ["nud", "permanent"]
        guest.host(["ip", "neigh", "replace", GUEST_ADDRESS, "lladdr", own, "dev", device,
                    *permanent])  # fmt: skip
        guest.run(["ip", "neigh", "replace", HOST_ADDRESS, "lladdr", peer, "dev", guest.nic,
                   *permanent])  # fmt: skip
        return peer

    def __enter__(self) -> "Client":
        self._echo = self.guest.popen(
            ["chrt", "--fifo", str(CARRIER_PRIORITY), str(self.built["udpecho"]), "--serve",
             "--port", str(PORT)]
        )  # fmt: skip
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._echo.kill()
        self._echo.communicate()

    def run(self, turns: Sequence[Turn]) -> list[Reading]:
        """All turns in order. TurnFailed when one did not run or got nothing."""
        guest = self.guest
        words = job(turns, guest.nic, self.peer_mac)
        guest.run(["rm", "-f", RESULT])
        guest.run(["env", "PYTHONPATH=/mnt/share", "python3", f"{REMOTE}/{SCRIPT.name}", words])
        # Asking the agent would take the client's CPU.
        time.sleep(sum(WARM_MS + turn.load.window_ms for turn in turns) / 1000)
        wait = round(30 + len(turns) * TURN_OVERHEAD_S * 10)
        done = guest.run(
            [f"{REMOTE}/udpsink", "--await", RESULT, "--wait", str(min(wait, 600))],
            timeout=2 * wait,
        )
        outcome = json.loads(done.stdout)
        if "error" in outcome:
            raise TurnFailed(outcome["error"])
        return [
            reading(turn, printed) for turn, printed in zip(turns, outcome["turns"], strict=True)
        ]
