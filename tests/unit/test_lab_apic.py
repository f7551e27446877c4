# SPDX-License-Identifier: GPL-2.0-or-later
"""How the timer of an emulated CPU stands, and which one nothing will end any more."""

from pathlib import Path

import pytest

from lab import apic, monitor
from lab.apic import Watch
from lab.monitor import MonitorRefused

# As QEMU 7.2 writes it, shortened.
APIC = """\
dumping local APIC state for CPU 1

LVTERR\t 0x000000fe active-hi edge                              Fixed  (vec 254)
LVTT\t 0x000000ec active-hi edge                 one-shot     Fixed  (vec 236)
Timer\t DCR=0x3 (divide by 16) initial_count = 62500 current_count = 0
ISR\t (none)
IRR\t 236\x20
"""

# The same CPU of a guest that never came up: QEMU 10.0.2, stock 6.12.118.
LEFT = """\
LVTT\t 0x000200ec active-hi edge                 periodic     Fixed  (vec 236)
Timer\t DCR=0x3 (divide by 16) initial_count = 249999 current_count = 249554
ISR\t 236\x20
IRR\t 33 236\x20
"""
ELSEWHERE = LEFT.replace("IRR\t 33 236", "IRR\t 33")


def test_a_timer_is_told_by_what_is_left_and_what_is_requested() -> None:
    left = "0 of 62500 left, requested 236, in service (none)"
    assert str(apic.timer(1, APIC)) == f"CPU 1's timer: {left}"
    masked = APIC.replace("edge                 one-shot", "edge  masked         one-shot")
    assert str(apic.timer(1, masked)) == f"CPU 1's timer (masked): {left}"
    assert str(apic.timer(2, "KVM has none in user space")) == "CPU 2's timer is not shown"


def test_left_is_what_is_in_service_and_requested_once_more() -> None:
    assert apic.timer(1, LEFT).left
    assert not any(apic.timer(1, said).left for said in (APIC, ELSEWHERE, "KVM"))


def watched(said: list[str | Exception], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each look at CPU 1, of which QEMU shows one of these, finds it lost."""
    monkeypatch.setattr(apic, "LOOK_S", 0.0)
    shown = iter(said)

    def show(_folder: Path, _command: str, cpu: int) -> str:
        now = next(shown) if cpu == 1 else APIC
        if isinstance(now, Exception):
            raise now
        return now

    monkeypatch.setattr(monitor, "ask_human", show)
    watch = Watch(Path(), 2)
    found = [watch.lost() for _ in said]
    assert all(timer is None or timer.cpu == 1 for timer in found)
    return [timer is not None for timer in found]


def test_lost_is_what_was_left_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert apic.LOOKS == 3
    assert watched([LEFT] * 3, monkeypatch) == [False, False, True]
    # An emulated CPU may have been stopped just there, and once more later on.
    assert not any(watched([LEFT, LEFT, APIC, LEFT, LEFT], monkeypatch))


def test_a_look_that_qemu_refuses_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str | Exception] = [
        LEFT,
        MonitorRefused("ended"),
        LEFT,
        ConnectionRefusedError(),
        LEFT,
    ]
    assert watched(said, monkeypatch) == [False] * 4 + [True]


def test_it_asks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_folder: Path, _command: str, _cpu: int) -> str:
        raise AssertionError("asked at once")

    monkeypatch.setattr(monitor, "ask_human", never)
    assert Watch(Path(), 1).lost() is None
