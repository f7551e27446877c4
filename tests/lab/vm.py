# SPDX-License-Identifier: GPL-2.0-or-later
"""One guest: QEMU with the lab's NICs, spoken to through its guest agent.

QEMU is called directly. virtme-ng 1.42 was tried for it (`--root-disk --systemd --numa`): it
boots the guest read-only with overlays and units of its own over 9p exports of this machine and
keeps the console on its standard output, whereas here the guest must be a Debian 13 as installed,
writable, with the console in a file and power cuts over QMP.
"""

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from lab import accel, apic, counted, hung, monitor, qemu
from lab.cache import digest
from lab.kernel import KernelImage
from lab.machine import AGENT, CONSOLE, GuestSpec, Machine
from lab.monitor import SOCKET, MonitorRefused
from lab.net import Network
from lab.paths import BUILD
from lab.progress import say, step
from lab.qga import Agent, AgentSilent, CommandTimeout, Completed
from lab.rootfs import NICS
from lab.splat import emulation_race, faulted, left_by_hotplug, splats

# Seconds until a guest that still runs but says nothing counts as hung. Emulated on two busy
# cores Debian's own kernel, with its initrd, needs minutes.
BOOT_S = {"kvm": 90.0, "tcg": 900.0}
# The same of a fast kernel that is built here, which has no initrd: ten times what it takes.
FAST_BOOT_S = 400.0
# Boots tried of a guest whose emulated CPUs race, which they do now and then.
BOOTS = 4
# Why guests were booted once more, one line each, for who reports of a run.
ANEW: list[str] = []
# Those of this run, also the ended ones.
GUESTS: list["Guest"] = []
STOOD_STILL = "the kernel stood still"
LOST_TIMER = "the emulation lost a timer's interrupt"
CONSOLE_TAIL = 30
# Seconds that a guest may take to write what each CPU and task of it does.
TELLING_S = 120.0
# Seconds that QEMU may take to be gone once it has begun to die.
DYING_S = 1.0
# kmemleak does not report what is younger.
LEAK_AGE_S = 6
LEAKS = "/sys/kernel/debug/kmemleak"
# What takes other kernels seconds takes an emulated debug kernel minutes.
DEBUG_PATIENCE = 5
# After a link change networkd takes the addresses away and gives them anew, when it gets to it.
REACHED_S = 120.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def mute(before: list[float], after: list[float]) -> str:
    """Of a guest that took no NMI: whether its CPUs ran, of the seconds that they have had."""
    spans = enumerate(zip(before, after, strict=True))
    had = ", ".join(f"CPU {cpu} {end - begin:.1f} s" for cpu, (begin, end) in spans)
    return f"it did not tell within {TELLING_S:.0f} s what it does, and ran meanwhile: {had}"


class GuestLost(Exception):
    """The VM hung, died or never came up: nothing is known about what was tested in it."""


class CommandFailed(Exception):
    """The guest is well; a command in it (or on the host's side of it) failed."""

    def __init__(self, done: Completed) -> None:
        self.done = done
        output = (done.stdout + done.stderr).strip()
        super().__init__(f"`{' '.join(done.argv)}` ended with {done.rc}: {output}")


class Splat(Exception):
    """The guest's kernel reported a fault."""


class Guest:
    """Context manager of a booted guest.

    Where it fails, the guest is lost, or somebody asks for it with keep(), the console log stays
    behind and is named: the end of a fixture that several tests share knows of none that failed.
    Leaving it raises Splat when the console of a kernel with our series holds a complaint.
    """

    def __init__(self, kernel: KernelImage, spec: GuestSpec) -> None:
        self.kernel, self.spec = kernel, spec
        self.accel = "tcg" if spec.icount or spec.counted else accel.choose(kernel.bzimage)
        self._program = qemu.having(spec.devices(), emulated=self.accel == "tcg")
        BUILD.mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="guest-", dir=BUILD))
        self.console = self.folder / CONSOLE
        self.log = self.folder / "qemu.log"
        self._network = Network(f"rxlane-{digest([str(self.folder)])[:8]}")
        self._qemu: subprocess.Popen[bytes] | None = None
        self._agent: Agent | None = None
        self._nic = ""
        self._timers: list[apic.Timer] = []
        self._keep = False
        self._patience = DEBUG_PATIENCE if "debug" in kernel.flavour else 1
        self._hotplug = False
        GUESTS.append(self)

    @property
    def netns(self) -> str:
        return self._network.name

    @property
    def nic(self) -> str:
        """The guest's name of its virtio NIC."""
        if not self._nic:
            self._nic = self.nic_of("virtio")
        return self._nic

    def nic_of(self, kind: str) -> str:
        """The guest's name, just now, of its NIC of a kind of NICS. StopIteration without one."""
        rows = self.run(["ip", "-brief", "link"]).stdout.splitlines()
        return next(row.split()[0] for row in rows if NICS[kind][0] in row)

    def __enter__(self) -> "Guest":
        try:
            self._network.create(self.spec.nics())
            with step(f"booting {self.kernel.name}, {self.spec.cpus} CPUs, {self.accel}"):
                self._boot()
        except BaseException:
            self.keep()
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        # Of a kernel of ours no complaint goes unread; others may be there for what they get wrong.
        ours = self.kernel.patched and kind is None
        found = splats(self.console_text(), self._hotplug) if ours else []
        self._keep |= kind is not None or bool(found)
        self._stop()
        if found:
            raise Splat("\n".join(found))

    def run(self, argv: list[str], timeout: float = 120, check: bool = True) -> Completed:
        """Runs a command in the guest.

        Raises CommandFailed when it fails (and ``check``) or does not end within ``timeout``
        seconds (DEBUG_PATIENCE times that on a debug kernel), GuestLost when the guest no longer
        answers.
        """
        try:
            done = self._live_agent().run([str(word) for word in argv], timeout * self._patience)
        except CommandTimeout as late:
            raise CommandFailed(Completed(tuple(argv), 124, "", str(late))) from late
        except AgentSilent as silent:
            raise self._lost(str(silent)) from silent
        if check and done.rc != 0:
            raise CommandFailed(done)
        return done

    def put(self, source: Path | bytes, path: str, mode: int = 0o644) -> None:
        """Writes a file (or bytes) to ``path`` in the guest."""
        data = source if isinstance(source, bytes) else source.read_bytes()
        try:
            self._live_agent().write(path, data)
        except AgentSilent as silent:
            raise self._lost(str(silent)) from silent
        if not path.startswith("/proc/") and not path.startswith("/sys/"):
            self.run(["chmod", f"{mode:o}", path])

    def read(self, path: str) -> bytes:
        try:
            return self._live_agent().read(path)
        except AgentSilent as silent:
            raise self._lost(str(silent)) from silent

    def host(self, argv: list[str], timeout: float = 120, check: bool = True) -> Completed:
        """Runs a command on this machine, inside the guest's network namespace."""
        words = self._network.inside([str(word) for word in argv])
        raw = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        done = Completed(tuple(argv), raw.returncode, raw.stdout, raw.stderr)
        if check and done.rc != 0:
            raise CommandFailed(done)
        return done

    def ping(self, nic: str = "virtio", count: int = 20) -> None:
        """``count`` packets of an echo each way by a NIC of NICS, once the guest answers there.

        They are spread, so that a thread that went to sleep has to be woken again and again.
        Raises CommandFailed when fewer than half of them came back, or no answer for REACHED_S.
        """
        address = NICS[nic][1].partition("/")[0]
        end = time.monotonic() + REACHED_S * self._patience
        while self.host(["ping", "-q", "-c", "1", "-W", "5", address], check=False).rc != 0:
            if time.monotonic() > end:
                break
        done = self.host(["ping", "-q", "-c", str(count), "-i", "0.05", "-W", "10", address])
        came = re.search(r" (\d+) received", done.stdout)
        if came is None or 2 * int(came[1]) < count:
            raise CommandFailed(done)

    def bind_interrupts(self, cpu: int) -> None:
        """Has every interrupt that can be moved come in on this CPU of the guest."""
        bind = f"for f in /proc/irq/*/smp_affinity_list; do echo {cpu} > $f; done 2> /dev/null"
        self.run(["sh", "-c", bind], check=False)

    def popen(self, argv: list[str]) -> "subprocess.Popen[str]":
        """Starts a command on this machine, inside the guest's network namespace."""
        return subprocess.Popen(
            self._network.inside([str(word) for word in argv]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def power_cut(self) -> None:
        """Resets the machine at once, as if its power failed; back when it is up again.

        The disk keeps what the guest had handed to it. Where the emulation loses a timer at the
        boot after it the power fails once more, which is said.
        """
        with step("power cut"), self._boots_again(cuts=BOOTS - 1):
            self._cut()

    def _cut(self) -> None:
        monitor.ask(self.folder, "system_reset")
        self._hang_up()

    def reboot(self) -> None:
        """Has the guest end its services, unmount its disk and boot; back when it is up again."""
        with step("reboot"), self._boots_again():
            before = self.read(BOOT_ID)
            # The agent may be ended before it has told that this was done.
            self.run(["systemd-run", "--on-active=1", "systemctl", "reboot"])
            end = time.monotonic() + BOOT_S[self.accel]
            while self._boot_id() in (None, before):
                if time.monotonic() > end:
                    raise self._lost("it did not reboot")
                time.sleep(0.5)

    @contextmanager
    def _boots_again(self, cuts: int = 0) -> Iterator[None]:
        """What resets the machine; it is up again at the end. cuts: as in _wait_for_boot().

        The firmware, which finds traces of itself in memory, resets once more before it boots.
        """
        monitor.on_reset(self.folder, boots=True)
        yield
        self._wait_for_boot(cuts)
        monitor.on_reset(self.folder, boots=False)

    def _boot_id(self) -> bytes | None:
        """That of the system that answers now, None while none does."""
        self._hang_up()
        self._agent = self._connect()
        try:
            return None if self._agent is None else self._agent.read(BOOT_ID)
        except AgentSilent:
            return None

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def instructions(self) -> list[int]:
        """Executed by each CPU of a guest whose spec is ``counted``, since it was started."""
        return counted.read(self.folder, self.spec.cpus)

    def console_text(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def raced(self) -> str:
        """What the emulation of its CPUs did to it, where that is known and its console is left."""
        if self.accel != "tcg" or not emulation_race(self.console_text()):
            return ""
        return "emulated CPUs raced (an int3 that was gone already)"

    def lost_to_emulation(self) -> str:
        """What the emulation of its CPUs did to its kernel, or to QEMU itself; empty if neither."""
        return self.raced() or self._failure_of_qemu()

    def keep(self) -> None:
        """Has its folder, with the console log, stay behind at the end."""
        self._keep = True

    def check_splats(self, hotplug: bool = False) -> None:
        """Raises Splat with the lines when console or kernel log hold a kernel's complaint.

        hotplug: CPUs went and came under flood. What that alone brings about is counted aloud.
        """
        console = self.console_text()
        self._hotplug = hotplug  # for the last look, too
        if hotplug:
            print(f"idle with packets left in CPU hotplug: {len(left_by_hotplug(console))} times")
        found = splats(console, hotplug) or splats(self.run(["dmesg"]).stdout, hotplug)
        if found:
            self.keep()
            raise Splat("\n".join(found))

    def check_leaks(self) -> None:
        """Raises Splat with the memory that nobody refers to; of kernels with kmemleak."""
        for _ in range(2):  # what is just being freed looks so, too
            time.sleep(LEAK_AGE_S)
            self.put(b"scan", LEAKS)
        if told := self.read(LEAKS).decode():
            self.keep()
            raise Splat(told)

    def _live_agent(self) -> Agent:
        if self._qemu is None or self._qemu.poll() is not None or self._agent is None:
            raise self._lost("QEMU has ended")
        return self._agent

    def qemu_text(self) -> str:
        """What QEMU itself said, on its standard output and error."""
        return self.log.read_text(errors="replace").strip() if self.log.exists() else ""

    def _lost(self, why: str) -> GuestLost:
        self.keep()
        words = self._last_words() + self._complaint()
        tail = "\n".join(self.console_text().splitlines()[-CONSOLE_TAIL:])
        return GuestLost(f"{why}{words}; console {self.console}:\n{tail}\n{self._doing()}")

    def _doing(self) -> str:
        """What the guest does while its machine runs, a line each; it has ended afterwards."""
        if self._qemu is None or self._qemu.poll() is not None:
            return ""
        try:
            had = monitor.host_seconds(self.folder)
            self._timers = apic.timers(self.folder, self.spec.cpus)
            hung.ask(self.folder)
            with suppress(subprocess.TimeoutExpired):
                self._qemu.wait(TELLING_S)
            if self._qemu.poll() is None:
                now = mute(had, monitor.host_seconds(self.folder))
                return "\n".join([now, *map(str, self._timers)])
        except (OSError, MonitorRefused) as refused:
            return f"it could not be asked what it does: {refused}"
        told = [*map(str, self._timers), *hung.doing(self.console_text())]
        return "it was doing:\n" + "\n".join(told)

    def _last_words(self) -> str:
        """How QEMU ended, if it did, and the last of what it said."""
        words = ""
        if self._qemu is not None:
            # One that dies closes its channels before it is gone.
            with suppress(subprocess.TimeoutExpired):
                words = f"; QEMU ended with {self._qemu.wait(DYING_S)}"
        said = "\n".join(self.qemu_text().splitlines()[-CONSOLE_TAIL:])
        return f"{words}; QEMU said: {said}" if said else words

    def _complaint(self) -> str:
        """The first that the kernel complained of, if it did: what led to all that follows it."""
        first = next(iter(splats(self.console_text())), "")
        return f"; its kernel said: {first.strip()}" if first else ""

    def _boot(self) -> None:
        """Starts the machine; anew where the emulation, not the kernel, failed."""
        argv = self._network.inside(self._command())
        (self.folder / "command").write_text(" ".join(argv) + "\n")
        failed = ""
        for attempt in range(1, BOOTS + 1):
            self._start(argv)
            try:
                return self._wait_for_boot()
            except GuestLost:
                why = self._of_emulation()
                if not why and not failed and self._agent is None:
                    # Once: one that does so again may have another reason.
                    why = failed = self._failure_of_qemu() or self._stood_still()
                if not why or attempt == BOOTS:
                    raise
            self._keep = False
            self._say_anew(why)
            self._end()
            self._put_aside(attempt)

    def _say_anew(self, why: str) -> None:
        say(f"{why}; booting once more")
        ANEW.append(f"{self.kernel.name}, {self.spec.cpus} CPUs: {why}")

    def _put_aside(self, attempt: int) -> None:
        self._timers = []
        for name in (SOCKET, AGENT):
            (self.folder / name).unlink(missing_ok=True)
        for log in (self.console, self.log):
            if log.exists():
                log.rename(log.with_suffix(f".{attempt}"))

    def _failure_of_qemu(self) -> str:
        """How it, not its guest, failed; empty otherwise."""
        if self.accel != "tcg" or self._qemu is None:
            return ""
        return qemu.ended_itself(self.qemu_text(), self._qemu.poll())

    def _stood_still(self) -> str:
        """Where a guest stood that never answered; empty where its CPUs were at work, or not asked.

        Seen of a stock 7.2 before init, whose CPUs waited for each other with interrupts off, and
        of our 6.12, before init and twice after it with every CPU idle, for a reason that is not
        known; the second time a timer that RCU waited for did not come. So that no fault of ours
        hides behind it, one such guest is all that a run, or a worker of it, puts up with.
        """
        if self.accel != "tcg":
            return ""
        if any(STOOD_STILL in why for why in ANEW):
            return ""
        console = self.console_text()
        if where := hung.before_init(console):
            return f"{STOOD_STILL} before init ({where})"
        where = "" if faulted(hung.until_asked(console)) else hung.all_idle(console)
        told = "; ".join([where, *map(str, self._timers)])
        return f"{STOOD_STILL} with every CPU idle ({told})" if where else ""

    def _of_emulation(self) -> str:
        """What the emulation of several CPUs did to a guest that is lost, where that is known."""
        if self.accel != "tcg":
            return ""
        if raced := self.raced():
            return f"at boot {raced}"
        console = self.console_text()
        left = next((one for one in self._timers if one.left), None)
        if left and hung.halted(console, left.cpu) and not faulted(hung.until_asked(console)):
            return f"{LOST_TIMER} at boot ({left})"
        # The same in the code that would have reported it: the machine resets, and QEMU ends well.
        if self._qemu is not None and self._qemu.poll() == 0 and not splats(console):
            return "the guest was reset at boot without a word"
        return ""

    def _start(self, argv: list[str]) -> None:
        with self.log.open("wb") as log:
            self._qemu = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=self._program.environment(),
            )  # fmt: skip

    def _wait_for_boot(self, cuts: int = 0) -> None:
        """cuts: how often its power may fail meanwhile, where the emulation loses a timer."""
        patience = self._boot_s()
        end = time.monotonic() + patience
        watch = apic.Watch(self.folder, self.spec.cpus)
        while self._agent is None:
            if self._qemu is None or self._qemu.poll() is not None:
                raise self._lost("QEMU ended at boot")
            if timer := watch.lost():
                if not cuts or splats(self.console_text()):
                    raise self._lost(f"{timer}, and nothing ends it")
                cuts -= 1
                self._say_anew(f"{LOST_TIMER} after a power cut ({timer})")
                self._cut()
                end = time.monotonic() + patience
                watch = apic.Watch(self.folder, self.spec.cpus)
            if time.monotonic() > end:
                raise self._lost(f"no answer within {patience:.0f} s of boot")
            self._agent = self._connect()
        self.run(["systemctl", "is-system-running", "--wait"], BOOT_S[self.accel], check=False)
        if self.spec.share:
            # Mounted at boot, unless the guest was too slow for systemd's patience with the disk.
            self.run(["systemctl", "start", "mnt-share.mount"])

    def _boot_s(self) -> float:
        """Seconds that a boot may take."""
        own = self.kernel.initrd is None and "debug" not in self.kernel.flavour
        return min(BOOT_S[self.accel], FAST_BOOT_S) if own else BOOT_S[self.accel]

    def _connect(self) -> Agent | None:
        try:
            # The detectors of a debug kernel say why it hangs, if it does, before it is given up.
            agent = Agent(self.folder / AGENT, self._patience)
        except AgentSilent:
            time.sleep(0.1)
            return None
        try:
            agent.sync(timeout=2)
        except AgentSilent:
            agent.close()
            return None
        return agent

    def _end(self) -> None:
        """Ends QEMU, if it runs."""
        self._hang_up()
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()

    def _stop(self) -> None:
        self._end()
        self._network.delete()
        if self._keep:
            say(f"the guest's console and QEMU's words are kept in {self.folder}")
            for image in self.folder.glob("share*"):
                shutil.rmtree(image) if image.is_dir() else image.unlink()
        else:
            shutil.rmtree(self.folder)

    def _command(self) -> list[str]:
        machine = Machine(self.kernel, self.spec, self._program, self.accel, self.folder)
        return machine.command(self._network.taps)
