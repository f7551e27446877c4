# SPDX-License-Identifier: GPL-2.0-or-later
"""What laying out many queues costs, beside a C program that issues the same calls one by one.

    cost.py [--devices 512] [--rounds N]

On this machine's own kernel, in a network namespace of veths of 8 queues with GRO, which gives
them NAPIs: threaded mode, a CPU and a class for each thread, RPS on every queue. Nothing of the
machine's own devices is touched. Needs root and a kernel that takes NAPI_SET with threaded.

Programs alternate in each round, so that whatever else the machine does falls on all of them; a
multiple is the median of the rounds' quotients. Exit codes as those of run.py.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO

from bench import peers
from bench.peers import NoPeer
from bench.tools import ToolBuildFailed, build_tool
from lab.paths import BUILD, TREE
from rxlane.wire.netdev import Netdev

OUT = BUILD / "bench" / "cost.json"
INSTALLED = BUILD / "bench" / "installed"
QUEUES = 8
SIZES = (1, 8, 64)  # devices, beside the table's own number
SCRIPTED = 8  # devices for what starts a process for every one of them
TUNED = 64  # devices for TuneD
# The bars. Multiples of the C program's time; of the first apply's; KB; system calls a queue.
APPLY, UNDO, AGAIN, MEMORY, CALLS, EXPONENT, HOGGED = 0.8, 0.8, 0.2, 40_000, 15, 1.1, 0.1
ONE = 0.5  # of what TuneD takes on one device
STARTED = 2  # programs that an apply may start, itself among them
CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h
IDLE, IDLE_S, CALM_S = 0.1, 30.0, 3.0  # percent of a CPU in these seconds, once it is calm
OPTIONS = ("threaded=on", "thread_cpus=0-1", "thread_policy=batch", "rps=0-1")
NAPI_THREADED = 8

# ETHTOOL_SGRO of include/uapi/linux/ethtool.h on every v* device, without a process for each.
GRO = """
import array, fcntl, os, socket, struct
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for name in os.listdir("/sys/class/net"):
    if name.startswith("v"):
        value = array.array("B", struct.pack("II", 0x2C, 1))
        fcntl.ioctl(asking, 0x8946, struct.pack("16sP", name.encode(), value.buffer_info()[0]))
"""
# As administrators do it today: a process for every setting.
SCRIPT = """
for dev in /sys/class/net/v*; do
    echo 1 > $dev/threaded
    for file in $dev/queues/rx-*/rps_cpus; do echo 3 > $file; done
    for pid in $(pgrep "^napi/${dev##*/}-"); do
        taskset -pc 0-1 $pid; chrt --batch -p 0 $pid
    done
done > /dev/null
"""
# That RPS is on, and off again.
RPS_SET = "cat /sys/class/net/va0/queues/rx-*/rps_cpus | grep -q 3"
RPS_OFF = "for f in /sys/class/net/v*/queues/rx-*/rps_cpus; do echo 0 > $f; done"
HOG = "while :; do :; done"


class Lacking(Exception):
    """This machine cannot show it; the message says why."""


@dataclass(frozen=True)
class Run:
    """What one process took, its children included: seconds, and KB at its most."""

    wall: float
    cpu: float
    memory: int


@dataclass
class Report:
    """lines: for people. missed: bars that were not met. skipped: what was not measured, and why.

    figures: by name, for programs.
    """

    lines: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def figure(self, name: str, value: float, bar: float | None = None, unit: str = "") -> None:
        shown = f"{name}: {value:.3g}{unit}"
        self.figures[name] = value
        self.lines.append(shown if bar is None else f"{shown} (bar {bar:g})")
        if bar is not None and value > bar:
            self.missed.append(shown + f", not {bar:g}")


class Space:
    """A network namespace with so many veth devices, in pairs."""

    def __init__(self, devices: int) -> None:
        self.name = f"rxcost-{os.getpid()}-{devices}"
        self.devices = devices

    def __enter__(self) -> "Space":
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        try:
            many = f"numtxqueues {QUEUES} numrxqueues {QUEUES}"
            pairs = range(-(-self.devices // 2))
            lines = [f"link add va{n} {many} type veth peer name vb{n} {many}" for n in pairs]
            lines += [f"link set v{side}{n} up" for n in pairs for side in "ab"]
            text = "\n".join(lines) + "\n"
            batch = ["ip", "-netns", self.name, "-batch", "-"]
            subprocess.run(batch, input=text, text=True, check=True)
            if self.devices == 1:  # its peer has one queue less to lay out: none
                self.inside(["ip", "link", "set", "vb0", "name", "peer"])
            self.inside([sys.executable, "-c", GRO])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=False)

    def begin(self, argv: Sequence[str], words: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program that says its words into a file; ip execs it, so the process is its."""
        environment = {**os.environ, "PYTHONPATH": str(INSTALLED)}
        argv = ["ip", "netns", "exec", self.name, *argv]
        return subprocess.Popen(argv, stdout=words, stderr=words, env=environment)

    def inside(self, argv: Sequence[str]) -> Run:
        """Run a program to its end; raises CalledProcessError with its words when it fails."""
        begin = time.monotonic()
        with tempfile.TemporaryFile() as words:
            own = self.begin(argv, words)
            _, status, usage = os.wait4(own.pid, 0)
            took = time.monotonic() - begin
            own.returncode = os.waitstatus_to_exitcode(status)
            if own.returncode:
                words.seek(0)
                raise subprocess.CalledProcessError(own.returncode, argv, words.read())
        return Run(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)

    def names(self) -> list[str]:
        sides = ("a",) if self.devices == 1 else ("a", "b")
        return [f"v{side}{n}" for n in range(-(-self.devices // 2)) for side in sides]


@dataclass(frozen=True)
class Ours:
    """rxlane on all devices of a namespace, with a journal of its own."""

    space: Space
    state: Path

    def apply(self, *options: str) -> list[str]:
        return self._laid_out("apply", options or OPTIONS)

    def watch(self) -> list[str]:
        return self._laid_out("watch", OPTIONS)

    def undo(self) -> list[str]:
        return self._rxlane("rollback")

    def _laid_out(self, verb: str, options: Sequence[str]) -> list[str]:
        words = [f"--option={option}" for option in options]
        return [*self._rxlane(verb), *words, *self.space.names()]

    def _rxlane(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "rxlane", verb, "--state", str(self.state)]


def round_of(space: Space, state: Path, base: Path) -> dict[str, Run]:
    """Every program once; each leaves the devices as it found them."""
    ours = Ours(space, state)
    return {
        "C on": space.inside([str(base), "on"]),
        "C off": space.inside([str(base), "off"]),
        "apply": space.inside(ours.apply()),
        "again": space.inside(ours.apply()),
        "undo": space.inside(ours.undo()),
    }


def quotient(rounds: Sequence[dict[str, Run]], one: str, other: str) -> float:
    return median(r[one].wall / r[other].wall for r in rounds)


def main_table(report: Report, args: argparse.Namespace, state: Path, base: Path) -> None:
    with Space(args.devices) as space:
        rounds = [round_of(space, state, base) for _ in range(args.rounds)]
        calls = system_calls(space, Ours(space, state))
    for name in rounds[0]:
        wall, cpu = (median(getattr(r[name], what) for r in rounds) for what in ("wall", "cpu"))
        report.lines.append(f"{name:6} {wall:7.3f} s, {cpu:7.3f} s of CPU time")
    report.figure("apply, times the C program", quotient(rounds, "apply", "C on"), APPLY)
    report.figure("undo, times the C program", quotient(rounds, "undo", "C off"), UNDO)
    report.figure("apply again, times the first", quotient(rounds, "again", "apply"), AGAIN)
    most = max(r[name].memory for r in rounds for name in ("apply", "again", "undo"))
    report.figure("memory", most, MEMORY, " KB")
    if calls is None:
        report.skipped.append("system calls: no strace here")
    else:
        report.figure("system calls a queue", calls["total"] / (args.devices * QUEUES), CALLS)
        report.figure("programs started", calls["execve"], STARTED)


def system_calls(space: Space, ours: Ours) -> dict[str, int] | None:
    """Count those of an apply by name, and their total; the interpreter's start is in it."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile("r") as counted:
        space.inside(["strace", "-f", "-c", "-o", counted.name, *ours.apply()])
        space.inside(ours.undo())
        rows = [line.split() for line in counted.read().splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) > 4 and row[3].isdecimal()}


def watcher(report: Report, args: argparse.Namespace, state: Path) -> None:
    """What a watcher of all devices takes: memory, and of a CPU when nothing happens."""
    with Space(args.devices) as space, tempfile.TemporaryFile() as words:
        ours = Ours(space, state)
        own = space.begin(ours.watch(), words)
        try:
            calm(own, words)
            before = ran(own.pid)
            time.sleep(IDLE_S)
            idle = (ran(own.pid) - before) / IDLE_S * 100
            held, most = (in_memory(own.pid, which) for which in ("VmRSS", "VmHWM"))
        finally:
            own.terminate()
            own.wait()
        space.inside(ours.undo())
    report.figure("watcher, memory", held, MEMORY, " KB")
    report.figure("watcher, memory at its most", most, None, " KB")
    report.figure("watcher, idle, of a CPU", idle, IDLE, " %")


def calm(own: subprocess.Popen[bytes], words: IO[bytes]) -> None:
    """Wait until a watcher has applied and does nothing; CalledProcessError when it ended."""
    before, end = -1.0, time.monotonic() + CALM_S * 20
    # One that is never calm takes too much of a CPU, which the figure tells then.
    while (now := ran(own.pid)) != before and time.monotonic() < end:
        before = now
        time.sleep(CALM_S)
        if own.poll() is not None:
            words.seek(0)
            raise subprocess.CalledProcessError(own.returncode, own.args, words.read())


def ran(pid: int) -> float:
    """Seconds that a process was on a CPU, in all threads it had; see clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def in_memory(pid: int, which: str) -> int:
    """KB, by the name that /proc/PID/status has for it."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(f"{which}:"))


def growth(report: Report, args: argparse.Namespace, state: Path) -> None:
    """CPU time from one device to all; the exponent without what the start costs."""
    took: dict[int, float] = {}
    for devices in sorted({*SIZES, args.devices}):
        with Space(devices) as space:
            ours, best = Ours(space, state), []
            for _ in range(args.rounds):
                best.append(space.inside(ours.apply()).cpu)
                space.inside(ours.undo())
        took[devices] = min(best)
        report.lines.append(f"{devices * QUEUES:5} queues: {took[devices]:.3f} s of CPU time")
    start = took.pop(1)
    # Of few queues the start is most; the two largest sizes are nine tenths queues.
    small, large = sorted(took)[-2:]
    ratio = (took[large] - start) / max(took[small] - start, 1e-3)
    report.figure("growth exponent", math.log(ratio) / math.log(large / small), EXPONENT)


@contextmanager
def hogs(count: int) -> Iterator[None]:
    running = [subprocess.Popen(["sh", "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def beside_hogs(report: Report, args: argparse.Namespace, state: Path, base: Path) -> None:
    with Space(args.devices) as space, hogs(os.cpu_count() or 1):
        ours, found = Ours(space, state), []
        for _ in range(args.rounds):
            mine = space.inside(ours.apply("threaded=on")).wall
            space.inside(ours.undo())
            found.append(mine / space.inside([str(base), "sysfs"]).wall)
            space.inside([str(base), "off"])
            space.inside(["sh", "-c", "for d in /sys/class/net/v*; do echo 0 > $d/threaded; done"])
    report.figure("beside hogs, times the sysfs way", median(found), HOGGED)


def script(report: Report, args: argparse.Namespace, base: Path) -> None:
    with Space(SCRIPTED) as space:
        found = []
        for _ in range(args.rounds):
            slow = space.inside(["sh", "-c", SCRIPT]).wall
            space.inside([str(base), "off"])
            space.inside(["sh", "-c", "for d in /sys/class/net/v*; do echo 0 > $d/threaded; done"])
            found.append(slow / space.inside([str(base), "on"]).wall)
            space.inside([str(base), "off"])
    name = f"a shell script on {SCRIPTED} devices, times the C program"
    report.figure(name, median(found))


def run_tuned(space: Space, root: Path) -> tuple[float, float]:
    # Shared memory: not all file systems take an overlay's layers.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        return peers.run_tuned(space.name, root, Path(folder))


def tuned(report: Report, args: argparse.Namespace, state: Path, base: Path, version: str) -> None:
    """Stock TuneD with the same on the same devices, from its start to its word that all is set."""
    name = f"tuned-{version}"
    try:
        root, found, alone = peers.tuned(version), [], []
        name = root.name
        with Space(TUNED) as space:
            for _ in range(args.rounds):
                on, off = run_tuned(space, root)
                c_on, c_off = (space.inside([str(base), way]).wall for way in ("on", "off"))
                found.append((on / c_on, off / c_off))
        with Space(1) as space:
            ours = Ours(space, state)
            for _ in range(args.rounds):
                mine = space.inside(ours.apply()).wall
                space.inside(ours.undo())
                alone.append(mine / run_tuned(space, root)[0])
    except NoPeer as why:
        report.skipped.append(f"{name}: {why}")
        return
    for what, at in (("apply", 0), ("undo", 1)):
        value = median(one[at] for one in found)
        report.figure(f"{name}, {what} on {TUNED} devices, times the C program", value)
    report.figure(f"ours on one device, times {name}", median(alone), ONE)


def netutils(report: Report, args: argparse.Namespace, state: Path) -> None:
    """RPS alone, which is what netutils-linux sets of all this, beside rxlane with the same."""
    name = f"netutils-linux {peers.NETUTILS}"
    try:
        program, found = peers.netutils(), []
        with Space(SCRIPTED) as space:
            words = " ".join(space.names())
            loop = f'for dev in {words}; do "$0" --force --cpus 0 1 -- $dev || exit 1; done'
            for _ in range(args.rounds):
                theirs = space.inside(["sh", "-c", loop, str(program)]).wall
                space.inside(["sh", "-c", f"{RPS_SET}; {RPS_OFF}"])
                mine = space.inside(Ours(space, state).apply("rps=0-1")).wall
                space.inside(Ours(space, state).undo())
                found.append(theirs / mine)
    except (NoPeer, subprocess.CalledProcessError) as why:
        said = getattr(why, "output", None) or str(why).encode()
        report.skipped.append(f"{name}: {said.decode().strip().splitlines()[-1]}")
        return
    report.figure(f"{name}, RPS of {SCRIPTED} devices, times ours", median(found))


def install() -> None:
    """Copy rxlane and compile it, as installing its package does."""
    shutil.rmtree(INSTALLED, ignore_errors=True)
    shutil.copytree(TREE / "plugins" / "rxlane", INSTALLED / "rxlane")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(INSTALLED)], check=True)


def measure(args: argparse.Namespace) -> Report:
    """Raises Lacking, ToolBuildFailed and CalledProcessError."""
    if os.geteuid():
        raise Lacking("root is needed for a network namespace")
    if NAPI_THREADED not in Netdev().capabilities().settable:
        raise Lacking(f"this machine's kernel {os.uname().release} sets no NAPI's threaded mode")
    report, base = Report(), build_tool("lanes")
    install()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        main_table(report, args, state, base)
        watcher(report, args, state)
        growth(report, args, state)
        beside_hogs(report, args, state, base)
        script(report, args, base)
        for version in peers.TUNED:
            tuned(report, args, state, base, version)
        netutils(report, args, state)
    return report


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="cost.py", description="what laying out queues costs")
    parser.add_argument("--devices", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    try:
        report = measure(args)
    except Lacking as lack:
        print(f"SKIPPED cost: {lack}")
        return 3 if os.environ.get("RXLANE_STRICT") == "1" else 0
    except (ToolBuildFailed, subprocess.CalledProcessError) as error:
        print(f"bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 3
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(report.figures, indent=1) + "\n")
    load, _, _ = os.getloadavg()
    print(f"Cost of {args.devices} veths of {QUEUES} queues, kernel {os.uname().release},"
          f" {os.cpu_count()} CPUs, load {load:.1f}, {args.rounds} rounds")  # fmt: skip
    skipped = [f"SKIPPED {line}" for line in report.skipped]
    print("\n".join([*report.lines, *skipped, *(f"MISSED {line}" for line in report.missed)]))
    if report.missed:
        return 1
    return 3 if report.skipped and os.environ.get("RXLANE_STRICT") == "1" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
