# SPDX-License-Identifier: GPL-2.0-or-later
"""Which losses of a guest at boot are the emulation's, by a stand-in for QEMU that only dies."""

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from lab import apic, hung, monitor, qemu, vm
from lab.apic import Timer
from lab.kernel import KernelImage
from lab.machine import AGENT, GuestSpec
from lab.qemu import Qemu
from lab.qga import Agent, AgentSilent, Completed
from lab.vm import Guest, GuestLost

RACE = ("qemu-system-x86_64: ../accel/tcg/cputlb.c:1383: iotlb_to_section:"
        " Assertion `section_index < d->map.sections_nb' failed.")  # fmt: skip
OTHER = "qemu-system-x86_64: ../hw/net/e1000e.c:12: e1000e_rx: Assertion `size' failed."


class Answering:
    """A guest's agent; one that is to die has QEMU do so first, with its words."""

    def __init__(self, died: Path | None) -> None:
        self._died = died

    def run(self, argv: list[str], _timeout: float) -> Completed:
        if self._died is not None:
            self._died.touch()
            raise AgentSilent("the guest closed the channel")
        return Completed(tuple(argv), 0, "", "")

    def close(self) -> None:
        pass


class Dying(Guest):
    """Its QEMU says ``words`` and dies of ``signal`` in the first ``deaths`` boots.

    With ``late`` only once its agent has answered.
    """

    def __init__(
        self, words: str, deaths: int = 1, late: bool = False, signal: str = "ABRT"
    ) -> None:
        super().__init__(KernelImage(Path("bzImage"), "6.12", "6.12", "fast", True), GuestSpec())
        self._words, self._deaths, self._late = words, deaths, late
        self._signal = signal
        self._boots = self.folder / "boots"

    @property
    def boots(self) -> int:
        return len(self._boots.read_text().split())

    def _command(self) -> list[str]:
        up, died = self.folder / "up", self.folder / "died"
        die = f"echo {shlex.quote(self._words)} >&2; kill -{self._signal} $$"
        wait = f"touch {up}; until test -e {died}; do sleep 0.05; done; {die}"
        if self._late:
            return ["sh", "-c", f"echo x >> {self._boots}; {wait}"]
        count = f"echo x >> {self._boots}; test $(wc -l < {self._boots}) -gt {self._deaths}"
        return ["sh", "-c", f"{count} || {{ {die}; }}; {wait}"]

    def _connect(self) -> Agent | None:
        if not (self.folder / "up").exists():
            return None
        return cast(Agent, Answering(self.folder / "died" if self._late else None))


class NoNetwork:
    """No root is needed where there is none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self, _nics: object) -> None:
        pass

    def delete(self) -> None:
        pass

    def inside(self, argv: list[str]) -> list[str]:
        return argv


@pytest.fixture(autouse=True)
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vm, "BUILD", tmp_path)
    monkeypatch.setattr(vm, "Network", NoNetwork)
    monkeypatch.setattr(qemu, "having", lambda _devices, emulated: Qemu(("sh",)))
    monkeypatch.setenv("RXLANE_ACCEL", "tcg")
    yield


def lost(guest: Guest) -> str:
    with pytest.raises(GuestLost) as found, guest:
        pass
    return str(found.value)


def test_an_assertion_of_the_race_at_boot_is_done_anew(capfd: pytest.CaptureFixture[str]) -> None:
    dying = Dying(RACE)
    with dying:
        assert dying.boots == 2
        assert (dying.folder / "qemu.1").read_text().strip() == RACE
    said = capfd.readouterr().err
    assert f"{RACE}; booting once more" in said


def test_a_folder_stays_only_where_it_is_of_use() -> None:
    # One that was started once more is as good as any.
    with Dying(RACE) as used:
        pass
    with Dying(RACE) as asked_for:
        asked_for.keep()
    gone = Dying(OTHER)
    lost(gone)
    folders = [guest.folder.exists() for guest in (used, asked_for, gone)]
    assert folders == [False, True, True]


def test_only_once() -> None:
    dying = Dying(RACE, deaths=2)
    assert RACE in lost(dying)
    assert dying.boots == 2


def test_memory_that_is_not_there_at_boot_is_done_anew_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    dying = Dying("", signal="SEGV")
    with dying:
        assert dying.boots == 2
    assert "QEMU read memory that is not its own; booting once more" in capfd.readouterr().err
    again = Dying("", deaths=2, signal="SEGV")
    assert "QEMU ended with -11" in lost(again)
    assert again.boots == 2


def test_another_death_is_a_loss_with_its_words() -> None:
    dying = Dying(OTHER)
    said = lost(dying)
    assert OTHER in said and "QEMU ended with -6" in said
    assert dying.boots == 1


def test_where_cpus_are_real_it_is_a_loss() -> None:
    dying = Dying(RACE)
    dying.accel = "kvm"
    assert RACE in lost(dying)
    assert dying.boots == 1


def test_once_the_agent_answered_it_is_a_loss() -> None:
    dying = Dying(RACE, late=True)
    said = lost(dying)
    assert RACE in said and "QEMU ended with -6" in said
    assert dying.boots == 1


def test_a_guest_that_is_up_is_lost_to_the_emulation_by_qemus_own_end() -> None:
    for words, signal, why in (
        (RACE, "ABRT", RACE),
        ("", "SEGV", "QEMU read memory that is not its own"),
        (OTHER, "ABRT", ""),
    ):
        gone = Dying(words, signal=signal, late=True)
        assert gone.lost_to_emulation() == ""
        lost(gone)
        assert gone.lost_to_emulation() == why
        gone.accel = "kvm"
        assert gone.lost_to_emulation() == ""


class Still(Dying):
    """It lives and says nothing in the first ``deaths`` boots, but its kernel takes an NMI.

    The first process is then called ``init``, and CPU 0 is in the function ``at``.
    """

    left = False  # of its CPU's timer

    def __init__(self, init: str, deaths: int = 1, at: str = "stand_still", said: str = "") -> None:
        super().__init__("", deaths)
        self._init, self._at, self._said = init, at, said

    def _command(self) -> list[str]:
        count = f"echo x >> {self._boots}; test $(wc -l < {self._boots}) -gt {self._deaths}"
        return ["sh", "-c", f"{count} && touch {self.folder / 'up'}; sleep 60"]

    def timers(self, _folder: Path, cpus: int) -> list[Timer]:
        return [Timer(0, self.left and len(vm.ANEW) < self._deaths, f" of {cpus}")]

    def take_nmi(self, _folder: Path) -> None:
        row = f"task:{self._init} state:D stack:0 pid:1 tgid:1 ppid:0 flags:0x4000"
        at = f"CPU: 0 UID: 0 PID: 1 Comm: swapper/0 Not tainted 6.12\nRIP: 0010:{self._at}+0x1/0x2"
        asked = f"{self._said}\nKernel panic - not syncing: NMI: Not continuing"
        self.console.write_text(f"{asked}\n{at}\n{row}\n")
        assert self._qemu is not None
        self._qemu.terminate()


def still(guest: Still, monkeypatch: pytest.MonkeyPatch) -> Still:
    monkeypatch.setattr(hung, "ask", guest.take_nmi)
    spent = iter([[1.0, 2.0], [1.0, 14.5]] * vm.BOOTS)
    monkeypatch.setattr(monitor, "host_seconds", lambda _folder: next(spent))
    monkeypatch.setattr(apic, "timers", guest.timers)
    monkeypatch.setattr(vm, "FAST_BOOT_S", 0.5)
    monkeypatch.setattr(vm, "ANEW", [])
    return guest


def test_a_guest_that_is_up_is_lost_to_the_emulation_by_an_int3() -> None:
    gone = Dying("")
    assert gone.raced() == ""
    gone.console.write_text("[ 1.2] BUG: another\n[ 1.3] Oops: int3: 0000 [#1] SMP\n")
    assert gone.raced() == ""
    gone.console.write_text("[ 1.3] Oops: int3: 0000 [#1] SMP\n[ 1.4] Kernel panic - not\n")
    assert gone.raced() == "emulated CPUs raced (an int3 that was gone already)"
    gone.accel = "kvm"
    assert gone.raced() == ""


def test_a_kernel_that_stood_still_before_init_is_booted_once_more_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with still(Still("swapper/0"), monkeypatch) as booted:
        assert cast(Still, booted).boots == 2
    why = "the kernel stood still before init (CPU 0, swapper/0: stand_still+0x1/0x2)"
    assert vm.ANEW == [f"6.12 (fast, patched), 1 CPUs: {why}"]
    twice = still(Still("swapper/0", deaths=2), monkeypatch)
    assert "no answer" in lost(twice)
    assert twice.boots == 2


def test_a_guest_that_stood_still_after_init_is_lost_with_what_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = still(Still("systemd"), monkeypatch)
    said = lost(after)
    assert "it was doing:\nCPU 0's timer of 1\nCPU 0, swapper/0: stand_still+0x1/0x2\n" in said
    assert after.boots == 1


def test_of_a_guest_that_takes_no_nmi_is_told_whether_its_cpus_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = still(Still("systemd"), monkeypatch)
    monkeypatch.setattr(hung, "ask", lambda _folder: None)
    monkeypatch.setattr(vm, "TELLING_S", 0.1)
    assert "what it does, and ran meanwhile: CPU 0 0.0 s, CPU 1 12.5 s" in lost(after)


def test_one_idle_guest_a_run_is_booted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "INFO: task systemd:1 blocked for more than 138 seconds."
    idle = still(Still("systemd", at="pv_native_safe_halt", said=waits), monkeypatch)
    with idle:
        assert idle.boots == 2
    why = "the kernel stood still with every CPU idle (CPU 0, swapper/0: pv_native_safe_halt+0x1/"
    assert why in vm.ANEW[0] and vm.ANEW[0].endswith("; CPU 0's timer of 1)")
    told = vm.ANEW
    another = still(Still("systemd", at="pv_native_safe_halt"), monkeypatch)
    monkeypatch.setattr(vm, "ANEW", told)
    lost(another)
    assert (another.boots, len(told)) == (1, 1)


def test_guests_whose_timer_the_emulation_lost_are_booted_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deaths = vm.BOOTS - 1
    left = still(Still("systemd", deaths, at="pv_native_safe_halt"), monkeypatch)
    left.left = True
    monkeypatch.setattr(apic, "LOOK_S", 0.0)
    monkeypatch.setattr(vm, "FAST_BOOT_S", 60.0)
    with left:
        assert left.boots == vm.BOOTS
    why = "the emulation lost a timer's interrupt at boot (CPU 0's timer of 1)"
    assert vm.ANEW == [f"6.12 (fast, patched), 1 CPUs: {why}"] * deaths


def test_a_timer_left_by_a_cpu_that_is_at_work_is_the_kernel_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_work = still(Still("systemd"), monkeypatch)
    at_work.left = True
    lost(at_work)
    assert at_work.boots == 1


class Cut(Dying):
    """It boots, but not after the first ``lost`` of the resets: the timer of its CPU is left."""

    def __init__(self, lost: int, said: str = "") -> None:
        super().__init__("", deaths=0)
        self._lost_after, self._said = lost, said
        self.resets = 0

    def ask(self, _folder: Path, command: str) -> None:
        self.resets += command == "system_reset"
        self.console.write_text(self._said)

    @property
    def stands(self) -> bool:
        return 0 < self.resets <= self._lost_after

    def _connect(self) -> Agent | None:
        return None if self.stands else super()._connect()

    def timers(self, _folder: Path, cpus: int) -> list[Timer]:
        return [Timer(0, self.stands, f" of {cpus}")]


def cut(guest: Cut, monkeypatch: pytest.MonkeyPatch) -> Cut:
    monkeypatch.setattr(monitor, "ask", guest.ask)
    monkeypatch.setattr(monitor, "on_reset", lambda _folder, boots: None)
    monkeypatch.setattr(monitor, "host_seconds", lambda _folder: [1.0])
    monkeypatch.setattr(hung, "ask", lambda _folder: None)
    monkeypatch.setattr(apic, "timers", guest.timers)
    monkeypatch.setattr(apic, "LOOK_S", 0.0)
    monkeypatch.setattr(vm, "TELLING_S", 0.1)
    monkeypatch.setattr(vm, "ANEW", [])
    with guest:
        guest.power_cut()
    return guest


def test_the_power_fails_again_where_the_emulation_loses_a_timer_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cut(Cut(lost=0), monkeypatch).resets == 1 and vm.ANEW == []
    assert cut(Cut(lost=2), monkeypatch).resets == 3
    why = "the emulation lost a timer's interrupt after a power cut (CPU 0's timer of 1)"
    assert vm.ANEW == [f"6.12 (fast, patched), 1 CPUs: {why}"] * 2
    for never in (Cut(lost=vm.BOOTS), Cut(lost=1, said="[ 1.2] WARNING: CPU: 0 PID: 1 at x.c:1\n")):
        with pytest.raises(GuestLost, match="and nothing ends it"):
            cut(never, monkeypatch)
    assert (never.resets, vm.ANEW) == (1, [])


# As 6.12 wrote it, shortened.
WAITS_FOR_TIMER = """\
rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted 6.12.117 #1
RIP: 0010:pv_native_safe_halt+0x13/0x20
Call Trace:
rcu: rcu_preempt kthread timer wakeup didn't happen for 30001 jiffies! g-811 f0x0 ->state=0x402
rcu: \tPossible timer handling issue on cpu=1 timer-softirq=1
rcu: rcu_preempt kthread starved for 30002 jiffies! g-811 f0x0 RCU_GP_WAIT_FQS(5) ->cpu=1
INFO: task kworker/0:1H:47 blocked for more than 120 seconds."""


def test_an_idle_guest_whose_rcu_waits_for_a_timer_is_booted_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = still(Still("systemd", at="pv_native_safe_halt", said=WAITS_FOR_TIMER), monkeypatch)
    with idle:
        assert idle.boots == 2


@pytest.mark.parametrize(
    "said",
    [
        "WARNING: CPU: 0 PID: 1 at net/core/dev.c:7 napi_enable",
        WAITS_FOR_TIMER.replace("timer wakeup didn't happen", "starved"),
    ],
)
def test_an_idle_guest_whose_kernel_complained_is_lost(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = still(Still("systemd", at="pv_native_safe_halt", said=said), monkeypatch)
    assert "no answer" in lost(idle)
    assert idle.boots == 1


class Connecting(Guest):
    """Its QEMU makes the agent's socket and never listens at it, but lives."""

    def __init__(self) -> None:
        super().__init__(KernelImage(Path("bzImage"), "6.12", "6.12", "fast", True), GuestSpec())
        self.socket = socket.socket(socket.AF_UNIX)
        self.asked = 0

    def _command(self) -> list[str]:
        return ["sleep", "60"]

    def _connect(self) -> Agent | None:
        self.asked += 1
        if self.asked == 2:
            self.socket.bind(str(self.folder / AGENT))
        return super()._connect()


def test_a_socket_that_is_not_listened_at_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(vm.BOOT_S, "tcg", 0.5)
    connecting = Connecting()
    with connecting.socket:
        assert "no answer within" in lost(connecting)
    assert connecting.asked > 3
